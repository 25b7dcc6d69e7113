"""Which code a config may name: one gate for `_target_`, `env.id=module:Id` and `env.text=package.Class`.

To import a module runs it. So a module is judged by its whole dotted name before it is imported, and what is found in
it by the module that it is at home in: what a trusted module has imported for itself is not meant to be named.

Trusted are the parts of this package, what `Trust.modules` names, what installed packages declare as entry points
(`llmrl.core.installed`), and what the user's own file lists (`user_file`). A config cannot add to it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points

SHELL = "shell"
"""Stands among trusted modules for command lines of a config, which a cluster's jobs run."""
PACKAGES = (
    *("llmrl.agents", "llmrl.envs", "llmrl.finetuning", "llmrl.algorithms", "llmrl.loops"),
    *("llmrl.networks", "llmrl.principals", "llmrl.teachers"),
    # Not the ledger, the cache and the like, which write where they are told to.
    *("llmrl.llms.budget", "llmrl.llms.rate_limit", "llmrl.llms.retry", "llmrl.llms.litellm_chat", "llmrl.llms.local"),
    *("llmrl.llms.openai_compatible", "llmrl.llms.replay", "llmrl.llms.scripted", "llmrl.llms.validity"),
)
"""Packages and modules of this one that hold parts. A config may name their classes, and else nothing but `NAMED`."""
NAMED = frozenset(
    {
        "llmrl.analysis.study.StudySettings",
        "llmrl.envs.substrates.substrate_env",
        "llmrl.llms.client.connect",
        "llmrl.principals.llm.llm_principal",
        "llmrl.sweeps.backends.here.Here",
        "llmrl.sweeps.backends.local.Local",
        "llmrl.sweeps.backends.slurm.Slurm",
        "llmrl.run.sinks.mlflow.MLflow",
        "llmrl.run.sinks.tensorboard.TensorBoard",
        "llmrl.run.sinks.trackio.Trackio",
        "llmrl.run.sinks.wandb.WandB",
        "llmrl.sweeps.backends.protocol.Hardware",
        "llmrl.teachers.options.llm_teacher",
        "llmrl.teachers.options.offline_teacher",
        "llmrl.teachers.options.oracle_teacher",
        "llmrl.tuning.study.Settings",
    }
)
_OURS = ("llmrl", "hydra_plugins")


@dataclass(frozen=True)
class Trust:
    """Decides which modules may be imported, and which objects be called, because a config names them.

    Args:
        modules: further ones, with all that is below them; whole dotted names.

    Raises:
        ConfigError: an entry is no name of a module.
    """

    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for module in self.modules:
            if not isinstance(module, str) or not _is_dotted(module):
                raise ConfigError(
                    f"trusted_modules: {module!r} is no name of a module; give names such as my_package or "
                    "my_package.parts"
                )

    def covers(self, module: str) -> bool:
        """Whether code of `module` may run because a config names it."""
        if _inside(module, (*PACKAGES, *self.modules)) or _inside(module, _installed()):
            return True
        # Of this package nobody but who types the command opens more.
        return not _inside(module, _OURS) and _inside(module, _listed())

    def load(self, module: str, where: str) -> ModuleType:
        """Import a module that is trusted.

        Args:
            module: its dotted name.
            where: that names it, for messages: `env.id=my_package:Tower-v3`.

        Raises:
            ConfigError: it is not trusted, and then nothing of it has been imported; or it cannot be imported.
        """
        if not _is_dotted(module) or not self.covers(module):
            raise ConfigError(f"{where} {self.refusal(module)}")
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"{where} cannot be imported: {error}") from error

    def locate(self, target: object, where: str) -> Any:
        """Find the class or function that a dotted name means.

        Args:
            target: `package.module.Class`, or what is nested in a class.
            where: that names it, for messages: `agent._target_`.

        Raises:
            ConfigError: it is not trusted, is at home elsewhere, is no class or function, or cannot be imported.
        """
        named = f"{where}={target}"
        if not isinstance(target, str) or not _is_dotted(target) or "." not in target:
            raise ConfigError(f"{where}={target!r} is no dotted name of a class or function, like my_package.MyClass")
        if target in NAMED:
            return getattr(importlib.import_module(target.rpartition(".")[0]), target.rpartition(".")[2])
        module, names = self._imported(target, named)
        found: Any = module
        for i, name in enumerate(names):
            try:
                found = getattr(found, name)
            except AttributeError as error:
                raise ConfigError(f"{named} cannot be imported: there is no such name ({error})") from error
            last = i == len(names) - 1
            if inspect.ismodule(found) or not (inspect.isclass(found) if not last else _callable(found)):
                kind = "a module" if inspect.ismodule(found) else "an object"
                raise ConfigError(f"{named}: {'.'.join(names[: i + 1])} is {kind}, and no class or function")
            self._check_home(found, named)
        if self._is_ours(module.__name__) and (len(names) > 1 or not inspect.isclass(found) or names[0][0] == "_"):
            raise ConfigError(f"{named} is no part of llmrl: of its functions a config names those of its own options")
        return found

    def outside(self, names: Iterable[str]) -> list[str]:
        """Those of the dotted names of classes, functions or modules that are not trusted, in their order, once."""
        return [name for name in dict.fromkeys(names) if not self.covers(name) and name not in NAMED]

    def check_shell(self, lines: Iterable[str]) -> None:
        """Raise ConfigError unless command lines of a config may be run; `lines` are the keys that hold some."""
        if (found := list(lines)) and SHELL not in self.modules and SHELL not in _listed():
            raise ConfigError(
                f"{', '.join(found)} are command lines that jobs would run with your rights, and an option file or a "
                f"saved config has set them: type them yourself, or trust them with {how_to_trust([SHELL])}"
            )

    def refusal(self, name: str) -> str:
        """What to say of a name that is not trusted."""
        top = name.split(".")[0]
        cure = f". If you know whose it is, repeat the command with {how_to_trust([top])}"
        return f"is outside the trusted modules: {_kind(name)}{'' if is_nobodys(name) else cure}"

    def _imported(self, target: str, named: str) -> tuple[ModuleType, list[str]]:
        """The module that a dotted name begins with, the longest there is, and the names that follow it."""
        parts = target.split(".")
        fault: ImportError | None = None
        for i in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:i])
            if not self.covers(module):
                break
            try:
                return importlib.import_module(module), parts[i:]
            except ModuleNotFoundError as error:
                if error.name is None or not _inside(module, (error.name,)):
                    raise ConfigError(f"{named} cannot be imported: {error}") from error
                fault = error
            except ImportError as error:
                raise ConfigError(f"{named} cannot be imported: {error}") from error
        if fault is not None:
            raise ConfigError(f"{named} cannot be imported: {fault}") from fault
        raise ConfigError(f"{named} {self.refusal(target)}")

    def _check_home(self, found: Any, named: str) -> None:
        home = getattr(getattr(found, "__func__", found), "__module__", None)
        if not isinstance(home, str) or not self.covers(home):
            raise ConfigError(
                f"{named} is at home in {home}, which is outside the trusted modules; what a module has imported from "
                "elsewhere is not named through it"
            )

    def _is_ours(self, module: str) -> bool:
        return _inside(module, _OURS) and not _inside(module, self.modules)


def is_nobodys(name: str) -> bool:
    """Whether a name that is not trusted is of this package, or of Python itself, and so nothing that one would come to
    trust."""
    return _inside(name, _OURS) or not _is_dotted(name) or name.split(".")[0] in sys.stdlib_module_names


def _kind(name: str) -> str:
    if _inside(name, _OURS):
        return "this module of llmrl holds no parts that a config could name"
    if is_nobodys(name):
        return "it is Python's own, or no name of a module, and no part of an experiment"
    return "it is no code of llmrl, and would run with your rights"


NOBODY = Trust()
"""Trust in nothing that nobody has spoken for."""


def how_to_trust(modules: Iterable[str]) -> str:
    """What to type so that modules are trusted, by the commands that compose a config and by those that read one."""
    names = list(modules)
    return (
        f"'trusted_modules=[{','.join(names)}]' ({' '.join(f'--trust {name}' for name in names)} where a run is read)"
    )


def user_file() -> Path:
    """The user's own list of trusted modules, one a line: `$XDG_CONFIG_HOME/llmrl/trusted`, by default in
    ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "llmrl" / "trusted"


def _listed() -> tuple[str, ...]:
    """Modules of the user's own file; none without one.

    Raises:
        ConfigError: others may write it, or a line is no name of a module.
    """
    path = user_file()
    try:
        with path.open(encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            lines = file.read().splitlines()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}, which lists trusted modules, cannot be read: {error}") from error
    folder = path.resolve().parent.stat()
    for what, seen in ((path, found), (path.resolve().parent, folder)):
        if seen.st_uid not in (os.getuid(), 0) or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"{what}: others may write it, so it cannot say what you trust; chmod go-w it, and own it"
            )
    names = tuple(line.partition("#")[0].strip() for line in lines)
    if wrong := [name for name in names if name and not _is_dotted(name)]:
        raise ConfigError(f"{path}: {wrong[0]!r} is no name of a module; write one a line, such as my_package")
    return tuple(name for name in names if name)


def _installed() -> tuple[str, ...]:
    """Modules that installed packages declare, whatever they declare them for."""
    return tuple(entry.module for entry in entry_points())


def _inside(module: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of `packages` or below one, by whole components.

    >>> _inside("llmrl.envs.gym", ["llmrl.envs"]), _inside("llmrl_evil", ["llmrl"])
    (True, False)
    """
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _is_dotted(name: str) -> bool:
    """Whether a text is identifiers with dots between them, none of Python's internals."""
    return all(part.isidentifier() and not part.startswith("__") for part in name.split("."))


def _callable(found: object) -> bool:
    return (
        inspect.isclass(found)
        or inspect.isfunction(found)
        or (inspect.ismethod(found) and inspect.isclass(found.__self__))
    )
