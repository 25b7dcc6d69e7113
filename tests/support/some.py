"""Which of many equal tests stand for the others in `make test`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(kept: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """All `values` to parametrize a test with; those that are not `kept` are left to `make test-long`.

    Raises:
        ValueError: what is to be kept is not among them.
    """
    kept, values = list(kept), list(values)
    if unknown := [value for value in kept if value not in values]:
        raise ValueError(f"not among the values: {unknown}")
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]


def one_in(n: int, values: Iterable[Any]) -> list[Any]:
    """All `values` to parametrize a test with, tuples of them for several parameters; but the first of each n are left
    to `make test-long`. Where values are products, take an n that divides none of their factors."""
    found = list(values)
    several = [value if isinstance(value, tuple) else (value,) for value in found]
    marks = [() if i % n == 0 else (pytest.mark.long,) for i in range(len(found))]
    return [pytest.param(*each, marks=mark) for each, mark in zip(several, marks, strict=True)]
