"""The loop of agents that learn by imitation of recorded episodes and are evaluated in the environment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from llmrl.algorithms.cloning import BehavioralCloning
from llmrl.core.errors import ConfigError
from llmrl.core.metrics import RowKind
from llmrl.core.protocols import Agent
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.state_fields import StateFields
from llmrl.loops.compute_requests import Call, Log, Loop, Requests, SafePoint
from llmrl.loops.loop_parts import LoopParts, write_trained_results
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.episode_summaries import summarize_evaluation
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.run import Run


@runtime_checkable
class Imitator(Protocol):
    """Protocol of agents that learn from recorded trajectories."""

    def imitate(self, epochs: int) -> BehavioralCloning:
        """Return the trainer of the agent on its recorded trajectories, for `epochs` passes over them."""
        ...


@dataclass(frozen=True)
class CloneSettings:
    """Duration, logging and evaluation of imitation: the section `clone` of the config.

    Attributes:
        epochs: number of passes over the training samples.
        log_interval: number of updates between logged rows, which hold means over these updates.
        validation_interval: updates between measurements on held-out samples; 0: only at the end.
        evaluation_interval: updates between evaluations in the environment; 0: only at the end.
        evaluate_episodes: minimum number of episodes of an evaluation, rounded up to a multiple of the games.
    """

    epochs: PositiveInt
    log_interval: PositiveInt
    validation_interval: NonNegativeInt
    evaluation_interval: NonNegativeInt
    evaluate_episodes: PositiveInt


class CloneLoop(StateFields, Loop):
    """The loop of `principal=none` with an imitating agent: supervised epochs over recorded steps, and evaluations.

    Args:
        parts: parts of the run, with one agent. The evaluation after update i draws from `evaluation/i` of the seeds.
        settings: duration, logging and evaluation.

    Raises:
        ConfigError: the agent is not an `Imitator`, or its trajectories cannot be used.
    """

    _state_fields = ("agents", "recent")

    def __init__(self, parts: LoopParts, settings: CloneSettings) -> None:
        [agent] = parts.agents
        if not isinstance(agent, Imitator):
            raise ConfigError(f"the clone loop needs an agent that imitates, not {type(agent).__name__}; use agent=bc")
        assert isinstance(agent, Agent)
        self.agent, self.env, self.seeds, self.settings = agent, parts.env, parts.seeds, settings
        self.agents = [agent]
        self.welfare_measure = parts.welfare_measure
        self.collector = Collector(self.env, agent.policy, parts.device, observers=parts.observers)
        self.cloning = agent.imitate(settings.epochs)
        self.update_index = 0
        self.recent: list[dict[str, float]] = []  # metrics of each update since the last logged row

    def plan(self) -> list[tuple[str, str]]:
        cloning, epochs = self.cloning, self.settings.epochs
        return [
            ("  lessons", f"{cloning.n_train:,} steps, {cloning.n_validation:,} held out"),
            ("  updates", f"{cloning.n_updates:,} of at most {cloning.settings.batch_size:,} steps, {epochs:,} epochs"),
        ]

    def requests(self, run: Run) -> Requests[float]:
        """Train and evaluate; return the mean objective of evaluated episodes (by default an agent's base return)."""
        self.update_index = run.iteration
        if run.restored_state is not None:
            self.load_state_dict(run.restored_state)
        n_updates = self.cloning.n_updates
        with run.progress(n_updates, "updates", "clone", self.update_index) as progress:
            while self.update_index < n_updates:
                self.recent.append((yield Call(partial(self.cloning.update, self.update_index))))
                self.update_index += 1
                progress.update(self.update_index)
                yield from self._log_if_due()
                yield SafePoint(self.update_index, self.state_dict)
        yield SafePoint(self.update_index, self.state_dict, always=True)
        episodes = yield self._make_evaluation_request()
        self.collector.close()
        final_metrics = {**self._compute_validation_metrics(), **summarize_evaluation(episodes, *self.welfare_measure)}
        objectives = write_trained_results(run, self.env.spec.name, self.agent, episodes, *self.welfare_measure)
        yield self._make_log_request("evaluation", final_metrics)
        run.summary = {"updates": self.update_index, "samples": self._n_samples, **final_metrics}
        run.summary[RESULT_EPISODES] = [objectives]
        return final_metrics["evaluation/objective"]

    def _make_evaluation_request(self) -> Call:
        seeds = self.seeds.child("evaluation").child(self.update_index)
        return Call(partial(evaluate_policy, self.collector, self.settings.evaluate_episodes, seeds))

    def _log_if_due(self) -> Requests[None]:
        """Log the mean update metrics, validate and evaluate, each if its interval ends with this update."""
        if self.update_index % self.settings.log_interval == 0 or self.update_index == self.cloning.n_updates:
            n = len(self.recent)
            update_metrics = {f"clone/{name}": sum(m[name] for m in self.recent) / n for name in self.recent[0]}
            update_metrics["clone/epoch"] = self.update_index / self.cloning.n_updates_per_epoch
            self.recent = []
            yield self._make_log_request("update", update_metrics)
        evaluation_metrics: dict[str, float] = {}
        is_unfinished, settings = self.update_index < self.cloning.n_updates, self.settings
        if is_unfinished and settings.validation_interval and self.update_index % settings.validation_interval == 0:
            evaluation_metrics |= self._compute_validation_metrics()
        if is_unfinished and settings.evaluation_interval and self.update_index % settings.evaluation_interval == 0:
            evaluation_metrics |= summarize_evaluation((yield self._make_evaluation_request()), *self.welfare_measure)
        if evaluation_metrics:
            yield self._make_log_request("evaluation", evaluation_metrics)

    def _make_log_request(self, kind: RowKind, metrics: dict[str, float]) -> Log:
        return Log(kind, "updates", metrics, {"updates": self.update_index, "samples": self._n_samples})

    def _compute_validation_metrics(self) -> dict[str, float]:
        return {f"held_out/{name}": x for name, x in self.cloning.validate().items()}

    @property
    def _n_samples(self) -> int:
        """Number of samples in all updates so far; a sample counts once for each epoch."""
        cloning = self.cloning
        epochs, updates = divmod(self.update_index, cloning.n_updates_per_epoch)
        return epochs * cloning.n_train + min(updates * cloning.settings.batch_size, cloning.n_train)
