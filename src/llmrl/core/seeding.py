"""The tree of seeds, rooted in `seed`, from which every random number of a run is drawn.

Streams have names instead of numbers, so adding a part does not shift the streams of the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Seeds:
    """A node of the seed tree: the seed of the root, and the path of names from the root to the node.

    The seed is the entropy and the path the spawn key of `numpy.random.SeedSequence`. NumPy divides integers into words
    of 32 bits and pads the entropy with zeros to four words if there is a spawn key. Different nodes therefore have
    different streams, because the seed fits into four words and every index of the path into one. A list as entropy
    would not guarantee this: `default_rng([seed, 1])` has the stream of `default_rng([seed, 1, 0])`.

    Raises:
        ValueError: the seed is not in [0, 2**128).

    >>> Seeds(0).integer("env") == Seeds(0).integer("env")
    True
    """

    def __init__(self, seed: int, path: tuple[int, ...] = ()) -> None:
        if not 0 <= seed < 2**128:
            raise ValueError(f"seed must be an integer in [0, 2**128), got {seed}")
        self.seed = seed
        self._path = path

    def child(self, name: str | int) -> Seeds:
        """Return the sub-tree called `name`: a label, or an index in [0, 2**32) such as an episode number.

        Raises:
            ValueError: the index is out of range.
        """
        key = name if isinstance(name, int) else zlib.crc32(name.encode())
        if not 0 <= key < 2**32:
            raise ValueError(f"an index of a stream must be in [0, 2**32), got {name}")
        return Seeds(self.seed, (*self._path, key))

    def replicates(self, n: int) -> list[Seeds]:
        """Return the corresponding node for each of `n` replicates (societies) of the run.

        For replicate 0 it is this node. For replicate i > 0 it is the node with the same path in the sub-tree
        `replicate/i`. No replicate of a run therefore shares random numbers with a run of another seed.
        """
        key = zlib.crc32(b"replicate")
        return [self, *(Seeds(self.seed, (key, i, *self._path)) for i in range(1, n))]

    @property
    def replicate_label(self) -> str:
        """Label of the replicate of this node: `3` for the first replicate of seed 3, `3/1` for the second, ..."""
        is_replicate = self._path[:1] == (zlib.crc32(b"replicate"),)
        return f"{self.seed}/{self._path[1]}" if is_replicate else str(self.seed)

    def sequence(self, name: str | int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=self.child(name)._path)

    def numpy(self, name: str | int) -> np.random.Generator:
        """Return a NumPy generator (PCG64) for the stream `name`."""
        return np.random.Generator(np.random.PCG64(self.sequence(name)))

    def integer(self, name: str | int) -> int:
        """Return a seed in [0, 2**31) for the stream `name`, for libraries that take an int."""
        return int(self.sequence(name).generate_state(1)[0] >> 1)

    def torch(self, name: str | int) -> torch.Generator:
        """Return a torch generator for the stream `name`; on the CPU, so that all devices draw the same numbers."""
        import torch

        return torch.Generator().manual_seed(self.integer(name))


def make_generators(seeds: Sequence[int], shared: bool = False) -> list[torch.Generator]:
    """Return a torch generator for each seed, always on the CPU, so that all devices draw the same numbers.

    With `shared`, equal seeds get the same generator object, so they draw from one stream.
    """
    import torch

    new_generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    generator_by_seed = dict(zip(seeds, new_generators, strict=True))
    return [generator_by_seed[seed] for seed in seeds] if shared else new_generators
