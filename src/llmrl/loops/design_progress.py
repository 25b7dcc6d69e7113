"""Progress of a design run: its schedule, the present trial, and the points from which the run can be resumed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.welfare_measures import Objective
from llmrl.loops.compute_requests import SafePoint
from llmrl.loops.design_results import DesignResults
from llmrl.loops.design_settings import DesignSettings
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.recommendation import ANYTIME_MEASUREMENTS, is_anytime, max_trials
from llmrl.rollout.episode_summaries import episode_welfare, summarize
from llmrl.run.run import Run

Phase = Literal["proposal", "confirmation", "evaluation"]

ROWS_PER_STEP = 50
"""Maximum number of logged adaptation rounds of a principal step; longer adaptations are logged at even intervals."""


@dataclass(frozen=True)
class DesignSchedule:
    """Numbers of steps, rounds and trials of a design run.

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
    def validate_rounds(self) -> int:
        """Validation episodes of each game in a trial."""
        return -(-self.settings.validate_episodes // self.games)

    @property
    def validate_episodes(self) -> int:
        """Validation episodes of a society in a trial."""
        return self.validate_rounds * self.games

    @property
    def earlier_validations(self) -> list[int]:
        """Rounds before the last after which proposals are validated as well, rising."""
        return sorted({n for n in self.settings.validation_rounds or () if n < self.adapt_rounds})

    @property
    def max_evaluation_trials(self) -> int:
        """Maximum number of trials of the final evaluation."""
        settings = self.settings
        recommendations = 1
        if settings.anytime:
            recommendations += sum(n < settings.steps * settings.candidates for n in ANYTIME_MEASUREMENTS)
        n_trials = max_trials(settings.evaluations, settings.candidates, recommendations, settings.anytime)
        return n_trials * max(1, self.n_contexts)

    @property
    def env_steps(self) -> int:
        """Maximum number of environment steps of the complete run, summed over games."""
        return self.env_steps_of(self.settings.steps, self.max_evaluation_trials)

    def env_steps_of(self, steps: int, evaluation_trials: int, rounds: int = 0) -> int:
        """Return the environment steps, summed over games, of principal steps and evaluation trials.

        `rounds` of a further trial are added.
        """
        rounds += (steps + evaluation_trials) * (self.adapt_rounds + self.validate_rounds)
        rounds += min(steps, self.proposal_steps) * len(self.earlier_validations) * self.validate_rounds
        return rounds * self.horizon * self.n_envs


@dataclass(frozen=True)
class Trial:
    """One trial: societies adapt to some vectors and are validated.

    Attributes:
        phase: purpose of the trial.
        context: context index of all games; None without contexts.
        vectors: vector of each slot, [candidates, d].
        draws: index of the random numbers of each slot. Slots with equal indices draw common random numbers.
        index: principal step of a proposal; of other phases 0, because their draws are counted over the whole phase.
    """

    phase: Phase
    context: int | None
    vectors: np.ndarray
    draws: Sequence[int]
    index: int = 0

    def nodes(self, seeds: Seeds, stage: str, index: int) -> list[Seeds]:
        """Return the seed node of each slot for part `index` of a stage; slots with equal draws get the same object.

        Args:
            seeds: root of the loop's random numbers.
            stage: `adapt` or `validate`.
            index: adaptation round, or validation episode.
        """
        nodes = {draw: self._root(seeds, draw).child(stage).child(index) for draw in set(self.draws)}
        return [nodes[draw] for draw in self.draws]

    def _root(self, seeds: Seeds, draw: int) -> Seeds:
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

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the step: returns, and the mean objective after earlier rounds."""
        after = {f"validation/objective_after_{n}": float(np.mean(values)) for n, values in self.validated.items()}
        return self.returns | after

    def _record_training(self, episodes: Sequence[Episode]) -> None:
        groups = [[episode for episode in episodes if episode.game // self.games == i] for i in range(self.candidates)]
        if all(groups):
            objectives = [float(episode_welfare(group, self.objective, self.spending_cost).mean()) for group in groups]
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


Resumable = tuple[int, Callable[[], State]]
"""Point to continue from after an interruption, and a function that returns its state."""


class DesignProgress:
    """Progress of a design run, all of which is in a checkpoint.

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
        anchor: earlier point from which an interrupted run resumes; None: the current point.
    """

    def __init__(
        self, parts: LoopParts, schedule: DesignSchedule, record: AdaptationRecord, results: DesignResults
    ) -> None:
        assert parts.principal is not None
        self.agents, self.principal, self.meter, self.schedule = parts.agents, parts.principal, parts.meter, schedule
        self.record, self.results = record, results
        self.step = 0
        self.round = 0
        self.trial: Trial | None = None
        self.final_agents: list[State] = []
        self.anchor: Resumable | None = None

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        return self.schedule.env_steps_of(self.step, self.results.evaluation_trials, self.round)

    @property
    def counters(self) -> dict[str, int]:
        """Counters of rows that are logged after the proposals."""
        return {
            "measurements": self.results.history.measurements,
            "principal_steps": self.step,
            "env_steps": self.env_steps,
        }

    @property
    def iteration(self) -> int:
        """Index of the current point among those from which a run can be resumed."""
        return (self.step + self.results.evaluation_trials) * (self.schedule.adapt_rounds + 1) + self.round

    def finish_trial(self) -> None:
        """Finish the trial of the final evaluation."""
        self.round, self.trial = 0, None

    def finish_step(self) -> None:
        """Finish a principal step; with `anytime`, record the recommendation if it is to be evaluated."""
        self.finish_trial()
        self.step, self.anchor = self.step + 1, None
        settings = self.schedule.settings
        if settings.anytime and is_anytime(self.results.history.measurements, settings.candidates):
            self.results.recommend(self.principal)

    def resumable(self) -> Resumable:
        """Return the point to continue from after an interruption now, and a function that returns its state."""
        return self.anchor or (self.iteration, self.state_dict)

    def save_request(self, always: bool = False) -> SafePoint:
        """Return the request that marks this point."""
        return SafePoint(*self.resumable(), always=always)

    def set_anchor(self, run: Run) -> None:
        """Set the anchor to this point and its state: the run resumes from here until the step ends."""
        state = copy.deepcopy({**self.state_dict(), **run.mark()})
        self.anchor = self.iteration, lambda: state

    def restore_final_agents(self) -> None:
        """Set the agents to their states after the last proposal."""
        for agent, state in zip(self.agents, self.final_agents, strict=True):
            agent.load_state_dict(copy.deepcopy(state))

    def state_dict(self) -> State:
        """Return everything that a resumed run needs to continue exactly (on engines that can be seeded)."""
        return {
            "step": self.step,
            "round": self.round,
            "trial": None if self.trial is None else self.trial.state_dict(),
            "record": self.record.state_dict(),
            **self.results.state_dict(),
            "final_agents": self.final_agents,
            "agents": [agent.state_dict() for agent in self.agents],
            "principal": self.principal.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.step, self.round = state["step"], state["round"]
        self.trial = None if state["trial"] is None else Trial(**state["trial"])
        self.record.load_state_dict(state["record"])
        self.results.load_state_dict(state)
        self.final_agents = state["final_agents"]
        for agent, agent_state in zip(self.agents, state["agents"], strict=True):
            agent.load_state_dict(agent_state)
        self.principal.load_state_dict(state["principal"])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
