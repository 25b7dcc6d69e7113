"""The societies of a design run: whose the games are, what each draws, and how they adapt to a mechanism."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from llmrl.algorithms.societies.partitioned_policy import partitioned, split
from llmrl.core.protocols import Agent, MetaLearner, VecEnv
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.seeding import Seeds
from llmrl.loops.compute_requests import DifferentiableUpdate, PlayEpisode, PlaySteps, Requests, Update
from llmrl.rollout.collector import Collector


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
        self.policy = partitioned(policies, self.games)

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

    def game_seeds(self, nodes: Sequence[Seeds]) -> int | list[int]:
        """Return the seed of `VecEnv.reset`, or one for each society, at the seed node of each proposal."""
        if self.several == 1 and _is_common(nodes):
            return nodes[0].integer("env")
        return self._integers(nodes, "env")

    def action_seeds(self, nodes: Sequence[Seeds]) -> list[int]:
        """Return the seeds of the generators of actions; a single one is shared by all societies."""
        if self.several == 1 and _is_common(nodes):
            return [nodes[0].integer("actions")]
        return self._integers(nodes, "actions")

    def learn(self, rollout: Rollout, nodes: Sequence[Seeds]) -> Update:
        """Request an update of every society on its games, with minibatches drawn at the seed node of its proposal."""
        minibatches = self._integers(nodes, "minibatches")
        return Update(agents=self.agents, rollout=rollout, minibatches=minibatches, stacked=True)

    def under(self, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """Of each proposal: what its first society saw in all rollouts, then its second, and so on."""
        parts = [split(rollout, len(self.agents)) for rollout in rollouts]
        own = [[part[i] for part in parts] for i in range(len(self.agents))]
        starts = range(0, len(own), self.several)
        return [[rollout for each in own[i : i + self.several] for rollout in each] for i in starts]

    def _integers(self, nodes: Sequence[Seeds], name: str) -> list[int]:
        """Return the seed `name` of every society, [candidates x several], in the order of the agents."""
        return [
            replicate.integer(name) for node in nodes for replicate in node.replicates(self.several, self._consecutive)
        ]


def _is_common(nodes: Sequence[Seeds]) -> bool:
    """Return whether all proposals draw the same random numbers."""
    return all(node is nodes[0] for node in nodes)


class Adaptation:
    """Rounds in which all societies play and learn under a principal's proposals.

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

    def round(
        self, nodes: Sequence[Seeds], vectors: np.ndarray, context: int | None, learner: MetaLearner | None = None
    ) -> Requests[tuple[list[Episode], list[dict[str, float]]]]:
        """Play an episode in every game, and update every society after each piece of it.

        Agents that do not learn play whole episodes and are not updated.

        Args:
            nodes: seed node of each proposal for the round: its games, its actions and its minibatches. Proposals with
                the same object draw the same random numbers.
            vectors: proposals that govern the societies, [candidates, d].
            context: of all games; None where there are none.
            learner: updates in the societies' place and keeps how the updates depend on the mechanism.

        Returns:
            The episodes, and the metrics of all updates.
        """
        learns, reward_jacobian = self.societies.agents[0].learns, learner is not None
        episodes: list[Episode] = []
        losses: list[dict[str, float]] = []
        for i, steps in enumerate(self.pieces if learns else [sum(self.pieces)]):
            if i == 0:
                rollout = yield self.episode(
                    steps, nodes, vectors, context, learn=learns, reward_jacobian=reward_jacobian
                )
            else:
                rollout = yield PlaySteps(
                    collector=self.collector, steps=steps, actions=None, reward_jacobian=reward_jacobian
                )
            episodes += rollout.episodes
            pieces = nodes if i == 0 else derived(nodes, "piece", i)
            if learner is not None:
                minibatches = pieces[0].integer("minibatches")
                losses.append((yield DifferentiableUpdate(learner=learner, rollout=rollout, minibatches=minibatches)))
            elif learns:
                losses += yield self.societies.learn(rollout, pieces)
        return episodes, losses

    def episode(
        self, steps: int, nodes: Sequence[Seeds], vectors: np.ndarray, context: int | None, **fields: bool
    ) -> PlayEpisode:
        """Request `steps` steps of a new episode in every game; `fields` are further fields of the request."""
        return PlayEpisode(
            collector=self.collector,
            steps=steps,
            seed=self.societies.game_seeds(nodes),
            actions=self.societies.action_seeds(nodes),
            mechanism=self.societies.imposed(vectors),
            context=context,
            **fields,
        )


def derived(nodes: Sequence[Seeds], name: str, index: int) -> list[Seeds]:
    """Return the child `name`/`index` of each node; equal objects stay equal objects."""
    children = {id(node): node.child(name).child(index) for node in nodes}
    return [children[id(node)] for node in nodes]
