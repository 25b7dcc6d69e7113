"""`agent.init_from=preset:<study>`: weights of a preset's run, which is computed when it is first needed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError, RunInUse
from llmrl.run.shared import PRESET, run_name

if TYPE_CHECKING:
    from llmrl.run.run import Run

log = logging.getLogger(__name__)

_POLL_S = 2.0
_TAKEN_OVER = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds")
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
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    study, _, seed = wanted.removeprefix(PRESET).rpartition("/seed=")
    overrides = [f"experiment={study}", f"seed={seed}"]
    shared, hydra_config = GlobalHydra.instance(), HydraConfig.instance()
    before, shared.hydra = (shared.hydra, hydra_config.cfg), None
    try:
        with initialize_config_module("llmrl.conf", version_base="1.3"):
            found = compose("train", overrides=overrides, return_hydra_config=True)
            hydra_config.set_config(found)
            OmegaConf.set_struct(found, False)
            found.pop("hydra")
            plain = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
    except HydraException as error:
        raise ConfigError(f"agent.init_from={wanted}: {error}") from error
    finally:
        shared.hydra, hydra_config.cfg = before
    assert isinstance(plain, dict)
    own = {str(key): value for key, value in plain.items()} | {key: config[key] for key in _TAKEN_OVER}
    if own["principal"].get("_target_") is not None or reference(own) is not None:
        raise ConfigError(
            f"agent.init_from={wanted}: a preset to begin with trains agents alone, from weights of their own; this "
            "one has a principal, or begins with another preset"
        )
    return own, overrides


def digest(wanted: Path) -> str:
    """Return 8 hexadecimal digits of what a reference's run is computed from."""
    from llmrl.run.folder import config_hash

    taken_over = dict.fromkeys(_TAKEN_OVER)
    reference_ = reference({"agent": {"init_from": str(wanted)}})
    assert reference_ is not None
    return config_hash(composed(reference_, taken_over)[0])


def located(config: Config) -> Config:
    """Return the config with the folder of the run that is referred to, or null where that is not finished."""
    wanted = reference(config)
    if wanted is None:
        return config
    folder = _folder(*_with_digests(*composed(wanted, config)))
    return {**config, "agent": {**config["agent"], "init_from": str(folder) if _finished(folder) else None}}


def ensure(config: Config, run: Run) -> None:
    """Compute the run that `config` refers to if it is not finished, or wait for the process that does; `run` is the
    one that needs it.

    Raises:
        Stopped: a signal asked to stop meanwhile.
        LlmrlError: as that run.
    """
    from llmrl.cli.train import run_experiment
    from llmrl.run.run import Stopped

    wanted = reference(config)
    if wanted is None:
        return
    needed, overrides = _with_digests(*composed(wanted, config))
    waiting = False
    while not _finished(_folder(needed, overrides)):
        try:
            if not waiting:
                log.info("pre-training first: %s is not finished", wanted)
            run_experiment(needed, overrides)
        except RunInUse as error:
            if not waiting:
                log.info("waiting for the pre-training that another process computes: %s", error)
            waiting = True
            time.sleep(_POLL_S)
        if run.stop.signal is not None:
            raise Stopped(run.folder, run.stop.signal)


def told(config: Config) -> list[tuple[str, str]]:
    """Return what a plan says of the run that is referred to."""
    wanted = reference(config)
    if wanted is None:
        return []
    needed, overrides = _with_digests(*composed(wanted, config))
    folder = _folder(needed, overrides)
    steps = f"{needed['learn']['env_steps']:,} environment steps"
    state = f"finished: {folder}" if _finished(folder) else f"to be computed first, {steps}, and then kept in {folder}"
    return [("pre-training", f"{wanted}, {state}")]


def _with_digests(config: dict[str, Any], overrides: list[str]) -> tuple[dict[str, Any], list[str]]:
    from llmrl.cli.outside import with_digests

    return with_digests(config), overrides


def _folder(config: Config, overrides: list[str]) -> Path:
    from llmrl.run.folder import find_folder

    return find_folder(Path(config["output_root"]), config["name"], config, overrides, config["seed"])


def _finished(folder: Path) -> bool:
    from llmrl.run.status import read_status

    status = read_status(folder)
    return status is not None and status.state == "finished"
