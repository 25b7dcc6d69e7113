"""The builder of objects from config nodes, the only code that imports `_target_` and checks arguments.

An option file names a class and its options: the fields of its settings, or plain arguments. They are checked against
the signature and type hints, including ranges (`llmrl.core.ranges`), before anything is constructed. Services (the
environment's spec, the seed tree, the device, a language model) are not options and are passed by parameter name.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmrl.core.arguments import PartSignature, get_signature, validate_argument
from llmrl.core.errors import ConfigError, ErrorCollector
from llmrl.core.services import SERVICE_NAMES, PartFactory, Services
from llmrl.core.trust import Trust

Config = Mapping[str, Any]
"""A config, or a node of one, as plain data."""


@dataclass(frozen=True)
class ValidatedPart:
    """A config node with a `_target_`, after the validation of its options.

    Attributes:
        target: class or function that builds the part.
        signature: parameters of the target.
        options: values by option. Nodes in them are `ValidatedPart`s, also in lists and mappings. The type of an option
            that contains parts is checked when these are built.
        path: dotted path of the part in the config, for messages.
    """

    target: Any
    signature: PartSignature
    options: Mapping[str, Any]
    path: str


class Builder:
    """A builder of objects from config nodes. Each node is validated once, even if several objects are built from it.

    Args:
        services: services by parameter name; these parameters cannot be set as options. `trust` is always added.
        trusted: modules that `_target_` may name, in addition to those that are always trusted (`llmrl.core.trust`).
    """

    def __init__(self, services: Services | Mapping[str, Any] | None = None, trusted: Sequence[str] = ()) -> None:
        self.trust = Trust(tuple(trusted))
        # Both dicts are shared with the builders that `replace_services` returns.
        self._targets: dict[str, Any] = {}
        # Nodes and parts by `id(node)`. The node is stored so that its id is not reused.
        self._validated_parts: dict[int, tuple[Mapping[str, Any], ValidatedPart]] = {}
        self._set_services(services)

    def _set_services(self, services: Services | Mapping[str, Any] | None) -> None:
        self.services = {**(vars(services) if isinstance(services, Services) else services or {}), "trust": self.trust}

    def replace_services(self, services: Services | Mapping[str, Any]) -> Builder:
        """Return a builder with other services that shares the trust and the validated nodes of this one."""
        builder = copy.copy(self)
        builder._set_services(services)
        return builder

    def build(self, node: Mapping[str, Any], path: str, target: str | None = None) -> Any:
        """Build the object that `node` describes; return None if `_target_` is null or missing.

        Args:
            node: options of the object.
            path: dotted path of the node in the config, for error messages.
            target: dotted name of the class for a node without `_target_`.

        Raises:
            ConfigError: the node is invalid (`validate`), its class is abstract, or an argument is missing.
        """
        part = self.validate(node, path, target)
        return None if part is None else self._construct(part)

    def _construct(self, part: ValidatedPart) -> Any:
        target, signature, path = part.target, part.signature, part.path
        if inspect.isabstract(target):
            abstract_methods = ", ".join(sorted(target.__abstractmethods__))
            name = f"{target.__module__}.{target.__qualname__}"
            raise ConfigError(f"{path}._target_={name} is abstract: it must define {abstract_methods}")
        for name in part.options:
            if name in self.services:
                raise self._option_error(name, part.options, signature, path)
        arguments: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if name in part.options:
                value, hint = part.options[name], signature.hints.get(name, Any)
                if hint is PartFactory:
                    value = self._make_part_factory(value)
                elif _contains_part(value):
                    value = validate_argument(self._build_parts(value), hint, f"{path}.{name}")
                arguments[name] = value
            elif name in self.services:
                arguments[name] = self.services[name]
            elif parameter.default is inspect.Parameter.empty:
                raise ConfigError(f"{path} needs the option '{name}'")
        return target(**signature.combine_arguments(arguments))

    def build_value(self, value: Any, hint: Any, path: str) -> Any:
        """Return a value, with its nodes built, after a check against the type `hint`.

        Raises:
            ConfigError: the value does not fit `hint`, or a node in it is invalid (`build`).
        """
        return validate_argument(self._build_parts(self._validate_value(value, path)), hint, path)

    def validate(self, node: Mapping[str, Any], path: str, target: str | None = None) -> ValidatedPart | None:
        """Check the arguments of `node` and of the parts in it; return None if `_target_` is null or missing.

        No object is built, so checks in constructors are not executed. Arguments are those of `build`.

        Raises:
            ConfigError: the target is untrusted or cannot be imported, or arguments are unknown, of the wrong type or
                out of range. The message contains all of these.
        """
        if not isinstance(node, Mapping):
            raise ConfigError(f"{path}={node!r} must name the class of a part: {path}._target_=my_package.MyClass")
        target = node.get("_target_", target)
        if target is None:
            return None
        if (validated := self._validated_parts.get(id(node))) is not None:
            return validated[1]
        target_class = self.locate(target, path)
        signature = get_signature(target_class)
        part = ValidatedPart(target_class, signature, self._validate_options(target_class, signature, node, path), path)
        self._validated_parts[id(node)] = node, part
        return part

    def _validate_options(
        self, target: Any, signature: PartSignature, node: Mapping[str, Any], path: str
    ) -> dict[str, Any]:
        """Return the validated options of a node."""
        options: dict[str, Any] = {}
        errors = ErrorCollector()
        for name, value in node.items():
            if name == "_target_":
                continue
            with errors.collect():
                parameter = signature.parameters.get(name)
                if parameter is None or name in self.services:
                    raise self._option_error(name, node, signature, path)
                if parameter.annotation is not inspect.Parameter.empty and name not in signature.hints:
                    raise TypeError(f"the type hint of {target.__qualname__}({name}) cannot be evaluated at run time")
                hint, option_path = signature.hints.get(name, Any), f"{path}.{name}"
                option = self._validate_value(value, option_path)
                if hint is PartFactory and not isinstance(option, ValidatedPart):
                    raise ConfigError(f"{option_path}={value!r} must be the options of a part, with its _target_")
                options[name] = option if _contains_part(option) else validate_argument(option, hint, option_path)
        errors.raise_all()
        return options

    def needs(self, node: Mapping[str, Any], name: str, path: str) -> bool:
        """Return whether the part of `node`, or a part in it, has a parameter for the service `name`."""
        if node.get("_target_") is None:
            return False
        if name in get_signature(self.locate(node["_target_"], path)).parameters:
            return True
        return any(
            isinstance(child, Mapping) and self.needs(child, name, f"{path}.{key}")
            for key, value in node.items()
            for child in (value if isinstance(value, list | tuple) else [value])
        )

    def requires(self, node: Mapping[str, Any], name: str, path: str) -> bool:
        """Return whether the parameter of the part for the service `name` has no default."""
        return get_signature(self.locate(node["_target_"], path)).parameters[name].default is inspect.Parameter.empty

    def locate(self, target: str, path: str) -> Any:
        """Return the class or function that `target` names; `path` is the dotted path of its node.

        Raises:
            ConfigError: the target is not trusted, not a class or function, or cannot be imported.
        """
        if not isinstance(target, str) or target not in self._targets:  # `Trust.locate` rejects other types than str
            self._targets[target] = self.trust.locate(target, f"{path}._target_")
        return self._targets[target]

    def _option_error(self, name: str, node: Mapping[str, Any], signature: PartSignature, path: str) -> ConfigError:
        """Return the error for an option `name` that a part does not have."""
        services = self.services
        option_names = [x for x in signature.parameters if x not in services and (x not in SERVICE_NAMES or x in node)]
        return ConfigError(f"{path} has no option '{name}'; it has: {', '.join(option_names) or 'none'}")

    def _make_part_factory(self, part: ValidatedPart) -> PartFactory:
        def build(overrides: Mapping[str, Any], services: Mapping[str, Any]) -> Any:
            builder = self.replace_services({**self.services, **services})
            options = builder._validate_options(part.target, part.signature, overrides, part.path)
            return builder._construct(replace(part, options={**part.options, **options}))

        return PartFactory(build, part.target, part.path)

    def _validate_value(self, value: Any, path: str) -> Any:
        """Return a value in which nodes are replaced by `ValidatedPart`s, or by None if their `_target_` is null."""
        if isinstance(value, Mapping):
            if "_target_" in value:
                return self.validate(value, path)
            return {key: self._validate_value(x, f"{path}.{key}") for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [self._validate_value(x, f"{path}[{i}]") for i, x in enumerate(value)]
        return value

    def _build_parts(self, value: Any) -> Any:
        """Return a validated value with its parts built."""
        if isinstance(value, ValidatedPart):
            return self._construct(value)
        if isinstance(value, Mapping):
            return {key: self._build_parts(x) for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [self._build_parts(x) for x in value]
        return value


def _contains_part(value: Any) -> bool:
    """Return whether a validated value is or contains a `ValidatedPart`."""
    if isinstance(value, Mapping | list):
        return any(map(_contains_part, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, ValidatedPart)
