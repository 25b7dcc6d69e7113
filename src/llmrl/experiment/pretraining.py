"""`agent.init_from=preset:<study>`: weights of a preset's run, which is computed when it is first needed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.experiment.needed import NeededRun
from llmrl.run.shared import PRESET, run_name

_TAKEN_OVER = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""What the run of a preset has from the run that needs it: nothing that changes numbers."""

Config = Mapping[str, Any]


def reference(config: Config) -> str | None:
    """Return the preset whose run gives the agent's first weights, `preset:<study>/seed=<n>`; None if there is none.

    >>> reference({"agent": {"init_from": "preset:regimes/cleanup_pretrain"}})
    'preset:regimes/cleanup_pretrain/seed=0'
    """
    wanted = (config.get("agent") or {}).get("init_from")
    if not isinstance(wanted, str) or not wanted.startswith(PRESET):
        return None
    return run_name(wanted)


def composed(wanted: str, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Compose the run that a reference names, for the run of `config`; returns its plain config and its overrides.

    Raises:
        ConfigError: there is no such preset, or it is no run of agents that learn alone.
    """
    study, _, seed = wanted.removeprefix(PRESET).rpartition("/seed=")
    overrides = [f"experiment={study}", f"seed={seed}"]
    own = {**copy.deepcopy(_plain(wanted, *overrides)), **{key: config[key] for key in _TAKEN_OVER}}
    if own["principal"].get("_target_") is not None or reference(own) is not None:
        raise ConfigError(
            f"agent.init_from={wanted}: a preset to begin with trains agents alone, from weights of their own; this "
            "one has a principal, or begins with another preset"
        )
    return own, overrides


@functools.cache
def _plain(wanted: str, *overrides: str) -> dict[str, Any]:
    """The config that `overrides` compose, as plain containers; Hydra takes long, and one run asks several times."""
    from omegaconf import OmegaConf

    from llmrl.experiment.composition import composed as composed_by_hydra

    try:
        with composed_by_hydra("train", overrides) as found:
            plain = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
    except ConfigError as error:
        raise ConfigError(f"agent.init_from={wanted}: {error}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def digest(wanted: Path) -> str:
    """Return 8 hexadecimal digits of what a reference's run is computed from."""
    from llmrl.experiment.used import only_read
    from llmrl.run.folder import config_hash

    taken_over: dict[str, Any] = {**dict.fromkeys(_TAKEN_OVER), "trusted_modules": []}  # which does not count
    reference_ = reference({"agent": {"init_from": str(wanted)}})
    assert reference_ is not None
    return config_hash(only_read(composed(reference_, taken_over)[0]))


def needed(config: Config) -> list[NeededRun]:
    """Return the run that `config` refers to: one, or none.

    Raises:
        ConfigError: as `composed`.
    """
    wanted = reference(config)
    if wanted is None:
        return []
    own, overrides = composed(wanted, config)
    return [NeededRun.of("pre-training", wanted, own, overrides, own["learn"]["env_steps"])]


def located(config: Config) -> Config:
    """Return the config with the folder of the run that is referred to, or null where that is not finished."""
    for run in needed(config):
        return {**config, "agent": {**config["agent"], "init_from": str(run.folder) if run.finished else None}}
    return config
