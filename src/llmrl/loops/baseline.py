"""Algorithms that learn in a loop of their own, under the budget of a policy search."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.limits import NonNegativeInt, PositiveInt
from llmrl.core.protocols import Agent, Controller, VecEnv
from llmrl.core.records import State
from llmrl.core.run_context import Kind, RunContext
from llmrl.core.seeding import Seeds
from llmrl.loops.episodes import (
    Evaluations,
    Played,
    Plays,
    PlaysControllers,
    curve_summary,
    evaluation_metrics,
    evaluation_seeds,
)
from llmrl.run.content import RESULT_EPISODES

EpisodeOver = Callable[[float, int], bool]
"""Told the return and length of an episode; whether to go on."""


@runtime_checkable
class SelfTaught(Protocol):
    """An agent that learns in a loop of its own."""

    def fit(self, make: Callable[[], Any], episode_over: EpisodeOver, episodes: int) -> None:
        """Train in environments of Gymnasium that `make` makes, until `episode_over` says that it is enough, which it
        does after `episodes`."""
        ...

    @property
    def controller(self) -> Controller:
        """What it has learnt so far, acting deterministically, as a controller without parameters."""
        ...


@runtime_checkable
class MadeByGymnasium(Protocol):
    """An environment that can be had as Gymnasium's own."""

    def single(self) -> Any:
        """One more `gymnasium.Env` of this game."""
        ...


class BaselineLoop:
    """Train for as many episodes as a policy search would have played; then measure as it is measured.

    What is logged are blocks of as many episodes as an iteration of the search has, by the mean of what the policy
    returned while it explored. Its evaluation is without exploration, on the very episodes that the best proposal of a
    search of the same seed is evaluated on.

    Such an algorithm cannot be saved half-way. A run that was stopped begins anew, with the same numbers.

    Args:
        env, agents: the parts; one agent.
        seeds: root of the loop's random numbers.
        iterations, candidates, episodes: the budget is their product; a block is `candidates` x `episodes`.
        episode_seeds, warmup, warmup_episodes, warmup_draw, extra_rollout: of searches only.
        race, race_rounds: nothing, as there is one policy and nothing to choose from.
        evaluate_every: blocks between evaluations; 0: only at the end.
        evaluate_episodes: episodes of an evaluation.
        cores: processes that these are played in, where the game has no batched engine and the policy can go there.

    Raises:
        ConfigError: parts that cannot work together, or a setting of searches only.
    """

    def __init__(
        self,
        env: VecEnv,
        agents: Sequence[Agent],
        seeds: Seeds,
        iterations: PositiveInt,
        candidates: PositiveInt,
        episodes: PositiveInt,
        episode_seeds: Literal["fresh", "common"] = "fresh",
        warmup: NonNegativeInt = 0,
        warmup_episodes: PositiveInt | None = None,
        warmup_draw: str = "uniform",
        extra_rollout: bool = False,
        race: NonNegativeInt = 0,
        race_rounds: PositiveInt = 1,
        evaluate_every: NonNegativeInt = 0,
        evaluate_episodes: PositiveInt = 100,
        cores: int | None = None,
    ) -> None:
        [agent] = agents
        assert isinstance(agent, SelfTaught)
        if not isinstance(env, MadeByGymnasium) or not isinstance(env, PlaysControllers):
            raise ConfigError(f"agent=sb3 trains on environments of Gymnasium, and env={env.spec.name} is none")
        for name, asked in {
            "episode_seeds": episode_seeds != "fresh",
            "warmup": warmup > 0,
            "warmup_episodes": warmup_episodes is not None,
            "warmup_draw": warmup_draw != "uniform",
            "extra_rollout": extra_rollout,
        }.items():
            if asked:
                raise ConfigError(
                    f"search.{name} is for principals; with agent=sb3 leave it as it is in conf/train.yaml"
                )
        self.env, self.agent, self.seeds = env, agent, seeds
        self.blocks, self.block = iterations, candidates * episodes
        self.evaluations = Evaluations(evaluate_every, evaluate_episodes, iterations)
        self.cores = cores
        self.returns: list[float] = []  # mean of each block
        self.env_steps = 0
        self.trained = False

    def plan(self) -> list[tuple[str, str]]:
        return [
            ("  training", f"{self.blocks:,} blocks of {self.block:,} episodes"),
            ("  learnt so far", self.evaluations.told),
            ("episodes", f"{self.blocks * self.block:,}"),
        ]

    def estimate(self) -> None:
        """It asks nobody."""

    def run(self, run: RunContext) -> float:
        """Returns the mean return of the trained policy on unseen seeds."""
        assert isinstance(self.env, PlaysControllers)
        if run.restored is not None:
            self._restore(run.restored)
        plays = self.env.evaluator(True, self.cores if _can_be_sent(self.agent.controller) else 1)
        try:
            if not self.trained:
                self._train(run, lambda: self._measure(plays))
                self.trained = True
            run.checkpoint(self.blocks, self._state())
            final = self._measure(plays)
        finally:
            plays.close()
        metrics = evaluation_metrics(final)
        self._row(run, "evaluation", metrics)
        run.summary = {
            **{name.removeprefix("search/"): value for name, value in metrics.items()},
            "highest_return": max(self.returns),
            **curve_summary(self.returns),
            "episodes": self.blocks * self.block,
            "env_steps": self.env_steps,
            RESULT_EPISODES: final.returns.tolist(),
        }
        return metrics["search/incumbent_return"]

    def _train(self, run: RunContext, measure: Callable[[], Played]) -> None:
        # Where a run that is stopped goes on from: the very beginning.
        beginning = {**self._state(), **run.mark()}
        returns: list[float] = []
        lengths: list[int] = []

        def over(value: float, length: int) -> bool:
            if len(self.returns) == self.blocks:
                return False
            returns.append(value)
            lengths.append(length)
            self.env_steps += length
            progress.advance(1)
            if len(returns) == self.block:
                self._log(run, returns, lengths, measure)
                run.safe_point(0, lambda: beginning)
            return len(self.returns) < self.blocks

        with run.progress(self.blocks * self.block, "episodes", "baseline") as progress:
            assert isinstance(self.env, MadeByGymnasium)
            self.agent.fit(self.env.single, over, self.blocks * self.block)

    def _log(self, run: RunContext, returns: list[float], lengths: list[int], measure: Callable[[], Played]) -> None:
        self.returns.append(float(np.mean(returns)))
        metrics = {
            "search/return": self.returns[-1],
            "search/highest_return": max(self.returns),
            "search/length": float(np.mean(lengths)),
        }
        self._row(run, "episode", metrics)
        if self.evaluations.due(len(self.returns)):
            self._row(run, "evaluation", evaluation_metrics(measure()))
        returns.clear()
        lengths.clear()

    def _row(self, run: RunContext, kind: Kind, metrics: dict[str, float]) -> None:
        episodes = len(self.returns) * self.block
        run.metrics.log(kind, "episodes", metrics, episodes=episodes, env_steps=self.env_steps)

    def _measure(self, plays: Plays) -> Played:
        seeds = evaluation_seeds(self.seeds, self.evaluations.episodes)
        return plays.evaluate(self.agent.controller, np.zeros((1, 0)), seeds)

    def _state(self) -> State:
        assert isinstance(self.agent, Agent)
        return {
            "trained": self.trained,
            "returns": list(self.returns),
            "env_steps": self.env_steps,
            "agents": [self.agent.state_dict()],
        }

    def _restore(self, state: State) -> None:
        assert isinstance(self.agent, Agent)
        self.trained, self.returns = state["trained"], list(state["returns"])
        self.env_steps = state["env_steps"]
        self.agent.load_state_dict(state["agents"][0])


def _can_be_sent(controller: Controller) -> bool:
    """Whether a worker process can be given it."""
    try:
        pickle.dumps(controller)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True
