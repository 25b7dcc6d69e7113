"""An agent learns from what others did, and is then measured in the games themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from llmrl.core.errors import ConfigError
from llmrl.core.limits import NonNegativeFloat, NonNegativeInt, PositiveInt
from llmrl.core.objectives import Objective
from llmrl.core.observers import Observer
from llmrl.core.protocols import Agent, VecEnv
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.run_context import Kind, RunContext
from llmrl.core.seeding import Seeds
from llmrl.learners.cloning import Cloning
from llmrl.learners.rollout import Collector
from llmrl.loops.outcomes import episode_row, write_results
from llmrl.loops.playing import play_episodes
from llmrl.loops.welfare import episode_welfare, summarize, summarize_welfare
from llmrl.run.content import RESULT_EPISODES


@runtime_checkable
class Imitator(Protocol):
    """An agent that learns from recorded trajectories."""

    def imitate(self, epochs: int) -> Cloning:
        """What there is to learn, in so many passes."""
        ...


class CloneLoop:
    """`principal=none` with an agent that imitates: epochs over recorded steps, with evaluations in the games.

    Args:
        env, agents: who learns, and where it is evaluated; one agent.
        seeds: evaluation after update i draws from `evaluation/i`.
        device: of the policy.
        epochs: passes over the samples.
        log_every: updates whose mean is a row of metrics.
        measure_every: updates between measures on samples that are held out; 0: only at the end.
        evaluate_every: updates between evaluations in the games; 0: only at the end.
        evaluate_episodes: episodes of an evaluation (at least; all games play).
        objective, spending_cost: what the society is judged on, as in `design`; None is the environment's own.
        observers: the user's own, who watch the games.

    Raises:
        ConfigError: the agent does not imitate, or its data cannot be used.
    """

    def __init__(
        self,
        env: VecEnv,
        agents: Sequence[Agent],
        seeds: Seeds,
        device: str,
        epochs: PositiveInt,
        log_every: PositiveInt,
        measure_every: NonNegativeInt,
        evaluate_every: NonNegativeInt,
        evaluate_episodes: PositiveInt,
        objective: Objective | None = None,
        spending_cost: NonNegativeFloat = 0.0,
        observers: Sequence[Observer] = (),
    ) -> None:
        [self.agent] = agents
        if not isinstance(self.agent, Imitator):
            raise ConfigError(f"{type(self.agent).__name__} does not imitate; use agent=bc")
        self.env, self.seeds = env, seeds
        self.collector = Collector(env, self.agent.policy, device, observers=observers)
        self.cloning = self.agent.imitate(epochs)
        self.epochs, self.log_every, self.measure_every = epochs, log_every, measure_every
        self.evaluate_every, self.evaluate_episodes = evaluate_every, evaluate_episodes
        self.objective: Objective = objective or env.spec.objective
        self.spending_cost = spending_cost
        self.updates = 0
        self.recent: list[dict[str, float]] = []  # updates since the last row of metrics

    def plan(self) -> list[tuple[str, str]]:
        c = self.cloning
        return [
            ("  lessons", f"{c.learnt:,} steps, {c.kept_back:,} held out"),
            ("  updates", f"{c.updates:,} of at most {c.settings.batch_size:,} steps, {self.epochs:,} epochs"),
        ]

    def estimate(self) -> None:
        """It asks nobody."""

    def run(self, run: RunContext) -> float:
        """Learn, then evaluate; returns what a principal would be judged on, mean over episodes (by default the base
        return of an agent)."""
        self._restore(run)
        total = self.cloning.updates
        with run.progress(total, "updates", "clone", self.updates) as progress:
            while self.updates < total:
                self.recent.append(self.cloning.update(self.updates))
                self.updates += 1
                progress.update(self.updates)
                self._log(run)
                run.safe_point(self.updates, self.state_dict)
        run.checkpoint(self.updates, self.state_dict())
        episodes = self.evaluate()
        self.collector.close()
        final = {**self._held_out(), **self.judge(episodes)}
        rows = [episode_row(episode, self.objective, self.spending_cost) for episode in episodes]
        about = {"env": self.env.spec.name, "agent": self.agent.describe(), "llm": run.status.llm, "seed": run.seed}
        write_results(run.folder, rows, learned=True, about=about)
        self._row(run, "evaluation", final)
        run.summary = {
            "updates": self.updates,
            "samples": self._samples(),
            **final,
            RESULT_EPISODES: [[row["objective"] for row in rows]],
        }
        return final["evaluation/objective"]

    def evaluate(self) -> list[Episode]:
        """Play in freshly seeded games."""
        return play_episodes(self.collector, self.evaluate_episodes, self.seeds.child("evaluation").child(self.updates))

    def judge(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """What episodes of an evaluation say, means over them."""
        return {
            **summarize(episodes, "evaluation"),
            **summarize_welfare(episodes, self.objective),
            "evaluation/objective": float(episode_welfare(episodes, self.objective, self.spending_cost).mean()),
        }

    def state_dict(self) -> State:
        """Everything a resumed run needs to go on exactly; the games begin anew for every evaluation."""
        return {"agents": [self.agent.state_dict()], "recent": list(self.recent)}

    def _log(self, run: RunContext) -> None:
        """What is to be logged after the newest update, where it is the time."""
        if self.updates % self.log_every == 0 or self.updates == self.cloning.updates:
            names = self.recent[0]
            metrics = {f"clone/{name}": sum(r[name] for r in self.recent) / len(self.recent) for name in names}
            metrics["clone/epoch"] = self.updates / self.cloning.updates_per_epoch
            self.recent = []
            self._row(run, "update", metrics)
        measured: dict[str, float] = {}
        going_on = self.updates < self.cloning.updates
        if going_on and self.measure_every and self.updates % self.measure_every == 0:
            measured |= self._held_out()
        if going_on and self.evaluate_every and self.updates % self.evaluate_every == 0:
            measured |= self.judge(self.evaluate())
        if measured:
            self._row(run, "evaluation", measured)

    def _row(self, run: RunContext, kind: Kind, metrics: dict[str, float]) -> None:
        run.metrics.log(kind, "updates", metrics, updates=self.updates, samples=self._samples())

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
