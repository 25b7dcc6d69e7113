"""Episodes in progress, and what is told of those that are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from llmrl.core.records import State
from llmrl.core.spaces import EnvSpec


@dataclass
class Episode:
    """One finished episode of one game.

    Attributes:
        returns: sum of rewards of each agent, [n_agents].
        base_returns: the same before the mechanism, [n_agents].
        length: steps.
        summaries: `EnvSpec.metrics` entries, aggregated as the environment says.
        gains: steps in which each agent's base reward was positive, [n_agents].
        gain_times: sum of the indices (from 0) of these steps, [n_agents].
        game: index of the game.
    """

    returns: np.ndarray
    base_returns: np.ndarray
    length: int
    summaries: dict[str, float]
    gains: np.ndarray
    gain_times: np.ndarray
    game: int = 0


@dataclass
class Running:
    """Sums of the episodes in progress, [n_envs, n_agents]; `length` [n_envs]; `info` [n_envs] of each metric."""

    _ARRAYS: ClassVar = ("returns", "base_returns", "length", "gains", "gain_times")

    returns: np.ndarray
    base_returns: np.ndarray
    length: np.ndarray
    gains: np.ndarray
    gain_times: np.ndarray
    info: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def zeros(cls, spec: EnvSpec) -> Running:
        shape = (spec.n_envs, spec.n_agents)
        info = {name: np.zeros(spec.n_envs) for name in spec.metrics}
        length = np.zeros(spec.n_envs, dtype=np.int64)
        return cls(np.zeros(shape), np.zeros(shape), length, np.zeros(shape), np.zeros(shape), info)

    def state_dict(self) -> State:
        arrays = {name: getattr(self, name).copy() for name in self._ARRAYS}
        return {**arrays, "info": {name: x.copy() for name, x in self.info.items()}}

    @classmethod
    def from_state(cls, state: State) -> Running:
        arrays = {name: np.array(state[name]) for name in cls._ARRAYS}
        return cls(**arrays, info={name: np.array(x) for name, x in state["info"].items()})

    def add(
        self,
        spec: EnvSpec,
        base_reward: np.ndarray,
        reward: np.ndarray,
        info: Mapping[str, np.ndarray],
        ends: np.ndarray,
        playing: np.ndarray,
    ) -> list[Episode]:
        """Add a step of the games that are `playing` [n_envs]; returns the episodes that it `ends` [n_envs].

        Args:
            spec: of the environment.
            base_reward, reward: of the step, [n_envs, n_agents].
            info: its metrics, [n_envs] each.
        """
        self.returns += reward
        self.base_returns += base_reward
        gained = base_reward > 0
        self.gains += gained
        self.gain_times += gained * self.length[:, None]
        self.length += playing
        for name, how in spec.metrics.items():
            self.info[name] = info[name].astype(np.float64) if how == "last" else self.info[name] + info[name]
        finished = []
        for i in np.flatnonzero(ends):
            length = int(self.length[i])
            summaries = {
                name: float(self.info[name][i]) / (length if how == "mean" else 1) for name, how in spec.metrics.items()
            }
            sums = [x[i].copy() for x in (self.returns, self.base_returns, self.gains, self.gain_times)]
            finished.append(Episode(sums[0], sums[1], length, summaries, sums[2], sums[3], int(i)))
            self.returns[i] = self.base_returns[i] = self.length[i] = self.gains[i] = self.gain_times[i] = 0
            for name in self.info:
                self.info[name][i] = 0
        return finished
