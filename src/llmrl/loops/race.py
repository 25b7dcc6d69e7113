"""Measuring the best few vectors again before one is named: of a search, and in each context of a design run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.analysis.statistics import standard_error, standard_error_of_mean
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.loops.proposal_outcomes import Score

CLEARLY = 3.0
"""Standard errors of the paired difference by which a contestant must be behind the leader to be dropped."""
FEWEST = 3
"""Pairs below which no standard error is trusted to drop anybody: chance leaves too few to be near their mean."""


class Race:
    """Rounds of fresh measurements of a few contestants, of which the clearly worse are dropped.

    The highest of many noisy estimates is the highest by luck as well (the winner's curse). So the best few are
    measured anew, all of a round with the same random numbers, and nothing of what made them contestants counts.
    Compared are paired differences to the leader, the highest mean so far (a race as in Maron & Moore 1997, "The racing
    algorithm", with normal bounds in place of Hoeffding's). The winner is the last one left, or the highest mean after
    all rounds. That mean is the highest of several, too: what a winner is worth is measured once more, by the caller.

    Args:
        vectors: contestants, [k, d], the most promising first, which of equals wins.
        rounds: at most.

    Attributes:
        left: indices of those that are still in it, in the order of `vectors`.
        round: rounds that are over.
        values: fresh measurements of each contestant, [k] lists of independent numbers.
    """

    def __init__(self, vectors: np.ndarray, rounds: int) -> None:
        self.vectors, self.rounds = np.asarray(vectors, dtype=np.float64), rounds
        self.left = list(range(len(self.vectors)))
        self.round = 0
        self.values: list[list[float]] = [[] for _ in self.left]

    @property
    def over(self) -> bool:
        return len(self.left) == 1 or self.round >= self.rounds

    @property
    def leader(self) -> int:
        """Index of the highest mean of those left; the winner's, when the race is over."""
        if not self.round:
            return self.left[0]
        return max(self.left, key=lambda i: (float(np.mean(self.values[i])), -i))

    def tell(self, values: Sequence[np.ndarray]) -> None:
        """A round's measurements of those left, in order, [m] each, entry by entry with the same random numbers."""
        for i, own in zip(self.left, values, strict=True):
            self.values[i] += np.asarray(own, dtype=np.float64).tolist()
        self.round += 1
        leader = self.leader
        self.left = [i for i in self.left if i == leader or not self._clearly_behind(i, leader)]

    def metrics(self, name: str) -> dict[str, float]:
        """race/left, contestants; race/<name>, fresh mean of the leader; race/standard_error of that."""
        error = standard_error_of_mean(np.array(self.values[self.leader]))
        found = {"race/left": float(len(self.left)), f"race/{name}": float(np.mean(self.values[self.leader]))}
        return found | ({} if error is None else {"race/standard_error": error})

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Of each contestant: vector, fresh mean as `name`, its standard_error, how many independent numbers these are
        of, and whether it was still in the race at its end. Empty where there was nothing to choose from."""
        return [
            {
                "vector": vector.tolist(),
                name: float(np.mean(own)),
                "standard_error": standard_error_of_mean(np.array(own)),
                "measured": len(own),
                "left": i in self.left,
            }
            for i, (vector, own) in enumerate(zip(self.vectors, self.values, strict=True))
            if own
        ]

    def state_dict(self) -> State:
        return {
            "vectors": self.vectors.copy(),
            "left": list(self.left),
            "round": self.round,
            "values": [list(own) for own in self.values],
        }

    @classmethod
    def from_state(cls, state: State, rounds: int) -> Race:
        race = cls(state["vectors"], rounds)
        race.left, race.round = list(state["left"]), state["round"]
        race.values = [list(own) for own in state["values"]]
        return race

    def _clearly_behind(self, i: int, leader: int) -> bool:
        behind = np.array(self.values[leader]) - np.array(self.values[i])
        return len(behind) >= FEWEST and float(behind.mean()) > CLEARLY * float(standard_error(behind))


Context = int | str | None
Row = Callable[[Any, Context], dict[str, Any]]
"""What a row of a summary says of a vector in a context, beside what was measured."""


@dataclass(frozen=True)
class RaceTrial:
    """One trial, as long as a principal step.

    Attributes:
        context: in which.
        members: contestants that are measured, one for each of the first places.
        vectors: of all places, [candidates, d]; the last member fills those that are left.
    """

    context: Context
    members: list[int]
    vectors: np.ndarray


class ContextRaces:
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
    def next(self) -> RaceTrial | None:
        """The next trial; None when all is done."""
        if self.over:
            return None
        place = self._place
        context, race = self.races[place]
        due = [race.leader] if race.over else race.left[len(self._round) :][: self.candidates]
        return RaceTrial(context, due, race.vectors[(due + due[-1:] * self.candidates)[: self.candidates]])

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
            "races": [[context, race.state_dict()] for context, race in self.races],
            "measured": [list(own) for own in self.measured],
            "errors": list(self.errors),
            "times": list(self.times),
            "heats": self.heats,
            "round": [list(own) for own in self._round],
        }

    @classmethod
    def from_state(cls, state: State, candidates: int, rounds: int) -> ContextRaces:
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
