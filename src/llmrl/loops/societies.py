"""Societies of a design run: their games and random numbers, their adaptation, and the measurement of proposals."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np

from llmrl.algorithms.societies.partitioned_policy import ObservingPartitionedPolicy, PartitionedPolicy, split_rollout
from llmrl.core.agent_interfaces import LearnsFromEpisodeGroups, pause_recording
from llmrl.core.observers import StepObserver
from llmrl.core.protocols import Agent, DifferentiableAgent, GradientProposer, MetaLearner, VecEnv
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.seeding import Seeds, make_generators
from llmrl.core.spaces import EnvSpec
from llmrl.loops.compute_requests import Call, Log, PlayEpisode, PlaySteps, Requests, Update
from llmrl.loops.design_progress import DesignProgress, Trial
from llmrl.loops.design_results import TrialScore, format_draw_name, score_vector
from llmrl.rollout.collector import Collector
from llmrl.run.run import Run


class Societies:
    """`candidates` x `replicates` societies, each with equally many games.

    They are ordered by proposal, then by society: agent i = c * replicates + s is society s under proposal c, and plays
    the games i * games to (i + 1) * games - 1. Society s starts from the same weights and draws the same random numbers
    under every proposal, those of replicate s of the run (`Seeds.replicates`).

    Args:
        env: environment with `candidates` x `replicates` x `games` games.
        agents: one agent for each society, [candidates x replicates], in this order.
        candidates: number of proposals that are measured at the same time.
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
        if replicates == 1:  # with replicates, the seeds of a reset are set for each society instead
            env.share_random_numbers(candidates)
        policies = [agent.policy for agent in agents]
        observes_steps = any(isinstance(policy, StepObserver) for policy in policies)
        self.policy = (ObservingPartitionedPolicy if observes_steps else PartitionedPolicy)(policies, self.games)

    def reset(self) -> None:
        """Reset all agents; copy state that `Agent.reset` keeps (optimizer) from the first proposal's societies."""
        for agent in self.agents:
            agent.reset()
        for i in range(self.replicates, len(self.agents)):
            self.agents[i].load_state_dict(copy.deepcopy(self.agents[i % self.replicates].state_dict()))

    def shared_or_society_seeds(self, seed_nodes: Sequence[Seeds], name: str) -> list[int]:
        """Return the seed `name` of each society from its proposal's node; a single seed if all are equal."""
        if self.replicates == 1 and all(node is seed_nodes[0] for node in seed_nodes):
            return [seed_nodes[0].integer(name)]
        return self._society_seeds(seed_nodes, name)

    def make_update_request(self, rollout: Rollout, seed_nodes: Sequence[Seeds]) -> Update:
        """Return the request to update every society on its games; `seed_nodes` [candidates] seed the minibatches."""
        minibatch_seeds = self._society_seeds(seed_nodes, "minibatches")
        return Update(agents=self.agents, rollout=rollout, minibatch_seeds=minibatch_seeds, stacked=True)

    def split_by_proposal(self, rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
        """Return the rollouts of each proposal: all rollouts of its first society, then of its second, and so on."""
        society_rollouts = list(zip(*(split_rollout(rollout, len(self.agents)) for rollout in rollouts), strict=True))
        starts = range(0, len(self.agents), self.replicates)
        return [list(itertools.chain(*society_rollouts[i : i + self.replicates])) for i in starts]

    def _society_seeds(self, seed_nodes: Sequence[Seeds], name: str) -> list[int]:
        """Return the seed `name` of every society, [candidates x replicates], in the order of the agents."""
        return [replicate.integer(name) for node in seed_nodes for replicate in node.replicates(self.replicates)]


class AdaptationRounds:
    """Rounds in which all societies play and learn under the proposals of a principal.

    Args:
        collector: collector that plays the societies' policy in all their games.
        societies: societies of the games.
        horizon: steps of an episode.
        rollout_steps: steps of every game before each update, a divisor of the horizon; None: a full episode.

    Attributes:
        rollout_lengths: steps of every game before each update of an episode; their sum is the horizon.
    """

    def __init__(
        self, collector: Collector, societies: Societies, horizon: int, rollout_steps: int | None = None
    ) -> None:
        self.collector, self.societies = collector, societies
        rollout_length = rollout_steps or horizon
        self.rollout_lengths = [rollout_length] * (horizon // rollout_length)

    def play_round(
        self, seed_nodes: Sequence[Seeds], vectors: np.ndarray, context: int | None, learner: MetaLearner | None = None
    ) -> Requests[tuple[list[Episode], list[dict[str, float]]]]:
        """Play an episode in every game, and update every society after each rollout of it.

        Agents that do not learn play full episodes and are not updated.

        Args:
            seed_nodes: seed node of each proposal, [candidates], for games, actions and minibatches. Proposals with the
                same node object draw the same random numbers.
            vectors: proposals that govern the societies, [candidates, d].
            context: context index of all games; None without contexts.
            learner: meta-learner that makes the updates and differentiates them with respect to the mechanism; None:
                the agents make ordinary updates.

        Returns:
            The episodes, and the metrics of each update of each society.
        """
        agent = self.societies.agents[0]
        learns, reward_jacobian = agent.learns, learner is not None
        # Agents that learn from groups of episodes record them themselves, and need exactly one episode of each game.
        learns_from_groups = isinstance(agent, LearnsFromEpisodeGroups) and agent.group_size is not None
        episodes: list[Episode] = []
        update_metrics: list[dict[str, float]] = []
        learns_from_rollouts = learns and not learns_from_groups
        for i, steps in enumerate(self.rollout_lengths if learns_from_rollouts else [sum(self.rollout_lengths)]):
            if i == 0:
                fields = {"learn": learns_from_rollouts, "restart": not learns_from_groups}
                rollout = yield self.make_episode_request(
                    steps, seed_nodes, vectors, context, reward_jacobian=reward_jacobian, **fields
                )
            else:
                rollout = yield PlaySteps(
                    collector=self.collector, steps=steps, action_seeds=None, reward_jacobian=reward_jacobian
                )
            episodes += rollout.episodes
            rollout_nodes = seed_nodes
            if i > 0:  # proposals with the same node must get the same child object
                children = {id(node): node.child("piece").child(i) for node in seed_nodes}
                rollout_nodes = [children[id(node)] for node in seed_nodes]
            if learner is not None:
                [generator] = make_generators([rollout_nodes[0].integer("minibatches")])
                update_metrics.append((yield Call(partial(learner.update, rollout, generator))))
            elif learns:
                update_metrics += yield self.societies.make_update_request(rollout, rollout_nodes)
        return episodes, update_metrics

    def make_episode_request(
        self, steps: int, seed_nodes: Sequence[Seeds], vectors: np.ndarray, context: int | None, **fields: bool
    ) -> PlayEpisode:
        """Return the request to play `steps` steps of new episodes; `fields` are further fields of `PlayEpisode`."""
        game_seeds = self.societies.shared_or_society_seeds(seed_nodes, "env")
        return PlayEpisode(
            collector=self.collector,
            steps=steps,
            seed=game_seeds if len(game_seeds) > 1 else game_seeds[0],
            action_seeds=self.societies.shared_or_society_seeds(seed_nodes, "actions"),
            mechanism=np.repeat(vectors, self.societies.replicates * self.societies.games, axis=0),
            context=context,
            **fields,
        )


class VectorMeasurer:
    """Measurement of vectors in trials: societies adapt to the vectors and are validated under them.

    Args:
        spec: specification of the environment.
        seeds: root of the loop's random numbers.
        adaptation: rounds in which the societies adapt.
        progress: progress of the run.

    Attributes:
        needs_gradient: whether the principal is a `GradientProposer`.
    """

    def __init__(self, spec: EnvSpec, seeds: Seeds, adaptation: AdaptationRounds, progress: DesignProgress) -> None:
        self.spec, self.seeds, self.adaptation, self.progress = spec, seeds, adaptation, progress
        self.societies, self.schedule, self.record = adaptation.societies, progress.schedule, progress.record
        self.needs_gradient = isinstance(progress.principal, GradientProposer)

    def begin(self, trial: Trial) -> None:
        """Begin a trial of confirmation or evaluation with the weights from which adaptation starts."""
        self.progress.trial = trial
        if self.schedule.settings.reset_agents:
            self.societies.reset()
        else:
            self.progress.restore_final_agents()

    def measure(self, run: Run, trial: Trial) -> Requests[list[TrialScore]]:
        """Adapt societies to the vectors of a trial and validate them; return the scores of the vectors."""
        is_proposal = trial.phase == "proposal"
        learner = self._make_meta_learner(trial.vectors[0]) if is_proposal and self.needs_gradient else None
        yield from self._adapt(run, trial, learner)
        rollouts = yield from self._validate(trial)
        scores = self._score_vectors(trial, rollouts)
        if is_proposal:
            for i, score in enumerate(scores):
                if self.record.training:
                    first, last = self.record.training[i]
                    score.outcome.training_objectives = first, last
                if self.schedule.early_validation_rounds:
                    earlier_values = {rounds: values[i] for rounds, values in self.record.early_values.items()}
                    score.value_by_rounds = {**earlier_values, self.schedule.adapt_rounds: score.outcome.value}
                if self.schedule.early_validation_rounds and self.spec.kinds:
                    earlier_returns = {rounds: x[i] for rounds, x in self.record.early_kind_returns.items()}
                    final_returns = score.kind_returns(self.spec)
                    score.kind_returns_by_rounds = {**earlier_returns, self.schedule.adapt_rounds: final_returns}
        if learner is not None:
            outcome = scores[0].outcome
            outcome.gradient = learner.gradient(rollouts, self.record.objective, self.record.spending_cost, outcome)
        return scores

    def _make_meta_learner(self, vector: np.ndarray) -> MetaLearner:
        """Return a learner that updates the agent and differentiates the updates with respect to a proposal, [d]."""
        agent, principal = self.societies.agents[0], self.progress.principal
        assert isinstance(agent, DifferentiableAgent) and isinstance(principal, GradientProposer)
        return agent.meta_learner(vector, principal.meta_settings)

    def _adapt(self, run: Run, trial: Trial, learner: MetaLearner | None) -> Requests[None]:
        """Play the remaining adaptation rounds of a trial, with early validations of proposals."""
        progress, record, is_proposal = self.progress, self.record, trial.phase == "proposal"
        has_several_updates = len(self.adaptation.rollout_lengths) > 1 and self.societies.agents[0].learns
        early_validation_rounds = self.schedule.early_validation_rounds if is_proposal else ()
        while progress.round < self.schedule.adapt_rounds:
            if progress.round in early_validation_rounds and progress.round not in record.early_values:
                scores = self._score_vectors(trial, (yield from self._validate(trial)))
                record.early_values[progress.round] = [score.outcome.value for score in scores]
                record.early_kind_returns[progress.round] = [score.kind_returns(self.spec) for score in scores]
            # Checkpoints hold no games within an episode, so a round interrupted between updates must start again.
            needs_early_checkpoint = has_several_updates and progress.early_checkpoint is None
            if needs_early_checkpoint:
                progress.save_early_checkpoint(run)
            episodes, update_metrics = yield from self.adaptation.play_round(
                trial.get_seed_nodes(self.seeds, "adapt", progress.round), trial.vectors, trial.context, learner
            )
            if needs_early_checkpoint:
                progress.early_checkpoint = None
            if is_proposal and (metrics := record.add_round(progress.round, episodes, update_metrics)) is not None:
                counters = {
                    "rounds": progress.step * self.schedule.adapt_rounds + progress.round + 1,
                    "principal_steps": progress.step,
                    "env_steps": self.schedule.count_env_steps(progress.step, 0, progress.round + 1),
                }
                yield Log("adaptation", "rounds", metrics, counters)
            progress.round += 1
            yield progress.safe_point_request()

    def _validate(self, trial: Trial) -> Requests[list[Rollout]]:
        """Return the rollouts of the validation episodes; playing them changes no state of a checkpoint."""
        keep_gradient = self.needs_gradient and trial.phase == "proposal"
        rollouts = []
        for i in range(self.schedule.n_validation_rounds):
            seed_nodes = trial.get_seed_nodes(self.seeds, "validate", i)
            # The gradient needs the rollouts of all validation rounds, so each is copied.
            request: PlayEpisode = self.adaptation.make_episode_request(
                self.schedule.horizon,
                seed_nodes,
                trial.vectors,
                trial.context,
                learn=keep_gradient,
                reward_jacobian=keep_gradient,
                copy=keep_gradient,
            )
            with pause_recording(self.societies.agents):
                rollouts.append((yield request))
        return rollouts

    def _score_vectors(self, trial: Trial, rollouts: Sequence[Rollout]) -> list[TrialScore]:
        """Return the score of each vector of a trial."""
        welfare_arguments = (self.record.objective, self.record.spending_cost)
        draw_names = [
            format_draw_name(trial.index + 1, draw)
            if trial.phase == "proposal"
            else f"{trial.phase} {trial.context} {draw}"
            for draw in trial.draws
        ]
        rollouts_by_vector = self.societies.split_by_proposal(rollouts)
        return [
            score_vector(
                vector, society_rollouts, self.spec, trial.context, *welfare_arguments, self.societies.replicates, name
            )
            for vector, society_rollouts, name in zip(trial.vectors, rollouts_by_vector, draw_names, strict=True)
        ]
