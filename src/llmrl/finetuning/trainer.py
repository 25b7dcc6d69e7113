"""Training with a trainer of transformers under the control of a run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llmrl.finetuning.training_job import TrainingJob


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
