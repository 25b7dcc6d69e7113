"""Base of generational searches.

Candidates are proposed one by one or in batches, updates use a whole population, and every context has its own search.
The state consists of the outcomes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np
from annotated_types import Ge

from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import from_unit, to_unit

Population = Annotated[int, Ge(4)]


class Search(Protocol):
    """Distribution over the unit cube that moves towards high values.

    Attributes:
        population: number of candidates in the current generation.
    """

    population: int

    def sample(self, seed: int) -> np.ndarray:
        """Return a candidate, [d], which depends only on the seed and on the generations of earlier updates."""
        ...

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        """Update with a generation: vectors [population, d] and their values [population], higher is better."""
        ...


@dataclass
class _Context:
    """Search in one context.

    Attributes:
        at_once: number of proposals in the first `ask`; 0 before it.
        asked: number of candidates proposed.
        pending: unrounded candidates of the last `ask`, [n, d] in the unit cube.
        vectors, values: all outcomes in order; vectors in the unit cube.
        used: number of outcomes that the search was updated with.
    """

    at_once: int = 0
    asked: int = 0
    pending: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    vectors: list[np.ndarray] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    used: int = 0
    generations: int = 0
    spread: float = 0.0
    search: Search | None = None


class EvolutionPrincipal(ABC):
    """Base of the generational searches; a subclass creates its search in `_start`.

    A generation is complete when as many outcomes exist as the population has candidates; further outcomes count
    towards the next generation. A population is therefore a multiple of the number of proposals per step: all its
    candidates then come from one distribution, and none is wasted.

    A search is updated with the unrounded candidates. Otherwise a search of integers would mistake the distance between
    two of them for its own spread.

    The random numbers of a candidate are determined by its index in its context, so the state consists of the outcomes
    only; a restored search is updated with them again, generation by generation.
    """

    parallel = True

    def __init__(self, space: ParameterSpace, seeds: Seeds) -> None:
        self.space, self.seeds = space, seeds.child("principal")
        self.contexts = [_Context() for _ in range(space.n_rows)]

    @abstractmethod
    def _start(self, row: int, batch_size: int) -> Search:
        """Return a new search for a context, whose populations are multiples of `batch_size`."""

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.row(context)
        search_context = self.contexts[row]
        if search_context.search is None:
            search_context.at_once, search_context.search = n, self._start(row, n)
        seeds = self.seeds.child(row).child("candidate")
        unit = np.stack([search_context.search.sample(seeds.integer(search_context.asked + i)) for i in range(n)])
        search_context.asked += n
        search_context.pending = unit
        return from_unit(self.space, unit)

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Add outcomes and return metrics of the context.

        They are generation (number of updates) and, from the second generation on, spread (standard deviation of the
        candidates of the last complete generation, as a share of the range, mean over numbers).
        """
        search_context = self.contexts[self.space.row(outcomes[0].context)]
        vectors = np.array([outcome.vector for outcome in outcomes])
        # Outcomes of vectors from elsewhere have no unrounded candidate.
        is_pending = len(vectors) == len(search_context.pending) and np.array_equal(
            vectors, from_unit(self.space, search_context.pending)
        )
        search_context.vectors += list(search_context.pending if is_pending else to_unit(self.space, vectors))
        search_context.values += [outcome.value for outcome in outcomes]
        _learn(search_context)
        metrics = {"principal/generation": float(search_context.generations)}
        return metrics | ({"principal/spread": search_context.spread} if search_context.generations else {})

    def state_dict(self) -> State:
        return {
            "contexts": [
                {
                    "at_once": search_context.at_once,
                    "asked": search_context.asked,
                    "pending": search_context.pending.copy(),
                    "vectors": np.array(search_context.vectors).reshape(-1, self.space.dim),
                    "values": np.array(search_context.values),
                }
                for search_context in self.contexts
            ]
        }

    def load_state_dict(self, state: State) -> None:
        self.contexts = []
        for row, saved in enumerate(state["contexts"]):
            pending, values = np.array(saved["pending"]), saved["values"].tolist()
            search_context = _Context(saved["at_once"], saved["asked"], pending, list(saved["vectors"]), values)
            if search_context.at_once:
                search_context.search = self._start(row, search_context.at_once)
                _learn(search_context)
            self.contexts.append(search_context)


def round_up(population: int, multiple: int) -> int:
    """Return `population` rounded up to a multiple of `multiple`."""
    return -(-population // multiple) * multiple


def _learn(search_context: _Context) -> None:
    """Update the search with the complete generations."""
    assert search_context.search is not None
    while len(search_context.values) - search_context.used >= search_context.search.population:
        generation = slice(search_context.used, search_context.used + search_context.search.population)
        vectors = np.array(search_context.vectors[generation])
        search_context.used, search_context.generations, search_context.spread = (
            generation.stop,
            search_context.generations + 1,
            float(vectors.std(0).mean()),
        )
        search_context.search.update(vectors, np.array(search_context.values[generation]))
