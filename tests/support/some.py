"""Selection of parameter values of which only some are tested in `make test`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mark_long_except(default_values: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values for the parametrization of a test, with those not in `default_values` marked as long.

    Raises:
        ValueError: a default value is not among `values`.
    """
    default_values, values = list(default_values), list(values)
    if unknown := [value for value in default_values if value not in values]:
        raise ValueError(f"not among the values: {unknown}")
    return [value if value in default_values else pytest.param(value, marks=pytest.mark.long) for value in values]


def mark_long_except_every(n: int, values: Iterable[Any]) -> list[Any]:
    """Return all values for the parametrization of a test, with all but every n-th value marked as long.

    Tuples are values of several parameters. For Cartesian products, choose an n that divides none of the numbers of
    factors.
    """
    all_values = list(values)
    tuples = [value if isinstance(value, tuple) else (value,) for value in all_values]
    marks = [() if i % n == 0 else (pytest.mark.long,) for i in range(len(all_values))]
    return [pytest.param(*arguments, marks=mark) for arguments, mark in zip(tuples, marks, strict=True)]
