"""Where a run lives: `output_root/<name>/<label>-<hash>/s<seed>/`.

The hash says *which experiment* this is; the label (`llmrl.run.names`) is for people and for TensorBoard's list of
runs. Runs that differ only in what cannot change their numbers (see `EXCLUDED`) share a hash, and so a folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from llmrl.core.disk import FULL, why
from llmrl.core.errors import RunFolderError
from llmrl.core.privacy import make_folder
from llmrl.run.names import is_safe, label, safe_path, seed_folder

EXCLUDED: tuple[str, ...] = (
    "seed",  # has a folder level of its own
    "name",  # has a folder level of its own
    "output_root",  # where the folder is
    "trials_dir",  # where trials are kept for other runs
    "loggers",  # where else its metrics go
    "hardware",  # what the run is computed on: device, launcher, processes
    "checkpoint_seconds",  # how often a run saves
    "private",  # who may read its files
    "trusted_modules",  # which code may be loaded, not what it computes
    "resume",  # what to do with an existing folder
    "rerun",
    "dry_run",
    "hydra",  # the launcher's own settings
    "observers",  # who watches, and changes nothing
    "report",  # how its results are shown
    "prompts",  # where they are; what they say is in `prompts_digest`
    # What is kept of episodes to be looked at.
    "play.videos",
    "play.records",
    "play.fps",
    # What is kept of them, and of rollouts, to be computed with.
    "play.trajectories",
    "learn.trajectories_every",
    # What is asked of a policy beside its games.
    "learn.probes",
    "learn.probe_every",
    # How a language model is asked, not what it is or what it answers.
    "llm.cache",
    "llm.cache_dir",
    "llm.failures",
    "llm.retry",
    "llm.limits",
    "llm.budget",
    "llm.max_invalid",
    "llm.timeout",
)
"""Config keys that are left out of the hash and of the label, with all that is in them."""

RESOLVED = "resolved_runs"
"""Entry of a config: of each key that names another run, which one (`llmrl.experiment.run_references`). The hash has
that in place of the key itself, so a run is the same however the other one was named."""

TREATMENT = "treatment"
"""The config group of what is compared with others in a study."""

HASH_LENGTH = 8


def config_hash(config: Mapping[str, Any]) -> str:
    """8 hexadecimal digits of the SHA-256 of `config` as canonical JSON, without the `EXCLUDED` keys.

    The order of keys does not matter, and neither does the spelling of a whole number (`1` or `1.0`), because both
    build the same part.

    Raises:
        TypeError: a value is not plain data (mapping, list, string, number, boolean or None).
    """
    resolved = {key: entry["run"] for key, entry in (config.get(RESOLVED) or {}).items()}
    named = {name for key in resolved for name in (key, f"{key}_seed")}
    kept = _kept({key: value for key, value in config.items() if key != RESOLVED}, leave_out=named)
    kept |= {RESOLVED: resolved} if resolved else {}
    text = json.dumps(_canonical(kept, "config"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _kept(config: Mapping[str, Any], prefix: str = "", leave_out: Collection[str] = ()) -> dict[str, Any]:
    """`config` without the `EXCLUDED` keys, and without those to `leave_out`."""
    kept = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if path not in EXCLUDED and path not in leave_out:
            kept[str(key)] = _kept(value, f"{path}.", leave_out) if isinstance(value, Mapping) else value
    return kept


def _canonical(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{where} is a {type(value).__name__}; a config holds plain data only (resolve it to a container)")


def split_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Hydra overrides as `{key: value}`, `EXCLUDED` keys dropped, the last of equal keys kept.

    Choices of parts come first, then their fields, each sorted by key: a name cut short still tells the parts.

    >>> split_overrides(["env.n_envs=8", "principal=ucb", "seed=3"])
    {'principal': 'ucb', 'env.n_envs': '8'}
    """
    split: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        removed = key.startswith("~")
        key = key.lstrip("+~")
        if not _is_excluded(key):
            split[key] = "none" if removed else value.strip("'\"")
    return dict(sorted(split.items(), key=lambda item: ("." in item[0], item[0])))


def _is_excluded(key: str) -> bool:
    """Whether an override's key, such as `llm.budget.usd` or `hydra/launcher`, is one of `EXCLUDED` or inside one."""
    return re.split(r"[@/]", key, maxsplit=1)[0] in EXCLUDED or any(
        key == excluded or key.startswith(f"{excluded}.") for excluded in EXCLUDED
    )


def run_label(overrides: Iterable[str], name: str = "") -> str:
    """The readable part of a run folder's name.

    `env=<name>` is left out where the folder above, `name`, already says it: TensorBoard cuts long names. A treatment
    comes first, and by its name alone.

    >>> run_label(["principal=ucb", "env=escape_room", "seed=1"])
    'env_escape_room-principal_ucb'
    >>> run_label(["principal=ucb", "env=escape_room", "seed=1"], name="escape_room")
    'principal_ucb'
    """
    return label({key: value for key, value in split_overrides(overrides).items() if (key, value) != ("env", name)})


def find_folder(root: Path, name: str, digest: str, overrides: Iterable[str], seed: int) -> Path:
    """Where the folder of one run is, or would be, whose config has the hash `digest`.

    A folder with the same hash is reused whatever its label: the same experiment may be spelt in several ways.

    Raises:
        RunFolderError: `name` leaves `root`, or `root` cannot be read.
    """
    relative = Path(name)
    if not name or relative.is_absolute() or ".." in relative.parts:
        raise RunFolderError(f"name={name!r} must be a folder name inside {root}, such as name=my_sweep")
    if not (cleaned := safe_path(name)).parts:
        raise RunFolderError(f"name={name!r} has no letter or digit that a folder's name may have; try name=my_sweep")
    parent = root.expanduser().absolute() / cleaned
    try:
        siblings = sorted(path for path in parent.glob(f"*-{digest}") if path.is_dir() and is_safe(path.name))
    except OSError as error:
        raise unwritable(parent, error) from error
    return (siblings[0] if siblings else parent / f"{run_label(overrides, name)}-{digest}") / seed_folder(seed)


def run_folder(root: Path, name: str, digest: str, overrides: Iterable[str], seed: int, private: bool = True) -> Path:
    """`find_folder`, created if it is not there; for its owner alone if it is to be `private`.

    Raises:
        RunFolderError: also if the folder cannot be created.
    """
    folder = find_folder(root, name, digest, overrides, seed)
    try:
        make_folder(folder, private)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def unwritable(folder: Path, error: OSError) -> RunFolderError:
    """The error for a folder of runs that cannot be created or written."""
    place = "" if error.errno in FULL else " Choose a writable place with output_root=<folder>."
    return RunFolderError(f"cannot write {folder}: {why(folder, error)}.{place}")
