"""Episodes of a controller, played as a batch in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller
from llmrl.envs.gym.channel_spaces import observation_channels, to_actions
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.interfaces import Games
from llmrl.envs.gym.success import SuccessCriterion

RESULT = np.dtype([("returned", "f8"), ("length", "i8"), ("best_reward", "f8"), ("terminated", "?")])
"""Result of an episode: sum of its rewards, number of steps, highest reward of a step, and whether it terminated."""


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


class BatchedEpisodes:
    """Plays episodes in n games in lock step; a game whose episode ends starts the next one.

    Args:
        rules: the game and the rules of its episodes.
        n: number of games in lock step.

    Raises:
        ConfigError: see `EnvFactory.make`; or the game might never end.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules = rules
        self.games: Games = rules.env_factory.make(n)
        if self.games.horizon is None:
            raise ConfigError(
                f"{rules.env_factory.id} has no limit of steps, so an episode may never end; set env.horizon"
            )
        self._channels = observation_channels(self.games.observation_space)

    def play(
        self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64], jobs: Sequence[int]
    ) -> NDArray[Any]:
        """Play the episodes numbered `jobs`: i * k + j is vector i of `vectors` [q, d] under seed j of `seeds` [k].

        Each begins as `env.reset(seed=seeds[j])` does. So results do not depend on the other episodes or on the number
        of games, provided that an action of `controller` depends only on its own observation and parameters.

        Returns:
            A `RESULT` for each job.

        Raises:
            ConfigError: the controller reads a channel that the game does not have.
        """
        if controller.channel not in self._channels:
            channels = ", ".join(self._channels) or "nothing that can be read without words"
            raise ConfigError(
                f"the policy reads the channel {controller.channel}, and {self._rules.env_factory.id} has {channels}; "
                "use a policy for one of these"
            )
        read, games, n = self._input_function(controller.channel), self.games, self.games.n
        results, remaining = np.zeros(len(jobs), dtype=RESULT), iter(enumerate(jobs))
        index, seed, lengths = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        parameters, returns, best = np.zeros((n, vectors.shape[1])), np.zeros(n), np.zeros(n)
        # All games are started once, because before that they have no observations.
        playing, fresh = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
        while True:
            for lane in np.flatnonzero(~playing).tolist():
                next_job = next(remaining, None)
                if next_job is None:
                    break
                index[lane], job = next_job
                seed[lane], parameters[lane] = seeds[job % len(seeds)], vectors[job // len(seeds)]
                playing[lane] = fresh[lane] = True
            if not playing.any():
                return results
            act = _act_function(controller, parameters)
            observation = games.reset(seed, fresh)
            returns[fresh], best[fresh], lengths[fresh] = 0.0, -np.inf, 0
            fresh[:] = False
            done = np.zeros(n, dtype=bool)
            while not done.any():
                observation, reward, terminated, truncated = games.step(self._actions(act(read(observation))), playing)
                lengths += 1
                returns += reward
                np.maximum(best, reward, best)
                done = terminated | truncated
            for lane in np.flatnonzero(done).tolist():
                results[index[lane]] = returns[lane], lengths[lane], best[lane], terminated[lane]
            playing &= ~done

    def _input_function(self, channel: str) -> Callable[[Any], NDArray[Any]]:
        """Return a function that converts observations of all games into inputs of a controller.

        Inputs are [n, k] float64, or [n] int64 for states.
        """
        encode, dtype = self._channels[channel][1], np.int64 if channel == "state" else np.float64
        return lambda observation: encode(observation)[:, 0].astype(dtype)

    def _actions(self, action: NDArray[Any]) -> Any:
        return to_actions(self.games.action_space, action[:, None], self._rules.clip_actions)

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
