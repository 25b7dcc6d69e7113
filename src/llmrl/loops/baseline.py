"""The loop of agents that an external library trains for as many episodes as a policy search plays."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.metrics import RowKind
from llmrl.core.protocols import Controller
from llmrl.core.records import EvaluationBatch
from llmrl.core.state_fields import StateFields
from llmrl.loops.compute_requests import Delegate, EvaluateController, Log, Loop, Request, Requests, SafePoint
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.search_settings import SearchSettings
from llmrl.rollout.batched_evaluator import SupportsEvaluator, draw_evaluation_seeds, measure_incumbent, summarize_curve
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.run import Run

EpisodeCallback = Callable[[float, int], bool]
"""Function of the return and the length (steps) of a finished episode; it returns whether to continue training."""


@runtime_checkable
class ExternallyTrained(Protocol):
    """Protocol of agents that are trained by the loop of an external library."""

    def fit(self, make_env: Callable[[], Any], on_episode: EpisodeCallback, episodes: int) -> None:
        """Train for `episodes` episodes in environments that `make_env` returns; end if `on_episode` returns False."""
        ...

    @property
    def controller(self) -> Controller:
        """Controller without parameters that takes the deterministic actions of the current policy."""
        ...


@runtime_checkable
class HasGymnasiumEnv(Protocol):
    """Protocol of environments of which a single game is available as a `gymnasium.Env`."""

    def make_gymnasium_env(self) -> Any:
        """Return a new `gymnasium.Env` of the same game."""
        ...


class BaselineLoop(StateFields, Loop):
    """Loop that trains for the number of episodes of a policy search, and evaluates on the same episodes as the search.

    Episodes are logged in blocks of the size of a search iteration, as mean returns of the exploring policy. The policy
    is evaluated without exploration, on the seeds on which a search with the same seed evaluates its best proposal.

    The state of the library's training cannot be saved. So checkpoints during training hold the state before training,
    and a run that was stopped trains again from the beginning, with the same results.

    Args:
        parts: parts of the run, with one agent.
        settings: budget of a search: `iterations` blocks of `candidates` x `episodes` episodes. `confirm_candidates`
            has no effect, because there is only one policy.

    Raises:
        ConfigError: the environment is not from Gymnasium, or a setting that applies only to searches is set.
    """

    _state_fields = ("is_trained", "returns", "env_steps", "agents")

    def __init__(self, parts: LoopParts, settings: SearchSettings) -> None:
        [agent], env = parts.agents, parts.env
        assert isinstance(agent, ExternallyTrained)
        if not isinstance(env, HasGymnasiumEnv) or not isinstance(env, SupportsEvaluator):
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"agent=sb3 cannot train on env={env.spec.name}, which is not a Gymnasium environment; choose env=gym",
            )
        for name, is_overridden in {
            "episode_seeds": settings.episode_seeds != "fresh",
            "warmup": settings.warmup > 0,
            "warmup_episodes": settings.warmup_episodes is not None,
            "warmup_draw": settings.warmup_draw != "uniform",
            "extra_rollout": settings.extra_rollout,
            "target_return": settings.target_return not in ("max", None),
        }.items():
            if is_overridden:
                raise ConfigError(
                    f"search.{name} has no effect with agent=sb3, which has no principal; remove this override"
                )
        self.env, self.agent, self.seeds, self.cores = env, agent, parts.seeds, parts.cores
        self.agents, self.settings = list(parts.agents), settings
        self.n_blocks, self.block_size = settings.iterations, settings.candidates * settings.episodes
        self.returns: list[float] = []  # mean return of each block
        self.env_steps = 0
        self.is_trained = False

    def plan(self) -> list[tuple[str, str]]:
        return [
            ("  training", f"{self.n_blocks:,} blocks of {self.block_size:,} episodes"),
            ("  learned so far", self.settings.evaluation_text),
            ("episodes", f"{self.n_blocks * self.block_size:,}"),
        ]

    def requests(self, run: Run) -> Requests[float]:
        """Train and evaluate; return the mean return of the trained policy on unseen seeds."""
        if run.restored_state is not None:
            self.load_state_dict(run.restored_state)
        if not self.is_trained:
            yield Delegate(lambda answer: self._train(run, answer))
            self.is_trained = True
        yield SafePoint(self.n_blocks, self.state_dict, always=True)
        final_batch: EvaluationBatch = yield self._make_evaluation_request()
        metrics = measure_incumbent(final_batch)
        yield self._make_log_request("evaluation", metrics)
        run.summary = {
            **{name.removeprefix("search/"): value for name, value in metrics.items()},
            "highest_return": max(self.returns),
            **summarize_curve(self.returns),
            "episodes": self.n_blocks * self.block_size,
            "env_steps": self.env_steps,
            RESULT_EPISODES: final_batch.returns.tolist(),
        }
        return metrics["search/incumbent_return"]

    def _train(self, run: Run, answer: Callable[[Request], Any]) -> None:
        initial_state = {**self.state_dict(), **run.get_resume_position()}
        returns: list[float] = []  # return of each episode of the current block
        lengths: list[int] = []  # its number of steps

        def record_episode(episode_return: float, length: int) -> bool:
            if len(self.returns) == self.n_blocks:
                return False
            returns.append(episode_return)
            lengths.append(length)
            self.env_steps += length
            progress.advance(1)
            if len(returns) == self.block_size:
                self._log_block(answer, returns, lengths)
                progress.show_result(self.returns[-1])
                answer(SafePoint(0, lambda: initial_state))
            return len(self.returns) < self.n_blocks

        with run.progress(self.n_blocks * self.block_size, "episodes", "baseline") as progress:
            assert isinstance(self.env, HasGymnasiumEnv)
            self.agent.fit(self.env.make_gymnasium_env, record_episode, self.n_blocks * self.block_size)

    def _log_block(self, answer: Callable[[Request], Any], returns: list[float], lengths: list[int]) -> None:
        self.returns.append(float(np.mean(returns)))
        metrics = {
            "search/return": self.returns[-1],
            "search/highest_return": max(self.returns),
            "search/length": float(np.mean(lengths)),
        }
        answer(self._make_log_request("episode", metrics))
        if self.settings.is_evaluation_due(len(self.returns)):
            answer(self._make_log_request("evaluation", measure_incumbent(answer(self._make_evaluation_request()))))
        returns.clear()
        lengths.clear()

    def _make_log_request(self, kind: RowKind, metrics: dict[str, float]) -> Log:
        episodes = len(self.returns) * self.block_size
        return Log(kind, "episodes", metrics, {"episodes": episodes, "env_steps": self.env_steps})

    def _make_evaluation_request(self) -> EvaluateController:
        return EvaluateController(
            env=self.env,
            controller=self.agent.controller,
            vectors=np.zeros((1, 0)),
            seeds=draw_evaluation_seeds(self.seeds, self.settings.evaluate_episodes),
            workers=self.cores if _is_picklable(self.agent.controller) else 1,
        )


def _is_picklable(controller: Controller) -> bool:
    """Return whether a controller can be pickled for a worker process."""
    try:
        pickle.dumps(controller)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True
