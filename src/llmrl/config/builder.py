"""Building objects from config nodes: the one place where `_target_` is looked up and arguments are checked.

Every option file names a class and its arguments. Arguments are checked against the signature and type hints of the
class (ranges included, see `llmrl.core.ranges`) before anything is constructed. Objects that no file can describe (the
environment's spec, the seed tree, the device, a language model) are injected by parameter name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.arguments import checked, type_hints_of
from llmrl.core.errors import ConfigError, ErrorCollector
from llmrl.core.part_factory import PartFactory
from llmrl.core.trust import Trust

INJECTED = (
    *("seeds", "spec", "env_factory", "device", "llm", "scorer", "has_principal", "prompt_folder", "folder", "cores"),
    *("env", "env_options", "agents", "teacher", "principal", "meter", "space", "controller", "proposals", "processes"),
    *("known", "observers", "trust", "one_game", "workshop"),
)
"""Names of injected parameters. They count as options only where the file of an option has such a field."""


class Builder:
    """A builder of objects from config nodes.

    Args:
        injected: objects by parameter name, given to every part whose signature has that name; `trust` is always added.
        trusted: modules that `_target_` may point into, in addition to those of `llmrl.core.trust`.
    """

    def __init__(self, injected: Mapping[str, Any] | None = None, trusted: Sequence[str] = ()) -> None:
        self.trust = Trust(tuple(trusted))
        self.injected = {**(injected or {}), "trust": self.trust}

    def build(self, node: Mapping[str, Any], where: str) -> Any:
        """Build the object that `node` describes; return None where `_target_` is null or missing.

        `where` is the place of the node in the config, for error messages.

        Raises:
            ConfigError: untrusted, abstract or missing target; unknown, missing, mistyped or out-of-range argument.
        """
        if node.get("_target_") is None:
            return None
        target = self.locate(node["_target_"], where)
        if inspect.isabstract(target):
            lacks = ", ".join(sorted(target.__abstractmethods__))
            raise ConfigError(f"{where}._target_={node['_target_']} is abstract: it must define {lacks}")
        parameters = inspect.signature(target).parameters
        hints = type_hints_of(target)
        given = {name: value for name, value in node.items() if name != "_target_"}
        settable = [name for name in parameters if name not in self.injected]
        unknown = [name for name in given if name not in settable]
        if unknown:
            raise ConfigError(f"{where} has no option '{unknown[0]}'; it has: {', '.join(settable) or 'none'}")
        arguments: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if name in given:
                if parameter.annotation is not inspect.Parameter.empty and name not in hints:
                    raise TypeError(f"the type hint of {target.__qualname__}({name}) cannot be evaluated at run time")
                arguments[name] = self.value(given[name], hints.get(name, Any), f"{where}.{name}")
            elif name in self.injected:
                arguments[name] = self.injected[name]
            elif parameter.default is inspect.Parameter.empty:
                raise ConfigError(f"{where} needs the option '{name}'")
        return target(**arguments)

    def value(self, value: Any, hint: Any, where: str) -> Any:
        """Return one argument, checked against the type `hint`; nodes with a `_target_` in it are built.

        With the hint `PartFactory` the node is not built, but wrapped.

        Raises:
            ConfigError: the value does not fit `hint`, or as `build`.
        """
        if hint is PartFactory:
            return self._factory(value, where)
        return checked(self._value(value, where), hint, where)

    def check(self, node: Mapping[str, Any], where: str) -> None:
        """Check the arguments of `node` and of the parts in it. Nothing is built, so checks inside constructors are not
        run.

        Raises:
            ConfigError: arguments that are unknown, mistyped or out of range, all of them.
        """
        if node.get("_target_") is None:
            return
        target = self.locate(node["_target_"], where)
        parameters, hints = inspect.signature(target).parameters, type_hints_of(target)
        errors = ErrorCollector()
        for name, value in node.items():
            if name == "_target_":
                continue
            with errors.collect():
                if name not in parameters or name == "trust":
                    settable = [x for x in parameters if x != "trust" and (x in node or x not in INJECTED)]
                    raise ConfigError(f"{where} has no option '{name}'; it has: {', '.join(settable) or 'none'}")
                if not nested(name, value) and name in hints:
                    checked(value, hints[name], f"{where}.{name}")
            for place, part in nested(name, value):
                with errors.collect():
                    self.check(part, f"{where}.{place}")
        errors.raise_all()

    def needs(self, node: Mapping[str, Any], name: str, where: str) -> bool:
        """Return whether the part, or a nested part, declares the injected parameter `name`."""
        if node.get("_target_") is None:
            return False
        if name in inspect.signature(self.locate(node["_target_"], where)).parameters:
            return True
        inside = [pair for key, value in node.items() for pair in nested(key, value)]
        return any(self.needs(part, name, f"{where}.{key}") for key, part in inside)

    def insists(self, node: Mapping[str, Any], name: str, where: str) -> bool:
        """Return whether the part declares the injected parameter `name` without a default."""
        parameter = inspect.signature(self.locate(node["_target_"], where)).parameters[name]
        return parameter.default is inspect.Parameter.empty

    def _factory(self, node: Any, where: str) -> PartFactory:
        if not isinstance(node, Mapping) or node.get("_target_") is None:
            raise ConfigError(f"{where}={node!r}: the options of a part are needed, with its _target_")

        def build(options: Mapping[str, Any], injected: Mapping[str, Any]) -> Any:
            return Builder({**self.injected, **injected}, self.trust.modules).build(options, where)

        return PartFactory(build, self.locate(node["_target_"], where), node, where)

    def _value(self, value: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            if "_target_" in value:
                return self.build(value, where)
            return {key: self._value(x, f"{where}.{key}") for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(x, f"{where}[{i}]") for i, x in enumerate(value)]
        return value

    def locate(self, target: str, where: str) -> Any:
        """Return the class or function that `target` names; `where` is the place of its node in the config.

        Raises:
            ConfigError: as `Trust.locate`.
        """
        return self.trust.locate(target, f"{where}._target_")


def nested(key: str, value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the parts that the value of an option consists of, each with its place: one, those of a list, or none."""
    if isinstance(value, Mapping):
        return [(key, value)] if "_target_" in value else []
    if not isinstance(value, list | tuple):
        return []
    return [(f"{key}[{i}]", x) for i, x in enumerate(value) if isinstance(x, Mapping) and "_target_" in x]
