"""What the generational searches share: candidates handed out one by one or many at once, updates a whole population
at a time, a search of its own in every context, and a state that is what was told."""

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
    """A distribution over the unit cube that moves to where values are high.

    Attributes:
        population: candidates of the generation under way.
    """

    population: int

    def sample(self, seed: int) -> np.ndarray:
        """A candidate, [d]; depends on the generations it was updated with and the seed alone."""
        ...

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        """Learn a generation: vectors [population, d] and their values [population], higher is better."""
        ...


@dataclass
class _Context:
    """The search in one context.

    Attributes:
        at_once: proposals of the first `ask`; 0 before it.
        asked: candidates handed out.
        pending: those of the last `ask` as they were drawn, [n, d] in the unit cube.
        vectors, values: all that was told, in order; vectors in the unit cube.
        used: how many of them the search has been updated with.
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
    """Base of the generational searches; a subclass says in `_start` which one.

    A generation is over when as many candidates were told as the population has, and what is told beyond that counts
    towards the next. A population is therefore a multiple of the number of proposals that are tried at once: all its
    candidates then come from one distribution, and none is wasted.

    What a search learns of a candidate is where it was drawn, also where it was rounded before it was tried: else a
    search of whole numbers would take the distance between two of them for its own spread.

    A candidate's random numbers are addressed by its place among those asked in its context, so the state is what was
    told: a restored search learns it again, generation by generation.
    """

    parallel = True

    def __init__(self, space: ParameterSpace, seeds: Seeds) -> None:
        self.space, self.seeds = space, seeds.child("principal")
        self.contexts = [_Context() for _ in range(space.n_rows)]

    @abstractmethod
    def _start(self, row: int, at_once: int) -> Search:
        """A new search for a context, whose populations are multiples of `at_once`."""

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.row(context)
        own = self.contexts[row]
        if own.search is None:
            own.at_once, own.search = n, self._start(row, n)
        seeds = self.seeds.child(row).child("candidate")
        unit = np.stack([own.search.sample(seeds.integer(own.asked + i)) for i in range(n)])
        own.asked += n
        own.pending = unit
        return from_unit(self.space, unit)

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Metrics, of the context: generation (updates made), spread (standard deviation of the candidates of the last
        whole generation, as a share of the range, mean over numbers; from the second generation on)."""
        own = self.contexts[self.space.row(outcomes[0].context)]
        told = np.array([outcome.vector for outcome in outcomes])
        # What was not asked for last stands for itself.
        asked = len(told) == len(own.pending) and np.array_equal(told, from_unit(self.space, own.pending))
        own.vectors += list(own.pending if asked else to_unit(self.space, told))
        own.values += [outcome.value for outcome in outcomes]
        _learn(own)
        metrics = {"principal/generation": float(own.generations)}
        return metrics | ({"principal/spread": own.spread} if own.generations else {})

    def state_dict(self) -> State:
        return {
            "contexts": [
                {
                    "at_once": own.at_once,
                    "asked": own.asked,
                    "pending": own.pending.copy(),
                    "vectors": np.array(own.vectors).reshape(-1, self.space.dim),
                    "values": np.array(own.values),
                }
                for own in self.contexts
            ]
        }

    def load_state_dict(self, state: State) -> None:
        self.contexts = []
        for row, saved in enumerate(state["contexts"]):
            pending, values = np.array(saved["pending"]), saved["values"].tolist()
            own = _Context(saved["at_once"], saved["asked"], pending, list(saved["vectors"]), values)
            if own.at_once:
                own.search = self._start(row, own.at_once)
                _learn(own)
            self.contexts.append(own)


def whole(population: int, at_once: int) -> int:
    """`population`, rounded up to a multiple of `at_once`."""
    return -(-population // at_once) * at_once


def _learn(own: _Context) -> None:
    """Update the search with the generations that are complete."""
    assert own.search is not None
    while len(own.values) - own.used >= own.search.population:
        part = slice(own.used, own.used + own.search.population)
        vectors = np.array(own.vectors[part])
        own.used, own.generations, own.spread = part.stop, own.generations + 1, float(vectors.std(0).mean())
        own.search.update(vectors, np.array(own.values[part]))
