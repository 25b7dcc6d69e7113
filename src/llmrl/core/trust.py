"""The check of code that a config names with `_target_`, `env.id=module:Id` or `env.text=package.Class`.

The import of a module runs its code. A module is therefore checked by its full dotted name before it is imported. An
object is also checked by the module that defines it, because a trusted module may have imported it from another one.

Trusted are the parts of this package, the modules in `Trust.modules`, and the entry points of installed packages
(`llmrl.core.installed`). `llmrl.config.permissions` determines `Trust.modules`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points

SHELL_PERMISSION = "shell"
"""Entry of `trusted_modules` that allows jobs on a cluster to run shell commands of a saved config."""
PART_PACKAGES = (
    *("llmrl.agents", "llmrl.chat_learning", "llmrl.envs", "llmrl.finetuning", "llmrl.algorithms", "llmrl.loops"),
    *("llmrl.networks", "llmrl.principals", "llmrl.teachers"),
    # Other modules of `llmrl.llms`, such as the call log and the cache, write to paths that a config sets.
    *("llmrl.llms.budget", "llmrl.llms.rate_limit", "llmrl.llms.retry", "llmrl.llms.litellm_chat", "llmrl.llms.local"),
    *("llmrl.llms.openai_compatible", "llmrl.llms.replay", "llmrl.llms.scripted", "llmrl.llms.validity"),
)
"""Packages and modules of llmrl with parts. Within llmrl, a config may name only their classes and `NAMED_TARGETS`."""
NAMED_TARGETS = frozenset(
    {
        "llmrl.results.study_settings.StudySettings",
        "llmrl.config.debugging.Debugging",
        "llmrl.envs.substrate.factory.substrate_env",
        "llmrl.llms.client.build_client",
        "llmrl.principals.llm_factory.llm_principal",
        "llmrl.sweeps.backends.here.Here",
        "llmrl.sweeps.backends.local.Local",
        "llmrl.sweeps.backends.slurm_submission.Slurm",
        "llmrl.run.sinks.mlflow.MLflow",
        "llmrl.run.sinks.tensorboard.TensorBoard",
        "llmrl.run.sinks.wandb.WandB",
        "llmrl.sweeps.backends.protocol.Hardware",
        "llmrl.teachers.teacher_factory.llm_teacher",
        "llmrl.teachers.teacher_factory.offline_teacher",
        "llmrl.teachers.teacher_factory.oracle_teacher",
        "llmrl.tuning.study.TuningSettings",
    }
)
_KEY_HOST_PATTERN = r"[A-Za-z_]\w*@(https?://)?[\w.:\[\]/-]+|https?://[\w.:\[\]-]+"  # KEY@host, or a host
_OWN_PACKAGES = ("llmrl", "hydra_plugins")


@dataclass(frozen=True)
class Trust:
    """Rules for the modules that may be imported, and the objects that may be called, because a config names them.

    Args:
        modules: dotted names of further trusted modules, whose submodules are trusted, too. Other permissions of a
            config, such as `shell` and hosts of API keys (`llmrl.config.permissions`), may be among them.

    Raises:
        ConfigError: an entry is not a permission.
    """

    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for module in self.modules:
            if not isinstance(module, str) or not (_is_dotted_name(module) or re.fullmatch(_KEY_HOST_PATTERN, module)):
                raise ConfigError(
                    f"trusted_modules: {module!r} is not the name of a module; give names such as my_package or "
                    "my_package.parts, or a key and its host, such as MY_API_KEY@https://my.host"
                )

    def is_trusted(self, module: str) -> bool:
        """Return whether `module` may be imported if a config names it."""
        return _matches_package(module, (*PART_PACKAGES, *self.modules, *(entry.module for entry in entry_points())))

    def load(self, module: str, option: str) -> ModuleType:
        """Import and return a trusted module.

        Args:
            module: dotted name.
            option: option that names the module, for messages, e.g. `env.id=my_package:Tower-v3`.

        Raises:
            ConfigError: the module is not trusted (it is not imported then), or cannot be imported.
        """
        if not _is_dotted_name(module) or not self.is_trusted(module):
            raise ConfigError(f"{option} {self.explain_refusal(module)}")
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"{option} cannot be imported: {error}{_import_advice(error, module)}") from error

    def locate(self, target: object, option: str) -> Any:
        """Return the class or function with a dotted name.

        Args:
            target: dotted name such as `package.module.Class` or `package.module.Class.method`.
            option: option that names the target, for messages, e.g. `agent._target_`.

        Raises:
            ConfigError: the target or the module that defines it is not trusted, the target is not a class or function,
                or it cannot be imported.
        """
        label = f"{option}={target}"
        if not isinstance(target, str) or not _is_dotted_name(target) or "." not in target:
            raise ConfigError(
                f"{option}={target!r} is not the dotted name of a class or function, like my_package.MyClass"
            )
        if target in NAMED_TARGETS:
            return getattr(importlib.import_module(target.rpartition(".")[0]), target.rpartition(".")[2])
        module, names = self._import_longest_module(target, label)
        try:
            target_object: Any = functools.reduce(getattr, names, module)
        except AttributeError as error:
            raise ConfigError(f"{label} cannot be imported: there is no such name ({error})") from error
        is_class_method = inspect.ismethod(target_object) and inspect.isclass(target_object.__self__)
        if not (inspect.isclass(target_object) or inspect.isfunction(target_object) or is_class_method):
            object_type = "a module" if inspect.ismodule(target_object) else "an object"
            raise ConfigError(f"{label} is {object_type}, not a class or function")
        defining_module = getattr(getattr(target_object, "__func__", target_object), "__module__", None)
        if not isinstance(defining_module, str) or not self.is_trusted(defining_module):
            raise ConfigError(
                f"{label} is defined in {defining_module}, which is outside the trusted modules; name it by "
                "the module that defines it, and trust that module"
            )
        is_public_class = len(names) == 1 and inspect.isclass(target_object) and names[0][0] != "_"
        if _matches_package(target, _OWN_PACKAGES) and not is_public_class:
            raise ConfigError(
                f"{label} is not part of llmrl: a config may name classes of parts, and the functions that llmrl's own "
                "options name"
            )
        return target_object

    def find_untrusted(self, names: Iterable[str]) -> list[str]:
        """Return the names in `names` (classes, functions, modules) that are not trusted, in order, without repeats."""
        return [name for name in dict.fromkeys(names) if not self.is_trusted(name) and name not in NAMED_TARGETS]

    def explain_refusal(self, name: str) -> str:
        """Return why a name is not trusted and what the user can do, as the predicate of a sentence about the name."""
        if _matches_package(name, _OWN_PACKAGES):
            reason = "this module of llmrl holds no parts that a config could name"
        elif is_never_trusted(name):
            reason = "it belongs to Python, or is not the name of a module, so it is not part of an experiment"
        else:
            remedy = f"If you know whose it is, repeat the command with {format_trust_options([name.split('.')[0]])}"
            reason = f"it is not part of llmrl, and would run with your rights. {remedy}"
        return f"is outside the trusted modules: {reason}"

    def _import_longest_module(self, target: str, label: str) -> tuple[ModuleType, list[str]]:
        """Return the longest importable module that a dotted name begins with, and the names after it."""
        parts = target.split(".")
        import_error: ImportError | None = None
        for i in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:i])
            if not self.is_trusted(module):
                break
            try:
                return importlib.import_module(module), parts[i:]
            except ModuleNotFoundError as error:
                if error.name is None or not _matches_package(module, (error.name,)):
                    raise ConfigError(f"{label} cannot be imported: {error}") from error
                import_error = error
            except ImportError as error:
                raise ConfigError(f"{label} cannot be imported: {error}") from error
        if import_error is not None:
            advice = _import_advice(import_error, target)
            raise ConfigError(f"{label} cannot be imported: {import_error}{advice}") from import_error
        raise ConfigError(f"{label} {self.explain_refusal(target)}")


def is_never_trusted(name: str) -> bool:
    """Return whether no permission can trust a name: it belongs to llmrl or Python, or does not name a module."""
    is_own_or_python = _matches_package(name, _OWN_PACKAGES) or name.split(".")[0] in sys.stdlib_module_names
    return is_own_or_python or not _is_dotted_name(name)


NO_FURTHER_TRUST = Trust()
"""Trust in llmrl and entry points only."""


def format_trust_options(modules: Iterable[str]) -> str:
    """Return the options that trust `modules`, for commands that compose a config and for those that read a run."""
    names = [*modules]
    return (
        f"'trusted_modules=[{','.join(names)}]' ({' '.join(f'--trust {name}' for name in names)} where a run is read)"
    )


def _import_advice(error: ImportError, name: str) -> str:
    """Return advice to append to an import error if the package of a dotted name was not found; else empty."""
    if not isinstance(error, ModuleNotFoundError) or error.name != name.split(".")[0]:
        return ""
    return f"; install the package of {error.name}, or add the folder that contains it to PYTHONPATH"


def _matches_package(module: str, packages: Iterable[str]) -> bool:
    """Return whether a module is one of `packages` or inside one, by comparison of complete components.

    >>> _matches_package("llmrl.envs.gym", ["llmrl.envs"]), _matches_package("llmrl_evil", ["llmrl"])
    (True, False)
    """
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _is_dotted_name(name: str) -> bool:
    """Return whether `name` consists of identifiers joined by dots, none of which begins with two underscores."""
    return all(part.isidentifier() and not part.startswith("__") for part in name.split("."))
