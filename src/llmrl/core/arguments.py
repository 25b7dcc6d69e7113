"""Signatures of parts, and checks of arguments against their type hints, including ranges (`llmrl.core.ranges`).

The options of a part are keyword arguments of its constructor, or fields of a frozen dataclass that the constructor
takes as `settings_class`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SETTINGS_PARAMETER = "settings"
"""Name of the constructor parameter for a dataclass of options."""


@dataclass(frozen=True)
class PartSignature:
    """Parameters of a class or function, with the fields of the settings dataclass instead of `settings_class`.

    Attributes:
        parameters: parameters by name.
        hints: evaluated type hints by parameter, without hints that cannot be evaluated.
        settings_class: type of the parameter `settings_class`; None if there is no such parameter.
        settings_fields: names of the parameters that are fields of `settings_class`.
    """

    parameters: Mapping[str, inspect.Parameter]
    hints: Mapping[str, Any]
    settings_class: type | None
    settings_fields: frozenset[str]

    def combine_arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call, with the fields of the settings combined in one object."""
        if self.settings_class is None:
            return dict(values)
        fields = {name: value for name, value in values.items() if name in self.settings_fields}
        other_values = {name: value for name, value in values.items() if name not in self.settings_fields}
        return {**other_values, SETTINGS_PARAMETER: self.settings_class(**fields)}


@functools.cache
def get_signature(target: Any) -> PartSignature:
    """Return the signature of a class or function.

    Raises:
        TypeError: a field of the settings has the name of another parameter.
    """
    parameters, hints = dict(inspect.signature(target).parameters), evaluate_type_hints(target)
    settings = hints.get(SETTINGS_PARAMETER)
    if SETTINGS_PARAMETER not in parameters or not (inspect.isclass(settings) and dataclasses.is_dataclass(settings)):
        return PartSignature(parameters, hints, None, frozenset())
    del parameters[SETTINGS_PARAMETER], hints[SETTINGS_PARAMETER]
    fields = inspect.signature(settings).parameters
    if duplicates := sorted(fields.keys() & parameters.keys()):
        raise TypeError(
            f"{target.__qualname__}: '{duplicates[0]}' is a parameter and a field of {settings.__qualname__}"
        )
    return PartSignature(
        {**parameters, **fields}, {**hints, **evaluate_type_hints(settings)}, settings, frozenset(fields)
    )


def evaluate_type_hints(target: Any) -> dict[str, Any]:
    """Return the evaluated type hints of a function, or of a class's constructor, by argument.

    Hints with names that exist only for type checkers are left out. No config can contain values of these types.
    """
    function = target.__init__ if inspect.isclass(target) else target
    # The inherited constructor of a class without `__init__` is a built-in without a module.
    namespace: dict[str, Any] = {}
    if inspect.isclass(target) and dataclasses.is_dataclass(target):  # fields may be inherited from another module
        for base in reversed(target.__mro__):
            namespace |= vars(sys.modules[base.__module__])
    namespace |= vars(sys.modules[getattr(function, "__module__", None) or target.__module__])
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        if not isinstance(annotation, str):
            hints[name] = annotation
            continue
        single_annotation = SimpleNamespace(__annotations__={name: annotation})
        with suppress(NameError):
            hints |= typing.get_type_hints(single_annotation, globalns=namespace, include_extras=True)
    return hints


@functools.lru_cache(maxsize=1024)
def _build_type_adapter(hint: Any, hint_text: str) -> TypeAdapter[Any]:
    """Return the validator of a type hint; `hint_text`, its `repr`, distinguishes unions of different order."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    try:
        # No option may be infinite or NaN.
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))
    except PydanticUserError:  # dataclasses and models carry their own configuration
        return TypeAdapter(hint)


def validate_argument(value: Any, hint: Any, option_name: str) -> Any:
    """Return `value`, converted to the type of its hint if the conversion is exact (int to float, list to tuple).

    Raises:
        ConfigError: the value does not fit the hint; the message names it `option_name`.
        TypeError: pydantic does not support the hint.
    """
    from pydantic import PydanticSchemaGenerationError, ValidationError

    try:
        try:
            adapter = _build_type_adapter(hint, repr(hint))
        except TypeError:  # the hint has no hash
            adapter = _build_type_adapter.__wrapped__(hint, "")
        return adapter.validate_python(value, strict=not isinstance(value, list | dict))
    except PydanticSchemaGenerationError as error:
        raise TypeError(f"{option_name}: no check can be made for the type hint {hint!r}") from error
    except ValidationError as error:
        details = error.errors()[0]
        position, wrong_value = "", value
        for key in details["loc"]:  # besides keys and indices, it contains the types of unions
            is_index = isinstance(key, int) and isinstance(wrong_value, list | tuple)
            if is_index or (isinstance(wrong_value, Mapping) and key in wrong_value):
                position += f"[{key}]" if is_index else f".{key}"
                wrong_value = wrong_value[key]
        advice = f", got {type(wrong_value).__name__}" if details["type"].endswith("_type") else ""
        is_whole = isinstance(wrong_value, float) and wrong_value.is_integer() and abs(wrong_value) < 1e18
        if details["type"] == "int_type" and is_whole:
            advice = f", write {int(wrong_value)}"
        elif details["type"] == "bool_type":
            advice = ", write true or false"
        if details["type"] == "objective":  # its message lists the accepted values
            raise ConfigError(f"{option_name}={value!r}: {details['msg']}") from error
        raise ConfigError(f"{option_name}{position}={wrong_value!r}: {details['msg'].lower()}{advice}") from error
