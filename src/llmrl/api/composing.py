"""Composing a config in any process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of `llmrl-train <overrides>`."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from llmrl.core.errors import ConfigError

    shared, own = GlobalHydra.instance(), HydraConfig.instance()
    before = shared.hydra, own.cfg
    shared.hydra = None
    try:
        with initialize_config_module("llmrl.conf", version_base="1.3"):
            config = hydra_compose("train", overrides=list(overrides), return_hydra_config=True)
            own.set_config(config)
            OmegaConf.set_struct(config, False)
            config.pop("hydra")
            return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except HydraException as error:
        raise ConfigError(str(error)) from error
    finally:
        shared.hydra, own.cfg = before
