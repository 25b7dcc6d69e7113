"""Files of a run folder other than its metrics: names, config, newest checkpoint, backups and temporary files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import CheckpointError, ConfigError, RunFolderError
from llmrl.core.folder_files import create_folder, read_bytes
from llmrl.core.records import State
from llmrl.run import ownership, queued, status
from llmrl.run.checkpoints import CheckpointStore
from llmrl.run.files import write_atomic
from llmrl.run.folder import make_write_error
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.tensorboard_file import EVENT_FILE_PATTERN

log = logging.getLogger(__name__)

CONFIG_NAME = "config.yaml"
TRUSTED_KEY = "trusted_modules"
RESULTS_NAME = "results.json"
"""File with the measurements of the final episodes, with standard errors."""
RESULT_EPISODES = "result_episodes"
"""Key in the summary: objectives of the final episodes of each society. The run's result is the mean over societies of
the mean over their episodes."""
PROBES_NAME = "probes.json"
"""File with the observations for which action probabilities are logged as metrics."""
CALL_LOG_NAME = "llm_calls.jsonl"
"""File with the requests to language models; `llmrl.llms.call_log` writes it."""
ADAPTER_FOLDER = "adapter"
"""Folder with the trained adapter of a language model."""
PARTIAL_BACKUP_FOLDER = "backup.partial"
"""Folder of a backup that is not complete."""
RUN_KEY = "run"
"""Key in a saved state for what `Run` saves; all other keys are the loop's."""


def save_config(path: Path, config: dict[str, Any]) -> None:
    """Write a resolved config as YAML, atomically. `trusted_modules` is left out: trust cannot come from a file."""
    from omegaconf import OmegaConf

    saved_config = {key: value for key, value in config.items() if key != TRUSTED_KEY}
    write_atomic(path, OmegaConf.to_yaml(OmegaConf.create(saved_config)))


def read_config(folder: Path, trusted_modules: Sequence[str]) -> dict[str, Any]:
    """Return the config of a run folder as plain data; interpolations in it are not resolved.

    Args:
        folder: run folder.
        trusted_modules: modules that the caller trusts; the value in the file is ignored.

    Raises:
        RunFolderError: there is no config, or it cannot be read.
    """
    import yaml

    path = folder / CONFIG_NAME
    try:
        config = yaml.safe_load(read_bytes(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        error_text = " ".join(str(error).split())
        raise RunFolderError(f"{path} cannot be read ({error_text}); start this run with its command") from error
    if not isinstance(config, dict) or not config:
        raise RunFolderError(f"{path} holds no configuration; start this run with its command")
    return {**{str(key): value for key, value in config.items()}, TRUSTED_KEY: list(trusted_modules)}


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files of a killed attempt, except those with which processes check or replace the owner file."""
    for path in folder.glob(".*.tmp"):
        if not path.name.startswith((".clock", ".owner")):
            path.unlink(missing_ok=True)


def load_saved_state(folder: Path) -> tuple[int, State]:
    """Return the newest intact checkpoint of a run folder: its iteration, and the loop's state plus `RUN_KEY`.

    Raises:
        CheckpointError: `folder` is not a run folder, or has no checkpoint that can be read.
    """
    if not (folder / CONFIG_NAME).is_file():
        raise CheckpointError(f"{folder} is not a run folder (no config.yaml); give one like outputs/<name>/<run>/s0")
    newest_checkpoint = CheckpointStore(folder / "checkpoints").load_newest()
    if newest_checkpoint is None:
        raise CheckpointError(f"{folder} has no checkpoint yet; wait until that run has saved its first one")
    return newest_checkpoint


def remove_if_rejected(created_folders: Sequence[Path], error: BaseException | None) -> None:
    """Remove a run folder if `error` rejects the config of its run, or of a run that it needs, before any computation.

    Nothing is removed if there are metrics or requests to a language model.

    Args:
        created_folders: the run folder and then those of its parents that this attempt has created. Parents are
            removed if they are empty.
        error: exception that ended the run; None without one.
    """
    rejects_config = isinstance(error, ConfigError) or isinstance(error and error.__cause__, ConfigError)
    if not created_folders or not rejects_config:
        return
    folder, *parents = created_folders
    if any(path.exists() and path.stat().st_size for path in (folder / METRICS_NAME, folder / CALL_LOG_NAME)):
        return
    try:
        shutil.rmtree(folder)
        for parent in parents:
            parent.rmdir()
    except OSError as removal_error:
        # Usually because another process has written to a parent folder.
        log.debug("not all of %s is removed: %s", folder, removal_error)


def move_to_backup(folder: Path) -> None:
    """Move the content of a run folder into `backup_<n>/` inside it, except the files of its owner and its launcher.

    The content is moved to a partial backup, which is then renamed. After a kill, the next attempt completes the move.

    Raises:
        RunFolderError: the folder for the content is a link, or cannot be created.
    """
    partial_backup = folder / PARTIAL_BACKUP_FOLDER
    paths = [
        path
        for path in folder.iterdir()
        if path.name not in (ownership.FILE_NAME, queued.FILE_NAME, PARTIAL_BACKUP_FOLDER)
        and not path.name.startswith(("backup_", "."))
    ]
    if all(path.name == CONFIG_NAME for path in paths) and not partial_backup.exists():
        return  # there is nothing, or only the config that a launcher wrote
    try:
        create_folder(partial_backup, folder)
    except OSError as error:
        raise make_write_error(partial_backup, error) from error
    # The status is moved last: as long as it is there, a finished run counts as finished.
    for path in sorted(paths, key=lambda path: path.name == status.FILE_NAME):
        # TensorBoard searches all folders; under another name it does not show the old curves as a further run.
        name = path.name.replace("tfevents", "tensorboard") if path.match(EVENT_FILE_PATTERN) else path.name
        path.rename(partial_backup / name)
    backup_number = 1 + max((int(p.name[7:]) for p in folder.glob("backup_*") if p.name[7:].isdecimal()), default=0)
    partial_backup.rename(folder / f"backup_{backup_number}")
    log.info("moved the earlier content of %s to backup_%d", folder, backup_number)
