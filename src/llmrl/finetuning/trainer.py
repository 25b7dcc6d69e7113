"""Training methods: inputs, protocol, and training with a trainer of transformers under the control of a run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmrl.core.seeding import Seeds
from llmrl.finetuning.optimizer import Optimizer
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.rewards import RewardFunction, Rewards, Scale
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.loading import Dtype
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

    @property
    def place(self) -> tuple[Path, Seeds, str, Dtype]:
        """Folder, seeds, device and dtype: the last arguments of `Optimizer.arguments`."""
        return self.folder, self.seeds, self.chat.device, self.chat.settings.dtype


class Method(Protocol):
    """Training method, an option of `method=`."""

    name: str
    needs_replies: bool
    """Whether only questions with a known better vector can be used."""

    @property
    def lora(self) -> Lora: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """Return rows (item, amount) that describe the planned training."""
        ...

    def check(self, prompts: int) -> None:
        """Raise ConfigError if this number of usable prompts is too small."""
        ...

    def train(self, job: TrainingJob) -> Any:
        """Train to the last step, from `job.resume` if given, and return the trained `PeftModel`.

        Raises:
            Stopped: a signal stopped the training; everything is saved.
        """
        ...


def trainer_class(base: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of trl that sends no telemetry and writes no model cards."""

    class Trainer(base):  # type: ignore[misc]
        def _send_telemetry(self) -> None: ...

        def create_model_card(self, *_: Any, **__: Any) -> None: ...

    return Trainer


def run_trainer(
    trainer: Any, job: TrainingJob, step_metrics: Callable[[], Mapping[str, float]] | None = None, every: int = 1
) -> Any:
    """Train to the end with the run's callback (`CheckpointCallback`), and return the model."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from llmrl.finetuning.checkpoint_callback import CheckpointCallback

    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    with job.run.progress(trainer.args.max_steps, "steps", "finetune", _step(job)) as progress:
        trainer.add_callback(CheckpointCallback(job, progress, step_metrics, every))
        write = trainer._save_checkpoint

        def save_uninterrupted(*arguments: Any, **options: Any) -> None:
            with job.run.saving():
                write(*arguments, **options)

        trainer._save_checkpoint = save_uninterrupted
        trainer.train(resume_from_checkpoint=None if job.resume is None else str(job.resume))
    return trainer.model


def _step(job: TrainingJob) -> int:
    """Return the step of the checkpoint to resume from; 0 without one."""
    return 0 if job.resume is None else int(job.resume.name.rpartition("-")[2])


@contextmanager
def quiet() -> Iterator[None]:
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
