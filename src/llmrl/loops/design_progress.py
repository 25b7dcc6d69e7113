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
from llmrl.loops.recommendation import ANYTIME_MEASUREMENTS, count_max_trials, reaches_anytime_measurement
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
        n_envs: number of games of all societies together.
        n_society_games: number of games of one society.
        n_contexts: number of contexts of the environment; 0: it has none.
        confirm_steps: number of principal steps at the end that confirm candidates.
        adapt_rounds: number of adaptation rounds of a trial.
    """

    settings: DesignSettings
    horizon: int
    n_envs: int
    n_society_games: int
    n_contexts: int
    confirm_steps: int
    adapt_rounds: int

    @property
    def proposal_steps(self) -> int:
        """Number of principal steps in which the principal proposes vectors."""
        return self.settings.steps - self.confirm_steps

    @property
    def n_validation_rounds(self) -> int:
        """Number of validation episodes of each game in a trial."""
        return -(-self.settings.validate_episodes // self.n_society_games)

    @property
    def n_validation_episodes(self) -> int:
        """Number of validation episodes of a society in a trial."""
        return self.n_validation_rounds * self.n_society_games

    @property
    def early_validation_rounds(self) -> list[int]:
        """Numbers of adaptation rounds, below `adapt_rounds`, after which proposals are also validated; ascending."""
        return sorted({n for n in self.settings.validation_rounds or () if n < self.adapt_rounds})

    @property
    def max_evaluation_trials(self) -> int:
        """Maximum number of trials of the final evaluation."""
        settings = self.settings
        recommendations = 1
        if settings.anytime:
            recommendations += sum(n < settings.steps * settings.candidates for n in ANYTIME_MEASUREMENTS)
        n_trials = count_max_trials(settings.evaluations, settings.candidates, recommendations, settings.anytime)
        return n_trials * max(1, self.n_contexts)

    @property
    def env_steps(self) -> int:
        """Maximum number of environment steps of the complete run, summed over games."""
        return self.count_env_steps(self.settings.steps, self.max_evaluation_trials)

    def count_env_steps(self, steps: int, n_evaluation_trials: int, rounds: int = 0) -> int:
        """Return the environment steps, summed over games, of `steps` complete principal steps and evaluation trials.

        The steps of `rounds` finished adaptation rounds of an incomplete trial are added.
        """
        rounds += (steps + n_evaluation_trials) * (self.adapt_rounds + self.n_validation_rounds)
        rounds += min(steps, self.proposal_steps) * len(self.early_validation_rounds) * self.n_validation_rounds
        return rounds * self.horizon * self.n_envs


@dataclass(frozen=True)
class Trial:
    """Measurement of several vectors in parallel: societies adapt to them and are then validated under them.

    Attributes:
        phase: purpose of the trial.
        context: context index of all games; None without contexts.
        vectors: vector of each slot (parallel measurement), [candidates, d].
        draws: index of the random numbers of each slot. Slots with equal indices draw common random numbers.
        index: index of the principal step; 0 in other phases than `proposal`, whose `draws` count over all trials.
    """

    phase: TrialPhase
    context: int | None
    vectors: np.ndarray
    draws: Sequence[int]
    index: int = 0

    def get_seed_nodes(self, seeds: Seeds, stage: str, index: int) -> list[Seeds]:
        """Return the seed node of each slot for round or episode `index`; slots with equal draws get the same node.

        Args:
            seeds: root of the loop's random numbers.
            stage: `adapt` or `validate`.
            index: index of the adaptation round, or of the validation episode.
        """
        nodes = {draw: self._get_seed_node_of_draw(seeds, draw).child(stage).child(index) for draw in set(self.draws)}
        return [nodes[draw] for draw in self.draws]

    def _get_seed_node_of_draw(self, seeds: Seeds, draw: int) -> Seeds:
        if self.phase == "proposal":
            step = seeds.child("step").child(self.index)
            return step.child("repetition").child(draw) if draw else step
        return seeds.child(self.phase).child(self.context or 0).child(draw)

    def state_dict(self) -> State:
        """Return the constructor arguments of the trial."""
        return asdict(self) | {"draws": list(self.draws)}


class AdaptationRecord:
    """Record of the adaptation rounds of one principal step.

    Args:
        n_rounds: number of adaptation rounds of a step.
        n_candidates: number of vectors of a step.
        n_games: number of games of each vector; game i belongs to vector i // `n_games`.
        objective, spending_cost: welfare measure of a society, and loss of welfare per unit of net payment.

    Attributes:
        returns: metrics `adapt/first_return` and `adapt/last_return`.
        training: mean objective of each vector in the first and in the last round, [candidates][2]; empty if a vector
            has no finished episode in these rounds.
        early_values: from a number of adaptation rounds to the objective of each vector after these rounds, for the
            numbers of `design.validation_rounds` before the last round.
        early_kind_returns: from the same numbers to the mean return of each kind of players, for each vector.
    """

    def __init__(
        self, n_rounds: int, n_candidates: int, n_games: int, objective: Objective, spending_cost: float
    ) -> None:
        self.n_rounds, self.n_candidates, self.n_games = n_rounds, n_candidates, n_games
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
        if index in (0, self.n_rounds - 1):
            self._record_training_values(episodes)
        if index % -(-self.n_rounds // MAX_LOGGED_ROUNDS):
            return None
        metric_names = update_metrics[0] if update_metrics else {}
        return metrics | {name: float(np.mean([update[name] for update in update_metrics])) for name in metric_names}

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the step: first and last return, and the mean objective of each early validation."""
        return self.returns | {
            f"validation/objective_after_{n}": float(np.mean(values)) for n, values in self.early_values.items()
        }

    def _record_training_values(self, episodes: Sequence[Episode]) -> None:
        n, measure = self.n_games, (self.objective, self.spending_cost)
        candidate_episodes = [[e for e in episodes if e.game // n == i] for i in range(self.n_candidates)]
        if all(candidate_episodes):
            objectives = [float(compute_objective(group, *measure).mean()) for group in candidate_episodes]
            first_objectives = [pair[0] for pair in self.training] or objectives
            self.training = [list(pair) for pair in zip(first_objectives, objectives, strict=True)]

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
        self.early_kind_returns = dict(state.get("kinds", ()))  # missing in checkpoints of older versions


Checkpoint = tuple[int, Callable[[], State]]
"""Iteration from which an interrupted run continues, and a function that returns its state at this iteration."""


class DesignProgress(StateFields):
    """Progress of a design run; its `state_dict` is the checkpoint of the run.

    Args:
        parts: parts of the run; the states of its agents, principal and meter are saved.
        schedule: numbers of steps, rounds and trials.
        record: record of the adaptation rounds of a principal step.
        results: results so far.

    Attributes:
        step: number of finished principal steps.
        round: number of finished adaptation rounds of the trial in progress.
        trial: trial in progress; None between trials.
        final_agents: states of the agents after the last proposal; empty before all proposals are measured.
        early_checkpoint: earlier state from which an interrupted run continues; None: it continues from the present.
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
        self.early_checkpoint: Checkpoint | None = None

    @property
    def env_steps(self) -> int:
        """Number of environment steps so far, summed over games."""
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
        """Index of the current safe point; there is one after each adaptation round and each trial."""
        return (self.step + self.results.n_evaluation_trials) * (self.schedule.adapt_rounds + 1) + self.round

    def finish_trial(self) -> None:
        """Reset the trial in progress."""
        self.round, self.trial = 0, None

    def finish_step(self) -> None:
        """Finish a principal step; with `design.anytime`, record a recommendation after `ANYTIME_MEASUREMENTS`."""
        self.finish_trial()
        self.step, self.early_checkpoint = self.step + 1, None
        settings = self.schedule.settings
        if settings.anytime and reaches_anytime_measurement(self.results.history.n_measurements, settings.candidates):
            self.results.recommend(self.principal)

    def get_checkpoint(self) -> Checkpoint:
        """Return the iteration and state from which a run that is interrupted now would continue."""
        return self.early_checkpoint or (self.iteration, self.state_dict)

    def safe_point_request(self, always: bool = False) -> SafePoint:
        """Return the request that marks a point from which the run can be resumed."""
        return SafePoint(*self.get_checkpoint(), always=always)

    def save_early_checkpoint(self, run: Run) -> None:
        """Keep the present state as the checkpoint until the step ends or `early_checkpoint` is set to None."""
        state = copy.deepcopy({**self.state_dict(), **run.get_resume_position()})
        self.early_checkpoint = self.iteration, lambda: state

    def restore_final_agents(self) -> None:
        """Set the agents to their states after the last proposal."""
        for agent, state in zip(self.agents, self.final_agents, strict=True):
            agent.load_state_dict(copy.deepcopy(state))

    def state_dict(self) -> State:
        """Return the state for a bit-equal resume (on engines that can be seeded)."""
        trial = None if self.trial is None else self.trial.state_dict()
        return super().state_dict() | self.results.state_dict() | {"trial": trial}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.results.load_state_dict(state)
        self.trial = None if state["trial"] is None else Trial(**state["trial"])
