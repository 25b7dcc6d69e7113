"""Training with a trainer of transformers under the control of a run, and saving of the adapter."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrl.core.atomic_files import describe_write_error, sync_folder
from llmrl.core.errors import RunFolderError
from llmrl.finetuning.training_job import TrainingJob
from llmrl.llms.local.adapter import CONFIG, write_base


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


def save_adapter(model: Any, folder: Path, name: str, revision: str | None, files: str | None) -> None:
    """Write the adapter of a peft model to `folder` in one step, and replace an earlier one.

    Equal weights give equal files, so `adapter_fingerprint` distinguishes trained weights and nothing else.

    Args:
        model: `PeftModel`.
        folder: folder to write.
        name: model that the adapter was trained on, see `llmrl.llms.local.adapter.BASE`.
        revision: revision of a model of the hub.
        files: fingerprint of the model's folder; None for a model of the hub.

    Raises:
        RunFolderError: it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # an empty model card
        settings = json.loads((temporary / CONFIG).read_text(encoding="utf-8"))
        # peft stores names in sets, whose order differs between processes.
        sorted_settings = {k: sorted(v) if isinstance(v, list) and _are_texts(v) else v for k, v in settings.items()}
        (temporary / CONFIG).write_text(json.dumps(sorted_settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        write_base(temporary, name, revision, files)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise RunFolderError(f"cannot write the adapter to {folder}: {describe_write_error(folder, error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
