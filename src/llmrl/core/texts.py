"""Texts as rollouts and minibatches hold them: places in a table of the different ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class TextTable:
    """Different texts, each with the number it was first met as."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        for text in texts:
            self.place(text)

    def place(self, text: str) -> int:
        """The number of a text, which becomes part of the table if it is not yet."""
        place = self._places.setdefault(text, len(self.texts))
        if place == len(self.texts):
            self.texts.append(text)
        return place


@dataclass(frozen=True)
class Texts:
    """An array of texts that is indexed and reshaped like a tensor. Episodes show the same text again and again: what
    is costly to read (by a language model) is read once for each different one.

    Attributes:
        ids: where each text stands in the table, [...] int64.
        table: shared by all arrays that were made of this one.
    """

    ids: torch.Tensor
    table: TextTable = field(repr=False)

    @classmethod
    def of(cls, texts: Any, table: TextTable | None = None) -> Texts:
        """From an array (or nested lists) of `str`, [...]."""
        import numpy as np
        import torch

        table = table or TextTable()
        array = np.asarray(texts, dtype=object)
        places = [table.place(str(text)) for text in array.ravel()]
        return cls(torch.tensor(places, dtype=torch.int64).reshape(array.shape), table)

    @property
    def shape(self) -> torch.Size:
        return self.ids.shape

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Texts:
        return Texts(self.ids[index], self.table)

    def flatten(self, start: int = 0, end: int = -1) -> Texts:
        return Texts(self.ids.flatten(start, end), self.table)

    def reshape(self, *shape: int) -> Texts:
        return Texts(self.ids.reshape(*shape), self.table)

    def to(self, device: Any) -> Texts:
        return Texts(self.ids.to(device), self.table)

    def clone(self) -> Texts:
        """In memory of its own; the table only ever grows."""
        return Texts(self.ids.clone(), self.table)

    def tolist(self) -> Any:
        """Nested lists of `str`."""

        def named(x: Any) -> Any:
            return [named(y) for y in x] if isinstance(x, list) else self.table.texts[x]

        return named(self.ids.tolist())

    def distinct(self) -> tuple[list[str], torch.Tensor]:
        """The different texts, in the order of the table, and which of them stands at each place, [...] int64."""
        import torch

        found, places = torch.unique(self.ids, return_inverse=True)
        return [self.table.texts[i] for i in found.tolist()], places
