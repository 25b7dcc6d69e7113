"""Base of training methods: a trainer of trl under the control of a run."""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.finetuning.optimizer import Optimizer
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.rewards import RewardFunction, Rewards, Scale
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.lora import Lora
from llmrl.run.run import Run

if TYPE_CHECKING:
    import torch


@dataclass
class TrainingJob:
    """Inputs of one training.

    Attributes:
        run: run that receives metrics and checkpoints.
        chat: chat model to train, with the tokenizer, template, window and longest reply of its later use.
        module: loaded weights of the model.
        questions: prompts to train on.
        replies: target reply of each question; None where no better vector is known.
        judge, rewards, scale: functions that evaluate and reward replies, and the scale of returns.
        seeds: seed tree of the method.
        folder: folder of the checkpoints of weights.
        resume: newest valid checkpoint in `folder`; None: there is none.
        save: function that makes the checkpoint of a given step valid; raises RunFolderError.
    """

    run: Run
    chat: LocalChat
    module: torch.nn.Module
    questions: Sequence[ProposalPrompt]
    replies: Sequence[str | None]
    judge: RewardFunction
    rewards: Rewards
    scale: Scale
    seeds: Seeds
    folder: Path
    resume: Path | None
    save: Callable[[int], None]


@dataclass(frozen=True)
class TrainingMethod(ABC):
    """Base of training methods, the options of `method=`.

    Attributes:
        name: name of the method.
        needs_replies: whether only questions with a known better vector can be used.
        lora: adapter whose weights are trained.
        optimizer: settings of the optimizer.
    """

    name: ClassVar[str]
    needs_replies: ClassVar[bool]
    lora: Lora
    optimizer: Optimizer

    @property
    def resume_interval(self) -> int:
        """Number of steps between two points from which a training can resume exactly."""
        return 1

    @abstractmethod
    def plan(self) -> list[tuple[str, str]]:
        """Return rows (item, amount) that describe the planned training."""

    @abstractmethod
    def check(self, prompts: int) -> None:
        """Raise ConfigError if this number of usable prompts is too small."""

    @abstractmethod
    def trainer(self, job: TrainingJob, **options: Any) -> Any:
        """Return a trainer of trl, made with `options` that all methods share."""

    def arguments(self, texts: int, job: TrainingJob) -> dict[str, Any]:
        """Return keyword arguments of transformers' `TrainingArguments` for steps of `texts` texts.

        Raises:
            ConfigError: more than one GPU is visible.
        """
        import torch

        optimizer, device = self.optimizer, job.chat.device
        if device.startswith("cuda") and torch.cuda.device_count() > 1:
            raise ConfigError(
                f"{torch.cuda.device_count()} GPUs are visible, but a run trains on one; select it with "
                "CUDA_VISIBLE_DEVICES, as hardware=gpu and hardware=slurm_finetune do for each run of a sweep"
            )
        schedules = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
        return {
            "output_dir": str(job.folder),
            "max_steps": optimizer.steps,
            "per_device_train_batch_size": optimizer.batch,
            "gradient_accumulation_steps": texts // optimizer.batch,
            "learning_rate": optimizer.learning_rate,
            "lr_scheduler_type": schedules[optimizer.schedule],
            "warmup_steps": round(optimizer.warmup * optimizer.steps),
            "weight_decay": optimizer.weight_decay,
            "max_grad_norm": optimizer.max_grad_norm,
            "gradient_checkpointing": optimizer.recompute,
            "bf16": job.chat.settings.dtype == "bfloat16",
            "use_cpu": device == "cpu",
            "seed": job.seeds.integer("trainer"),
            "data_seed": job.seeds.integer("order"),
            # The run's callback saves and logs.
            "save_strategy": "no",
            "save_total_limit": 2,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
            "push_to_hub": False,
        }

    def step_metrics(self, job: TrainingJob) -> Mapping[str, float]:
        """Return further metrics of the previous step."""
        return {}

    def train(self, job: TrainingJob) -> Any:
        """Train to the last step, from `job.resume` if given, and return the trained `PeftModel`.

        Raises:
            ConfigError: more than one GPU is visible.
            Stopped: a signal stopped the training; everything is saved.
        """
        from transformers.trainer_callback import PrinterCallback, ProgressCallback

        from llmrl.finetuning.checkpoint_callback import CheckpointCallback

        with _quiet():
            trainer = self.trainer(
                job, model=job.module, processing_class=job.chat.tokenizer, peft_config=self.lora.config()
            )
            for callback in (PrinterCallback, ProgressCallback):
                trainer.remove_callback(callback)
            step = 0 if job.resume is None else int(job.resume.name.rpartition("-")[2])
            with job.run.progress(trainer.args.max_steps, "steps", "finetune", step) as progress:
                metrics = partial(self.step_metrics, job)
                trainer.add_callback(CheckpointCallback(job.run, progress, job.save, metrics, self.resume_interval))
                write = trainer._save_checkpoint

                def save_uninterrupted(*arguments: Any, **options: Any) -> None:
                    with job.run.saving():
                        write(*arguments, **options)

                trainer._save_checkpoint = save_uninterrupted
                trainer.train(resume_from_checkpoint=None if job.resume is None else str(job.resume))
        return trainer.model


def trainer_class(base: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of trl that sends no telemetry and writes no model cards."""

    class Trainer(base):  # type: ignore[misc]
        def _send_telemetry(self) -> None: ...

        def create_model_card(self, *_: Any, **__: Any) -> None: ...

    return Trainer


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages of libraries about intended settings (old names of settings, aligned special tokens)."""
    loggers = [logging.getLogger(name) for name in ("transformers", "trl", "accelerate", "peft")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
