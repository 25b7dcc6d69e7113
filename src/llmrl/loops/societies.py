"""Societies of a design run: their games, their random numbers, and their adaptation to a mechanism."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import numpy as np

from llmrl.algorithms.societies.partitioned_policy import partitioned, split
from llmrl.core.learner_protocols import ComparesEpisodes
from llmrl.core.protocols import Agent, MetaLearner, VecEnv
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.seeding import Seeds, generators
from llmrl.loops.compute_requests import Call, PlayEpisode, PlaySteps, Requests, Update
from llmrl.rollout.collector import Collector


class Societies:
    """`candidates` x `replicates` societies, each with an equal share of the games.

    They are ordered by proposal, and for each proposal by society: agent c * replicates + s, and the games at that
    index, are society s under proposal c. Society s has the initial weights and draws the random numbers of replicate s
    of the run (`Seeds.replicates`), under every proposal. So proposals are compared on the same societies with the same
    numbers.

    Args:
        env: environment with `candidates` x `replicates` x `games` games.
        agents: agents in the order above.
        candidates: number of proposals tried at once.
        replicates: number of societies under each proposal.

    Attributes:
        games: number of games of each society.
        policy: policy of all societies.

    Raises:
        ConfigError: the games cannot be divided equally.
    """

    def __init__(self, env: VecEnv, agents: Sequence[Agent], candidates: int, replicates: int) -> None:
        self.agents, self.candidates, self.replicates = agents, candidates, replicates
        self.games = env.spec.games_per_group(len(agents))
        if replicates == 1:  # otherwise equal seeds in a reset pair the games
            env.pair_games(candidates)
        policies = [agent.policy for agent in agents]
        self.policy = partitioned(policies, self.games)

    def reset(self) -> None:
        """Reset all agents to their original weights.

        A state that a reset does not change (a kept optimizer) is copied from the society under the first proposal.
        """
        for agent in self.agents:
            agent.reset()
        for i in range(self.replicates, len(self.agents)):
            self.agents[i].load_state_dict(copy.deepcopy(self.agents[i % self.replicates].state_dict()))

    def game_mechanisms(self, vectors: np.ndarray) -> np.ndarray:
        """Return proposals [candidates, d] as the mechanism of each game, [n_envs, d]."""
        return np.repeat(vectors, self.replicates * self.games, axis=0)

    def game_seeds(self, nodes: Sequence[Seeds]) -> int | list[int]:
        """Return the seed of `VecEnv.reset`, or one for each society, at the seed node of each proposal."""
        if self.replicates == 1 and _is_common(nodes):
            return nodes[0].integer("env")
        return self._integers(nodes, "env")

    def action_seeds(self, nodes: Sequence[Seeds]) -> list[int]:
        """Return the seeds of the generators of actions; a single one is shared by all societies."""
        if self.replicates == 1 and _is_common(nodes):
            return [nodes[0].integer("actions")]
        return self._integers(nodes, "actions")

    def learn(self, rollout: Rollout, nodes: Sequence[Seeds]) -> Update:
        """Return the request of an update of every society on its games.

        Minibatches are drawn at the seed node of the society's proposal.
        """
        minibatches = self._integers(nodes, "minibatches")
        return Update(agents=self.agents, rollout=rollout, minibatches=minibatches, stacked=True)

    def split_by_proposal(self, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """Return the rollouts of each proposal: all of its first society, then of its second, and so on."""
        parts = [split(rollout, len(self.agents)) for rollout in rollouts]
        agent_rollouts = [[part[i] for part in parts] for i in range(len(self.agents))]
        starts = range(0, len(agent_rollouts), self.replicates)
        return [[rollout for group in agent_rollouts[i : i + self.replicates] for rollout in group] for i in starts]

    def _integers(self, nodes: Sequence[Seeds], name: str) -> list[int]:
        """Return the seed `name` of every society, [candidates x replicates], in the order of the agents."""
        return [replicate.integer(name) for node in nodes for replicate in node.replicates(self.replicates)]


def _is_common(nodes: Sequence[Seeds]) -> bool:
    """Return whether all proposals draw the same random numbers."""
    return all(node is nodes[0] for node in nodes)


class Adaptation:
    """Rounds in which all societies play and learn under a principal's proposals.

    Args:
        collector: collector that plays the societies' policy in all their games.
        societies: societies of the games.
        horizon: steps of an episode.
        rollout_steps: steps of every game before each update, which divide an episode; None: a full episode.

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

        Agents that do not learn play full episodes and are not updated.

        Args:
            nodes: seed node of each proposal for the round: its games, its actions and its minibatches. Proposals with
                the same object draw the same random numbers.
            vectors: proposals that govern the societies, [candidates, d].
            context: context index of all games; None without contexts.
            learner: meta-learner that makes the updates and tracks how they depend on the mechanism; None: ordinary
                updates.

        Returns:
            The episodes, and the metrics of all updates.
        """
        agent = self.societies.agents[0]
        learns, reward_jacobian = agent.learns, learner is not None
        # Such agents record complete episodes themselves. A game that ended early would otherwise count twice.
        compares = isinstance(agent, ComparesEpisodes) and agent.group_size is not None
        episodes: list[Episode] = []
        losses: list[dict[str, float]] = []
        for i, steps in enumerate(self.pieces if learns and not compares else [sum(self.pieces)]):
            if i == 0:
                fields = {"learn": learns and not compares, "restart": not compares}
                rollout = yield self.episode(steps, nodes, vectors, context, reward_jacobian=reward_jacobian, **fields)
            else:
                rollout = yield PlaySteps(
                    collector=self.collector, steps=steps, actions=None, reward_jacobian=reward_jacobian
                )
            episodes += rollout.episodes
            pieces = nodes
            if i > 0:  # equal nodes stay equal objects
                children = {id(node): node.child("piece").child(i) for node in nodes}
                pieces = [children[id(node)] for node in nodes]
            if learner is not None:
                [generator] = generators([pieces[0].integer("minibatches")])
                losses.append((yield Call(partial(learner.update, rollout, generator))))
            elif learns:
                losses += yield self.societies.learn(rollout, pieces)
        return episodes, losses

    def episode(
        self, steps: int, nodes: Sequence[Seeds], vectors: np.ndarray, context: int | None, **fields: bool
    ) -> PlayEpisode:
        """Return the request of `steps` steps of a new episode in every game; `fields` are its other fields."""
        return PlayEpisode(
            collector=self.collector,
            steps=steps,
            seed=self.societies.game_seeds(nodes),
            actions=self.societies.action_seeds(nodes),
            mechanism=self.societies.game_mechanisms(vectors),
            context=context,
            **fields,
        )
