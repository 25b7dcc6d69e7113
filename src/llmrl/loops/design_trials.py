"""Trials of a design run: the vectors that govern the societies, and the random numbers of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from llmrl.core.records import State
from llmrl.core.seeding import Seeds

Phase = Literal["proposal", "confirmation", "evaluation"]


@dataclass(frozen=True)
class Trial:
    """One trial: societies adapt to some vectors and are validated.

    Attributes:
        phase: purpose of the trial.
        context: context index of all games; None without contexts.
        vectors: vector of each slot, [candidates, d].
        draws: index of the random numbers of each slot. Slots with equal indices draw common random numbers.
        index: principal step of a proposal; of other phases 0, because their draws are counted over the whole phase.
    """

    phase: Phase
    context: int | None
    vectors: np.ndarray
    draws: Sequence[int]
    index: int = 0

    def nodes(self, seeds: Seeds, stage: str, index: int) -> list[Seeds]:
        """Return the seed node of each slot for part `index` of a stage; slots with equal draws get the same object.

        Args:
            seeds: root of the loop's random numbers.
            stage: `adapt` or `validate`.
            index: adaptation round, or validation episode.
        """
        nodes = {draw: self._root(seeds, draw).child(stage).child(index) for draw in set(self.draws)}
        return [nodes[draw] for draw in self.draws]

    def _root(self, seeds: Seeds, draw: int) -> Seeds:
        if self.phase == "proposal":
            step = seeds.child("step").child(self.index)
            return step.child("repetition").child(draw) if draw else step
        return seeds.child(self.phase).child(self.context or 0).child(draw)

    def state_dict(self) -> State:
        return {
            "phase": self.phase,
            "context": self.context,
            "vectors": np.array(self.vectors),
            "draws": list(self.draws),
            "index": self.index,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Trial:
        """Return a trial with the state that `state_dict` returned."""
        return cls(**state)
