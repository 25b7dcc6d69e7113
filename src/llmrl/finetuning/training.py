"""A trainer of transformers that keeps to the run it belongs to."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llmrl.finetuning.job import Job


def trainer_class(base: type[Any]) -> type[Any]:
    """`base`, a trainer of trl, without telling its makers that it was used, and without a model card at every save."""

    class Trainer(base):  # type: ignore[misc]
        def _send_telemetry(self) -> None: ...

        def create_model_card(self, *_: Any, **__: Any) -> None: ...

    return Trainer


def run_trainer(
    trainer: Any, job: Job, measured: Callable[[], Mapping[str, float]] | None = None, every: int = 1
) -> Any:
    """Train to the end with the run's callback (see `Keeper`); the model."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from llmrl.finetuning.keeper import Keeper

    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    with job.run.progress(trainer.args.max_steps, "steps", "finetune", _step(job)) as progress:
        trainer.add_callback(Keeper(job, progress, measured, every))
        write = trainer._save_checkpoint

        def undisturbed(*arguments: Any, **options: Any) -> None:
            with job.run.saving():
                write(*arguments, **options)

        trainer._save_checkpoint = undisturbed
        trainer.train(resume_from_checkpoint=None if job.resume is None else str(job.resume))
    return trainer.model


def _step(job: Job) -> int:
    return 0 if job.resume is None else int(job.resume.name.rpartition("-")[2])


@contextmanager
def quiet() -> Iterator[None]:
    """Without the notes of libraries on what is meant here (old names of settings, tokens that were aligned)."""
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
