"""Mechanism design: propose, let the society adapt, score it, tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.errors import ConfigError
from llmrl.core.limits import NonNegativeInt, PositiveInt
from llmrl.core.protocols import Agent, Estimating, Meter, Proposer, VecEnv
from llmrl.core.records import CallEstimate, Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Objective
from llmrl.learners.rollout import Collector, Rollout
from llmrl.loops.welfare import episode_welfare, summarize

if TYPE_CHECKING:
    from llmrl.run.progress import Progress
    from llmrl.run.run import Run

ROWS_PER_STEP = 50
"""Most adaptation rounds of one principal step that are logged; long adaptations are thinned evenly."""


class DesignLoop:
    """The published protocol (arXiv 2410.08345, algorithm 1), with several games side by side.

    One principal step: propose a vector, reset the agents, adapt for some rounds (every game plays an episode, then
    one PPO update), validate for some episodes with frozen policies, tell the principal the outcome.

    A round draws random numbers only from the seed sub-tree of its step and index, so a run that was killed continues
    bit for bit from any checkpoint on a deterministic engine.

    Args:
        env, agent, principal: the parts. The environment needs a mechanism and a horizon.
        seeds: root of the loop's random numbers.
        device: of the policy.
        steps: principal steps.
        adapt_rounds: episodes each game plays, with one update after each, before validation.
        validate_episodes: episodes the objective is averaged over; rounded up to a multiple of the number of games.
        reset_agents: back to the original weights before every principal step.
        objective: mean or sum over agents of base returns; None is the environment's own.
        meter: totals of the language model's calls, logged with every principal step; None if none is used.
    """

    def __init__(
        self,
        env: VecEnv,
        agent: Agent,
        principal: Proposer,
        seeds: Seeds,
        device: str,
        steps: PositiveInt,
        adapt_rounds: NonNegativeInt,
        validate_episodes: PositiveInt,
        reset_agents: bool,
        objective: Objective | None,
        meter: Meter | None = None,
    ) -> None:
        if env.spec.horizon is None:
            raise ConfigError(
                f"a principal needs episodes of one length: set env.horizon (e.g. 1000), which is null for "
                f"env={env.spec.name}"
            )
        self.env, self.agent, self.principal, self.seeds = env, agent, principal, seeds
        self.horizon = env.spec.horizon
        self.steps, self.adapt_rounds, self.reset_agents = steps, adapt_rounds, reset_agents
        self.validate_rounds = -(-validate_episodes // env.spec.n_envs)
        self.objective: Objective = objective or env.spec.objective
        self.meter = meter
        self.collector = Collector(env, agent.policy, device)
        # The progress of the run, all of it in a checkpoint.
        self.step = 0
        self.round = 0
        self.vector: np.ndarray | None = None
        self.adapting: dict[str, float] = {}
        self.history: list[dict[str, Any]] = []

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole run, summed over games."""
        return self._env_steps_at(self.steps, 0)

    def plan(self) -> list[tuple[str, str]]:
        games = self.env.spec.n_envs
        return [
            ("  principal steps", f"{self.steps:,}"),
            ("  adaptation", f"{self.adapt_rounds:,} rounds x {games} games, one update each"),
            ("  validation", f"{self.validate_rounds * games:,} episodes"),
            ("environment steps", f"{self.env_steps:,}"),
        ]

    def estimate(self) -> CallEstimate | None:
        return self.principal.estimate(self.steps) if isinstance(self.principal, Estimating) else None

    def run(self, run: Run) -> float:
        """Returns the objective averaged over the last fifth of the principal steps."""
        self._restore(run)
        with run.progress(self.env_steps, "steps", "design", self._env_steps_at(self.step, self.round)) as progress:
            while self.step < self.steps:
                self._principal_step(run, progress)
        run.checkpoint(self._iteration(), self.state_dict())
        values = [row["objective"] for row in self.history]
        final = float(np.mean(values[-max(1, len(values) // 5) :]))
        best = self.history[int(np.argmax(values))]
        run.summary = {
            "final_objective": final,
            "best_objective": best["objective"],
            "principal_steps": self.step,
            "env_steps": self.env_steps,
            "best": best,
            "history": self.history,
        }
        return final

    def _principal_step(self, run: Run, progress: Progress) -> None:
        context = self._context()
        if self.vector is None:
            with run.saved_if_refused(self._iteration(), self.state_dict):
                self.vector = self.principal.ask(context)
            self.adapting = {}
            if self.reset_agents:
                self.agent.reset()
        self.env.set_mechanism(self.vector)
        if context is not None:
            self.env.set_context(context)
        while self.round < self.adapt_rounds:
            rollout = self._play(run, "adapt", self.round, self.agent.learns, progress)
            generator = self._seeds("adapt", self.round).torch("minibatches")
            losses = self.agent.update(rollout, generator) if self.agent.learns else {}
            self._log_round(run, rollout, losses)
            self.round += 1
            run.safe_point(self._iteration(), self.state_dict)
        rollouts = [self._play(run, "validate", i, False, progress) for i in range(self.validate_rounds)]
        self._tell(run, context, rollouts)
        self.step, self.round, self.vector = self.step + 1, 0, None
        run.safe_point(self._iteration(), self.state_dict)

    def _play(self, run: Run, phase: str, index: int, learn: bool, progress: Progress) -> Rollout:
        """One episode in every game; changes nothing that a checkpoint holds."""

        def on_step() -> None:
            progress.update(progress.numbers.done + games)
            run.within_grace(self._iteration(), self.state_dict)

        seeds = self._seeds(phase, index)
        games = self.env.spec.n_envs
        self.collector.reset(seeds.integer("env"))
        return self.collector.collect(self.horizon, seeds.torch("actions"), learn, on_step=on_step)

    def _tell(self, run: Run, context: int | None, rollouts: list[Rollout]) -> None:
        """Score the validation episodes, tell the principal, log."""
        assert self.vector is not None
        spec, mechanism = self.env.spec, self.env.spec.mechanism
        assert mechanism is not None
        episodes = [episode for rollout in rollouts for episode in rollout.episodes]
        base = np.array([episode.base_returns for episode in episodes])
        values = episode_welfare(base, self.objective)
        outcome = Outcome(
            vector=self.vector,
            value=float(values.mean()),
            values=values,
            standard_error=standard_error_of_mean(values),
            context=context,
            returns=base.mean(0),
            trajectories={n: np.mean([r.info[n].mean(1) for r in rollouts], axis=0) for n in spec.metrics},
            summaries={n: float(np.mean([e.summaries[n] for e in episodes])) for n in spec.metrics},
        )
        metrics = self.principal.tell(outcome)
        metrics |= {} if self.meter is None else self.meter.metrics()
        metrics |= {f"principal/{name}": float(x) for name, x in zip(mechanism.names, self.vector, strict=True)}
        metrics |= summarize(episodes, "validation")
        metrics |= {f"adapt/{name}": x for name, x in self.adapting.items()}
        metrics["principal/objective"] = outcome.value
        if context is not None:
            metrics["principal/context"] = float(context)
        self.history.append(
            {
                "step": self.step + 1,
                "objective": outcome.value,
                "standard_error": outcome.standard_error,
                "mechanism": dict(zip(mechanism.names, self.vector.tolist(), strict=True)),
                "context": None if context is None else spec.contexts[context],
            }
        )
        metrics["principal/best_objective"] = max(row["objective"] for row in self.history)
        run.metrics.log(self.step + 1, metrics, env_steps=self._env_steps_at(self.step + 1, 0))

    def _log_round(self, run: Run, rollout: Rollout, losses: dict[str, float]) -> None:
        summary = summarize(rollout.episodes, "train")
        if self.round == 0:
            self.adapting["first_return"] = summary["train/return"]
        self.adapting["last_return"] = summary["train/return"]
        every = -(-self.adapt_rounds // ROWS_PER_STEP)
        if self.round % every == 0:
            row = self.step * self.adapt_rounds + self.round + 1
            run.metrics.log(row, {**summary, **losses}, env_steps=self._env_steps_at(self.step, self.round + 1))

    def _context(self) -> int | None:
        """The context of this principal step: drawn once, the same for all its episodes."""
        n = len(self.env.spec.contexts)
        return int(self.seeds.child("context").numpy(self.step).integers(n)) if n else None

    def _seeds(self, phase: str, index: int) -> Seeds:
        return self.seeds.child("step").child(self.step).child(phase).child(index)

    def _env_steps_at(self, step: int, round_: int) -> int:
        """Environment steps taken, summed over games, when `round_` rounds of principal step `step` are over."""
        rounds = step * (self.adapt_rounds + self.validate_rounds) + round_
        return rounds * self.horizon * self.env.spec.n_envs

    def _iteration(self) -> int:
        """Places a run can be resumed from, counted: after a proposal's round, and between proposals."""
        return self.step * (self.adapt_rounds + 1) + self.round

    def state_dict(self) -> State:
        """Everything a resumed run needs to go on exactly (on engines that can be seeded)."""
        return {
            "step": self.step,
            "round": self.round,
            "vector": self.vector,
            "adapting": self.adapting,
            "history": self.history,
            "agent": self.agent.state_dict(),
            "principal": self.principal.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
        }

    def _restore(self, run: Run) -> None:
        if run.restored is None:
            return
        state = run.restored
        self.step, self.round, self.vector = state["step"], state["round"], state["vector"]
        self.adapting, self.history = state["adapting"], state["history"]
        self.agent.load_state_dict(state["agent"])
        self.principal.load_state_dict(state["principal"])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
