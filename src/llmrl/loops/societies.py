"""The societies of a design run: whose the games are, what each society draws, and how all learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmrl.core.protocols import Agent, Policy, VecEnv
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.learners.side_by_side import SideBySide, split
from llmrl.learners.together import Together

if TYPE_CHECKING:
    import torch


class Societies:
    """`candidates` x `several` societies, each in an equal share of the games.

    They are laid out proposal by proposal, and under each proposal society by society: agent c * several + s, and the
    games of that place, are society s under proposal c. Society s has the initial weights and draws the numbers of
    replicate s of the run (`Seeds.replicates`), under every proposal. So proposals are compared on the same societies
    with the same numbers.

    Args:
        env: with `candidates` x `several` x `games` games.
        agents: in the order above.
        candidates: proposals tried at once.
        several: societies that each governs.
        consecutive: replicates are the runs of the seeds that follow (for tests).

    Attributes:
        games: of each society.
        policy: of all of them.

    Raises:
        ConfigError: the games cannot be divided so.
    """

    def __init__(
        self, env: VecEnv, agents: Sequence[Agent], candidates: int, several: int, consecutive: bool = False
    ) -> None:
        self.agents, self.candidates, self.several = agents, candidates, several
        self._consecutive = consecutive
        self.games = env.spec.games_per_group(len(agents))
        if several == 1:  # else the seeds of a reset say which games are alike
            env.pair_games(candidates)
        policies = [agent.policy for agent in agents]
        self.policy: Policy = SideBySide(policies, self.games) if len(agents) > 1 else policies[0]
        self._together = Together(agents)

    def reset(self) -> None:
        """Original weights; what a reset does not touch (an optimizer that is kept) becomes that of the society under
        the first proposal."""
        for agent in self.agents:
            agent.reset()
        for i in range(self.several, len(self.agents)):
            self.agents[i].load_state_dict(copy.deepcopy(self.agents[i % self.several].state_dict()))

    def imposed(self, vectors: np.ndarray) -> np.ndarray:
        """Proposals [candidates, d] as the mechanism of each game, [n_envs, d]."""
        return np.repeat(vectors, self.several * self.games, axis=0)

    def game_seeds(self, seeds: Seeds) -> int | list[int]:
        """What `VecEnv.reset` is given at this node of the seed tree."""
        if self.several == 1:
            return seeds.integer("env")
        return [each.integer("env") for each in self._replicates(seeds)] * self.candidates

    def generators(self, seeds: Seeds) -> torch.Generator | list[torch.Generator]:
        """Of actions; societies of different proposals share theirs."""
        if self.several == 1:
            return seeds.torch("actions")
        return [each.torch("actions") for each in self._replicates(seeds)] * self.candidates

    def update(self, rollout: Rollout, seeds: Seeds) -> list[dict[str, float]]:
        """Let every society learn from its games; returns the metrics of each. A society draws the same minibatches
        under all proposals."""
        streams = self._replicates(seeds) * self.candidates
        return self._together.update(rollout, [each.torch("minibatches") for each in streams])

    def under(self, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """Of each proposal: what its first society saw in all rollouts, then its second, and so on."""
        parts = [split(rollout, len(self.agents)) for rollout in rollouts]
        own = [[part[i] for part in parts] for i in range(len(self.agents))]
        starts = range(0, len(own), self.several)
        return [[rollout for each in own[i : i + self.several] for rollout in each] for i in starts]

    def _replicates(self, seeds: Seeds) -> list[Seeds]:
        return seeds.replicates(self.several, self._consecutive)
