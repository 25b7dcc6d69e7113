"""Who may say which code runs, and which host gets a key: whoever types the command. What files say of it is refused.

Hydra would act on some keys of a composed config before any of it reaches a run (callbacks, logging, variables of the
environment), so its composed configs are looked at as they are made (`guard_hydra`).
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmrl.config.destinations import ADDRESSES, VARIABLE, typed_entries
from llmrl.config.option_file_checks import begin_composition, describe, guard_option_files
from llmrl.core.errors import ConfigError
from llmrl.core.secrets import protect_resolved
from llmrl.core.trust import SHELL, Trust, is_nobodys, user_file

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


def trusted_by(overrides: Sequence[str]) -> list[str]:
    """Modules that the overrides of a command line trust.

    >>> trusted_by(["seed=1", "trusted_modules=[my_package]"])
    ['my_package']

    Raises:
        ConfigError: what was typed is no list of names.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    typed = [override for override in overrides if _key(override) == KEY]
    if not typed:
        return []
    override = OverridesParser.create().parse_overrides(typed[-1:])[0]
    value = None if override.is_sweep_override() else override.value()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{typed[-1]}: give a list of modules, such as trusted_modules=[my_package]")
    return list(value)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """The option `--trust` of a command that reads the configs of runs."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="a package that the run's config may name although it is no part of llmrl; its code runs with your "
        "rights; or VARIABLE@https://host, a host that the key in VARIABLE may be sent to (may be repeated; "
        "~/.config/llmrl/trusted lists those that are always trusted)",
    )


def only_typed(config: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A composed config whose trust is that of the command line alone.

    Command lines for jobs that were typed are trusted as such (`SHELL`), and hosts and keys that were typed together.

    Raises:
        ConfigError: a file among those that the config was composed of says what is to be trusted.
    """
    typed, found = trusted_by(overrides), config.get(KEY) or []
    if list(found) != typed:
        raise ConfigError(
            f"trusted_modules={found} is in an option file, and what may run is for whoever types the command to say: "
            f"if you know whose code it is, type it, or write the modules into {user_file()}, one a line"
        )
    fields = shell_keys(config.get("hardware") or {}, typed)
    by_hand = {_key(override) for override in overrides}
    if fields and all(any(key == f or key.startswith(f"{f}.") for key in by_hand) for f in fields):
        typed = [*typed, SHELL]
    return {**config, KEY: [*typed, *typed_entries(config, by_hand)]}


def shell_keys(hardware: Mapping[str, Any], trusted: Sequence[str]) -> list[str]:
    """Keys of a `hardware` node that hold command lines, as its backend says (`Backend.command_lines`).

    Raises:
        ConfigError: the backend is none, or is not trusted.
    """
    node = hardware.get("backend")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return []  # what it lacks is said when it is built
    backend = Trust(tuple(trusted)).locate(node["_target_"], "hardware.backend._target_")
    lines: Mapping[str, Any] | None = getattr(backend, "command_lines", None)
    if lines is None:
        raise ConfigError(
            f"hardware.backend._target_={node['_target_']} is no backend: derive it from "
            "llmrl.sweeps.backends.protocol.Backend (docs/extending.md)"
        )
    found = [name for name, harmless in lines.items() if node.get(name) and node[name] != harmless]
    return [f"hardware.backend.{name}" for name in found]


def check_known(config: Mapping[str, Any], whose: str) -> None:
    """Refuse a config that somebody has saved unless all code that it names is trusted.

    Args:
        config: plain data, with the modules that are trusted for this command.
        whose: the file, for the message.

    Raises:
        ConfigError: it names other code; which, and what to type.
    """
    trust = Trust(tuple(config[KEY]))
    strange = trust.outside(named_code(config))
    for name in strange:
        if is_nobodys(name):
            raise ConfigError(f"{whose}: {name} {trust.refusal(name)}")
    if strange:
        modules = dict.fromkeys(name.split(".")[0] for name in strange)
        raise ConfigError(
            f"{whose} names code that is no part of llmrl: {', '.join(strange)}. It would run with your rights. If you "
            f"know whose it is, repeat the command with {' '.join(f'--trust {name}' for name in modules)}, or write "
            f"the modules into {user_file()}, one a line"
        )


def named_code(node: Any) -> Iterator[str]:
    """Dotted names of the code that a config names."""
    if isinstance(node, Mapping):
        target, name, text = node.get("_target_"), node.get("id", node.get("level")), node.get("text")
        if target is not None:
            yield str(target)
        if isinstance(name, str) and ":" in name:
            yield name.rpartition(":")[0]
        if target is not None and isinstance(text, str) and "." in text and not text.endswith((".yaml", ".yml")):
            yield text
        for value in node.values():
            yield from named_code(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from named_code(value)


def guard_hydra() -> None:
    """Have Hydra refuse configs in which a file says what Hydra itself would run, and files that it cannot read, and
    redact what configs read from the environment; done once a process."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    from llmrl.conf import register_resolver

    guard_option_files()

    # What every way to a composed config goes through: the second since Hydra 1.4.
    name = "_load_configuration" if hasattr(ConfigLoaderImpl, "_load_configuration") else "load_configuration"
    load = getattr(ConfigLoaderImpl, name)
    if hasattr(load, "__wrapped__"):
        return
    register_resolver("oc.env", _read_environment, replace=True)

    @functools.wraps(load)
    def guarded(self: ConfigLoaderImpl, *args: Any, **kwargs: Any) -> DictConfig:
        from hydra.errors import ConfigCompositionException
        from omegaconf.errors import OmegaConfBaseException

        overrides = kwargs["overrides"] if "overrides" in kwargs else args[1]
        begin_composition()
        try:  # `from None`: Hydra prints causes of OmegaConf as well
            config: DictConfig = load(self, *args, **kwargs)
            check_hydra(config, overrides)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException(describe(error, overrides)) from None
        except (ConfigError, ValueError) as error:  # Hydra's ValueError: the option of a group is a number or null
            raise ConfigCompositionException(str(error)) from error
        except ConfigCompositionException as error:
            if not isinstance(error.__cause__, OmegaConfBaseException):
                raise
            raise ConfigCompositionException(describe(error.__cause__, overrides)) from None
        return config

    setattr(ConfigLoaderImpl, name, guarded)


def _read_environment(variable: str, *default: Any) -> str | None:
    """Return what OmegaConf's own resolver `oc.env` returns, and redact it from now on."""
    from omegaconf.resolvers import oc

    if variable in os.environ:
        protect_resolved(variable)
    return oc.env(variable, *default)


def check_hydra(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse what a file has Hydra run.

    Args:
        config: composed, with Hydra's own.
        overrides: what was typed.

    Raises:
        ConfigError: a callback, plugin or logger made of code that is not trusted, a folder, a variable of the
            environment, or overrides that nobody has typed.
    """
    from omegaconf import OmegaConf

    own = config.hydra
    words: list[Any] = []
    for each in (own.overrides.task, own.overrides.hydra):
        for i in range(len(each)):
            each[i]  # By index: an error of iteration does not say which one cannot be resolved.
        words += OmegaConf.to_container(each, resolve=False)  # type: ignore[arg-type]
    if sorted(words) != sorted(overrides):
        raise ConfigError("hydra.overrides is set in an option file; overrides are typed")
    trust = Trust(tuple(trusted_by(overrides)))
    nodes = _resolved_nodes(config, overrides)
    for name in ("callbacks", "launcher", "sweeper"):
        for place, target in _targets(nodes[name], f"hydra.{name}"):
            # Plugins are installed, and Hydra takes no other launcher and no other sweeper.
            if not (place in ("hydra.launcher", "hydra.sweeper") and str(target).startswith(_PLUGINS)):
                trust.locate(target, f"{place}._target_")
    for name in ("job_logging", "hydra_logging"):
        _check_logging(nodes[name], f"hydra.{name}", trust)
    _check_sweeper(nodes["sweeper"])
    plain: Any = OmegaConf.to_container(own, resolve=False)
    for name, expected in _FOLDERS.items():
        if (value := plain[name]) != expected:
            raise ConfigError(
                f"hydra.{name}={value} is set in an option file, and Hydra would create folders by it; accepted: "
                f"{expected} (folders of runs follow from output_root and name)"
            )
    for name in own.job.env_set:
        if not _typed_variable(str(name), overrides) and name not in own.job.env_copy:
            raise ConfigError(f"hydra.job.env_set.{name} is set in an option file; type it, or export {name}")


def _resolved_nodes(config: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved nodes of Hydra's config that may hold code, in plain containers; None where there is none.

    Raises:
        ConfigError: a node cannot be resolved.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    own = config.hydra
    shared = HydraConfig.instance()
    before = shared.cfg
    shared.set_config(config)  # what interpolations ask; closes Hydra's part to changes
    try:
        return {
            name: OmegaConf.to_container(own[name], resolve=True) if OmegaConf.is_config(own[name]) else None
            for name in ("callbacks", "launcher", "sweeper", "job_logging", "hydra_logging")
        }
    except OmegaConfBaseException as error:
        raise ConfigError(f"hydra's own options cannot be read: {describe(error, overrides)}") from error
    except (ValueError, KeyError) as error:
        raise ConfigError(f"hydra's own options cannot be read: {error}") from error
    finally:
        shared.cfg = before
        OmegaConf.set_readonly(own, None)  # launchers write the number of a job there


def _check_sweeper(node: Any) -> None:
    """Refuse swept keys that only a command line may set."""
    for key in (node.get("params") if isinstance(node, dict) else None) or {}:
        name = _key(str(key))
        if name.startswith((KEY, "hydra", "hardware.backend.")) or name.endswith((*ADDRESSES, VARIABLE)):
            raise ConfigError(f"hydra.sweeper.params has {key}: type it")


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
    """Refuse loggers that are made of code, or that write into any file."""
    for key, value in _entries(node):
        where = f"{place}: {key}={value!r}"
        if key == "()" or (key == "class" and value not in (*_LOGGING, "logging.FileHandler")):
            trust.locate(value, f"{place}.{key}")
        elif key == "." or (str(value).startswith(("ext://", "cfg://")) and value not in _STREAMS):
            raise ConfigError(f"{where} is no logging that an option file may ask for")
        elif key == "filename" and not (str(value).endswith(".log") and "\n" not in str(value)):
            raise ConfigError(f"{where}: a log file ends in .log")


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


def _typed_variable(name: str, overrides: Iterable[str]) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    key = "hydra.job.env_set"
    for override in overrides:
        if _key(override) == f"{key}.{name}":
            return True
        if _key(override) == key:
            value = OverridesParser.create().parse_overrides([override])[0].value()
            return isinstance(value, dict) and name in {str(each) for each in value}
    return False


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].strip()
