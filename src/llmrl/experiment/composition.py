"""Composition of a config from overrides by Hydra, with or without its command line, and conversion to plain data."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from llmrl.config.hydra_hooks import VERSION_BASE_ARGUMENTS, describe_composition_error, patch_hydra
from llmrl.config.overrides import to_hydra_arguments
from llmrl.core.errors import ConfigError
from llmrl.core.secrets import check_no_secrets, check_no_secrets_in_arguments, redact_folder_names
from llmrl.core.threads import hold_process_lock

log = logging.getLogger(__name__)

_FOLDER_OPTIONS = ("name", "output_root", "trials_dir", "llm.cache_dir")
"""Options that name folders which a run creates. `output_root` precedes options that interpolate it."""

_JOB_INTERPOLATION = re.compile(r'\$\{(\\.|[^"\\])*(seed|hydra[.:](?!runtime\.choices\.))')
"""Interpolation of the seed or of Hydra's description of a job, except its chosen options, in a config as JSON."""


@contextmanager
def compose_config(
    primary: str, overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()
) -> Iterator[DictConfig]:
    """Compose a config from overrides; within the returned context `HydraConfig` describes it.

    A Hydra application can use this function, too; its own `HydraConfig` is restored afterwards.
    `primary` is the name of the primary config, `train` or `finetune`.

    Raises:
        ConfigError: an unknown option, key or value, or a secret.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException

    check_no_secrets_in_arguments(overrides)
    for problem in patch_hydra():
        log.debug("%s", problem)  # not a warning, because commands print these problems once at their start
    hydra_arguments = to_hydra_arguments(overrides)
    folders = [f"file://{Path(folder).expanduser().absolute()}" for folder in config_dirs]
    search_path_overrides = [f"hydra.searchpath=[{','.join(folders)}]"] if folders else []
    with hold_process_lock():
        hydra_config = HydraConfig.instance()
        previous_state = GlobalHydra.instance().hydra, hydra_config.cfg
        GlobalHydra.instance().hydra = None
        try:
            try:
                with initialize_config_module("llmrl.conf", **VERSION_BASE_ARGUMENTS):
                    config = compose(primary, [*search_path_overrides, *hydra_arguments], return_hydra_config=True)
            except (HydraException, OmegaConfBaseException) as error:
                raise ConfigError(describe_composition_error(error, hydra_arguments)) from error
            hydra_config.set_config(config)
            with read_write(config), open_dict(config):
                del config["hydra"]
            yield config
        finally:
            # `initialize_config_module` replaces the global instance on exit, so the instance is looked up again.
            GlobalHydra.instance().hydra, hydra_config.cfg = previous_state


@functools.cache
def compose_plain(primary: str, *overrides: str, config_dir: str | None = None) -> dict[str, Any]:
    """Compose a config from overrides and return it as plain data without digests.

    Configs are cached, because composition is slow, so callers must not modify them.

    Raises:
        ConfigError: see `compose_config` and `to_plain`.
    """
    with compose_config(primary, overrides, [] if config_dir is None else [config_dir]) as config:
        return to_plain(config)


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Convert a composed config to plain data, with resolved interpolations; `HydraConfig` must be set.

    Raises:
        ConfigError: a value is missing, cannot be resolved, or is or contains a secret.
    """
    from hydra.core.hydra_config import HydraConfig

    raw_config = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw_config, dict)
    check_no_secrets(raw_config)
    try:
        _redact_folders(config)
        container = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise ConfigError(f"{error.full_key} has no default; add {error.full_key}=<value>") from error
    except OmegaConfBaseException as error:
        overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        assert isinstance(overrides, list)
        raise ConfigError(describe_composition_error(error, [str(override) for override in overrides])) from error
    assert isinstance(container, dict)
    check_no_secrets(container)
    return {str(key): value for key, value in container.items()}


def depends_on_seed(config: DictConfig) -> bool:
    """Return whether values of a composed config may depend on the seed, according to `_JOB_INTERPOLATION`.

    `HydraConfig` must be set.
    """
    from hydra.core.hydra_config import HydraConfig

    nodes = [OmegaConf.to_container(node) for node in (config, HydraConfig.get().job.env_set)]
    return _JOB_INTERPOLATION.search(json.dumps(nodes, default=str)) is not None


def _redact_folders(config: DictConfig) -> None:
    """Redact texts from environment variables in the interpolated options that name folders (`_FOLDER_OPTIONS`)."""
    for option in _FOLDER_OPTIONS:
        group, _, key = option.rpartition(".")
        node = OmegaConf.select(config, group) if group else config
        if isinstance(node, DictConfig) and key in node and OmegaConf.is_interpolation(node, key):
            with read_write(config):
                node[key] = str(redact_folder_names(Path(str(node[key]))))
