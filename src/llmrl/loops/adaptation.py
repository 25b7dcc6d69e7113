"""How societies adapt to what is imposed on them: rounds of episodes, with updates after pieces of each."""

from __future__ import annotations

from llmrl.core.gradients import MetaLearner
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.learners.rollout import Collector
from llmrl.loops.societies import Societies


class Adaptation:
    """Rounds in which all societies play and learn under the mechanisms that are set.

    Args:
        collector: plays the societies' policy in all their games.
        societies: whose games these are.
        horizon: steps of an episode.
        rollout_steps: steps of every game before each update, which divide an episode; None: a whole episode.

    Attributes:
        pieces: steps of each piece of an episode that is followed by an update.
    """

    def __init__(
        self, collector: Collector, societies: Societies, horizon: int, rollout_steps: int | None = None
    ) -> None:
        self.collector, self.societies = collector, societies
        piece = rollout_steps or horizon
        self.pieces = [piece] * (horizon // piece)

    def round(self, seeds: Seeds, learner: MetaLearner | None = None) -> tuple[list[Episode], list[dict[str, float]]]:
        """Play an episode in every game, and update every society after each piece of it.

        Agents that do not learn play whole episodes and are not updated.

        Args:
            seeds: of the round: of its games, its actions and its minibatches.
            learner: updates in the societies' place and keeps how the updates depend on the mechanism.

        Returns:
            The episodes, and the metrics of all updates.
        """
        learns = self.societies.agents[0].learns
        self.collector.reset(self.societies.game_seeds(seeds))
        generators = self.societies.generators(seeds)
        episodes: list[Episode] = []
        losses: list[dict[str, float]] = []
        for i, steps in enumerate(self.pieces if learns else [sum(self.pieces)]):
            rollout = self.collector.collect(steps, generators, learns, keep_exposure=learner is not None)
            episodes += rollout.episodes
            draws = seeds if i == 0 else seeds.child("piece").child(i)
            if learner is not None:
                losses.append(learner.update(rollout, draws.torch("minibatches")))
            else:
                losses += self.societies.update(rollout, draws)
        return episodes, losses if learns else []
