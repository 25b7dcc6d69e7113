"""Episodes of a controller, played as a batch in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller
from llmrl.envs.gym.batched.arrays import ArrayGames
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.channel_spaces import observation_channels, to_actions
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.interfaces import Games
from llmrl.envs.gym.success import SuccessCriterion

_BATCH_NUMBERS = 2_000_000
"""Maximum number of array elements for the episodes of a table that are played as one batch."""


@dataclass(frozen=True)
class EpisodeRules:
    """A game and the rules under which its episodes are played.

    Args:
        env_factory: the game.
        clip_actions: whether numbers of an action are clipped to their bounds. If false, the environment gets the
            unclipped numbers, and a cost of large actions depends on them, as in ProPS (arXiv 2511.21928).
        success: criterion of a successful episode; None: there is none.
    """

    env_factory: EnvFactory
    clip_actions: bool = True
    success: SuccessCriterion | None = None


@dataclass(frozen=True)
class EpisodeResults:
    """Results of m episodes, in any order; each attribute is [m].

    Attributes:
        job: number of the episode.
        returned: sum of its rewards.
        length: number of steps.
        best_reward: highest reward of a step.
        terminated: whether it terminated.
    """

    job: NDArray[np.int64]
    returned: NDArray[np.float64]
    length: NDArray[np.int64]
    best_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]

    @classmethod
    def concatenate(cls, parts: list[EpisodeResults]) -> EpisodeResults:
        return cls(*(np.concatenate([vars(part)[name] for part in parts]) for name in cls.__dataclass_fields__))

    @classmethod
    def from_tuples(cls, episodes: list[tuple[int, float, int, float, bool]]) -> EpisodeResults:
        """Return the results of episodes given as tuples (job, returned, length, best_reward, terminated)."""
        job, episode_returns, length, best, terminated = zip(*episodes, strict=True) if episodes else ((),) * 5
        numbers = (np.array(part, dtype=np.float64) for part in (episode_returns, best))
        integers = (np.array(part, dtype=np.int64) for part in (job, length))
        (returns, bests), (jobs, lengths) = numbers, integers
        return cls(jobs, returns, lengths, bests, np.array(terminated, dtype=bool))


class BatchedEpisodes:
    """Plays episodes in n games in lock step; a game whose episode ends starts the next one.

    Args:
        rules: the game and the rules of its episodes.
        n: number of games in lock step.

    Raises:
        ConfigError: see `EnvFactory.make`; or the game might never end.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        from gymnasium import spaces

        self._rules = rules
        self.games: Games = rules.env_factory.make(n)
        if self.games.horizon is None:
            raise ConfigError(
                f"{rules.env_factory.id} has no limit of steps, so an episode may never end; set env.horizon"
            )
        self._channels = observation_channels(self.games.observation_space)
        action = self.games.action_space
        self._bounds: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if isinstance(action, spaces.Box) and action.dtype.kind == "f":
            self._bounds = np.asarray(action.low, dtype=np.float64), np.asarray(action.high, dtype=np.float64)
        self._unchanged = isinstance(action, spaces.Discrete) and action.start == 0
        self._table = self.games.table if isinstance(self.games, TabularGames) and self.games.timeless else None

    def play(
        self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64], jobs: Iterator[int]
    ) -> EpisodeResults:
        """Play the episodes numbered `jobs`: i * k + j is vector i of `vectors` [q, d] under seed j of `seeds` [k].

        Each begins as `env.reset(seed=seeds[j])` does. So results do not depend on the other episodes or on the number
        of games, provided that an action of `controller` depends only on its own observation and parameters.

        Raises:
            ConfigError: the controller reads a channel that the game does not have.
        """
        if controller.channel not in self._channels:
            channels = ", ".join(self._channels) or "nothing that can be read without words"
            raise ConfigError(
                f"the policy reads the channel {controller.channel}, and {self._rules.env_factory.id} has {channels}; "
                "use a policy for one of these"
            )
        read = self._input_function(controller.channel)
        if self._table is not None:
            return self._play_table(controller, read, vectors, seeds, np.array([*jobs], dtype=np.int64))
        return self._step(controller, read, vectors, seeds, jobs)

    def _step(
        self,
        controller: Controller,
        read: Callable[[Any], NDArray[Any]],
        vectors: NDArray[np.float64],
        seeds: NDArray[np.int64],
        jobs: Iterator[int],
    ) -> EpisodeResults:
        games, n = self.games, self.games.n
        needs_best = self._rules.success is not None and self._rules.success.kind == "reward"
        episodes: list[tuple[int, float, int, float, bool]] = []
        job, seed, start_steps, n_steps = [0] * n, np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), 0
        parameters, returns, best = np.zeros((n, vectors.shape[1])), np.zeros(n), np.zeros(n)
        # All games are started once, because before that they have no observations.
        playing, fresh = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
        while True:
            for lane in np.flatnonzero(~playing).tolist():
                next_job = next(jobs, None)
                if next_job is None:
                    break
                job[lane], seed[lane] = next_job, seeds[next_job % len(seeds)]
                parameters[lane] = vectors[next_job // len(seeds)]
                playing[lane] = fresh[lane] = True
            if not playing.any():
                return EpisodeResults.from_tuples(episodes)
            act = _act_function(controller, parameters)
            observation = games.reset(seed, fresh)
            returns[fresh], best[fresh], start_steps[fresh] = 0.0, -np.inf, n_steps
            fresh = np.zeros(n, dtype=bool)
            while True:
                observation, reward, terminated, truncated = games.step(self._actions(act(read(observation))), playing)
                n_steps += 1
                returns += reward
                if needs_best:
                    np.maximum(best, reward, best)
                done = terminated | truncated
                if np.count_nonzero(done):
                    break
            for lane in np.flatnonzero(done).tolist():
                length = n_steps - int(start_steps[lane])
                episodes.append((job[lane], float(returns[lane]), length, float(best[lane]), bool(terminated[lane])))
            playing &= ~done

    def _play_table(
        self,
        controller: Controller,
        read: Callable[[Any], NDArray[Any]],
        vectors: NDArray[np.float64],
        seeds: NDArray[np.int64],
        jobs: NDArray[np.int64],
    ) -> EpisodeResults:
        """Play the episodes of a game with few states, from its table.

        The controller is evaluated once for all states.
        """
        from llmrl.envs.gym.batched.transition_table import play

        assert self._table is not None
        assert self.games.horizon is not None
        states, n_states = read(np.arange(self._table.n_states)), self._table.n_states
        vector_index = jobs // len(seeds)
        batch_size = max(1, _BATCH_NUMBERS // (self.games.horizon * len(seeds)))
        parts = []
        vector_indices = np.unique(vector_index)
        for start in range(0, len(vector_indices), batch_size):
            batch = vector_indices[start : start + batch_size]
            policies = [controller.act(states, np.broadcast_to(vectors[i], (n_states, len(vectors[i])))) for i in batch]
            done = play(self._table, np.array(policies), seeds, self.games.horizon)
            numbers = (batch[:, None] * len(seeds) + np.arange(len(seeds))).ravel()
            parts.append(EpisodeResults(numbers, done.returned, done.length, done.best_reward, done.terminated))
        return EpisodeResults.concatenate(parts)

    def _input_function(self, channel: str) -> Callable[[Any], NDArray[Any]]:
        """Return a function that converts observations of all games into inputs of a controller.

        Inputs are [n, k] float64, or [n] int64 for states.
        """
        encode = self._channels[channel][1]
        if channel == "state":
            return lambda observation: encode(observation)[:, 0]
        if isinstance(self.games, ArrayGames) and self.games.observation_space.dtype == np.float32:
            return lambda observation: observation.astype(np.float64)
        return lambda observation: encode(observation)[:, 0].astype(np.float64)

    def _actions(self, action: NDArray[Any]) -> Any:
        if self._unchanged:
            return action
        space = self.games.action_space
        if self._bounds is not None:
            low, high = self._bounds
            numbers = action.reshape(-1, *low.shape)
            if self._rules.clip_actions:
                numbers = np.minimum(np.maximum(numbers, low), high)
            return numbers.astype(space.dtype)
        return to_actions(space, action[:, None])

    def close(self) -> None:
        self.games.close()


def _act_function(controller: Controller, parameters: NDArray[np.float64]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return `controller.act` with `parameters` [n, d].

    If the controller has the method `prepared`, the faster function that it returns is used.
    """
    prepared = getattr(controller, "prepared", None)
    if prepared is None:
        return lambda observation: controller.act(observation, parameters)
    act: Callable[[NDArray[Any]], NDArray[Any]] = prepared(parameters)
    return act
