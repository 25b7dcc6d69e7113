"""Texts about a mechanism for players: its rules, its values, and its payments in the last reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.records import to_numpy
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields

N_DECIMALS = 4
"""Number of digits after the decimal point in texts."""


def describe_rules(space: ParameterSpace, base_reward: str, constant_rule: str, shows_values: bool) -> str:
    """Return the sentences about a mechanism for the goal that players read before a game begins.

    Args:
        space: space of the mechanism's values.
        base_reward: words for the reward of an agent before payments.
        constant_rule: sentence that holds for all values, e.g. about the use of the revenue; "": none.
        shows_values: whether players see the values; otherwise the sentences only mention that there are payments.
    """
    base_sentence = f"Before payments, a step is rewarded like this: {base_reward}."
    if not shows_values:
        return f"{base_sentence} A planner adds payments, positive or negative, whose rules you are not told."
    numbers = "; ".join(f"{p.name} (from {p.low:g} to {p.high:g}, {p.unit}): {p.description}" for p in space.parameters)
    text = f"{base_sentence} A planner sets these numbers, the same for all players, and they can change: {numbers}."
    return f"{text} {constant_rule}" if constant_rule else text


def describe_report_fields(
    space: ParameterSpace, player_facts: Mapping[str, str], shows_values: bool
) -> tuple[tuple[str, str], ...]:
    """Return (name, description) of each entry that `MechanismReport.build_entries` adds to an observation."""
    mechanism_field = [("mechanism", f"the numbers that are set now: {', '.join(space.names)}")] if shows_values else []
    payments = "what each number added to it or took from it, without zeros" if shows_values else "the rest"
    reward_parts = f"what your last reward was made of. before_payments: what the game paid; payments: {payments}"
    return (*mechanism_field, ("last_reward", reward_parts), *player_facts.items())


def build_example_report(space: ParameterSpace, player_facts: Mapping[str, str], shows_values: bool) -> dict[str, Any]:
    """Return an example of `MechanismReport.build_entries` in which all values cause payments.

    It serves to estimate the lengths of prompts.
    """
    report = MechanismReport(space, n_envs=1, n_agents=1, shows_values=shows_values, player_facts=player_facts)
    values, jacobian = (space.high * 0.123)[None], np.ones((1, 1, space.dim))  # 0.123: numbers with several digits
    facts = dict.fromkeys(player_facts, np.ones((1, 1)))
    report.record(np.ones((1, 1)), jacobian, values, np.ones(1, dtype=bool), facts)
    return report.build_entries(0, 0, values[0])


class MechanismReport(StateFields):
    """Record of the mechanism's payments in the last step, for each player of each game.

    Args:
        space: space of the mechanism's values.
        n_envs, n_agents: number of games, and of players in each.
        shows_values: whether players see the values.
        player_facts: names of further numbers about each player, which are 0 when an episode begins.
    """

    _state_fields = ("_began", "_before", "_payments", "_facts")

    def __init__(
        self, space: ParameterSpace, n_envs: int, n_agents: int, shows_values: bool, player_facts: Iterable[str] = ()
    ) -> None:
        self._names, self._shows_values = space.names, shows_values
        self._began = np.zeros(n_envs, dtype=bool)  # whether a step has been settled since the episode began
        self._before = np.zeros((n_envs, n_agents), dtype=np.float32)  # last rewards before payments
        self._payments = np.zeros((n_envs, n_agents, space.dim), dtype=np.float32)
        self._facts = {name: np.zeros_like(self._before) for name in player_facts}

    def clear(self, reset_mask: NDArray[np.bool_]) -> None:
        """Clear the record of the games where `reset_mask` [n_envs] is true."""
        self._began[reset_mask] = False
        for fact_array in self._facts.values():
            fact_array[reset_mask] = 0

    def record(
        self, base_reward: Any, reward_jacobian: Any, values: Any, active: NDArray[np.bool_], facts: Mapping[str, Any]
    ) -> None:
        """Record the payments of a step. Arguments except `active` may be tensors on any device.

        Args:
            base_reward: rewards before payments, [n_envs, n_agents].
            reward_jacobian: derivatives of rewards with respect to the values, [n_envs, n_agents, d].
            values: the mechanism's values during the step, [n_envs, d].
            active: whether each game was advanced, [n_envs] bool; records of others do not change.
            facts: the `player_facts` after the step, each [n_envs, n_agents].
        """
        jacobian, value_array = np.asarray(to_numpy(reward_jacobian)), np.asarray(to_numpy(values))
        self._began |= active
        self._before[active] = np.asarray(to_numpy(base_reward))[active]
        self._payments[active] = (jacobian * value_array[:, None, :])[active]
        for name, fact_array in facts.items():
            self._facts[name][active] = np.asarray(to_numpy(fact_array))[active]

    def build_entries(self, game: int, player: int, values: NDArray[Any]) -> dict[str, Any]:
        """Return the entries about the mechanism in a player's observation; `values` [d] are those of its game."""
        report: dict[str, Any] = {}
        if self._shows_values:
            report["mechanism"] = {name: _round(x) for name, x in zip(self._names, values, strict=True)}
        if self._began[game]:
            payments = self._payments[game, player]
            payments_by_name = {name: _round(x) for name, x in zip(self._names, payments, strict=True) if _round(x)}
            report["last_reward"] = {
                "before_payments": _round(self._before[game, player]),
                "payments": payments_by_name if self._shows_values else _round(payments.sum()),
            }
        return report | {name: _round(fact_array[game, player]) for name, fact_array in self._facts.items()}


def _round(value: Any) -> int | float:
    """Return a number rounded to `N_DECIMALS` digits; integers without a decimal point."""
    number = round(float(value), N_DECIMALS)
    return int(number) if number.is_integer() else number
