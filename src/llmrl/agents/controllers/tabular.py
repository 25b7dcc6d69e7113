"""Tables of actions or of action values, for environments with discrete or discretized states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.agents.controllers.labels import (
    action_name,
    describe_states,
    input_names,
    join_abbreviated,
    n_inputs,
    n_states,
)
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace

MAX_STATES = 100_000


class Bins:
    """Discretization of an observation into bins of equal width; a state is one bin for each number.

    Numbers below a range are in its first bin, and those above it in its last.

    Args:
        spec: spec of the environment.
        ranges: low, high and number of bins, for each number of the channel `vector`.

    Attributes:
        n: number of states, the product of the numbers of bins.

    Raises:
        ConfigError: there is no such channel, it has another length, a range is empty, or there are too many states.
    """

    def __init__(self, spec: EnvSpec, ranges: Sequence[Sequence[float]]) -> None:
        inputs, names = n_inputs(spec, "agent.bins"), input_names(spec)
        if len(ranges) != inputs:
            raise ConfigError(
                f"agent.bins has {len(ranges)} ranges, but env={spec.name} observes {inputs} numbers "
                f"({', '.join(names)}); write [low, high, bins] for each"
            )
        for name, bin_range in zip(names, ranges, strict=True):
            if (
                len(bin_range) != 3
                or not np.isfinite(bin_range).all()
                or bin_range[0] >= bin_range[1]
                or not _is_integer(bin_range[2])
            ):
                raise ConfigError(
                    f"agent.bins: {list(bin_range)} for {name} must be [low, high, bins] with low < high and bins >= 1"
                )
        self._low = np.array([low for low, _, _ in ranges], dtype=np.float64)
        self._high = np.array([high for _, high, _ in ranges], dtype=np.float64)
        self._counts = np.array([int(count) for _, _, count in ranges], dtype=np.int64)
        self.n = int(np.prod(self._counts.astype(object)))
        if self.n > MAX_STATES:
            raise ConfigError(f"agent.bins results in {self.n:,} states; use fewer bins, at most {MAX_STATES:,} states")
        # The bin of the last number changes fastest, as in a C-ordered array.
        self._strides = np.append(np.cumprod(self._counts[:0:-1])[::-1], 1)
        self._names = names

    def state(self, observation: np.ndarray) -> np.ndarray:
        """Return the states, [n] int64, of observations [n, k]."""
        fraction = (observation - self._low) / (self._high - self._low)
        # Clip first, since infinity cannot be converted to an integer.
        bins = np.floor(np.clip(fraction, 0.0, 1.0) * self._counts).astype(np.int64)
        states: np.ndarray = np.minimum(bins, self._counts - 1) @ self._strides
        return states

    @property
    def description(self) -> str:
        """Description of the states for prompts, one line for each number."""
        lines = [
            "In state s each number of the observation lies in a bin, counted from 0 (// divides without a remainder, "
            "% is the remainder):"
        ]
        dimensions = zip(self._names, self._low, self._high, self._counts, self._strides, strict=True)
        for name, low, high, count, stride in dimensions:
            index = f"(s // {stride}) % {count}" if stride > 1 else f"s % {count}"
            width = (high - low) / count
            lines.append(f"- {name}: bin {index} of {count}, each {width:.4g} wide, from {low:g} to {high:g}")
        return "\n".join(lines) + "\nNumbers outside a range are in its first or last bin.\n"


def _is_integer(x: float) -> bool:
    return x == int(x) and x >= 1


class _Table:
    """A table with a row for each state; the state is observed, or computed from numbers by `bins`."""

    def __init__(self, spec: EnvSpec, bins: Bins | None) -> None:
        self.channel, self._bins = "state" if bins is None else "vector", bins
        self.n_states = n_states(spec, "agent=tabular") if bins is None else bins.n
        self.n_actions = spec.require_discrete_actions("agent=tabular")
        self._description = describe_states(spec) if bins is None else bins.description

    def _states(self, observation: np.ndarray) -> np.ndarray:
        return observation if self._bins is None else self._bins.state(observation)


class TabularController(_Table):
    """Table with one integer per state, the action taken in it.

    Args:
        spec: spec of the environment.
        actions: consecutive indices of the allowed actions; None: all.
        bins: discretization of a numeric observation; None: the observation is the index of a state.

    Raises:
        ConfigError: there are no `bins` and the observation is not the index of a state, actions are not discrete, or
            `actions` are not consecutive indices of actions.
    """

    name = "table of actions"

    def __init__(self, spec: EnvSpec, actions: Sequence[int] | None, bins: Bins | None = None) -> None:
        super().__init__(spec, bins)
        indices = list(range(self.n_actions))
        if actions is not None:
            if not actions or list(actions) != list(range(actions[0], actions[-1] + 1)) or not {*actions} <= {*indices}:
                raise ConfigError(
                    f"agent.actions={list(actions)} must be ascending indices of actions of env={spec.name} "
                    f"(0 to {len(indices) - 1}) without gaps; null allows all actions"
                )
            indices = list(actions)
        self.names = tuple(action_name(spec, i) for i in indices)
        low, high = float(indices[0]), float(indices[-1])
        entries = (
            Parameter(f"params[{s}]", low, high, "action", f"action in state {s}", 0, choice=True)
            for s in range(self.n_states)
        )
        self.space = ParameterSpace(self.name, tuple(entries))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return actions [n] for states [n], or observations [n, k], under tables [n, states]."""
        states = self._states(observation)
        actions: np.ndarray = parameters[np.arange(len(states)), states].astype(np.int64)
        return actions

    @property
    def layout(self) -> str:
        return (
            f"params[s] is the number of the action taken in state s, for s from 0 to {self.space.dim - 1}.\n"
            f"{self._description}"
            f"The actions are: {join_abbreviated(self.names)}."
        )


class QTableController(_Table):
    """Table with a value for each state and action; the action with the largest value is taken.

    Of equal values the first counts. Parameter s * n_actions + a is the value of action a in state s.

    Args:
        spec: spec of the environment.
        bound: each value is between -bound and bound.
        decimals: digits after the decimal point; None: all.
        bins: as in `TabularController`.

    Raises:
        ConfigError: there are no `bins` and the observation is not the index of a state, or actions are not discrete.
    """

    name = "table of values"

    def __init__(self, spec: EnvSpec, bound: float, decimals: int | None, bins: Bins | None = None) -> None:
        super().__init__(spec, bins)
        self.names = tuple(action_name(spec, i) for i in range(self.n_actions))
        self.space = ParameterSpace(
            self.name,
            tuple(
                Parameter(
                    f"params[{s * self.n_actions + action}]",
                    -bound,
                    bound,
                    "value",
                    f"action {name} in state {s}",
                    decimals,
                )
                for s in range(self.n_states)
                for action, name in enumerate(self.names)
            ),
        )

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return actions [n] for states [n], or observations [n, k], under tables [n, states * actions]."""
        states = self._states(observation)
        tables = parameters.reshape(-1, self.n_states, self.n_actions)
        actions: np.ndarray = np.argmax(tables[np.arange(len(states)), states], axis=1)
        return actions

    @property
    def invariances(self) -> str:
        """Description of the changes to the parameters that affect no action, for prompts."""
        return (
            "Only which value of a state is largest counts. So nothing changes where all values of one state are "
            "multiplied by the same positive factor, or the same amount is added to all of them."
        )

    @property
    def layout(self) -> str:
        return (
            f"params[{self.n_actions} * s + a] is the value of action a in state s, for s from 0 to "
            f"{self.n_states - 1}. In a state the action with the largest value is taken.\n"
            f"{self._description}"
            f"The actions are: {join_abbreviated(self.names)}."
        )
