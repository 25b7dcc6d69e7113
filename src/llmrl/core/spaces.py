"""What an environment says about itself before it is stepped: channels, actions, mechanism, contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError

Aggregate = Literal["sum", "mean", "last"]
Objective = Literal["mean", "sum"]
"""How per-agent base returns make one number."""


@dataclass(frozen=True)
class Channel:
    """One named observation channel of one agent: `shape` and `dtype` without the [n_envs, n_agents] axes.

    `text` channels have dtype object and hold one `str` per agent (shape `()`).
    """

    shape: tuple[int, ...]
    dtype: str
    low: float = -np.inf
    high: float = np.inf


@dataclass(frozen=True)
class Parameter:
    """One number a principal sets: its name, inclusive bounds, unit and meaning."""

    name: str
    low: float
    high: float
    unit: str
    description: str


@dataclass(frozen=True)
class MechanismSpec:
    """The vector a principal sets, in the order of `parameters`."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def low(self) -> np.ndarray:
        """Lower bounds, [d]."""
        return np.array([p.low for p in self.parameters], dtype=np.float64)

    @property
    def high(self) -> np.ndarray:
        """Upper bounds, [d]."""
        return np.array([p.high for p in self.parameters], dtype=np.float64)

    @property
    def dim(self) -> int:
        return len(self.parameters)

    def check(self, values: object) -> np.ndarray:
        """`values` as float64 [..., d], or a ConfigError naming every number that is out of bounds."""
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.name} takes {self.dim} numbers, got {values!r}") from error
        if array.ndim == 0 or array.shape[-1] != self.dim:
            raise ConfigError(f"{self.name} takes {self.dim} numbers ({', '.join(self.names)}), got {array.tolist()}")
        bad = [
            f"{p.name}={column.flat[i]:g} is outside [{p.low:g}, {p.high:g}] ({p.unit})"
            for p, column in zip(self.parameters, np.moveaxis(array, -1, 0), strict=True)
            for i in np.flatnonzero(~((column >= p.low) & (column <= p.high)))[:1]
        ]
        if bad:
            raise ConfigError(f"{self.name}: " + "; ".join(bad))
        return array


@dataclass(frozen=True)
class EnvSpec:
    """Static description of a `VecEnv`.

    Attributes:
        name: option name of the environment, e.g. `cleanup`.
        n_envs: games stepped in lock step.
        n_agents: agents a game (1 for single-agent environments).
        observation: channels each agent sees (`pixels`, `vector`, `grid`, `text`, `action_mask`, `mechanism`).
        n_actions: size of the discrete action set.
        action_names: one name per action.
        horizon: steps after which an episode is truncated; None where the engine alone decides.
        mechanism: what a principal can set; None where it can set nothing.
        contexts: names of the contexts a principal is told (empty: no context).
        objective: how per-agent episode returns make the principal's objective by default.
        metrics: per-step entries of `Step.info` and how an episode sums them up.
        deterministic: whether `state_dict` restores the environment exactly.
    """

    name: str
    n_envs: int
    n_agents: int
    observation: Mapping[str, Channel]
    n_actions: int
    action_names: tuple[str, ...]
    horizon: int | None
    mechanism: MechanismSpec | None = None
    contexts: tuple[str, ...] = ()
    objective: Objective = "mean"
    metrics: Mapping[str, Aggregate] = field(default_factory=dict)
    deterministic: bool = True
