"""Every random number of a run comes from one tree rooted in `seed`.

A stream is named, not numbered, so that adding a part never shifts the streams of the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Seeds:
    """A node of the seed tree.

    >>> Seeds(0).integer("env") == Seeds(0).integer("env")
    True
    """

    def __init__(self, seed: int, path: tuple[int, ...] = ()) -> None:
        if seed < 0:
            raise ValueError(f"seed must be a non-negative integer, got {seed}")
        self.seed = seed
        self._path = path

    def child(self, name: str | int) -> Seeds:
        """The sub-tree called `name` (a label, or an index such as an episode number)."""
        key = name if isinstance(name, int) else zlib.crc32(name.encode())
        return Seeds(self.seed, (*self._path, key))

    def replicates(self, n: int, consecutive: bool = False) -> list[Seeds]:
        """Return this node in the trees of `n` replicates of the run (its societies), all different.

        The first has the run's own tree. Replicate i > 0 has the sub-tree `replicate/i` of the same root, so no
        replicate of a run draws what a run of another seed draws.

        Args:
            n: number of replicates, >= 1.
            consecutive: give replicate i the tree of the run with seed + i instead. Runs of neighbouring seeds then
                share replicates, so this is for tests that compare a replicate with a run.
        """
        if consecutive:
            return [Seeds(self.seed + i, self._path) for i in range(n)]
        sub_tree = zlib.crc32(b"replicate")
        return [self, *(Seeds(self.seed, (sub_tree, i, *self._path)) for i in range(1, n))]

    @property
    def root(self) -> str:
        """A label of the tree this node was reached in by `replicates`: `3`, or `3/1` for the second of seed 3."""
        replicated = self._path[:1] == (zlib.crc32(b"replicate"),)
        return f"{self.seed}/{self._path[1]}" if replicated else str(self.seed)

    def sequence(self, name: str | int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=self.child(name)._path)

    def numpy(self, name: str | int) -> np.random.Generator:
        """A NumPy generator for the stream `name`."""
        return np.random.Generator(np.random.PCG64(self.sequence(name)))

    def integer(self, name: str | int) -> int:
        """A seed in [0, 2**31) for libraries that take an int."""
        return int(self.sequence(name).generate_state(1)[0] >> 1)

    def torch(self, name: str | int) -> torch.Generator:
        """A torch generator for the stream `name`; always on the processor, so that devices draw alike."""
        import torch

        return torch.Generator().manual_seed(self.integer(name))


def generators(seeds: Sequence[int], shared: bool = False) -> list[torch.Generator]:
    """Return a torch generator for each of some seeds; `shared`: equal seeds have one, so that who draws with it first
    decides what the next draws. On the processor, so that devices draw alike."""
    import torch

    made = [torch.Generator().manual_seed(seed) for seed in seeds]
    own = dict(zip(seeds, made, strict=True))
    return [own[seed] for seed in seeds] if shared else made
