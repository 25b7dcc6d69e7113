"""Arrays of texts in rollouts and minibatches: indices into a table of distinct texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class TextTable:
    """A growing table of distinct texts, numbered in the order in which they were added."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._indices: dict[str, int] = {}
        for text in texts:
            self.add(text)

    def add(self, text: str) -> int:
        """Add a text to the table if it is new; return its index."""
        index = self._indices.setdefault(text, len(self.texts))
        if index == len(self.texts):
            self.texts.append(text)
        return index


@dataclass(frozen=True)
class TextArray:
    """An array of texts that is indexed and reshaped like a tensor.

    The same texts recur in episodes; with the table, a language model processes each distinct text only once.

    Attributes:
        ids: index of each text in the table, [...] int64.
        table: table shared by all arrays derived from this one.
    """

    ids: torch.Tensor
    table: TextTable = field(repr=False)

    @classmethod
    def from_texts(cls, texts: Any, table: TextTable | None = None) -> TextArray:
        """Return the `TextArray` of an array or nested lists of `str`, [...]; new texts are added to `table`."""
        import numpy as np
        import torch

        table = table or TextTable()
        array = np.asarray(texts, dtype=object)
        indices = [table.add(str(text)) for text in array.ravel()]
        return cls(torch.tensor(indices, dtype=torch.int64).reshape(array.shape), table)

    @property
    def shape(self) -> torch.Size:
        return self.ids.shape

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> TextArray:
        return TextArray(self.ids[index], self.table)

    def index_select(self, dim: int, index: torch.Tensor) -> TextArray:
        return TextArray(self.ids.index_select(dim, index), self.table)

    def flatten(self, start: int = 0, end: int = -1) -> TextArray:
        return TextArray(self.ids.flatten(start, end), self.table)

    def reshape(self, *shape: int) -> TextArray:
        return TextArray(self.ids.reshape(*shape), self.table)

    def to(self, device: Any) -> TextArray:
        return TextArray(self.ids.to(device), self.table)

    def clone(self) -> TextArray:
        """Return a copy with the same table, to which texts are only appended."""
        return TextArray(self.ids.clone(), self.table)

    def tolist(self) -> Any:
        """Return the texts as nested lists of `str`."""

        def resolve_texts(ids: Any) -> Any:
            return [resolve_texts(row) for row in ids] if isinstance(ids, list) else self.table.texts[ids]

        return resolve_texts(self.ids.tolist())

    def unique(self) -> tuple[list[str], torch.Tensor]:
        """Return the distinct texts, in the order of the table, and each entry's index among them, [...] int64."""
        import torch

        unique_ids, indices = torch.unique(self.ids, return_inverse=True)
        return [self.table.texts[i] for i in unique_ids.tolist()], indices
