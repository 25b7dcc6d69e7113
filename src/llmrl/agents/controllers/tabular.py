"""Policies for games whose state is a number: an action, or the values of all actions, for every state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.agents.controllers.words import action_name, listed, n_states, states_told
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace


class TabularController:
    """One whole number a state: the action taken in it.

    Args:
        spec: of the environment.
        actions: numbers of the actions that may be chosen, without gaps; None: all.

    Raises:
        ConfigError: the observation is not the number of a state, an action is several numbers, or `actions` are not
            actions next to each other.
    """

    channel = "state"
    name = "table of actions"

    def __init__(self, spec: EnvSpec, actions: Sequence[int] | None) -> None:
        n = n_states(spec, "agent=tabular")
        allowed = list(range(spec.need_discrete("agent=tabular")))
        if actions is not None:
            if not actions or list(actions) != list(range(actions[0], actions[-1] + 1)) or not {*actions} <= {*allowed}:
                raise ConfigError(
                    f"agent.actions={list(actions)}: numbers of actions of env={spec.name} (0 to {len(allowed) - 1}), "
                    "ascending and without gaps, are needed; null allows all of them"
                )
            allowed = list(actions)
        self.names = tuple(action_name(spec, i) for i in allowed)
        self._states = states_told(spec)
        low, high = float(allowed[0]), float(allowed[-1])
        entries = (
            Parameter(f"params[{s}]", low, high, "action", f"action in state {s}", 0, choice=True) for s in range(n)
        )
        self.space = ParameterSpace(self.name, tuple(entries))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Actions [n] for states [n] under tables [n, states]."""
        chosen: np.ndarray = parameters[np.arange(len(observation)), observation].astype(np.int64)
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

    Raises:
        ConfigError: the observation is not the number of a state, or an action is several numbers.
    """

    channel = "state"
    name = "table of values"

    def __init__(self, spec: EnvSpec, bound: float, decimals: int | None) -> None:
        self.n_states, self.n_actions = n_states(spec, "agent=tabular"), spec.need_discrete("agent=tabular")
        self.names = tuple(action_name(spec, i) for i in range(self.n_actions))
        self._states = states_told(spec)
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
        """Actions [n] for states [n] under tables [n, states * actions]."""
        tables = parameters.reshape(-1, self.n_states, self.n_actions)
        chosen: np.ndarray = np.argmax(tables[np.arange(len(observation)), observation], axis=1)
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
