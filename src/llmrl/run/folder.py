"""The folder of a run: `output_root/<name>/<label>-<hash>/s<seed>/`.

Names consist of letters, digits, `.`, `_` and `-`. The hash identifies the experiment: configs that differ only in keys
that cannot change results (`EXCLUDED_KEYS`) have the same folder. The label is a short form of the overrides for
readers and TensorBoard's list of runs; it may be cut, and two experiments may have the same label.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmrl.core.atomic_files import DISK_FULL_ERRNOS, describe_write_error
from llmrl.core.errors import RunFolderError
from llmrl.core.privacy import make_folder
from llmrl.core.secrets import redact
from llmrl.run.config_hash import is_excluded
from llmrl.run.files import path_inside

STUDY_GROUP, TREATMENT_GROUP = "experiment", "treatment"
"""Config groups of studies, and of the treatments that a study compares."""


def split_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Return Hydra overrides as `{key: value}`, without keys of `EXCLUDED_KEYS`; of equal keys the last counts.

    Choices of options come first, then values of fields, each sorted by key, so a label that is cut keeps the choices.

    >>> split_overrides(["env.n_envs=8", "principal=ucb", "seed=3"])
    {'principal': 'ucb', 'env.n_envs': '8'}
    """
    value_by_key: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        is_removed = key.startswith("~")
        key = key.lstrip("+~")
        if not is_excluded(key):
            value_by_key[key] = "none" if is_removed else value.strip("'\"")
    return dict(sorted(value_by_key.items(), key=lambda item: ("." in item[0], item[0])))


def format_run_label(overrides: Iterable[str], name: str = "") -> str:
    """Return the readable part of a run folder's name.

    `env=<name>` is left out if `name`, the folder above, is the same, because TensorBoard cuts long names. A treatment
    comes first, without its key.

    >>> format_run_label(["principal=ucb", "env=escape_room", "seed=1"])
    'env_escape_room-principal_ucb'
    >>> format_run_label(["principal=ucb", "env=escape_room", "seed=1"], name="escape_room")
    'principal_ucb'
    """
    return format_label(
        {key: value for key, value in split_overrides(overrides).items() if (key, value) != ("env", name)}
    )


def find_run_folder(root: Path, name: str, config_digest: str, overrides: Iterable[str], seed: int) -> Path:
    """Return the folder of the run whose config has the hash `config_digest`, whether or not it exists.

    An existing folder with that hash is returned whatever its label, because different overrides may give one config.

    Raises:
        RunFolderError: `name` is empty, leaves `root` or has no usable character, or `root` cannot be read.
    """
    relative_path = Path(name)
    if not name or relative_path.is_absolute() or ".." in relative_path.parts:
        raise RunFolderError(f"name={name!r} must be a folder name inside {root}, such as name=my_sweep")
    if not (sanitized_name := sanitize_path(name)).parts:
        raise RunFolderError(f"name={name!r} has no character that folder names may have; use e.g. name=my_sweep")
    parent = root.expanduser().absolute() / sanitized_name
    try:
        with os.scandir(parent) as entries:
            matches = [entry for entry in entries if entry.name.endswith(f"-{config_digest}")]
        folders = sorted(Path(e.path) for e in matches if _SAFE_NAME_PATTERN.fullmatch(e.name) and e.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        folders = []
    except OSError as error:
        raise make_write_error(parent, error) from error
    folder = folders[0] if folders else parent / f"{format_run_label(overrides, name)}-{config_digest}"
    return folder / format_seed_folder(seed)


def create_run_folder(
    root: Path, name: str, config_digest: str, overrides: Iterable[str], seed: int, private: bool = True
) -> Path:
    """Return the folder of `find_run_folder`; create it if it is missing. If `private`, only its owner can read it.

    Raises:
        RunFolderError: `name` is not valid, or the folder is a symbolic link or cannot be created.
    """
    folder = find_run_folder(root, name, config_digest, overrides, seed)
    path_inside(folder.parents[1], *folder.parts[-2:])
    try:
        make_folder(folder, private)
    except OSError as error:
        raise make_write_error(folder, error) from error
    return folder


def make_write_error(folder: Path, error: OSError) -> RunFolderError:
    """Return the error for a folder of runs that cannot be created or written."""
    advice = "" if error.errno in DISK_FULL_ERRNOS else " Choose a writable folder with output_root=<folder>."
    return RunFolderError(f"cannot write {folder}: {describe_write_error(folder, error)}.{advice}")


RUN_LENGTH_OPTIONS = (
    "learn.env_steps",
    "design.steps",
    "design.adapt_rounds",
    "search.iterations",
    "play.episodes",
    "clone.epochs",
    "method.optimizer.steps",
)
"""Options that set the length of a run."""

LABEL_OPTIONS = (STUDY_GROUP, TREATMENT_GROUP, "llm", *RUN_LENGTH_OPTIONS)
"""Options that a label contains if they are among the overrides, even if all runs of a sweep share them, because they
distinguish sweeps of the same name."""

_OPTIONS_WITHOUT_KEY = (STUDY_GROUP, TREATMENT_GROUP)
"""Options whose values labels contain without their keys, because the values identify the option."""

_LABEL_ORDER = (TREATMENT_GROUP, "", "llm", STUDY_GROUP)
"""Order of options in a label; the empty name stands for all others."""

MAX_LABEL_LENGTH = 80
_MAX_VALUE_LENGTH = 32
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")
_SAFE_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]+")
_HASH_PATTERN = re.compile(r".*-([0-9a-f]{8})")
_SEED_PATTERN = re.compile(r"s([0-9]{1,18})")
_RUN_FILE_NAMES = ("config.yaml", "status.json", "queued.json")


def format_seed_folder(seed: int) -> str:
    """Return the name of a run folder, `s<seed>`."""
    return f"s{seed}"


def parse_seed(folder: Path) -> int | None:
    """Return the seed in a run folder's name; None for any other name."""
    match = _SEED_PATTERN.fullmatch(folder.name)
    return int(match[1]) if match else None


def is_run_folder(folder: Path) -> bool:
    """Return whether `folder` is a run folder: `s<seed>` below a name that ends in a hash, or with a run's files."""
    return parse_seed(folder) is not None and (
        parse_config_hash(folder) is not None or any((folder / name).exists() for name in _RUN_FILE_NAMES)
    )


def parse_config_hash(folder: Path) -> str | None:
    """Return the hash at the end of the name of a run folder's parent; None if there is none."""
    match = _HASH_PATTERN.fullmatch(folder.parent.name)
    return match[1] if match else None


def sanitize(text: str) -> str:
    """Return `text` with only the characters `[A-Za-z0-9._-]`; accents are removed, others become `-`. It may be empty.

    >>> sanitize("Étude 3: Qwen/Qwen2.5 (großes)")
    'Etude-3-Qwen-Qwen2.5-gro-es'
    """
    unaccented_text = "".join(x for x in unicodedata.normalize("NFKD", text) if not unicodedata.combining(x))
    return re.sub(r"-{2,}", "-", _UNSAFE_CHARACTERS.sub("-", unaccented_text)).strip("-.")


def sanitize_path(name: str) -> Path:
    """Return the path `name` with each part sanitized (`sanitize`); empty if no character remains."""
    return Path(*filter(None, (sanitize(part) for part in Path(name).parts)))


def shorten_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return overrides with short keys and values.

    A key is cut to its last part; if another key has the same last part, to its last two parts; if these are not unique
    either, it is not cut. A path is cut to its last part, or to the hash and seed of a run folder.

    >>> shorten_overrides({"learn.env_steps": "1000", "agent.init_from": "outputs/pre/ppo-0a1b2c3d/s4"})
    {'env_steps': '1000', 'init_from': '0a1b2c3d-s4'}
    """
    last_part_counts = Counter(_get_last_parts(key, 1) for key in overrides)
    last_two_part_counts = Counter(_get_last_parts(key, 2) for key in overrides)
    short_overrides = {}
    for key, value in overrides.items():
        is_unique = last_part_counts[_get_last_parts(key, 1)] == 1
        name = _get_last_parts(key, 1 if is_unique else 2)
        short_overrides[name if is_unique or last_two_part_counts[name] == 1 else key] = _shorten_value(value)
    return short_overrides


def _get_last_parts(key: str, n: int) -> str:
    """Return the last `n` parts of a key, with its own separators: `llm/learn` and `llm.learn` are different keys."""
    return "".join(re.split(r"([./@:])", key)[1 - 2 * n :])


def format_overrides(overrides: Mapping[str, str], other_keys: Iterable[str] = ()) -> str:
    """Return overrides as text for tables and figures, `principal=ucb, env_steps=1000`.

    The shortened keys also differ from the shortened `other_keys`. A treatment comes first, without its key.
    """
    keys = dict.fromkeys([*other_keys, *overrides], "")
    names = dict(zip(keys, shorten_overrides(keys), strict=True))
    ordered_overrides = sorted(overrides.items(), key=lambda item: item[0] != TREATMENT_GROUP)
    texts = [("" if k == TREATMENT_GROUP else f"{names[k]}=") + _shorten_value(x) for k, x in ordered_overrides]
    return ", ".join(texts)


def _shorten_value(value: str) -> str:
    if "://" in value:
        return value.partition("://")[2].rstrip("/")
    parts = [part for part in value.split("/") if part]
    if len(parts) < 2 or any(character in value for character in "[]{},\n"):
        return value
    if _SEED_PATTERN.fullmatch(parts[-1]):
        experiment = parts[-2].rpartition(":")[2]
        return f"{match[1] if (match := _HASH_PATTERN.fullmatch(experiment)) else experiment}-{parts[-1]}"
    match = _HASH_PATTERN.fullmatch(parts[-1])
    return match[1] if match else parts[-1]


def format_label(overrides: Mapping[str, str]) -> str:
    """Return the readable part of a run folder's name, at most `MAX_LABEL_LENGTH` characters.

    Without overrides it is `defaults`. TensorBoard cuts long names, so overrides that are usually compared come first:
    a treatment, then choices of options, then fields. The study, which most runs of a sweep share, comes last.

    >>> format_label({"principal": "ucb", "learn.env_steps": "1000", "experiment": "legislative/cleanup"})
    'principal_ucb-env_steps_1000-cleanup'
    """
    redacted_overrides = dict(redact(f"{key}={value}").partition("=")[::2] for key, value in overrides.items())
    ordered_keys = sorted(
        redacted_overrides,
        key=lambda k: (_LABEL_ORDER.index(k if k in _LABEL_ORDER else ""), "." in k, k not in RUN_LENGTH_OPTIONS, k),
    )
    label_parts = []
    short_overrides = shorten_overrides({key: redacted_overrides[key] for key in ordered_keys})
    for key, (name, value) in zip(ordered_keys, short_overrides.items(), strict=True):
        text = sanitize(value)[:_MAX_VALUE_LENGTH]
        label_parts.append(text if key in _OPTIONS_WITHOUT_KEY else f"{sanitize(name)}_{text}")
    return sanitize("-".join(label_parts))[:MAX_LABEL_LENGTH].strip("-._") or "defaults"
