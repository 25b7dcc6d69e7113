"""Optimizer settings that all training methods share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.llms.local.loading import Dtype


@dataclass(frozen=True)
class Optimizer:
    """Settings of AdamW and of the batch size.

    Attributes:
        steps: number of optimizer steps.
        learning_rate: peak learning rate.
        schedule: learning rate after the warm-up; `linear` and `cosine` end at 0.
        warmup: fraction of the steps in which the learning rate rises from 0.
        weight_decay: weight decay of AdamW.
        max_grad_norm: norm to which larger gradients are scaled.
        batch: number of texts per forward pass; the texts of a step are a multiple of it. Decrease it if memory runs
            out.
        recompute: recompute activations in the backward pass instead of storing them (gradient checkpointing); this
            needs less memory and about a fifth more time.
    """

    steps: PositiveInt = 100
    learning_rate: PositiveFloat = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: UnitInterval = 0.0
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    batch: PositiveInt = 4
    recompute: bool = False

    def accumulation(self, texts: int, subject: str) -> int:
        """Return the number of passes of `batch` texts in a step of `texts`.

        `subject` describes the texts in messages.

        Raises:
            ConfigError: `texts` is not a multiple of `batch`.
        """
        if texts % self.batch:
            raise ConfigError(
                f"{subject} is {texts} texts per step, which must be a multiple of method.optimizer.batch={self.batch}"
            )
        return texts // self.batch

    @staticmethod
    def check(dtype: Dtype) -> None:
        """Raise ConfigError if weights of this type cannot be trained."""
        if dtype == "float16":
            raise ConfigError("llm.dtype=float16 is not precise enough for training; use bfloat16 or float32")

    def arguments(
        self, texts: int, subject: str, folder: Path, seeds: Seeds, device: str, dtype: Dtype
    ) -> dict[str, Any]:
        """Return keyword arguments of transformers' `TrainingArguments`.

        Args:
            texts: number of texts per step.
            subject: description of the texts in messages.
            folder: folder of the checkpoints of weights.
            seeds: seed tree of the trainer's random numbers.
            device: torch device.
            dtype: type of the weights.

        Raises:
            ConfigError: weights of this type cannot be trained, or more than one GPU is visible.
        """
        import torch

        self.check(dtype)
        if device.startswith("cuda") and torch.cuda.device_count() > 1:
            raise ConfigError(
                f"{torch.cuda.device_count()} GPUs are visible, but a run trains on one; select it with "
                "CUDA_VISIBLE_DEVICES, as hardware=gpu and hardware=slurm_finetune do for each run of a sweep"
            )
        schedules = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
        return {
            "output_dir": str(folder),
            "max_steps": self.steps,
            "per_device_train_batch_size": self.batch,
            "gradient_accumulation_steps": self.accumulation(texts, subject),
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
            # The run's callback saves and logs.
            "save_strategy": "no",
            "save_total_limit": 2,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
            "push_to_hub": False,
        }
