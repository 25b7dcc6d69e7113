"""Episodes of a controller, several side by side in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller
from llmrl.core.records import Trace
from llmrl.envs.gym.batched.arrays import ArrayGames
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.channel_spaces import observation_channels, to_actions
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.interfaces import Games
from llmrl.envs.gym.success import SuccessCriterion

_NUMBERS = 2_000_000
"""Numbers of a table's episodes that are worked on at once."""


@dataclass(frozen=True)
class EpisodeRules:
    """Which game is played, and how.

    Args:
        env_factory: the game.
        clip_actions: put numbers of an action inside their bounds. False is what ProPS (arXiv 2511.21928) does: the
            environment gets the number as it is, and a cost of large actions counts all of it.
        success: what a success is; None: nothing is.
    """

    env_factory: EnvFactory
    clip_actions: bool = True
    success: SuccessCriterion | None = None


@dataclass(frozen=True)
class EpisodeResults:
    """Episodes, [m], in any order: the number of each, its return, steps, highest reward of a step, whether it ended by
    itself."""

    job: NDArray[np.int64]
    returned: NDArray[np.float64]
    length: NDArray[np.int64]
    best_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]

    @classmethod
    def joined(cls, parts: list[EpisodeResults]) -> EpisodeResults:
        return cls(*(np.concatenate([vars(part)[name] for part in parts]) for name in cls.__dataclass_fields__))

    @classmethod
    def of(cls, rows: list[tuple[int, float, int, float, bool]]) -> EpisodeResults:
        """From one row (job, returned, length, best_reward, terminated) an episode."""
        job, returned, length, best, terminated = zip(*rows, strict=True) if rows else ((),) * 5
        numbers = (np.array(part, dtype=np.float64) for part in (returned, best))
        whole = (np.array(part, dtype=np.int64) for part in (job, length))
        (returns, bests), (jobs, lengths) = numbers, whole
        return cls(jobs, returns, lengths, bests, np.array(terminated, dtype=bool))


class BatchedEpisodes:
    """Plays episodes on n games side by side; a game that is over takes up the next episode.

    Args:
        rules: which game, and how.
        n: games side by side.

    Raises:
        ConfigError: see `EnvFactory.make`; or the game might never end.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        from gymnasium import spaces

        self._rules = rules
        self.games: Games = rules.env_factory.make(n)
        if self.games.horizon is None:
            raise ConfigError(
                f"{rules.env_factory.id} has no limit of steps, so an episode may never end: set env.horizon"
            )
        self._channels = observation_channels(self.games.observation_space)
        action = self.games.action_space
        self._bounds: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if isinstance(action, spaces.Box) and action.dtype.kind == "f":
            self._bounds = np.asarray(action.low, dtype=np.float64), np.asarray(action.high, dtype=np.float64)
        self._plain = isinstance(action, spaces.Discrete) and action.start == 0
        self._table = self.games.table if isinstance(self.games, TabularGames) and self.games.timeless else None

    def play(
        self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64], jobs: Iterator[int]
    ) -> EpisodeResults:
        """Play the episodes numbered `jobs`: i * k + j is vector i of `vectors` [q, d] under seed j of `seeds` [k].

        Each begins as `env.reset(seed=seeds[j])` does, so what it returns depends on neither the other episodes nor
        the number of lanes, where an action of `controller` depends on its own row alone.

        Raises:
            ConfigError: the controller reads a channel that the game does not have.
        """
        if controller.channel not in self._channels:
            shown = ", ".join(self._channels) or "nothing that can be read without words"
            raise ConfigError(f"the policy reads {controller.channel}, and {self._rules.env_factory.id} shows {shown}")
        read = self._reader(controller.channel)
        if self._table is not None:
            return self._look_up(controller, read, vectors, seeds, np.array([*jobs], dtype=np.int64))
        return self._step(controller, read, vectors, seeds, jobs)

    def trace(self, controller: Controller, vector: NDArray[np.float64], seed: int, steps: int) -> Trace:
        """The first `steps` steps of the episode of `vector` [d] under `seed`, or all of a shorter one; on lane 0."""
        games, read, lane = self.games, self._reader(controller.channel), np.arange(self.games.n) == 0
        act = _prepared(controller, np.tile(vector, (games.n, 1)))
        seen = games.reset(np.full(games.n, seed, dtype=np.int64), np.ones(games.n, dtype=bool))
        rows: list[tuple[NDArray[Any], NDArray[Any], float]] = []
        for _ in range(steps):
            told = read(seen)
            action = act(told)
            seen, reward, terminated, truncated = games.step(self._actions(action), lane)
            rows.append((np.array(told[0]), np.array(action[0]), float(reward[0])))
            if terminated[0] or truncated[0]:
                break
        observations, actions, rewards = zip(*rows, strict=True)
        return Trace(np.array(observations), np.array(actions), np.array(rewards))

    def _step(
        self,
        controller: Controller,
        read: Callable[[Any], NDArray[Any]],
        vectors: NDArray[np.float64],
        seeds: NDArray[np.int64],
        jobs: Iterator[int],
    ) -> EpisodeResults:
        games, n = self.games, self.games.n
        watched = self._rules.success is not None and self._rules.success.kind == "reward"
        rows: list[tuple[int, float, int, float, bool]] = []
        job, seed, began, now = [0] * n, np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), 0
        parameters, returned, best = np.zeros((n, vectors.shape[1])), np.zeros(n), np.zeros(n)
        # All games are started once: until then they have nothing to show.
        playing, fresh = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
        while True:
            for lane in np.flatnonzero(~playing).tolist():
                following = next(jobs, None)
                if following is None:
                    break
                job[lane], seed[lane] = following, seeds[following % len(seeds)]
                parameters[lane] = vectors[following // len(seeds)]
                playing[lane] = fresh[lane] = True
            if not playing.any():
                return EpisodeResults.of(rows)
            act = _prepared(controller, parameters)
            seen = games.reset(seed, fresh)
            returned[fresh], best[fresh], began[fresh] = 0.0, -np.inf, now
            fresh = np.zeros(n, dtype=bool)
            while True:
                seen, reward, terminated, truncated = games.step(self._actions(act(read(seen))), playing)
                now += 1
                returned += reward
                if watched:
                    np.maximum(best, reward, best)
                ended = terminated | truncated
                if np.count_nonzero(ended):
                    break
            for lane in np.flatnonzero(ended).tolist():
                length = now - int(began[lane])
                rows.append((job[lane], float(returned[lane]), length, float(best[lane]), bool(terminated[lane])))
            playing &= ~ended

    def _look_up(
        self,
        controller: Controller,
        read: Callable[[Any], NDArray[Any]],
        vectors: NDArray[np.float64],
        seeds: NDArray[np.int64],
        jobs: NDArray[np.int64],
    ) -> EpisodeResults:
        """The same in a game of few states, where the controller can be asked for all of them beforehand."""
        from llmrl.envs.gym.batched.transition_table import play

        assert self._table is not None
        assert self.games.horizon is not None
        states, n_states = read(np.arange(self._table.n_states)), self._table.n_states
        which = jobs // len(seeds)
        at_once = max(1, _NUMBERS // (self.games.horizon * len(seeds)))
        parts = []
        wanted = np.unique(which)
        for first in range(0, len(wanted), at_once):
            chosen = wanted[first : first + at_once]
            policies = [
                controller.act(states, np.broadcast_to(vectors[i], (n_states, len(vectors[i])))) for i in chosen
            ]
            done = play(self._table, np.array(policies), seeds, self.games.horizon)
            numbers = (chosen[:, None] * len(seeds) + np.arange(len(seeds))).ravel()
            parts.append(EpisodeResults(numbers, done.returned, done.length, done.best_reward, done.terminated))
        return EpisodeResults.joined(parts)

    def _reader(self, channel: str) -> Callable[[Any], NDArray[Any]]:
        """What turns observations of all games into what a controller reads: [n, k] float64, or [n] int64."""
        encode = self._channels[channel][1]
        if channel == "state":
            return lambda seen: encode(seen)[:, 0]
        if isinstance(self.games, ArrayGames) and self.games.observation_space.dtype == np.float32:
            return lambda seen: seen.astype(np.float64)
        return lambda seen: encode(seen)[:, 0].astype(np.float64)

    def _actions(self, action: NDArray[Any]) -> Any:
        if self._plain:
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


def _prepared(controller: Controller, parameters: NDArray[np.float64]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """`controller.act` with `parameters` [n, d]; a controller may have a quicker way for many steps, `prepared`."""
    prepared = getattr(controller, "prepared", None)
    if prepared is None:
        return lambda observation: controller.act(observation, parameters)
    act: Callable[[NDArray[Any]], NDArray[Any]] = prepared(parameters)
    return act
