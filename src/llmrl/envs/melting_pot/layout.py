"""The memory that the learner's process and the games share: one named array per quantity, games along the first
axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.melting_pot.rules import SUBSTRATES, Rules, SubstrateName

CELLS = (11, 11, 4)
"""What a player sees: 9 cells ahead, 1 behind, 5 to either side, rows from far to near; of each, `seen.grid_codes`."""

PIXELS = (88, 88, 3)
"""The same in pixels, 8 x 8 a cell."""

VECTOR: Mapping[SubstrateName, tuple[str, ...]] = {
    "cleanup": ("READY_TO_SHOOT", "NUM_OTHERS_WHO_CLEANED_THIS_STEP"),
    "harvest": ("READY_TO_SHOOT",),
}
"""The numbers that upstream shows every player beside the picture, in the order of the `vector` channel."""

CENSUS = ("reward", "cleaned", "zapped", "present")
"""What the census says about each player; the counts of `Substrate.groups` follow."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class Layout:
    """What a batch of games is made of: enough to lay out the shared memory, and to build any of the games."""

    substrate: SubstrateName
    rules: Rules
    n_envs: int
    n_agents: int
    channels: tuple[str, ...]
    render: bool
    map: str | None = None
    """The map to play on instead of the substrate's own."""

    @property
    def world_shape(self) -> tuple[int, int, int]:
        """Of a picture of the whole world."""
        if self.map is None:
            return SUBSTRATES[self.substrate].world_shape
        rows = self.map.splitlines()
        return 8 * len(rows), 8 * len(rows[0]), 3

    @property
    def scalars(self) -> bool:
        """Whether the numbers of `VECTOR` are read: they are part of the text, too."""
        return "vector" in self.channels or "text" in self.channels

    @property
    def cells(self) -> bool:
        """Whether what lies in view is read piece by piece: texts are made of it, too."""
        return "grid" in self.channels or "text" in self.channels

    @property
    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape, dtype. `seed` is what the next episode starts with; `action` flows to the games, all else
        back."""
        games, agents = self.n_envs, self.n_agents
        census = len(CENSUS) * agents + len(SUBSTRATES[self.substrate].groups)
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "seed": ((games,), "int64"),
            "action": ((games, agents), "int32"),
            "census": ((games, census), "float64"),
        }
        if "pixels" in self.channels:
            arrays["pixels"] = ((games, agents, *PIXELS), "uint8")
        if self.cells:
            arrays["grid"] = ((games, agents, *CELLS), "uint8")
        if self.scalars:
            arrays["vector"] = ((games, agents, len(VECTOR[self.substrate])), "float32")
        if self.render:
            arrays["world"] = ((games, *self.world_shape), "uint8")
        return arrays

    @property
    def nbytes(self) -> int:
        """Size of the shared memory."""
        return sum(_padded(shape, dtype) for shape, dtype in self.arrays.values())

    def views(self, memory: Any) -> dict[str, NDArray[Any]]:
        """The arrays inside `memory`, a writable buffer of `nbytes` bytes."""
        views, offset = {}, 0
        for name, (shape, dtype) in self.arrays.items():
            views[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _padded(shape, dtype)
        return views

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        return cls(**{**data, "channels": tuple(data["channels"])})


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT
