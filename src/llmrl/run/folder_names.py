"""Names of run folders, `<name>/<label>-<hash>/s<seed>`, of letters, digits, `.`, `_` and `-` only.

A label is a short form of the overrides of a run, for people. The hash after it identifies the experiment, so a label
may be cut, and two experiments may have the same label.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmrl.core.secrets import redact

LENGTHS = (
    "learn.env_steps",
    "design.steps",
    "design.adapt_rounds",
    "search.iterations",
    "play.episodes",
    "clone.epochs",
    "method.optimiser.steps",
)
"""Options that set the length of a run."""

ALWAYS = ("experiment", "treatment", "llm", *LENGTHS)
"""Options that a label always has if they were typed, even if all runs of a sweep share them: they distinguish sweeps
of the same name."""

_STUDY, _TREATMENT = "experiment", "treatment"
_STUDIES = (_STUDY, _TREATMENT)
"""Choices whose values are clear without their key."""

_ORDER = (_TREATMENT, "", "llm", _STUDY)
"""Of options in a label; the empty name stands for all others."""

MAX_LABEL = 80
_MAX_VALUE = 32
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HASHED = re.compile(r".*-([0-9a-f]{8})")
_SEED = re.compile(r"s([0-9]{1,18})")
_RECORDS = ("config.yaml", "status.json", "queued.json")
_OLD = re.compile(r"seed=-?[0-9]+")
_SPELT = {
    "ß": "ss",
    "æ": "ae",
    "Æ": "Ae",
    "œ": "oe",
    "Œ": "Oe",
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
}
"""ASCII spellings of Latin letters that Unicode does not decompose into an ASCII letter and an accent."""


def seed_folder(seed: int) -> str:
    """Return the name of a run folder, `s<seed>`."""
    return f"s{seed}"


def seed_of(folder: Path) -> int | None:
    """Return the seed in a run folder's name; None for any other name."""
    found = _SEED.fullmatch(folder.name)
    return int(found[1]) if found else None


def is_run_folder(folder: Path) -> bool:
    """Return whether `folder` is a run folder: `s<seed>` in a folder that ends in a hash, or with a run's records."""
    return seed_of(folder) is not None and (
        hash_of(folder) is not None or any((folder / name).exists() for name in _RECORDS)
    )


def hash_of(folder: Path) -> str | None:
    """Return the hash at the end of the name of a run folder's parent; None if there is none."""
    found = _HASHED.fullmatch(folder.parent.name)
    return found[1] if found else None


def old_layout(folder: Path) -> str | None:
    """Return an error message for a run folder of earlier versions, `seed=<n>`; None for any other name."""
    if not _OLD.fullmatch(folder.name):
        return None
    return (
        f"{folder} is a run folder of an earlier llmrl, whose names were <overrides>-<hash>/seed=<n>; this version "
        "makes <label>-<hash>/s<n> and reads no others. Repeat its command, or look at it with the version that made it"
    )


def is_safe(name: str) -> bool:
    """Return whether a name has only characters that are safe in shells, URLs and file systems."""
    return _NAME.fullmatch(name) is not None


def safe(text: str) -> str:
    """Return a text in `[A-Za-z0-9._-]` only: accents are removed, other characters become `-`; it may be empty.

    >>> safe("Étude 3: Qwen/Qwen2.5 (groß)")
    'Etude-3-Qwen-Qwen2.5-gross'
    """
    spelt = "".join(_SPELT.get(character, character) for character in text)
    plain = "".join(x for x in unicodedata.normalize("NFKD", spelt) if not unicodedata.combining(x))
    return re.sub(r"-{2,}", "-", _SAFE.sub("-", plain)).strip("-.")


def safe_path(name: str) -> Path:
    """Return the path `name=` with each of its parts made `safe`; empty if no character is left."""
    return Path(*filter(None, (safe(part) for part in Path(name).parts)))


def short(typed: Mapping[str, str]) -> dict[str, str]:
    """Return overrides with short keys and values. A key is cut to its last part, or to two if another key has the same
    last part. A path is cut to its last part, or to the hash and seed of a run folder.

    >>> short({"principal": "ucb", "learn.env_steps": "1000", "agent.init_from": "outputs/pre/ppo-0a1b2c3d/s4"})
    {'principal': 'ucb', 'env_steps': '1000', 'init_from': '0a1b2c3d-s4'}
    """
    keys = {key: re.split(r"[./@:]", key) for key in typed}
    found: dict[str, str] = {}
    for key, value in typed.items():
        alike = sum(parts[-1] == keys[key][-1] for parts in keys.values())
        own = ".".join(keys[key][-1:] if alike == 1 else keys[key][-2:])
        found[own if own not in found else key] = _short_value(value)
    return found


def title(typed: Mapping[str, str], among: Iterable[str] = ()) -> str:
    """Return overrides as a title for tables and figures, `principal=ucb, env_steps=1000`. Keys are shortened so that
    they differ from the keys in `among`, too. A treatment comes first, without its key."""
    keys = dict.fromkeys([*among, *typed], "")
    names = dict(zip(keys, short(keys), strict=True))
    told = sorted(typed.items(), key=lambda item: item[0] != _TREATMENT)
    return ", ".join((f"{names[key]}=" if key != _TREATMENT else "") + _short_value(value) for key, value in told)


def _short_value(value: str) -> str:
    parts = [part for part in value.split("/") if part]
    if len(parts) < 2 or any(sign in value for sign in "[]{},\n"):
        return value
    if _SEED.fullmatch(parts[-1]):
        experiment = parts[-2].rpartition(":")[2]
        return f"{hashed[1] if (hashed := _HASHED.fullmatch(experiment)) else experiment}-{parts[-1]}"
    hashed = _HASHED.fullmatch(parts[-1])
    return hashed[1] if hashed else parts[-1]


def label(typed: Mapping[str, str]) -> str:
    """Return the readable part of a run folder's name, at most `MAX_LABEL` characters; `defaults` if nothing was typed.

    What is usually compared comes first, because TensorBoard cuts long names: a treatment, then parts, then their
    fields. The study, which most runs of a sweep share, comes last.

    >>> label({"principal": "ucb", "learn.env_steps": "1000", "env.n_envs": "8", "experiment": "legislative/cleanup"})
    'principal_ucb-env_steps_1000-n_envs_8-cleanup'
    """
    told = dict(redact(f"{key}={value}").partition("=")[::2] for key, value in typed.items())
    order = sorted(
        told, key=lambda key: (_ORDER.index(key if key in _ORDER else ""), "." in key, key not in LENGTHS, key)
    )
    found = []
    for key, (own, value) in zip(order, short({key: told[key] for key in order}).items(), strict=True):
        cut = safe(value)[:_MAX_VALUE]
        found.append(cut if key in _STUDIES else f"{safe(own)}_{cut}")
    return safe("-".join(found))[:MAX_LABEL].strip("-._") or "defaults"


def named(overrides: Iterable[str], differing: Iterable[str]) -> list[str]:
    """Return the overrides that a label shows: those with a key in `differing` or in `ALWAYS`."""
    wanted = {*differing, *ALWAYS}
    return [override for override in overrides if override.partition("=")[0].lstrip("+~") in wanted]
