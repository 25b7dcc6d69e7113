"""What players who read are told of a mechanism: its rules, its values, and what it did to their last reward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.records import State, on_host
from llmrl.core.spaces import ParameterSpace

DIGITS = 4
"""Digits after the point of the numbers that are told."""


def rules_in_words(space: ParameterSpace, base_reward: str, rule: str, shown: bool) -> str:
    """Return what players are told of a mechanism before a game begins, as sentences for the game's goal.

    Args:
        space: the numbers that are set.
        base_reward: reward of an agent before the mechanism, in words.
        rule: what holds whatever is set, e.g. who gets what is taken; "": nothing.
        shown: whether players see the numbers; otherwise they are told only that there are payments.
    """
    before = f"Before payments, a step is rewarded like this: {base_reward}."
    if not shown:
        return f"{before} A planner adds payments, positive or negative, whose rules you are not told."
    numbers = "; ".join(f"{p.name} (from {p.low:g} to {p.high:g}, {p.unit}): {p.description}" for p in space.parameters)
    after = f" {rule}" if rule else ""
    return f"{before} A planner sets these numbers, the same for all players, and they can change: {numbers}.{after}"


def fields(space: ParameterSpace, player_facts: Mapping[str, str], shown: bool) -> tuple[tuple[str, str], ...]:
    """Return (name, description) of what `MechanismReport.told` adds to an observation."""
    names = ", ".join(space.names)
    values = [("mechanism", f"the numbers that are set now: {names}")] if shown else []
    parts = "payments: what each number added to it or took from it, without zeros" if shown else "payments: the rest"
    made_of = ("last_reward", f"what your last reward was made of. before_payments: what the game paid; {parts}")
    return (*values, made_of, *player_facts.items())


def example(space: ParameterSpace, player_facts: Mapping[str, str], shown: bool) -> dict[str, Any]:
    """Return what `MechanismReport.told` adds when every number is set and pays, for estimates of lengths."""
    report = MechanismReport(space, 1, 1, shown, player_facts)
    values, every = (space.high * 0.123)[None], np.ones((1, 1, space.dim))
    facts = dict.fromkeys(player_facts, np.ones((1, 1)))
    report.settle(np.ones((1, 1)), every, values, np.ones(1, dtype=bool), facts)
    return report.told(0, 0, values[0])


class MechanismReport:
    """What a mechanism is and did, for each player of each game of a batch.

    Args:
        space: the mechanism's values.
        n_envs, n_agents: size of the batch.
        shown: whether players see the values.
        player_facts: names of what else players are told of themselves, 0 when an episode begins.
    """

    def __init__(
        self, space: ParameterSpace, n_envs: int, n_agents: int, shown: bool, player_facts: Iterable[str] = ()
    ) -> None:
        self._names, self._shown = space.names, shown
        self._began = np.zeros(n_envs, dtype=bool)  # whether a step has been settled since the episode began
        self._before = np.zeros((n_envs, n_agents), dtype=np.float32)
        self._payments = np.zeros((n_envs, n_agents, space.dim), dtype=np.float32)
        self._facts = {name: np.zeros_like(self._before) for name in player_facts}

    def begin(self, games: NDArray[np.bool_]) -> None:
        """Forget the last step of the games where `games` [n_envs] is true."""
        self._began[games] = False
        for each in self._facts.values():
            each[games] = 0

    def settle(
        self, base_reward: Any, reward_jacobian: Any, values: Any, live: NDArray[np.bool_], facts: Mapping[str, Any]
    ) -> None:
        """Take in a settled step.

        Args:
            base_reward: [n_envs, n_agents], an array or a tensor on any device, as are the others.
            reward_jacobian: derivative of rewards by the values, [n_envs, n_agents, d].
            values: the mechanism's values during the step, [n_envs, d].
            live: games that were played, [n_envs]; the others keep what they had.
            facts: the `player_facts` after the step, each [n_envs, n_agents].
        """
        jacobian, amounts = np.asarray(on_host(reward_jacobian)), np.asarray(on_host(values))
        self._began |= live
        self._before[live] = np.asarray(on_host(base_reward))[live]
        self._payments[live] = (jacobian * amounts[:, None, :])[live]
        for name, each in facts.items():
            self._facts[name][live] = np.asarray(on_host(each))[live]

    def told(self, game: int, player: int, values: NDArray[Any]) -> dict[str, Any]:
        """Return what one player is told now, for its observation; `values` [d] are those of its game."""
        said: dict[str, Any] = {}
        if self._shown:
            said["mechanism"] = {name: _number(x) for name, x in zip(self._names, values, strict=True)}
        if self._began[game]:
            paid = self._payments[game, player]
            parts = {name: _number(x) for name, x in zip(self._names, paid, strict=True) if _number(x)}
            said["last_reward"] = {
                "before_payments": _number(self._before[game, player]),
                "payments": parts if self._shown else _number(paid.sum()),
            }
        return said | {name: _number(each[game, player]) for name, each in self._facts.items()}

    def state_dict(self) -> State:
        """Return what the last step was."""
        return {
            "began": self._began.copy(),
            "before": self._before.copy(),
            "payments": self._payments.copy(),
            "facts": {name: each.copy() for name, each in self._facts.items()},
        }

    def load_state_dict(self, state: State) -> None:
        self._began, self._before = state["began"].copy(), state["before"].copy()
        self._payments = state["payments"].copy()
        self._facts = {name: each.copy() for name, each in state["facts"].items()}


def _number(value: Any) -> int | float:
    """Return a number without the noise of its last digits; whole ones as integers."""
    rounded = round(float(value), DIGITS)
    return int(rounded) if rounded.is_integer() else rounded
