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
