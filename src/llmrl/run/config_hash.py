"""The hash that identifies the experiment of a run: which keys of its config count, and which cannot change results."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

EXCLUDED: tuple[str, ...] = (
    "seed",  # has a folder level of its own
    "name",  # likewise
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
    "llm.retry",
    "llm.limits",
    "llm.budget",
    "llm.max_invalid",
    "llm.timeout",
    "llm.plain_http",
    "llm.batch",
    "llm.batch_gather",
    "llm.batch_poll",
)
"""Config keys that are left out of the hash and of the label, with all keys inside them."""

RESOLVED = "resolved_runs"
"""Entry of a config: for each key that names another run, the identity of that run (`llmrl.experiment.run_references`).
The hash covers that identity instead of the key, so it does not depend on how the other run was named."""

HASH_LENGTH = 8

_OTHER_MODEL = re.compile(r"^llm\.others\.[^.]+\.")


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of `config` as canonical JSON, without the `EXCLUDED` keys.

    The order of keys does not matter, nor does the spelling of a whole number: `1` and `1.0` build the same part.

    Raises:
        TypeError: a value is not plain data (mapping, list, string, number, boolean or None).
    """
    resolved = {key: entry["run"] for key, entry in (config.get(RESOLVED) or {}).items()}
    named = {name for key in resolved for name in (key, f"{key}_seed")}
    kept = without_excluded({key: value for key, value in config.items() if key != RESOLVED}, leave_out=named)
    kept |= {RESOLVED: resolved} if resolved else {}
    text = json.dumps(_canonical(kept, "config"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def without_excluded(config: Mapping[str, Any], prefix: str = "", leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return `config` without the `EXCLUDED` keys and the keys in `leave_out`."""
    kept = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        # Keys that are excluded for the chosen model are excluded for further models, too.
        like = _OTHER_MODEL.sub("llm.", path)
        if like not in EXCLUDED and path not in leave_out:
            kept[str(key)] = without_excluded(value, f"{path}.", leave_out) if isinstance(value, Mapping) else value
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


def is_excluded(key: str) -> bool:
    """Return whether a key, such as `llm.budget.usd` or `hydra/launcher`, is one of `EXCLUDED` or inside one."""
    return re.split(r"[@/]", key, maxsplit=1)[0] in EXCLUDED or any(
        key == excluded or key.startswith(f"{excluded}.") for excluded in EXCLUDED
    )
