"""Progress of a design run: its schedule, the trial in progress, and the points from which the run can be resumed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields
from llmrl.core.welfare_measures import Objective
from llmrl.loops.compute_requests import SafePoint
from llmrl.loops.design_results import DesignResults
from llmrl.loops.design_settings import DesignSettings
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.recommendation import ANYTIME_MEASUREMENTS, max_trials_per_context, reaches_anytime_measurement
from llmrl.rollout.episode_summaries import compute_objective, summarize
from llmrl.run.run import Run

TrialPhase = Literal["proposal", "confirmation", "evaluation"]

MAX_LOGGED_ROUNDS = 50
"""Maximum number of logged adaptation rounds of a principal step; longer adaptations are logged at even intervals."""


@dataclass(frozen=True)
class DesignSchedule:
    """Numbers of principal steps, adaptation rounds and trials of a design run.

    Attributes:
        settings: section `design` of the config.
        horizon: steps of an episode.
        n_envs: games of all societies.
        games: games of a society.
        n_contexts: contexts of the environment; 0: none.
        confirm_steps: principal steps at the end that confirm candidates.
        adapt_rounds: adaptation rounds of a trial.
    """

    settings: DesignSettings
    horizon: int
    n_envs: int
    games: int
    n_contexts: int
    confirm_steps: int
    adapt_rounds: int

    @property
    def proposal_steps(self) -> int:
        """Principal steps in which the principal proposes."""
        return self.settings.steps - self.confirm_steps

    @property
    def n_validation_rounds(self) -> int:
        """Validation episodes of each game in a trial."""
        return -(-self.settings.validate_episodes // self.games)

    @property
    def n_validation_episodes(self) -> int:
        """Validation episodes of a society in a trial."""
        return self.n_validation_rounds * self.games

    @property
    def early_validation_rounds(self) -> list[int]:
        """Rounds before the last after which proposals are also validated, in ascending order."""
        return sorted({n for n in self.settings.validation_rounds or () if n < self.adapt_rounds})

    @property
    def max_evaluation_trials(self) -> int:
        """Maximum number of trials of the final evaluation."""
        settings = self.settings
        recommendations = 1
        if settings.anytime:
            recommendations += sum(n < settings.steps * settings.candidates for n in ANYTIME_MEASUREMENTS)
        n_trials = max_trials_per_context(settings.evaluations, settings.candidates, recommendations, settings.anytime)
        return n_trials * max(1, self.n_contexts)

    @property
    def env_steps(self) -> int:
        """Maximum number of environment steps of the complete run, summed over games."""
        return self.count_env_steps(self.settings.steps, self.max_evaluation_trials)

    def count_env_steps(self, steps: int, n_evaluation_trials: int, rounds: int = 0) -> int:
        """Return the environment steps, summed over games, of principal steps and evaluation trials.

        The steps of `rounds` adaptation rounds of a further trial are added.
        """
        rounds += (steps + n_evaluation_trials) * (self.adapt_rounds + self.n_validation_rounds)
        rounds += min(steps, self.proposal_steps) * len(self.early_validation_rounds) * self.n_validation_rounds
        return rounds * self.horizon * self.n_envs


@dataclass(frozen=True)
class Trial:
    """Trial of some vectors, to which societies adapt and under which they are validated.

    Attributes:
        phase: purpose of the trial.
        context: context index of all games; None without contexts.
        vectors: vector of each slot, [candidates, d].
        draws: index of the random numbers of each slot. Slots with equal indices draw common random numbers.
        index: principal step of a proposal; 0 in other phases, whose draws are numbered over the whole phase.
    """

    phase: TrialPhase
    context: int | None
    vectors: np.ndarray
    draws: Sequence[int]
    index: int = 0

    def seed_nodes(self, seeds: Seeds, stage: str, index: int) -> list[Seeds]:
        """Return the seed node of each slot for round or episode `index`; slots with equal draws get the same object.

        Args:
            seeds: root of the loop's random numbers.
            stage: `adapt` or `validate`.
            index: adaptation round, or validation episode.
        """
        seed_nodes = {draw: self._seed_node_of_draw(seeds, draw).child(stage).child(index) for draw in set(self.draws)}
        return [seed_nodes[draw] for draw in self.draws]

    def _seed_node_of_draw(self, seeds: Seeds, draw: int) -> Seeds:
        if self.phase == "proposal":
            step = seeds.child("step").child(self.index)
            return step.child("repetition").child(draw) if draw else step
        return seeds.child(self.phase).child(self.context or 0).child(draw)

    def state_dict(self) -> State:
        """Return the arguments of the trial."""
        return asdict(self) | {"draws": list(self.draws)}


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
        early_values: objective of each vector after earlier rounds, by number of rounds (`design.validation_rounds`).
        early_kind_returns: mean return of each kind of players of a mixed society, of each vector after these rounds.
    """

    def __init__(self, rounds: int, candidates: int, games: int, objective: Objective, spending_cost: float) -> None:
        self.rounds, self.candidates, self.games = rounds, candidates, games
        self.objective, self.spending_cost = objective, spending_cost
        self.clear()

    def clear(self) -> None:
        """Clear the record for a new step."""
        self.returns: dict[str, float] = {}
        self.training: list[list[float]] = []
        self.early_values: dict[int, list[float]] = {}
        self.early_kind_returns: dict[int, list[dict[str, float]]] = {}

    def add_round(
        self, index: int, episodes: Sequence[Episode], update_metrics: Sequence[dict[str, float]]
    ) -> dict[str, float] | None:
        """Record round `index`; return its metrics, or None if the round is not logged."""
        metrics = summarize(episodes, "train")
        if index == 0:
            self.returns["adapt/first_return"] = metrics["train/return"]
        self.returns["adapt/last_return"] = metrics["train/return"]
        if index in (0, self.rounds - 1):
            self._record_training_values(episodes)
        if index % -(-self.rounds // MAX_LOGGED_ROUNDS):
            return None
        names = update_metrics[0] if update_metrics else {}
        return metrics | {name: float(np.mean([update[name] for update in update_metrics])) for name in names}

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the step: returns, and the mean objective after earlier rounds."""
        return self.returns | {
            f"validation/objective_after_{n}": float(np.mean(values)) for n, values in self.early_values.items()
        }

    def _record_training_values(self, episodes: Sequence[Episode]) -> None:
        groups = [[episode for episode in episodes if episode.game // self.games == i] for i in range(self.candidates)]
        if all(groups):
            objectives = [
                float(compute_objective(group, self.objective, self.spending_cost).mean()) for group in groups
            ]
            first = [pair[0] for pair in self.training] or objectives
            self.training = [list(pair) for pair in zip(first, objectives, strict=True)]

    def state_dict(self) -> State:
        return {
            "returns": dict(self.returns),
            "training": [list(pair) for pair in self.training],
            "validated": [[n, list(values)] for n, values in self.early_values.items()],
            "kinds": [[n, list(returns)] for n, returns in self.early_kind_returns.items()],
        }

    def load_state_dict(self, state: State) -> None:
        self.returns = dict(state["returns"])
        self.training = [list(pair) for pair in state["training"]]
        self.early_values = dict(state["validated"])
        self.early_kind_returns = dict(state.get("kinds", ()))  # absent in earlier checkpoints


ResumePoint = tuple[int, Callable[[], State]]
"""Index of the point from which an interrupted run continues, and a function that returns the state there."""


class DesignProgress(StateFields):
    """Progress of a design run, which a checkpoint contains completely.

    Args:
        parts: parts of the run, of which the states of agents, principal and meter are saved.
        schedule: numbers of steps, rounds and trials.
        record: record of the adaptation rounds of a principal step.
        results: results so far.

    Attributes:
        step: finished principal steps.
        round: finished adaptation rounds of the trial.
        trial: trial in progress; None between trials.
        final_agents: states of the agents after the last proposal; empty before the end of the proposals.
        pinned_resume_point: earlier point from which an interrupted run continues; None: it continues from here.
    """

    _state_fields = ("step", "round", "record", "final_agents", "agents", "principal", "meter")

    def __init__(
        self, parts: LoopParts, schedule: DesignSchedule, record: AdaptationRecord, results: DesignResults
    ) -> None:
        assert parts.principal is not None
        self.agents, self.principal, self.meter = list(parts.agents), parts.principal, parts.meter
        self.schedule, self.record, self.results = schedule, record, results
        self.step = 0
        self.round = 0
        self.trial: Trial | None = None
        self.final_agents: list[State] = []
        self.pinned_resume_point: ResumePoint | None = None

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self.schedule.count_env_steps(self.step, self.results.n_evaluation_trials, self.round)

    @property
    def counters(self) -> dict[str, int]:
        """Counters of rows that are logged after the proposals."""
        return {
            "measurements": self.results.history.n_measurements,
            "principal_steps": self.step,
            "env_steps": self.env_steps,
        }

    @property
    def iteration(self) -> int:
        """Index of the current point among those from which a run can be resumed."""
        return (self.step + self.results.n_evaluation_trials) * (self.schedule.adapt_rounds + 1) + self.round

    def finish_trial(self) -> None:
        """Finish the trial of the final evaluation."""
        self.round, self.trial = 0, None

    def finish_step(self) -> None:
        """Finish a principal step; with `anytime`, record the recommendation if it is to be evaluated."""
        self.finish_trial()
        self.step, self.pinned_resume_point = self.step + 1, None
        settings = self.schedule.settings
        if settings.anytime and reaches_anytime_measurement(self.results.history.n_measurements, settings.candidates):
            self.results.recommend(self.principal)

    def resume_point(self) -> ResumePoint:
        """Return the point from which a run that is interrupted now continues."""
        return self.pinned_resume_point or (self.iteration, self.state_dict)

    def safe_point_request(self, always: bool = False) -> SafePoint:
        """Return the request that marks a point from which the run can be resumed."""
        return SafePoint(*self.resume_point(), always=always)

    def pin_resume_point(self, run: Run) -> None:
        """Pin this point and its state: an interrupted run continues from here until the step ends."""
        state = copy.deepcopy({**self.state_dict(), **run.resume_position()})
        self.pinned_resume_point = self.iteration, lambda: state

    def restore_final_agents(self) -> None:
        """Set the agents to their states after the last proposal."""
        for agent, state in zip(self.agents, self.final_agents, strict=True):
            agent.load_state_dict(copy.deepcopy(state))

    def state_dict(self) -> State:
        """Return everything that a resumed run needs to continue exactly (on engines that can be seeded)."""
        trial = None if self.trial is None else self.trial.state_dict()
        return super().state_dict() | self.results.state_dict() | {"trial": trial}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.results.load_state_dict(state)
        self.trial = None if state["trial"] is None else Trial(**state["trial"])
