"""Which trials are still due before the best proposal of each context is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.loops.race import Race
from llmrl.loops.scoring import Score

Context = int | str | None
Row = Callable[[Any, Context], dict[str, Any]]
"""What a row of a summary says of a vector in a context, beside what was measured."""


@dataclass(frozen=True)
class Heat:
    """One trial, as long as a principal step.

    Attributes:
        context: in which.
        members: contestants that are measured, one for each of the first places.
        vectors: of all places, [candidates, d]; the last member fills those that are left.
    """

    context: Context
    members: list[int]
    vectors: np.ndarray


class Naming:
    """A `Race` in each context, then as many measurements of its winner as the race has rounds.

    A winner's mean in the race is still the highest of several. What is reported of it is what was measured after it
    had won. Contestants of a round that do not fit into one trial are tried in several, with the same random numbers;
    the numbers of each round, of each context and of the measurements of winners are used nowhere else.

    Args:
        contestants: vectors of each context, the most promising first.
        candidates: vectors that a trial takes.
        rounds: of a race, at most; and measurements of its winner.

    Attributes:
        heats: trials that are over.
    """

    def __init__(self, contestants: Mapping[Context, Sequence[Sequence[float]]], candidates: int, rounds: int) -> None:
        self.candidates, self.rounds = candidates, rounds
        self.races = [(context, Race(np.array(vectors), rounds)) for context, vectors in contestants.items()]
        self.measured: list[list[float]] = [[] for _ in self.races]  # of each winner, after it had won
        self.errors: list[float | None] = [None for _ in self.races]  # of its first such measurement
        self.times = [0 for _ in self.races]
        self.heats = 0
        self._round: list[list[float]] = []  # measured so far in the present round, member by member

    @property
    def over(self) -> bool:
        return all(times == self.rounds for times in self.times)

    @property
    def next(self) -> Heat | None:
        """The next trial; None when all is done."""
        if self.over:
            return None
        place = self._place
        context, race = self.races[place]
        due = [race.leader] if race.over else race.left[len(self._round) :][: self.candidates]
        return Heat(context, due, race.vectors[(due + due[-1:] * self.candidates)[: self.candidates]])

    def seeds(self, seeds: Seeds) -> Seeds:
        """Node of the next trial; `seeds` is the loop's."""
        place = self._place
        _, race = self.races[place]
        node = seeds.child("race").child(place)
        return node.child("winner").child(self.times[place]) if race.over else node.child("round").child(race.round)

    def tell(self, scores: Sequence[Score]) -> dict[str, float]:
        """What the next trial measured; metrics where a round is over with it: race/context, and those of `Race` or, of
        a winner, race/named_objective and race/named_standard_error."""
        heat, place = self.next, self._place
        assert heat is not None
        race = self.races[place][1]
        self.heats += 1
        if race.over:
            self.measured[place] += scores[0].societies
            self.times[place] += 1
            if self.times[place] == 1:
                self.errors[place] = scores[0].outcome.standard_error
            value, error = self._named(place)
            metrics = {"race/named_objective": value} | ({} if error is None else {"race/named_standard_error": error})
            return metrics | {"race/context": float(place)}
        self._round += [scores[i].societies for i in range(len(heat.members))]
        if len(self._round) < len(race.left):
            return {}
        race.tell([np.array(own) for own in self._round])
        self._round = []
        return race.metrics("objective") | {"race/context": float(place)}

    def winners(self, row: Row) -> list[dict[str, Any]]:
        """Of each context the winner: objective and standard_error of what was measured after it had won, how often."""
        found = []
        for place, (context, race) in enumerate(self.races):
            value, error = self._named(place)
            told = {"objective": value, "standard_error": error, "measurements": self.times[place]}
            found.append(row(race.vectors[race.leader], context) | told)
        return found

    def rows(self, row: Row) -> list[dict[str, Any]]:
        """Of each contestant of each context what the races measured (`Race.rows`)."""
        return [
            row(told.pop("vector"), context) | told for context, race in self.races for told in race.rows("objective")
        ]

    def state_dict(self) -> State:
        return {
            "races": [(context, race.state_dict()) for context, race in self.races],
            "measured": [list(own) for own in self.measured],
            "errors": list(self.errors),
            "times": list(self.times),
            "heats": self.heats,
            "round": [list(own) for own in self._round],
        }

    @classmethod
    def from_state(cls, state: State, candidates: int, rounds: int) -> Naming:
        naming = cls({}, candidates, rounds)
        naming.races = [(context, Race.from_state(race, rounds)) for context, race in state["races"]]
        naming.measured = [list(own) for own in state["measured"]]
        naming.errors, naming.times = list(state["errors"]), list(state["times"])
        naming.heats, naming._round = state["heats"], [list(own) for own in state["round"]]
        return naming

    @property
    def _place(self) -> int:
        """Context that is at work, counted."""
        return next(i for i, times in enumerate(self.times) if times < self.rounds)

    def _named(self, place: int) -> tuple[float, float | None]:
        """Mean of what was measured of a winner, and its standard error: over societies, or an only one's episodes."""
        own = np.array(self.measured[place])
        return float(own.mean()), self.errors[place] if len(own) == 1 else standard_error_of_mean(own)
