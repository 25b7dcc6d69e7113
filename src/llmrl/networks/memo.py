"""What a network gave for a text, given again for as long as somebody promises that the network stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Rows = tuple[torch.Tensor, ...]


class Memo(Generic[Key]):
    """Computes each different key once inside of `unchanged`, and anew at every call outside of it.

    Nothing is kept from one span of `unchanged` to the next: a run that goes on from a checkpoint then batches its
    inputs as the uninterrupted run did. That weights are the same is promised and not looked up, since the counters
    that torch keeps of writes miss fused optimisers and `parameter.data`.

    Args:
        compute: different keys [n] -> tensors, each [n, ...].
    """

    def __init__(self, compute: Callable[[Sequence[Key]], Rows]) -> None:
        self._compute = compute
        self._rows: dict[Key, Rows] | None = None

    @property
    def open(self) -> bool:
        """Whether this is inside of `unchanged`."""
        return self._rows is not None

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """While it lasts, equal keys give equal outputs; a span inside of another is part of that."""
        if self.open:
            yield
            return
        self._rows = {}
        try:
            yield
        finally:
            self._rows = None

    def __call__(self, keys: Sequence[Key]) -> Rows:
        """The outputs for keys [n], at least one, each [n, ...]."""
        known = {} if self._rows is None else self._rows
        if new := [key for key in dict.fromkeys(keys) if key not in known]:
            known.update(zip(new, zip(*self._compute(new), strict=True), strict=True))
        return tuple(torch.stack(column) for column in zip(*(known[key] for key in keys), strict=True))
