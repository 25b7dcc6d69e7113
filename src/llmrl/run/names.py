"""Names of run folders, `<name>/<label>-<hash>/s<seed>`: nothing in them but letters, digits, `.`, `_` and `-`.

A label says in short what was typed for a run. It is for people; the hash beside it tells experiments apart, so a label
may be cut, and two experiments may have the same one.
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
"""Options that say how long a run is."""

ALWAYS = ("experiment", "treatment", "llm", *LENGTHS)
"""Options that a label has wherever they were typed, also where all runs of a sweep agree in them: two sweeps of one
name that differ in nothing else are told apart by these."""

_TREATMENT = "treatment"
_STUDIES = ("experiment", _TREATMENT)
"""Choices whose values say enough without their key."""

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
"""Latin letters that Unicode does not take apart into one of ASCII and an accent."""


def seed_folder(seed: int) -> str:
    """Return the last part of a run folder's path, `s<seed>`."""
    return f"s{seed}"


def seed_of(folder: Path) -> int | None:
    """Return the seed that a run folder's name says; None for any other name."""
    found = _SEED.fullmatch(folder.name)
    return int(found[1]) if found else None


def is_run_folder(folder: Path) -> bool:
    """Whether this is where a run lives: `s<seed>` in a folder that ends in a hash, or with a run's records in it."""
    return seed_of(folder) is not None and (
        hash_of(folder) is not None or any((folder / name).exists() for name in _RECORDS)
    )


def hash_of(folder: Path) -> str | None:
    """Return the hash of the experiment in whose folder a run folder lies; None if its name has none."""
    found = _HASHED.fullmatch(folder.parent.name)
    return found[1] if found else None


def old_layout(folder: Path) -> str | None:
    """Return what is wrong with a folder `seed=<n>`, as earlier versions made them; None for any other name."""
    if not _OLD.fullmatch(folder.name):
        return None
    return (
        f"{folder} is a run folder of an earlier llmrl, whose names were <overrides>-<hash>/seed=<n>; this version "
        "makes <label>-<hash>/s<n> and reads no others. Repeat its command, or look at it with the version that made it"
    )


def is_safe(name: str) -> bool:
    """Whether a name has only characters that shells, URLs and file systems leave alone."""
    return _NAME.fullmatch(name) is not None


def safe(text: str) -> str:
    """Write a text with `[A-Za-z0-9._-]` alone: accents go, other characters become `-`; empty if none is left.

    >>> safe("Étude 3: Qwen/Qwen2.5 (groß)")
    'Etude-3-Qwen-Qwen2.5-gross'
    """
    spelt = "".join(_SPELT.get(character, character) for character in text)
    plain = "".join(x for x in unicodedata.normalize("NFKD", spelt) if not unicodedata.combining(x))
    return re.sub(r"-{2,}", "-", _SAFE.sub("-", plain)).strip("-.")


def safe_path(name: str) -> Path:
    """Write the folder `name=` of runs, which may be several levels deep, with safe names; empty if nothing is left."""
    return Path(*filter(None, (safe(part) for part in Path(name).parts)))


def short(typed: Mapping[str, str]) -> dict[str, str]:
    """Return overrides with short keys and values: the last part of a key where no other has it, else two; of a value
    that is a path its end, of the folder of a run its hash and seed.

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
    """Return overrides as tables and figures name them, `principal=ucb, env_steps=1000`; keys are short as they are
    beside the keys `among` which they are told apart. A treatment comes first, by its name alone."""
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

    >>> label({"principal": "ucb", "learn.env_steps": "1000", "env.n_envs": "8", "experiment": "legislative/cleanup"})
    'cleanup-principal_ucb-env_steps_1000-n_envs_8'
    """
    told = dict(redact(f"{key}={value}").partition("=")[::2] for key, value in typed.items())
    order = sorted(told, key=lambda key: (key not in _STUDIES, "." in key, key not in LENGTHS, key))
    found = []
    for key, (own, value) in zip(order, short({key: told[key] for key in order}).items(), strict=True):
        cut = safe(value)[:_MAX_VALUE]
        found.append(cut if key in _STUDIES else f"{safe(own)}_{cut}")
    return safe("-".join(found))[:MAX_LABEL].strip("-._") or "defaults"


def named(overrides: Iterable[str], differing: Iterable[str]) -> list[str]:
    """Return the overrides that a label tells: those that differ within a sweep, and `ALWAYS`."""
    wanted = {*differing, *ALWAYS}
    return [override for override in overrides if override.partition("=")[0].lstrip("+~") in wanted]
