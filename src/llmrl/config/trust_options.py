"""The rule that only the command line may trust code and approve destinations of keys; files may not.

Hydra acts on some keys of a composed config before a run sees it (callbacks, logging, environment variables). Composed
configs are therefore checked when Hydra creates them (`guard_hydra`).
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmrl.config.destinations import ADDRESSES, VARIABLE, typed_entries
from llmrl.config.option_file_checks import begin_composition, guard_option_files
from llmrl.config.overrides import override_key
from llmrl.core.composition_cache import cache_steps
from llmrl.core.errors import ConfigError
from llmrl.core.secrets import register_resolved_variable
from llmrl.core.trust import SHELL, Trust, is_never_trusted, user_file

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEY = "trusted_modules"
_PLUGINS = ("hydra_plugins.", "hydra._internal.core_plugins.")
_LOGGING = ("logging.Formatter", "logging.NullHandler", "logging.StreamHandler")
_FOLDERS = {
    "output_subdir": None,
    "run": {"dir": "."},
    "sweep": {"dir": "${output_root}/.sweeps/${now:%Y-%m-%d_%H-%M-%S-%f}", "subdir": "."},
}
"""Hydra's options for folders, as in `conf/_run.yaml`, before interpolation."""
_STREAMS = ("ext://sys.stdout", "ext://sys.stderr")


def typed_modules(overrides: Sequence[str]) -> list[str]:
    """Return the modules that the overrides of a command line trust.

    >>> typed_modules(["seed=1", "trusted_modules=[my_package]"])
    ['my_package']

    Raises:
        ConfigError: the value is not a list of names.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    trust_overrides = [override for override in overrides if override_key(override) == KEY]
    if not trust_overrides:
        return []
    override = OverridesParser.create().parse_overrides(trust_overrides[-1:])[0]
    value = None if override.is_sweep_override() else override.value()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{trust_overrides[-1]} must be a list of modules, such as trusted_modules=[my_package]")
    return list(value)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option `--trust` to a command that reads the configs of runs."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="a package outside llmrl that the run's config may name; its code runs with your rights; or "
        "VARIABLE@https://host, a host that the key in VARIABLE may be sent to (may be repeated; "
        "~/.config/llmrl/trusted lists those that are always trusted)",
    )


def with_typed_trust(config: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a composed config that trusts only what the command line trusts.

    Typed command lines for jobs are trusted (`SHELL`), and so are hosts and keys that were typed together.

    Raises:
        ConfigError: a file from which the config was composed sets `trusted_modules`.
    """
    modules, config_modules = typed_modules(overrides), config.get(KEY) or []
    if list(config_modules) != modules:
        raise ConfigError(
            f"trusted_modules={config_modules} is set in an option file, which may not trust code. If you trust it, "
            f"set the option on the command line, or write the modules into {user_file()}, one per line"
        )
    fields = shell_keys(config.get("hardware") or {}, modules)
    override_keys = {override_key(override) for override in overrides}
    if fields and all(any(key == f or key.startswith(f"{f}.") for key in override_keys) for f in fields):
        modules = [*modules, SHELL]
    return {**config, KEY: [*modules, *typed_entries(config, override_keys)]}


def shell_keys(hardware: Mapping[str, Any], trusted: Sequence[str]) -> list[str]:
    """Return the keys of a `hardware` node that hold command lines, as its backend declares (`Backend.command_lines`).

    Raises:
        ConfigError: the target is not a backend, or is not trusted.
    """
    node = hardware.get("backend")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return []  # errors are reported when the backend is built
    backend = Trust(tuple(trusted)).locate(node["_target_"], "hardware.backend._target_")
    lines: Mapping[str, Any] | None = getattr(backend, "command_lines", None)
    if lines is None:
        raise ConfigError(
            f"hardware.backend._target_={node['_target_']} is not a backend: derive it from "
            "llmrl.sweeps.backends.protocol.Backend (docs/extending.md)"
        )
    names = [name for name, harmless in lines.items() if node.get(name) and node[name] != harmless]
    return [f"hardware.backend.{name}" for name in names]


def check_known(config: Mapping[str, Any], whose: str) -> None:
    """Check that all code that a saved config names is trusted.

    Args:
        config: plain data, with the modules that are trusted for this command.
        whose: file with the config, for the message.

    Raises:
        ConfigError: the config names other code; the message says how to trust it.
    """
    trust = Trust(tuple(config[KEY]))
    untrusted_names = trust.outside(code_names(config))
    for name in untrusted_names:
        if is_never_trusted(name):
            raise ConfigError(f"{whose}: {name} {trust.refusal(name)}")
    if untrusted_names:
        modules = dict.fromkeys(name.split(".")[0] for name in untrusted_names)
        raise ConfigError(
            f"{whose} names code outside llmrl, which would run with your rights: {', '.join(untrusted_names)}. "
            f"If you trust it, repeat the command with {' '.join(f'--trust {name}' for name in modules)}, or write the "
            f"modules into {user_file()}, one per line"
        )


def code_names(node: Any) -> Iterator[str]:
    """Yield the dotted names of the code that a config names."""
    if isinstance(node, Mapping):
        target, name, text = node.get("_target_"), node.get("id", node.get("level")), node.get("text")
        if target is not None:
            yield str(target)
        if isinstance(name, str) and ":" in name:
            yield name.rpartition(":")[0]
        if target is not None and isinstance(text, str) and "." in text and not text.endswith((".yaml", ".yml")):
            yield text
        for value in node.values():
            yield from code_names(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from code_names(value)


def guard_hydra() -> None:
    """Make Hydra check composed configs and option files, and redact values from the environment.

    Files may not choose code that Hydra itself would run. It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from llmrl.conf import register_resolver

    guard_option_files()
    cache_steps()

    # Every composition calls this method, whose name has changed in Hydra 1.4.
    name = "_load_configuration" if hasattr(ConfigLoaderImpl, "_load_configuration") else "load_configuration"
    load = getattr(ConfigLoaderImpl, name)
    if hasattr(load, "__wrapped__"):
        return
    register_resolver("oc.env", _read_environment, replace=True)

    @functools.wraps(load)
    def guard_load(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        from hydra.errors import ConfigCompositionException, HydraException
        from omegaconf.errors import OmegaConfBaseException

        from llmrl.config.composition_errors import check_removals, describe

        call = inspect.signature(load).bind(self, *args, **kwargs)
        call.apply_defaults()
        overrides = call.arguments["overrides"]
        begin_composition()
        try:
            check_removals(overrides)
            config: DictConfig = load(self, *args, **kwargs)
            check_hydra(config, overrides)
        except (HydraException, OmegaConfBaseException, ConfigError, ValueError) as error:
            # Hydra's ValueError: the option of a group is a number or null.
            message = str(error)
            if isinstance(error, HydraException | OmegaConfBaseException):
                message = describe(error, overrides)
            # Hydra prints errors of its command line itself.
            name = "llmrl-finetune" if call.arguments["config_name"] == "finetune" else "llmrl-train"
            command = f"{name}: " if call.arguments["from_shell"] else ""
            cause = None if isinstance(error, OmegaConfBaseException) else error  # which Hydra would print, too
            raise ConfigCompositionException(f"{command}{message}") from cause
        return config

    setattr(ConfigLoaderImpl, name, guard_load)


def _read_environment(variable: str, *default: Any) -> str | None:
    """Return what OmegaConf's own resolver `oc.env` returns, and redact it from now on."""
    from omegaconf.resolvers import oc

    if variable in os.environ:
        register_resolved_variable(variable)
    return oc.env(variable, *default)


def check_hydra(config: DictConfig, overrides: Sequence[str]) -> None:
    """Check that no file makes Hydra run code or write files.

    Args:
        config: composed config with Hydra's own node.
        overrides: overrides as typed.

    Raises:
        ConfigError: a file sets a callback, plugin or logger of code that is not trusted, a folder, an environment
            variable, or overrides.
    """
    from omegaconf import OmegaConf

    hydra_node = config.hydra
    words: list[Any] = []
    for group in (hydra_node.overrides.task, hydra_node.overrides.hydra):
        for i in range(len(group)):
            group[i]  # By index: an error of iteration does not say which one cannot be resolved.
        words += OmegaConf.to_container(group, resolve=False)  # type: ignore[arg-type]
    if sorted(words) != sorted(overrides):
        raise ConfigError("hydra.overrides is set in an option file, which may not set it; remove it there")
    trust = Trust(tuple(typed_modules(overrides)))
    nodes = _resolved_nodes(config, overrides)
    for name in ("callbacks", "launcher", "sweeper"):
        for place, target in _targets(nodes[name], f"hydra.{name}"):
            # Plugins are installed packages, and Hydra accepts no other launchers and sweepers.
            if not (place in ("hydra.launcher", "hydra.sweeper") and str(target).startswith(_PLUGINS)):
                trust.locate(target, f"{place}._target_")
    for name in ("job_logging", "hydra_logging"):
        _check_logging(nodes[name], f"hydra.{name}", trust)
    _check_sweeper(nodes["sweeper"])
    plain: Any = OmegaConf.to_container(hydra_node, resolve=False)
    for name, expected in _FOLDERS.items():
        if (value := plain[name]) != expected:
            raise ConfigError(
                f"hydra.{name}={value} must be {expected}, because folders of runs are named after their options; "
                "choose them by output_root and name"
            )
    override_keys = {override_key(override) for override in overrides}
    for name in hydra_node.job.env_set:
        if f"hydra.job.env_set.{name}" not in override_keys and name not in hydra_node.job.env_copy:
            raise ConfigError(
                f"hydra.job.env_set.{name} is set in an option file, which may not set variables; set it on the "
                f"command line (hydra.job.env_set.{name}=<value>), or export {name}"
            )


def _resolved_nodes(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved nodes of Hydra's config that may hold code, in plain containers; None where there is none.

    Raises:
        ConfigError: a node cannot be resolved.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from llmrl.config.composition_errors import describe

    hydra_node = config.hydra
    shared = HydraConfig.instance()
    previous = shared.cfg
    # Interpolations read it. `set_config` would copy Hydra's node, which is slow.
    shared.cfg = config  # type: ignore[assignment]
    try:
        return {
            name: OmegaConf.to_container(hydra_node[name], resolve=True)
            if OmegaConf.is_config(hydra_node[name])
            else None
            for name in ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging")
        }
    except OmegaConfBaseException as error:
        raise ConfigError(f"hydra's own options cannot be read: {describe(error, overrides)}") from error
    except (ValueError, KeyError) as error:
        raise ConfigError(f"hydra's own options cannot be read: {error}") from error
    finally:
        shared.cfg = previous


def _check_sweeper(node: Any) -> None:
    """Raise ConfigError for swept keys that only a command line may set."""
    for key in (node.get("params") if isinstance(node, dict) else None) or {}:
        name = override_key(str(key))
        if name.startswith((KEY, "hydra", "hardware.backend.")) or name.endswith((*ADDRESSES, VARIABLE)):
            raise ConfigError(f"hydra.sweeper.params may not have {key}; set it on the command line")


def _targets(node: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield place, node["_target_"]
        for key, value in node.items():
            yield from _targets(value, f"{place}.{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _targets(value, f"{place}[{i}]")


def _check_logging(node: Any, place: str, trust: Trust) -> None:
    """Raise ConfigError for loggers that are made of code, or that write into arbitrary files."""
    for key, value in _entries(node):
        setting = f"{place}: {key}={value!r}"
        if key == "()" or (key == "class" and value not in (*_LOGGING, "logging.FileHandler")):
            trust.locate(value, f"{place}.{key}")
        elif key == "." or (str(value).startswith(("ext://", "cfg://")) and value not in _STREAMS):
            raise ConfigError(f"{setting} is not a logging setting that an option file may have; remove it there")
        elif key == "filename" and not (str(value).endswith(".log") and "\n" not in str(value)):
            raise ConfigError(f"{setting}: the name of a log file must end in .log")


def _entries(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield str(key), value
            yield from _entries(value)
    elif isinstance(node, list):
        for value in node:
            yield from _entries(value)
            if not isinstance(value, Mapping | list):
                yield "", value
