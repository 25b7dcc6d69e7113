"""The shared memory of the learner's process and the games: one named array per quantity, games on the first axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.substrate.substrate_rules import SUBSTRATES, Rules, SubstrateName

CELLS = (11, 11, 4)
"""Shape of a player's view in cells: 9 ahead, 1 behind, 5 to either side, rows from far to near, with four codes per
cell (`grid_text.grid_codes`)."""

PIXELS = (88, 88, 3)
"""Shape of a player's view in pixels, 8 x 8 per cell."""

VECTOR_OBSERVATIONS: Mapping[SubstrateName, tuple[str, ...]] = {
    "cleanup": ("READY_TO_SHOOT", "NUM_OTHERS_WHO_CLEANED_THIS_STEP"),
    "harvest": ("READY_TO_SHOOT",),
}
"""Observations of the substrate besides the frame, in the order of the `vector` channel."""

CENSUS = ("reward", "cleaned", "zapped", "present")
"""Entries of the census for each player; the counts of `Substrate.groups` follow."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryLayout:
    """Settings of a batch of games that determine the shared memory and suffice to build each game."""

    substrate: SubstrateName
    rules: Rules
    n_envs: int
    n_agents: int
    channels: tuple[str, ...]
    render: bool
    map: str | None = None
    """Text of the map to play on; None: the substrate's own map."""

    @property
    def world_shape(self) -> tuple[int, int, int]:
        """Shape of a frame of the whole world, [height, width, 3]."""
        if self.map is None:
            return SUBSTRATES[self.substrate].world_shape
        rows = self.map.splitlines()
        return 8 * len(rows), 8 * len(rows[0]), 3

    @property
    def has_scalars(self) -> bool:
        """True if the numbers of `VECTOR_OBSERVATIONS` are read, for the channel `vector` or `text`."""
        return "vector" in self.channels or "text" in self.channels

    @property
    def has_cells(self) -> bool:
        """True if the cells in view are read, for the channel `grid` or `text`."""
        return "grid" in self.channels or "text" in self.channels

    @property
    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array by name.

        The games read `seed` (of the next episode) and `action`, and write all other arrays.
        """
        games, agents = self.n_envs, self.n_agents
        census = len(CENSUS) * agents + len(SUBSTRATES[self.substrate].groups)
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "seed": ((games,), "int64"),
            "action": ((games, agents), "int32"),
            "census": ((games, census), "float64"),
        }
        if "pixels" in self.channels:
            arrays["pixels"] = ((games, agents, *PIXELS), "uint8")
        if self.has_cells:
            arrays["grid"] = ((games, agents, *CELLS), "uint8")
        if self.has_scalars:
            arrays["vector"] = ((games, agents, len(VECTOR_OBSERVATIONS[self.substrate])), "float32")
        if self.render:
            arrays["world"] = ((games, *self.world_shape), "uint8")
        return arrays

    @property
    def nbytes(self) -> int:
        """Size of the shared memory, bytes."""
        return sum(_padded_size(shape, dtype) for shape, dtype in self.arrays.values())

    def views(self, memory: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays by name as views of `memory`, a writable buffer of `nbytes` bytes."""
        views, offset = {}, 0
        for name, (shape, dtype) in self.arrays.items():
            views[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _padded_size(shape, dtype)
        return views

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> MemoryLayout:
        return cls(**{**data, "channels": tuple(data["channels"])})


def _padded_size(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT
