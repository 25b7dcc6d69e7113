"""Composing a config beside that of the command: what another run's options come to."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError


@functools.cache
def plain_config(primary: str, *overrides: str, config_dir: str | None = None) -> dict[str, Any]:
    """Return the config that overrides compose, resolved, as plain containers; not to be changed, as it is kept: Hydra
    takes long, and one command asks several times.

    Args:
        primary: `train` or `finetune`.
        overrides: as on a command line.
        config_dir: a folder with options of one's own.

    Raises:
        ConfigError: they compose none.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    own = [] if config_dir is None else [f"hydra.searchpath=[file://{Path(config_dir).absolute()}]"]
    shared, hydra_config = GlobalHydra.instance(), HydraConfig.instance()
    before, shared.hydra = (shared.hydra, hydra_config.cfg), None
    try:
        with initialize_config_module("llmrl.conf", version_base="1.3"):
            found = compose(primary, overrides=[*overrides, *own], return_hydra_config=True)
            hydra_config.set_config(found)
            OmegaConf.set_struct(found, False)
            found.pop("hydra")
            plain = OmegaConf.to_container(found, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error
    finally:
        shared.hydra, hydra_config.cfg = before
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
