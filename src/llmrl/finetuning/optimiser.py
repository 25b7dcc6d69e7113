"""The optimiser's settings, which the methods share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.llms.local.loading import Dtype


@dataclass(frozen=True)
class Optimiser:
    """AdamW, and how much is computed at once.

    Attributes:
        steps: of the optimiser.
        learning_rate: the highest.
        schedule: what becomes of it after the warm-up; `linear` and `cosine` end at 0.
        warmup: share of the steps in which it rises from 0.
        weight_decay: of AdamW.
        max_grad_norm: gradients are scaled down to this norm.
        batch: texts computed at once; those of a step are a multiple of it. Lower it when memory runs out.
        recompute: activations are computed again in the backward pass instead of being kept (gradient checkpointing):
            less memory, a fifth slower.
    """

    steps: PositiveInt = 100
    learning_rate: PositiveFloat = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: UnitInterval = 0.0
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    batch: PositiveInt = 4
    recompute: bool = False

    def accumulation(self, texts: int, what: str) -> int:
        """Passes of `batch` texts that make a step of `texts`.

        Raises:
            ConfigError: they do not divide.
        """
        if texts % self.batch:
            raise ConfigError(
                f"{what} are {texts} texts a step, which is no multiple of method.optimiser.batch={self.batch}"
            )
        return texts // self.batch

    @staticmethod
    def check(dtype: Dtype) -> None:
        """Raise ConfigError for weights that cannot be trained in."""
        if dtype == "float16":
            raise ConfigError("llm.dtype=float16 is too coarse to train in; use bfloat16 or float32")

    def arguments(self, texts: int, what: str, folder: Path, seeds: Seeds, device: str, dtype: Dtype) -> dict[str, Any]:
        """Keyword arguments of transformers' `TrainingArguments`.

        Args:
            texts: of a step, and what these are, for messages.
            what: see `texts`.
            folder: for checkpoints of weights.
            seeds: of the trainer's random numbers.
            device: torch device.
            dtype: of the weights.

        Raises:
            ConfigError: the type of the weights cannot be trained, or more than one GPU is visible.
        """
        import torch

        self.check(dtype)
        if device.startswith("cuda") and torch.cuda.device_count() > 1:
            raise ConfigError(
                f"{torch.cuda.device_count()} GPUs are visible and a run trains on one; show it a single one with "
                "CUDA_VISIBLE_DEVICES, as hardware=gpu and hardware=slurm_finetune do for each run of a sweep"
            )
        schedules = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
        return {
            "output_dir": str(folder),
            "max_steps": self.steps,
            "per_device_train_batch_size": self.batch,
            "gradient_accumulation_steps": self.accumulation(texts, what),
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": schedules[self.schedule],
            "warmup_steps": round(self.warmup * self.steps),
            "weight_decay": self.weight_decay,
            "max_grad_norm": self.max_grad_norm,
            "gradient_checkpointing": self.recompute,
            "bf16": dtype == "bfloat16",
            "use_cpu": device == "cpu",
            "seed": seeds.integer("trainer"),
            "data_seed": seeds.integer("order"),
            # The run says when to save, and logs.
            "save_strategy": "no",
            "save_total_limit": 2,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
            "push_to_hub": False,
        }
