"""Societies of a design run: their games and random numbers, their adaptation, and the measurement of proposals."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import numpy as np

from llmrl.algorithms.societies.partitioned_policy import combine_policies, split_rollout
from llmrl.core.agent_interfaces import ComparesEpisodes, unrecorded
from llmrl.core.protocols import Agent, DifferentiableAgent, GradientProposer, MetaLearner, VecEnv
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.seeding import Seeds, generators
from llmrl.core.spaces import EnvSpec
from llmrl.loops.compute_requests import Call, Log, PlayEpisode, PlaySteps, Requests, Update
from llmrl.loops.design_progress import DesignProgress, Trial
from llmrl.loops.design_results import Score, draw_name, score_vector
from llmrl.rollout.collector import Collector
from llmrl.run.run import Run


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
        self.policy = combine_policies(policies, self.games)

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

    def update_request(self, rollout: Rollout, nodes: Sequence[Seeds]) -> Update:
        """Return the request of an update of every society on its games.

        Minibatches are drawn at the seed node of the society's proposal.
        """
        minibatches = self._integers(nodes, "minibatches")
        return Update(agents=self.agents, rollout=rollout, minibatches=minibatches, stacked=True)

    def split_by_proposal(self, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """Return the rollouts of each proposal: all of its first society, then of its second, and so on."""
        parts = [split_rollout(rollout, len(self.agents)) for rollout in rollouts]
        agent_rollouts = [[part[i] for part in parts] for i in range(len(self.agents))]
        starts = range(0, len(agent_rollouts), self.replicates)
        return [[rollout for group in agent_rollouts[i : i + self.replicates] for rollout in group] for i in starts]

    def _integers(self, nodes: Sequence[Seeds], name: str) -> list[int]:
        """Return the seed `name` of every society, [candidates x replicates], in the order of the agents."""
        return [replicate.integer(name) for node in nodes for replicate in node.replicates(self.replicates)]


def _is_common(nodes: Sequence[Seeds]) -> bool:
    """Return whether all proposals draw the same random numbers."""
    return all(node is nodes[0] for node in nodes)


class AdaptationRounds:
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

    def play_round(
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
                rollout = yield self.episode_request(
                    steps, nodes, vectors, context, reward_jacobian=reward_jacobian, **fields
                )
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
                losses += yield self.societies.update_request(rollout, pieces)
        return episodes, losses

    def episode_request(
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


class Measurement:
    """Measurement of vectors.

    Args:
        spec: specification of the environment.
        seeds: root of the loop's random numbers.
        adaptation: rounds in which the societies adapt.
        progress: progress of the run.

    Attributes:
        needs_gradient: whether the principal learns from gradients through the agents' learning.
    """

    def __init__(self, spec: EnvSpec, seeds: Seeds, adaptation: AdaptationRounds, progress: DesignProgress) -> None:
        self.spec, self.seeds, self.adaptation, self.progress = spec, seeds, adaptation, progress
        self.societies, self.schedule, self.record = adaptation.societies, progress.schedule, progress.record
        self.needs_gradient = isinstance(progress.principal, GradientProposer)

    def begin(self, trial: Trial) -> None:
        """Start a trial after the proposals, with the weights from which adaptation starts."""
        self.progress.trial = trial
        if self.schedule.settings.reset_agents:
            self.societies.reset()
        else:
            self.progress.restore_final_agents()

    def measure(self, run: Run, trial: Trial) -> Requests[list[Score]]:
        """Adapt societies to the vectors of a trial and validate them; return the scores of the vectors."""
        is_proposal = trial.phase == "proposal"
        learner = self._meta_learner(trial.vectors[0]) if is_proposal and self.needs_gradient else None
        yield from self._adapt(run, trial, learner)
        rollouts = yield from self._validate(trial)
        scores = self._scores(trial, rollouts)
        if is_proposal:
            for i, proposal in enumerate(scores):
                if self.record.training:
                    first, last = self.record.training[i]
                    proposal.outcome.training = first, last
                if self.schedule.earlier_validations:
                    earlier = {rounds: values[i] for rounds, values in self.record.validated.items()}
                    proposal.validated = {**earlier, self.schedule.adapt_rounds: proposal.outcome.value}
        if learner is not None:
            outcome = scores[0].outcome
            outcome.gradient = learner.gradient(rollouts, self.record.objective, self.record.spending_cost, outcome)
        return scores

    def _meta_learner(self, vector: np.ndarray) -> MetaLearner:
        """Return a learner that updates the agent under a proposal, [d], and tracks how updates depend on it."""
        agent, principal = self.societies.agents[0], self.progress.principal
        assert isinstance(agent, DifferentiableAgent) and isinstance(principal, GradientProposer)
        return agent.meta_learner(vector, principal.meta_settings)

    def _adapt(self, run: Run, trial: Trial, learner: MetaLearner | None) -> Requests[None]:
        """Play the adaptation rounds that remain."""
        progress, record, is_proposal = self.progress, self.record, trial.phase == "proposal"
        pieces = len(self.adaptation.pieces) > 1 and self.societies.agents[0].learns
        earlier_validations = self.schedule.earlier_validations if is_proposal else ()
        while progress.round < self.schedule.adapt_rounds:
            if progress.round in earlier_validations and progress.round not in record.validated:
                rollouts = yield from self._validate(trial)
                record.validated[progress.round] = [
                    proposal.outcome.value for proposal in self._scores(trial, rollouts)
                ]
            # Games within an episode are not saved: a round that is interrupted between two updates starts again.
            anchored = pieces and progress.anchor is None
            if anchored:
                progress.set_anchor(run)
            nodes = trial.nodes(self.seeds, "adapt", progress.round)
            episodes, losses = yield from self.adaptation.play_round(nodes, trial.vectors, trial.context, learner)
            if anchored:
                progress.anchor = None
            if is_proposal and (metrics := record.add(progress.round, episodes, losses)) is not None:
                counters = {
                    "rounds": progress.step * self.schedule.adapt_rounds + progress.round + 1,
                    "principal_steps": progress.step,
                    "env_steps": self.schedule.env_steps_of(progress.step, 0, progress.round + 1),
                }
                yield Log("adaptation", "rounds", metrics, counters)
            progress.round += 1
            yield progress.save_request()

    def _validate(self, trial: Trial) -> Requests[list[Rollout]]:
        """Play the validation episodes, which change nothing that a checkpoint holds; return the rollouts."""
        graph = self.needs_gradient and trial.phase == "proposal"
        rollouts = []
        for i in range(self.schedule.validate_rounds):
            nodes = trial.nodes(self.seeds, "validate", i)
            # The gradient needs the rollouts of all validation rounds, so each is copied.
            request: PlayEpisode = self.adaptation.episode_request(
                self.schedule.horizon,
                nodes,
                trial.vectors,
                trial.context,
                learn=graph,
                reward_jacobian=graph,
                copy=graph,
            )
            with unrecorded(self.societies.agents):
                rollouts.append((yield request))
        return rollouts

    def _scores(self, trial: Trial, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the score of each slot of a trial."""
        judge = self.record.objective, self.record.spending_cost
        names = [
            draw_name(trial.index + 1, draw) if trial.phase == "proposal" else f"{trial.phase} {trial.context} {draw}"
            for draw in trial.draws
        ]
        vector_rollouts = self.societies.split_by_proposal(rollouts)
        return [
            score_vector(vector, rollouts_of_vector, self.spec, trial.context, *judge, self.societies.replicates, name)
            for vector, rollouts_of_vector, name in zip(trial.vectors, vector_rollouts, names, strict=True)
        ]
