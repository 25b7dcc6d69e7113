"""Policies for games whose state is a number, or is made one: for every state an action, or the values of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.agents.controllers.bins import Bins
from llmrl.agents.controllers.labels import action_name, listed, n_states, states_told
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace


class TabularController:
    """One whole number a state: the action taken in it.

    Args:
        spec: of the environment.
        actions: numbers of the actions that may be chosen, without gaps; None: all.
        bins: make states of an observation of numbers; None: it is the number of a state.

    Raises:
        ConfigError: there are no `bins` and the observation is not the number of a state, an action is several numbers,
            or `actions` are not actions next to each other.
    """

    name = "table of actions"

    def __init__(self, spec: EnvSpec, actions: Sequence[int] | None, bins: Bins | None = None) -> None:
        self.channel, self._bins = _seen(bins), bins
        n = n_states(spec, "agent=tabular") if bins is None else bins.n
        allowed = list(range(spec.need_discrete("agent=tabular")))
        if actions is not None:
            if not actions or list(actions) != list(range(actions[0], actions[-1] + 1)) or not {*actions} <= {*allowed}:
                raise ConfigError(
                    f"agent.actions={list(actions)}: numbers of actions of env={spec.name} (0 to {len(allowed) - 1}), "
                    "ascending and without gaps, are needed; null allows all of them"
                )
            allowed = list(actions)
        self.names = tuple(action_name(spec, i) for i in allowed)
        self._states = states_told(spec) if bins is None else bins.told
        low, high = float(allowed[0]), float(allowed[-1])
        entries = (
            Parameter(f"params[{s}]", low, high, "action", f"action in state {s}", 0, choice=True) for s in range(n)
        )
        self.space = ParameterSpace(self.name, tuple(entries))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Actions [n] for states [n], or observations [n, k], under tables [n, states]."""
        states = observation if self._bins is None else self._bins.state(observation)
        chosen: np.ndarray = parameters[np.arange(len(states)), states].astype(np.int64)
        return chosen

    @property
    def layout(self) -> str:
        return (
            f"params[s] is the number of the action taken in state s, for s from 0 to {self.space.dim - 1}.\n"
            f"{self._states}"
            f"The actions are: {listed(self.names)}."
        )


class QTableController:
    """A value for every state and action; the action with the largest one is taken (of equal ones the first).

    Number s * n_actions + a is that of action a in state s.

    Args:
        spec: of the environment.
        bound: every value lies between -bound and bound.
        decimals: digits after the point; None: all.
        bins: as in `TabularController`.

    Raises:
        ConfigError: there are no `bins` and the observation is not the number of a state, or an action is several
            numbers.
    """

    name = "table of values"

    def __init__(self, spec: EnvSpec, bound: float, decimals: int | None, bins: Bins | None = None) -> None:
        self.channel, self._bins = _seen(bins), bins
        self.n_states = n_states(spec, "agent=tabular") if bins is None else bins.n
        self.n_actions = spec.need_discrete("agent=tabular")
        self.names = tuple(action_name(spec, i) for i in range(self.n_actions))
        self._states = states_told(spec) if bins is None else bins.told
        self.space = ParameterSpace(
            self.name,
            tuple(
                Parameter(
                    f"params[{s * self.n_actions + a}]", -bound, bound, "value", f"action {name} in state {s}", decimals
                )
                for s in range(self.n_states)
                for a, name in enumerate(self.names)
            ),
        )

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Actions [n] for states [n], or observations [n, k], under tables [n, states * actions]."""
        states = observation if self._bins is None else self._bins.state(observation)
        tables = parameters.reshape(-1, self.n_states, self.n_actions)
        chosen: np.ndarray = np.argmax(tables[np.arange(len(states)), states], axis=1)
        return chosen

    @property
    def invariances(self) -> str:
        """Changes to the numbers that no action depends on, in words."""
        return (
            "Only which value of a state is largest counts. So nothing changes where all values of one state are "
            "multiplied by the same positive factor, or the same amount is added to all of them."
        )

    @property
    def layout(self) -> str:
        return (
            f"params[{self.n_actions} * s + a] is the value of action a in state s, for s from 0 to "
            f"{self.n_states - 1}. In a state the action with the largest value is taken.\n"
            f"{self._states}"
            f"The actions are: {listed(self.names)}."
        )


def _seen(bins: Bins | None) -> str:
    """The channel that is read."""
    return "state" if bins is None else "vector"
