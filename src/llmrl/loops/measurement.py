"""Measurements of a design run: societies adapt to the vectors of a trial, are validated, and are scored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.learner_protocols import unrecorded
from llmrl.core.protocols import DifferentiableAgent, GradientProposer, MetaLearner
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.loops.compute_requests import Log, PlayEpisode, Requests
from llmrl.loops.design_progress import DesignProgress, Trial
from llmrl.loops.proposal_outcomes import Score, draw_name, score
from llmrl.loops.societies import Adaptation
from llmrl.run.run import Run


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

    def __init__(self, spec: EnvSpec, seeds: Seeds, adaptation: Adaptation, progress: DesignProgress) -> None:
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
                proposal.outcome.training = self.record.training_of(i)
                if self.schedule.earlier_validations:
                    proposal.validated = {
                        **self.record.validated_of(i),
                        self.schedule.adapt_rounds: proposal.outcome.value,
                    }
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
            episodes, losses = yield from self.adaptation.round(nodes, trial.vectors, trial.context, learner)
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
            request: PlayEpisode = self.adaptation.episode(
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
            score(vector, rollouts_of_vector, self.spec, trial.context, *judge, self.societies.replicates, name)
            for vector, rollouts_of_vector, name in zip(trial.vectors, vector_rollouts, names, strict=True)
        ]
