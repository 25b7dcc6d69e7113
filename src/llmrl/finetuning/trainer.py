"""A trainer of transformers that keeps to the run it belongs to, and the adapter that it trains."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrl.core.atomic_files import sync_folder, why
from llmrl.core.errors import RunFolderError
from llmrl.finetuning.training_job import TrainingJob
from llmrl.llms.local.adapter import CONFIG, write_base


def trainer_class(base: type[Any]) -> type[Any]:
    """`base`, a trainer of trl, without telling its makers that it was used, and without a model card at every save."""

    class Trainer(base):  # type: ignore[misc]
        def _send_telemetry(self) -> None: ...

        def create_model_card(self, *_: Any, **__: Any) -> None: ...

    return Trainer


def run_trainer(
    trainer: Any, job: TrainingJob, measured: Callable[[], Mapping[str, float]] | None = None, every: int = 1
) -> Any:
    """Train to the end with the run's callback (see `CheckpointCallback`); the model."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from llmrl.finetuning.checkpoint_callback import CheckpointCallback

    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    with job.run.progress(trainer.args.max_steps, "steps", "finetune", _step(job)) as progress:
        trainer.add_callback(CheckpointCallback(job, progress, measured, every))
        write = trainer._save_checkpoint

        def undisturbed(*arguments: Any, **options: Any) -> None:
            with job.run.saving():
                write(*arguments, **options)

        trainer._save_checkpoint = undisturbed
        trainer.train(resume_from_checkpoint=None if job.resume is None else str(job.resume))
    return trainer.model


def _step(job: TrainingJob) -> int:
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


def save_adapter(model: Any, folder: Path, name: str, revision: str | None, files: str | None) -> None:
    """Write the adapter of a peft model to `folder` in one step, in place of an earlier one.

    Equal weights give equal files, so that `adapter_fingerprint` tells trainings apart and nothing else.

    Args:
        model: `PeftModel`.
        folder: to write.
        name, revision, files: what it was trained on, see `llmrl.llms.local.adapter.BASE`.

    Raises:
        RunFolderError: it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # a model card with nothing in it
        settings = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
        # peft keeps names in sets, whose order differs from process to process.
        ordered = {k: sorted(v) if isinstance(v, list) and _texts(v) else v for k, v in settings.items()}
        (temporary / CONFIG).write_text(json.dumps(ordered, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        write_base(temporary, name, revision, files)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {why(folder, error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
