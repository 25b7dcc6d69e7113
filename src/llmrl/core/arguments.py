"""Checks of arguments against the type hints of a class or function, ranges included (`llmrl.core.ranges`)."""

from __future__ import annotations

import inspect
import sys
import typing
from typing import Any

from llmrl.core.errors import ConfigError


def type_hints_of(target: Any) -> dict[str, Any]:
    """Return the evaluated type hints of a function, or of a class's constructor, by argument.

    Hints with names that exist only for type checkers are left out; they belong to objects that no config can hold.
    """
    function = target.__init__ if inspect.isclass(target) else target
    # The inherited constructor of a class without `__init__` is a built-in without a module.
    namespace = vars(sys.modules[getattr(function, "__module__", None) or target.__module__])
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        if isinstance(annotation, str):
            try:
                evaluated = typing.get_type_hints(_Annotated(annotation), globalns=namespace, include_extras=True)[
                    "value"
                ]
            except NameError:
                continue
            hints[name] = evaluated
        else:
            hints[name] = annotation
    return hints


class _Annotated:
    """An object with one annotation, for `typing.get_type_hints`."""

    def __init__(self, annotation: str) -> None:
        self.__annotations__ = {"value": annotation}


def checked(value: Any, hint: Any, where: str) -> Any:
    """Return `value` with only the conversions that its hint requires (int to float, list to tuple).

    Raises:
        ConfigError: the value does not fit the hint; the message calls it `where`.
        TypeError: the hint cannot be checked.
    """
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

    try:
        try:
            # No option may be infinite or NaN.
            settings = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
            adapter: TypeAdapter[Any] = TypeAdapter(hint, config=settings)
        except PydanticUserError:  # dataclasses and models carry their own configuration
            adapter = TypeAdapter(hint)
        return adapter.validate_python(value, strict=not isinstance(value, list | dict))
    except PydanticSchemaGenerationError as error:
        raise TypeError(f"{where}: no check can be made for the type hint {hint!r}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{p}]" if isinstance(p, int) else "" for p in first["loc"])
        wrong = first["input"] if place else value
        whole = first["type"] == "int_type" and isinstance(wrong, float) and wrong.is_integer() and abs(wrong) < 1e18
        got = f"write {int(wrong)}" if whole else f"got {type(wrong).__name__}"
        if first["type"] == "bool_type":
            got = "write true or false"
        raise ConfigError(f"{where}{place}={wrong!r}: {first['msg'].lower()}, {got}") from error
