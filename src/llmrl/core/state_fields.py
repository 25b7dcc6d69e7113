"""A base class with a `state_dict` of listed attributes."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from llmrl.core.records import State


@runtime_checkable
class Stateful(Protocol):
    """An object with a `state_dict`, such as a network, an optimizer or a `StateFields`."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class StateFields:
    """Base class with a `state_dict` and `load_state_dict` for the attributes that `_state_fields` lists.

    An attribute is plain data, an array, a NumPy generator, a `Stateful` object, which is loaded in place, or a list of
    one of these. The number of generators in a list may change; the number of `Stateful` objects may not. The keys of a
    state are the names of attributes without leading underscores, and its values are copies.

    >>> class Counter(StateFields):
    ...     _state_fields = ("_count",)
    ...     _count = 3
    >>> Counter().state_dict()
    {'count': 3}
    """

    _state_fields: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> State:
        return {name.lstrip("_"): _copy_state(getattr(self, name)) for name in self._state_fields}

    def load_state_dict(self, state: State) -> None:
        for name in self._state_fields:
            attribute, field_state = getattr(self, name), copy.deepcopy(state[name.lstrip("_")])
            if isinstance(attribute, np.random.Generator):
                attribute.bit_generator.state = field_state
            elif isinstance(attribute, Stateful):
                attribute.load_state_dict(field_state)
            elif isinstance(attribute, list) and attribute and isinstance(attribute[0], np.random.Generator):
                generators = [np.random.default_rng() for _ in field_state]
                for generator, element in zip(generators, field_state, strict=True):
                    generator.bit_generator.state = element
                setattr(self, name, generators)
            elif isinstance(attribute, list) and attribute and isinstance(attribute[0], Stateful):
                for stateful, element in zip(attribute, field_state, strict=True):
                    stateful.load_state_dict(element)
            else:
                setattr(self, name, field_state)


def _copy_state(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, list):
        return [_copy_state(element) for element in value]
    if isinstance(value, StateFields):
        return value.state_dict()  # copies already
    return copy.deepcopy(value.state_dict() if isinstance(value, Stateful) else value)
