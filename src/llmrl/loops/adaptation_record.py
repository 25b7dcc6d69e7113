"""Record of the adaptation rounds of a principal step: returns, and objectives in the first and the last round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import episode_welfare, summarize

ROWS_PER_STEP = 50
"""Maximum number of logged adaptation rounds of a principal step; longer adaptations are logged at even intervals."""


class AdaptationRecord:
    """Record of the adaptation rounds of one principal step.

    Args:
        rounds: adaptation rounds of a step.
        candidates: vectors of a step.
        games: games of each vector, which are consecutive.
        objective, spending_cost: measure of a society.

    Attributes:
        returns: metrics `adapt/first_return` and `adapt/last_return`.
        training: objective of each vector in the first and in the last round so far, [candidates][2]; empty where an
            episode is longer than a round.
        validated: objective of each vector after earlier rounds, by number of rounds (`design.validation_rounds`).
    """

    def __init__(self, rounds: int, candidates: int, games: int, objective: Objective, spending_cost: float) -> None:
        self.rounds, self.candidates, self.games = rounds, candidates, games
        self.objective, self.spending_cost = objective, spending_cost
        self.clear()

    def clear(self) -> None:
        """Clear the record for a new step."""
        self.returns: dict[str, float] = {}
        self.training: list[list[float]] = []
        self.validated: dict[int, list[float]] = {}

    def add(
        self, index: int, episodes: Sequence[Episode], losses: Sequence[dict[str, float]]
    ) -> dict[str, float] | None:
        """Record round `index`; return its metrics, or None if the round is not logged."""
        metrics = summarize(episodes, "train")
        if index == 0:
            self.returns["adapt/first_return"] = metrics["train/return"]
        self.returns["adapt/last_return"] = metrics["train/return"]
        if index in (0, self.rounds - 1):
            self._record_training(episodes)
        if index % -(-self.rounds // ROWS_PER_STEP):
            return None
        names = losses[0] if losses else {}
        return metrics | {name: float(np.mean([loss[name] for loss in losses])) for name in names}

    def training_of(self, candidate: int) -> tuple[float, float] | None:
        """Return the objective of a vector in the first and in the last round; None if unknown."""
        if not self.training:
            return None
        first, last = self.training[candidate]
        return first, last

    def validated_of(self, candidate: int) -> dict[int, float]:
        """Return the objective of a vector after each earlier validation, by number of rounds."""
        return {rounds: values[candidate] for rounds, values in self.validated.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the step: returns, and the mean objective after earlier rounds."""
        after = {f"validation/objective_after_{n}": float(np.mean(values)) for n, values in self.validated.items()}
        return self.returns | after

    def _record_training(self, episodes: Sequence[Episode]) -> None:
        parts = [[episode for episode in episodes if episode.game // self.games == i] for i in range(self.candidates)]
        if not all(parts):
            return
        objectives = [float(episode_welfare(part, self.objective, self.spending_cost).mean()) for part in parts]
        first = [pair[0] for pair in self.training] or objectives
        self.training = [list(pair) for pair in zip(first, objectives, strict=True)]

    def state_dict(self) -> State:
        return {
            "returns": dict(self.returns),
            "training": [list(pair) for pair in self.training],
            "validated": [[n, list(values)] for n, values in self.validated.items()],
        }

    def load_state_dict(self, state: State) -> None:
        self.returns = dict(state["returns"])
        self.training = [list(pair) for pair in state["training"]]
        self.validated = dict(state["validated"])
