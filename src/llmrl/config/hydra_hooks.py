"""Adaptation of Hydra to llmrl: its version, messages about errors, and redaction of the environment."""

from __future__ import annotations

import functools
import inspect
import os
from typing import TYPE_CHECKING, Any

import hydra

from llmrl.config.composition_errors import check_removals, describe
from llmrl.core.composition_cache import cache_steps
from llmrl.core.errors import ConfigError
from llmrl.core.secrets import register_resolved_variable

if TYPE_CHECKING:
    from omegaconf import DictConfig

VERSION = tuple(int(part) for part in hydra.__version__.split(".")[:2])
BASE: dict[str, Any] = {"version_base": "1.3"} if VERSION < (1, 4) else {}
"""Arguments of `hydra.main` and `initialize` that select the defaults of 1.3; Hydra 1.4 has no such choice."""
_FOLDERS = {
    "output_subdir": None,
    "run": {"dir": "."},
    "sweep": {"dir": "${output_root}/.sweeps/${now:%Y-%m-%d_%H-%M-%S-%f}", "subdir": "."},
}
"""Hydra's options for folders, as in `conf/_run.yaml`, before interpolation."""


def adapt_hydra() -> None:
    """Make Hydra describe errors of compositions as llmrl does, and redact values that it reads from the environment.

    It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from llmrl.conf import register_resolver

    cache_steps()

    # Every composition calls this method, whose name has changed in Hydra 1.4.
    name = "_load_configuration" if hasattr(ConfigLoaderImpl, "_load_configuration") else "load_configuration"
    load = getattr(ConfigLoaderImpl, name)
    if hasattr(load, "__wrapped__"):
        return
    register_resolver("oc.env", _read_environment, replace=True)

    @functools.wraps(load)
    def describing_load(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        from hydra.errors import ConfigCompositionException, HydraException
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        call = inspect.signature(load).bind(self, *args, **kwargs)
        call.apply_defaults()
        overrides = call.arguments["overrides"]
        try:
            check_removals(overrides)
            config: DictConfig = load(self, *args, **kwargs)
            _check_folders(config)
        except (HydraException, OmegaConfBaseException, ConfigError, ValueError, YAMLError) as error:
            # Hydra's ValueError: the option of a group is a number or null, or a file is not UTF-8.
            message = " ".join(str(error).split()) if isinstance(error, YAMLError) else str(error)
            if isinstance(error, HydraException | OmegaConfBaseException):
                message = describe(error, overrides)
            # Hydra prints errors of its command line itself.
            command = "llmrl-finetune" if call.arguments["config_name"] == "finetune" else "llmrl-train"
            prefix = f"{command}: " if call.arguments["from_shell"] else ""
            cause = None if isinstance(error, OmegaConfBaseException) else error  # which Hydra would print, too
            raise ConfigCompositionException(f"{prefix}{message}") from cause
        return config

    setattr(ConfigLoaderImpl, name, describing_load)


def _check_folders(config: DictConfig) -> None:
    """Raise ConfigError if one of Hydra's options for folders has another value than llmrl's."""
    from omegaconf import OmegaConf

    hydra_node: Any = OmegaConf.to_container(config.hydra, resolve=False)
    for name, expected in _FOLDERS.items():
        if (value := hydra_node[name]) != expected:
            raise ConfigError(
                f"hydra.{name}={value} must be {expected}, because folders of runs are named after their options; "
                "choose them by output_root and name"
            )


def _read_environment(variable: str, *default: Any) -> str | None:
    """Return what OmegaConf's own resolver `oc.env` returns, and redact it from now on."""
    from omegaconf.resolvers import oc

    if variable in os.environ:
        register_resolved_variable(variable)
    return oc.env(variable, *default)
