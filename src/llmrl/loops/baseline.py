"""Algorithms that learn in a loop of their own, under the budget of a policy search."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import Agent, Controller
from llmrl.core.records import State
from llmrl.core.run_context import Kind, RunContext
from llmrl.loops.compute_requests import Delegate, EvaluateController, Log, Request, Requests, SafePoint
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.search_settings import SearchSettings
from llmrl.rollout.batched_evaluator import (
    EvaluationBatch,
    SupportsEvaluator,
    curve_summary,
    evaluation_seeds,
    incumbent_metrics,
)
from llmrl.run.artifacts import RESULT_EPISODES

EpisodeOver = Callable[[float, int], bool]
"""Told the return and length of an episode; whether to go on."""


@runtime_checkable
class ExternallyTrained(Protocol):
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
class HasGymnasiumEnv(Protocol):
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
        parts: of the run; one agent.
        settings: the budget, that of a search: `iterations` blocks of `candidates` x `episodes` episodes. `race` and
            `race_rounds` mean nothing, as there is one policy and nothing to choose from.

    Raises:
        ConfigError: parts that cannot work together, or a setting of searches only.
    """

    def __init__(self, parts: LoopParts, settings: SearchSettings) -> None:
        [agent], env = parts.agents, parts.env
        assert isinstance(agent, ExternallyTrained)
        if not isinstance(env, HasGymnasiumEnv) or not isinstance(env, SupportsEvaluator):
            raise Incompatible(
                Misfit.ONE_GAME, f"agent=sb3 trains on environments of Gymnasium, and env={env.spec.name} is none"
            )
        for name, asked in {
            "episode_seeds": settings.episode_seeds != "fresh",
            "warmup": settings.warmup > 0,
            "warmup_episodes": settings.warmup_episodes is not None,
            "warmup_draw": settings.warmup_draw != "uniform",
            "extra_rollout": settings.extra_rollout,
            "stop_at": settings.stop_at not in ("max", None),
        }.items():
            if asked:
                raise ConfigError(
                    f"search.{name} is for principals; with agent=sb3 leave it as it is in conf/train.yaml"
                )
        self.env, self.agent, self.seeds, self.cores = env, agent, parts.seeds, parts.cores
        self.blocks, self.block = settings.iterations, settings.candidates * settings.episodes
        self.evaluations = settings.schedule
        self.returns: list[float] = []  # mean of each block
        self.env_steps = 0
        self.trained = False

    def plan(self) -> list[tuple[str, str]]:
        return [
            ("  training", f"{self.blocks:,} blocks of {self.block:,} episodes"),
            ("  learnt so far", self.evaluations.description),
            ("episodes", f"{self.blocks * self.block:,}"),
        ]

    def estimate(self) -> None:
        """It asks nobody."""

    def requests(self, run: RunContext) -> Requests[float]:
        """Returns the mean return of the trained policy on unseen seeds."""
        if run.restored is not None:
            self._restore(run.restored)
        if not self.trained:
            yield Delegate(lambda ask: self._train(run, ask))
            self.trained = True
        yield SafePoint(self.blocks, self.state_dict, always=True)
        final: EvaluationBatch = yield self._evaluation()
        metrics = incumbent_metrics(final)
        yield self._row("evaluation", metrics)
        run.summary = {
            **{name.removeprefix("search/"): value for name, value in metrics.items()},
            "highest_return": max(self.returns),
            **curve_summary(self.returns),
            "episodes": self.blocks * self.block,
            "env_steps": self.env_steps,
            RESULT_EPISODES: final.returns.tolist(),
        }
        return metrics["search/incumbent_return"]

    def _train(self, run: RunContext, ask: Callable[[Request], Any]) -> None:
        # Where a run that is stopped goes on from: the very beginning.
        beginning = {**self.state_dict(), **run.mark()}
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
                self._log(ask, returns, lengths)
                progress.tell(self.returns[-1])
                ask(SafePoint(0, lambda: beginning))
            return len(self.returns) < self.blocks

        with run.progress(self.blocks * self.block, "episodes", "baseline") as progress:
            assert isinstance(self.env, HasGymnasiumEnv)
            self.agent.fit(self.env.single, over, self.blocks * self.block)

    def _log(self, ask: Callable[[Request], Any], returns: list[float], lengths: list[int]) -> None:
        self.returns.append(float(np.mean(returns)))
        metrics = {
            "search/return": self.returns[-1],
            "search/highest_return": max(self.returns),
            "search/length": float(np.mean(lengths)),
        }
        ask(self._row("episode", metrics))
        if self.evaluations.due(len(self.returns)):
            ask(self._row("evaluation", incumbent_metrics(ask(self._evaluation()))))
        returns.clear()
        lengths.clear()

    def _row(self, kind: Kind, metrics: dict[str, float]) -> Log:
        episodes = len(self.returns) * self.block
        return Log(kind, "episodes", metrics, {"episodes": episodes, "env_steps": self.env_steps})

    def _evaluation(self) -> EvaluateController:
        return EvaluateController(
            env=self.env,
            controller=self.agent.controller,
            vectors=np.zeros((1, 0)),
            seeds=evaluation_seeds(self.seeds, self.evaluations.episodes),
            workers=self.cores if _can_be_sent(self.agent.controller) else 1,
        )

    def state_dict(self) -> State:
        """What has been learnt and measured; in the middle of its training it cannot be saved."""
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
