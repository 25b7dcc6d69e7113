"""Confirmation of the leading candidates of a principal: the last principal steps of a run measure them again."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from llmrl.core.records import State
from llmrl.core.state_fields import StateFields


class SuccessiveHalving(StateFields):
    """Successive halving of a few candidates within a fixed number of measurements.

    The highest of many noisy estimates is biased upwards. So the leading candidates are measured again with fresh
    random numbers, in rounds; between rounds the better half by the mean of all measurements remains (Karnin, Koren &
    Somekh 2013, "Almost optimal exploration in multi-armed bandits", figure 3; the number of candidates is about the
    square root of the number of measurements, so that each gets as many).

    Args:
        vectors: candidates, [m, d], best first. Only the first `n_candidates` take part.
        steps: number of trials, >= 1.
        slots: measurements of a trial, >= 1.

    Attributes:
        vectors: candidates that take part.
        survivors: indices of the candidates that remain, best first.
        counts: measurements of each candidate so far.
        step: number of finished trials.
    """

    _state_fields = ("vectors", "steps", "slots", "survivors", "counts", "step")

    def __init__(self, vectors: np.ndarray, steps: int, slots: int) -> None:
        self.vectors = np.asarray(vectors, dtype=np.float64)[: n_candidates(steps, slots)]
        self.steps, self.slots = steps, slots
        self.survivors = list(range(len(self.vectors)))
        self.counts = [0] * len(self.vectors)
        self.step = 0

    @property
    def finished(self) -> bool:
        return self.step >= self.steps

    @property
    def trial(self) -> list[tuple[int, int]]:
        """Candidate of each slot of the next trial, and the index of this measurement among those of the candidate."""
        counts, slots = list(self.counts), []
        for _ in range(self.slots):
            candidate = min(self.survivors, key=lambda i: (counts[i], self.survivors.index(i)))
            slots.append((candidate, counts[candidate]))
            counts[candidate] += 1
        return slots

    def advance(self, value_of: Callable[[np.ndarray], float]) -> None:
        """Finish the trial; at the end of a round but the last, keep the better half of the candidates.

        Args:
            value_of: function from a candidate, [d], to the mean of all its measurements.
        """
        for candidate, _ in self.trial:
            self.counts[candidate] += 1
        self.step += 1
        self.survivors.sort(key=lambda i: (-value_of(self.vectors[i]), i))
        if not self.finished and self._round(self.step) > self._round(self.step - 1):
            self.survivors = self.survivors[: math.ceil(len(self.survivors) / 2)]

    def _round(self, step: int) -> int:
        rounds = max(1, min(self.steps, math.ceil(math.log2(max(2, len(self.vectors))))))
        return step * rounds // self.steps

    @classmethod
    def from_state(cls, state: State) -> SuccessiveHalving:
        """Return an object with the state that `state_dict` returned."""
        halving = cls(state["vectors"], state["steps"], state["slots"])
        halving.load_state_dict(state | {"vectors": halving.vectors})
        return halving


def n_candidates(steps: int, slots: int) -> int:
    """Return the number of candidates that `steps` trials of `slots` measurements confirm.

    It is the rounded-up square root of the number of measurements.
    """
    return math.ceil(math.sqrt(steps * slots))


class Confirmation:
    """Successive halving in each context, one context after the other.

    Args:
        candidates: by context index (None without contexts): the leading candidates, [m, d], best first.
        steps: number of trials of all contexts, >= the number of contexts.
        slots: measurements of a trial.

    Attributes:
        halvings: by context. Contexts with a single candidate have nothing to confirm and are left out.
    """

    def __init__(self, candidates: dict[int | None, np.ndarray], steps: int, slots: int) -> None:
        self.halvings: dict[int | None, SuccessiveHalving] = {}
        for i, (context, vectors) in enumerate(candidates.items()):
            share = steps // len(candidates) + (i < steps % len(candidates))
            if len(vectors) > 1:
                self.halvings[context] = SuccessiveHalving(vectors, share, slots)

    @property
    def context(self) -> int | None:
        """Context of the next trial.

        Raises:
            StopIteration: all trials are finished.
        """
        return next(context for context, halving in self.halvings.items() if not halving.finished)

    @property
    def finished(self) -> bool:
        return all(halving.finished for halving in self.halvings.values())

    @property
    def steps(self) -> int:
        """Number of finished trials."""
        return sum(halving.step for halving in self.halvings.values())

    def survivors(self, context: int | None) -> np.ndarray | None:
        """Return the candidates of a context that remain, best first, [m, d]; None before its first trial."""
        halving = self.halvings.get(context)
        return None if halving is None or not halving.step else halving.vectors[halving.survivors]

    def state_dict(self) -> State:
        return {"halvings": [[context, halving.state_dict()] for context, halving in self.halvings.items()]}

    @classmethod
    def from_state(cls, state: State) -> Confirmation:
        """Return an object with the state that `state_dict` returned."""
        confirmation = cls({}, 0, 0)
        confirmation.halvings = {
            context: SuccessiveHalving.from_state(halving) for context, halving in state["halvings"]
        }
        return confirmation
