"""The folder of a run: `output_root/<name>/<label>-<hash>/s<seed>/`.

The hash identifies the experiment; the label (`llmrl.run.folder_names`) is for people and for TensorBoard's list of
runs. Configs that differ only in keys that cannot change results (`config_hash.EXCLUDED`) have the same folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from llmrl.core.atomic_files import DISK_FULL_ERRNOS, describe_write_error
from llmrl.core.errors import RunFolderError
from llmrl.core.privacy import make_folder
from llmrl.run.config_hash import is_excluded
from llmrl.run.files import path_inside
from llmrl.run.folder_names import is_safe, label, safe_path, seed_folder

TREATMENT = "treatment"
"""The config group of the treatments that a study compares."""


def split_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Return Hydra overrides as `{key: value}`, without keys of `config_hash.EXCLUDED`; of equal keys the last counts.

    Choices of parts come first, then their fields, each sorted by key, so a shortened name still has the parts.

    >>> split_overrides(["env.n_envs=8", "principal=ucb", "seed=3"])
    {'principal': 'ucb', 'env.n_envs': '8'}
    """
    split: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        removed = key.startswith("~")
        key = key.lstrip("+~")
        if not is_excluded(key):
            split[key] = "none" if removed else value.strip("'\"")
    return dict(sorted(split.items(), key=lambda item: ("." in item[0], item[0])))


def run_label(overrides: Iterable[str], name: str = "") -> str:
    """Return the readable part of a run folder's name.

    `env=<name>` is left out where it equals `name`, the folder above: TensorBoard cuts long names. A treatment comes
    first, without its key.

    >>> run_label(["principal=ucb", "env=escape_room", "seed=1"])
    'env_escape_room-principal_ucb'
    >>> run_label(["principal=ucb", "env=escape_room", "seed=1"], name="escape_room")
    'principal_ucb'
    """
    return label({key: value for key, value in split_overrides(overrides).items() if (key, value) != ("env", name)})


def find_folder(root: Path, name: str, digest: str, overrides: Iterable[str], seed: int) -> Path:
    """Return the folder of the run whose config has the hash `digest`, whether or not it exists.

    An existing folder with that hash is returned whatever its label: one experiment may be typed in several ways.

    Raises:
        RunFolderError: `name` is empty, leaves `root` or has no usable character, or `root` cannot be read.
    """
    relative = Path(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise RunFolderError(f"name={name!r} must be a folder name inside {root}, such as name=my_sweep")
    if not (cleaned := safe_path(name)).parts:
        raise RunFolderError(f"name={name!r} has no character that folder names may have; use e.g. name=my_sweep")
    parent = root.expanduser().absolute() / cleaned
    try:
        with os.scandir(parent) as entries:
            matches = [entry for entry in entries if entry.name.endswith(f"-{digest}") and is_safe(entry.name)]
        siblings = sorted(Path(entry.path) for entry in matches if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        siblings = []
    except OSError as error:
        raise unwritable(parent, error) from error
    return (siblings[0] if siblings else parent / f"{run_label(overrides, name)}-{digest}") / seed_folder(seed)


def run_folder(root: Path, name: str, digest: str, overrides: Iterable[str], seed: int, private: bool = True) -> Path:
    """Return the folder as `find_folder`; create it if it is missing, readable by its owner only if `private`.

    Raises:
        RunFolderError: as `find_folder`, or the folder is a symbolic link or cannot be created.
    """
    folder = find_folder(root, name, digest, overrides, seed)
    path_inside(folder.parents[1], *folder.parts[-2:])
    try:
        make_folder(folder, private)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def unwritable(folder: Path, error: OSError) -> RunFolderError:
    """Return the error for a folder of runs that cannot be created or written."""
    place = "" if error.errno in DISK_FULL_ERRNOS else " Choose a writable folder with output_root=<folder>."
    return RunFolderError(f"cannot write {folder}: {describe_write_error(folder, error)}.{place}")
