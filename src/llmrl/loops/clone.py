"""An agent learns from what others did, and is then measured in the games themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from llmrl.algorithms.cloning import BehaviouralCloning
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Agent
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import State
from llmrl.core.run_context import Kind, RunContext
from llmrl.loops.compute_requests import Evaluate, Imitate, Log, Requests, SafePoint
from llmrl.loops.loop_parts import LoopParts
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_results import episode_row, write_results
from llmrl.rollout.episode_summaries import summarize_evaluation
from llmrl.run.artifacts import RESULT_EPISODES


@runtime_checkable
class Imitator(Protocol):
    """An agent that learns from recorded trajectories."""

    def imitate(self, epochs: int) -> BehaviouralCloning:
        """What there is to learn, in so many passes."""
        ...


@dataclass(frozen=True)
class CloneSettings:
    """How long an agent imitates, and when it is measured: the section `clone` of the config.

    Attributes:
        epochs: passes over the samples.
        log_every: updates whose mean is a row of metrics.
        measure_every: updates between measures on samples that are held out; 0: only at the end.
        evaluate_every: updates between evaluations in the games; 0: only at the end.
        evaluate_episodes: episodes of an evaluation (at least; all games play).
    """

    epochs: PositiveInt
    log_every: PositiveInt
    measure_every: NonNegativeInt
    evaluate_every: NonNegativeInt
    evaluate_episodes: PositiveInt


class CloneLoop:
    """`principal=none` with an agent that imitates: epochs over recorded steps, with evaluations in the games.

    Args:
        parts: of the run; one agent. The evaluation after update i draws from `evaluation/i` of the seeds.
        settings: how long, and when it is measured.

    Raises:
        ConfigError: the agent does not imitate, or its data cannot be used.
    """

    def __init__(self, parts: LoopParts, settings: CloneSettings) -> None:
        [agent] = parts.agents
        if not isinstance(agent, Imitator):
            raise ConfigError(f"{type(agent).__name__} does not imitate; use agent=bc")
        assert isinstance(agent, Agent)
        self.agent, self.env, self.seeds, self.settings = agent, parts.env, parts.seeds, settings
        self.judged = parts.judged
        self.collector = Collector(self.env, agent.policy, parts.device, observers=parts.observers)
        self.cloning = agent.imitate(settings.epochs)
        self.updates = 0
        self.recent: list[dict[str, float]] = []  # updates since the last row of metrics

    def plan(self) -> list[tuple[str, str]]:
        c = self.cloning
        return [
            ("  lessons", f"{c.learnt:,} steps, {c.kept_back:,} held out"),
            ("  updates", f"{c.updates:,} of at most {c.settings.batch_size:,} steps, {self.settings.epochs:,} epochs"),
        ]

    def estimate(self) -> None:
        """It asks nobody."""

    def requests(self, run: RunContext) -> Requests[float]:
        """Learn, then evaluate; returns what a principal would be judged on, mean over episodes (by default the base
        return of an agent)."""
        self._restore(run)
        total = self.cloning.updates
        with run.progress(total, "updates", "clone", self.updates) as progress:
            while self.updates < total:
                self.recent.append((yield Imitate(self.cloning, self.updates)))
                self.updates += 1
                progress.update(self.updates)
                yield from self._log()
                yield SafePoint(self.updates, self.state_dict)
        yield SafePoint(self.updates, self.state_dict, always=True)
        episodes = yield self._evaluation()
        self.collector.close()
        final = {**self._held_out(), **summarize_evaluation(episodes, *self.judged)}
        rows = [episode_row(episode, *self.judged) for episode in episodes]
        about = {"env": self.env.spec.name, "agent": self.agent.describe(), "llm": run.status.llm, "seed": run.seed}
        write_results(run.folder, rows, learned=True, about=about)
        yield self._row("evaluation", final)
        run.summary = {
            "updates": self.updates,
            "samples": self._samples(),
            **final,
            RESULT_EPISODES: [[row["objective"] for row in rows]],
        }
        return final["evaluation/objective"]

    def _evaluation(self) -> Evaluate:
        seeds = self.seeds.child("evaluation").child(self.updates)
        return Evaluate(collector=self.collector, episodes=self.settings.evaluate_episodes, seeds=seeds)

    def state_dict(self) -> State:
        """Everything a resumed run needs to go on exactly; the games begin anew for every evaluation."""
        return {"agents": [self.agent.state_dict()], "recent": list(self.recent)}

    def _log(self) -> Requests[None]:
        """What is to be logged after the newest update, where it is the time."""
        if self.updates % self.settings.log_every == 0 or self.updates == self.cloning.updates:
            names = self.recent[0]
            metrics = {f"clone/{name}": sum(r[name] for r in self.recent) / len(self.recent) for name in names}
            metrics["clone/epoch"] = self.updates / self.cloning.updates_per_epoch
            self.recent = []
            yield self._row("update", metrics)
        measured: dict[str, float] = {}
        going_on = self.updates < self.cloning.updates
        if going_on and self.settings.measure_every and self.updates % self.settings.measure_every == 0:
            measured |= self._held_out()
        if going_on and self.settings.evaluate_every and self.updates % self.settings.evaluate_every == 0:
            measured |= summarize_evaluation((yield self._evaluation()), *self.judged)
        if measured:
            yield self._row("evaluation", measured)

    def _row(self, kind: Kind, metrics: dict[str, float]) -> Log:
        return Log(kind, "updates", metrics, {"updates": self.updates, "samples": self._samples()})

    def _held_out(self) -> dict[str, float]:
        return {f"held_out/{name}": x for name, x in self.cloning.measure().items()}

    def _samples(self) -> int:
        """Steps it was shown so far, each counted as often as it was."""
        c = self.cloning
        epochs, updates = divmod(self.updates, c.updates_per_epoch)
        return epochs * c.learnt + min(updates * c.settings.batch_size, c.learnt)

    def _restore(self, run: RunContext) -> None:
        self.updates = run.iteration
        if run.restored is not None:
            self.agent.load_state_dict(run.restored["agents"][0])
            self.recent = list(run.restored["recent"])
