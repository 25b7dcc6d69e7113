"""The hash that identifies the experiment of a run, and the config keys that it does not depend on."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

EXCLUDED_KEYS: tuple[str, ...] = (
    "seed",  # has a folder level of its own
    "name",  # has a folder level of its own
    "output_root",  # location of the run folder
    "trials_dir",  # location of trials for other runs
    "loggers",  # further destinations of metrics
    "hardware",  # device, launcher, processes
    "checkpoint_seconds",  # interval of checkpoints
    "private",  # permissions of the run's files
    "trusted_modules",  # permission to load code, which does not change its results
    "resume",  # treatment of an existing folder
    "rerun",
    "dry_run",
    "hydra",  # settings of the launcher
    "observers",  # observe without changing anything
    "report",  # presentation of results
    "regime_name",  # name of an option; the config contains its values
    "regime_noise",  # standard deviation of measurements in earlier runs, for the plan
    "prompts",  # location of prompts; their content is in `prompts_digest`
    # Recordings of episodes for people.
    "play.videos",
    "play.records",
    "play.fps",
    # Recordings of steps for computations.
    "play.trajectories",
    # Observations for which action probabilities are logged.
    "learn.probes",
    "learn.probe_interval",
    # How requests are sent to a language model.
    "llm.cache",
    "llm.cache_dir",
    "llm.retry",
    "llm.limits",
    "llm.budget",
    "llm.max_invalid",
    "llm.timeout",
    "llm.plain_http",
)
"""Config keys that are left out of the hash and of the label, with all keys inside them."""

RESOLVED_RUNS_KEY = "resolved_runs"
"""Key of a config with the identities of the other runs that it names, by key (`llmrl.experiment.run_references`). The
hash covers an identity instead of the name, because a run can be named in several ways."""

HASH_LENGTH = 8

_FURTHER_MODEL_PATTERN = re.compile(r"^llm\.variants\.[^.]+\.")


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of `config` as canonical JSON, without `EXCLUDED_KEYS`.

    The order of keys does not matter, nor does the spelling of a whole number: `1` and `1.0` build the same part.

    Raises:
        TypeError: a value is not plain data (mapping, list, string, number, boolean or None).
    """
    resolved_runs = {key: entry["run"] for key, entry in (config.get(RESOLVED_RUNS_KEY) or {}).items()}
    resolved_keys = {name for key in resolved_runs for name in (key, f"{key}_seed")}
    hashed_config = drop_excluded_keys(
        {key: config[key] for key in config if key != RESOLVED_RUNS_KEY}, dropped=resolved_keys
    )
    hashed_config |= {RESOLVED_RUNS_KEY: resolved_runs} if resolved_runs else {}
    text = json.dumps(_to_canonical(hashed_config, "config"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def drop_excluded_keys(config: Mapping[str, Any], prefix: str = "", dropped: Collection[str] = ()) -> dict[str, Any]:
    """Return `config` without `EXCLUDED_KEYS` and the keys in `dropped`."""
    included = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        # Keys that are excluded for the chosen model are excluded for further models, too.
        key_of_chosen_model = _FURTHER_MODEL_PATTERN.sub("llm.", path)
        if key_of_chosen_model not in EXCLUDED_KEYS and path not in dropped:
            included[str(key)] = drop_excluded_keys(value, f"{path}.", dropped) if isinstance(value, Mapping) else value
    return included


def _to_canonical(value: Any, location: str) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_canonical(element, f"{location}.{key}") for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_to_canonical(element, f"{location}[{i}]") for i, element in enumerate(value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{location} is a {type(value).__name__}; a config holds plain data only (resolve it first)")


@functools.lru_cache(maxsize=4096)  # called for each override of each run in a folder
def is_excluded(key: str) -> bool:
    """Return whether a key, such as `llm.budget.usd` or `hydra/launcher`, is one of `EXCLUDED_KEYS` or inside one."""
    return re.split(r"[@/]", key, maxsplit=1)[0] in EXCLUDED_KEYS or any(
        key == excluded or key.startswith(f"{excluded}.") for excluded in EXCLUDED_KEYS
    )
