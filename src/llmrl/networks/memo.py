"""Cache of a network's outputs by its inputs, which is used while the weights are constant."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

Key = TypeVar("Key", bound=Hashable)
Outputs = tuple[torch.Tensor, ...]


class Memo(Generic[Key]):
    """Cache that computes each distinct key once within `fixed_weights`, and at every call outside of it.

    The cache is emptied after each `fixed_weights` block: a run that resumes from a checkpoint then batches its inputs
    like an uninterrupted run. The caller guarantees that weights are constant; torch's version counters do not detect
    writes by fused optimizers and through `parameter.data`.

    Args:
        compute: function from distinct keys [n] to tensors, each [n, ...].
    """

    def __init__(self, compute: Callable[[Sequence[Key]], Outputs]) -> None:
        self._compute = compute
        self._outputs_by_key: dict[Key, Outputs] | None = None

    @property
    def is_active(self) -> bool:
        """True if outputs are cached, within a `fixed_weights` block."""
        return self._outputs_by_key is not None

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """Return the context in which outputs are cached; a nested context is part of the outer one."""
        if self.is_active:
            yield
            return
        self._outputs_by_key = {}
        try:
            yield
        finally:
            self._outputs_by_key = None

    def __call__(self, keys: Sequence[Key]) -> Outputs:
        """Return the outputs for keys [n], at least one, each [n, ...]."""
        outputs = {} if self._outputs_by_key is None else self._outputs_by_key
        if new_keys := [key for key in dict.fromkeys(keys) if key not in outputs]:
            outputs.update(zip(new_keys, zip(*self._compute(new_keys), strict=True), strict=True))
        return tuple(torch.stack(column) for column in zip(*(outputs[key] for key in keys), strict=True))
