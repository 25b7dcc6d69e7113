"""`agent=heuristic`: a simple rule plays, where there is one for the environment.

A rule goes from what is observed to an action, without memory or learning.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from llmrl.agents.society_rules import Role, SocietyRulePolicy, society_rules
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.non_learning_agent import NonLearningAgent
from llmrl.core.protocols import Policy
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.tax_citizens import Citizens
from llmrl.envs.tax_economy import VECTOR

Rule = Callable[[np.ndarray], np.ndarray]
"""Observations [n, k] or states [n] of n games -> actions [n]."""


@dataclass(frozen=True)
class Heuristic:
    """A rule: the channel it reads, what it does in a few words, and how it is made for an environment.

    Attributes:
        also: further channels it reads, whose numbers follow those of `channel` in a row.
    """

    channel: str
    what: str
    make: Callable[[EnvSpec, EnvFactory | None], Rule]
    also: tuple[str, ...] = ()


class HeuristicPolicy:
    """Follows a rule.

    Args:
        spec: of the environment.
        env_factory: of its games, for rules that are computed from the game's own table; None: it is none of
            Gymnasium's.

    Raises:
        ConfigError: there is no rule for the environment.
    """

    def __init__(self, spec: EnvSpec, env_factory: EnvFactory | None = None) -> None:
        self.heuristic, self._rule = rule_of(spec, env_factory)
        self.channels: tuple[str, ...] = (self.heuristic.channel, *self.heuristic.also)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """The same action for the same observation."""
        read = [observation[channel].cpu().numpy() for channel in self.channels]
        seen = np.concatenate(read, axis=-1) if len(read) > 1 else read[0]
        games, agents = seen.shape[:2]
        action = np.asarray(self._rule(seen.reshape(games * agents, *seen.shape[2:])))
        return PolicyOutput(torch.from_numpy(action.reshape(games, agents).astype(np.int64)))

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: it expects nothing."""
        return torch.zeros(observation[self.heuristic.channel].shape[:2])


class HeuristicAgent(NonLearningAgent):
    """Plays by a rule, never learns.

    Args:
        spec: spec of the environment.
        env_factory: as for `HeuristicPolicy`.
        role: in Clean Up and Harvest, `forager`, `cleaner` or `turn_taker`; None: `forager`.
        turn: steps for which turn-takers clean.
        at_once: number of turn-takers who clean at once.

    Raises:
        ConfigError: there is no rule for the environment; the message names those that have one.
    """

    def __init__(
        self,
        spec: EnvSpec,
        env_factory: EnvFactory | None = None,
        role: Role | None = None,
        turn: PositiveInt = 200,
        at_once: PositiveInt = 3,
    ) -> None:
        rules = society_rules(spec, role, turn, at_once)
        self.policy: Policy = HeuristicPolicy(spec, env_factory) if rules is None else SocietyRulePolicy(spec, rules)
        self._what = rules.what if rules is not None else rule_of(spec, env_factory)[0].what

    def describe(self) -> dict[str, Any]:
        return {"policy": f"a rule: {self._what}", "parameters": 0}


def rule_of(spec: EnvSpec, env_factory: EnvFactory | None = None) -> tuple[Heuristic, Rule]:
    """The rule for an environment whose games `env_factory` makes, if they are Gymnasium's.

    Raises:
        ConfigError: there is none, or the environment is played in a way that the rule does not know.
    """
    heuristic = HEURISTICS.get(_stem(spec.name))
    if heuristic is None:
        known = ", ".join(sorted((*HEURISTICS, "cleanup", "escape_room", "harvest")))
        raise Incompatible(
            Misfit.ONE_GAME, f"agent=heuristic knows no rule for env={spec.name}; there are rules for {known}"
        )
    for channel in (heuristic.channel, *heuristic.also):
        if channel not in spec.observation:
            raise ConfigError(
                f"the rule for {spec.name} reads the channel {channel!r}, and there is only "
                f"{', '.join(spec.observation)}"
            )
    spec.need_discrete("agent=heuristic")
    return heuristic, heuristic.make(spec, env_factory)


def _stem(name: str) -> str:
    """`LunarLander-v3` and `lunar_lander` are the same game."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2].partition("-")[0]).lower()
    return {"cart_pole": "cartpole"}.get(snake, snake)


def _blackjack(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Basic strategy without doubling and splitting: sums of the dealer's 2 to 6 are weak, an ace is strong."""

    def rule(seen: np.ndarray) -> np.ndarray:
        own, dealer = seen[:, :32].argmax(1), seen[:, 32:43].argmax(1)
        soft = seen[:, 43:45].argmax(1) == 1
        weak = (dealer >= 2) & (dealer <= 6)
        hard_hit = (own <= 11) | ((own == 12) & ((dealer < 4) | (dealer > 6))) | ((own <= 16) & (own > 12) & ~weak)
        soft_hit = (own <= 17) | ((own == 18) & ((dealer >= 9) | (dealer == 1)))
        return np.asarray(np.where(soft, soft_hit, hard_hit), dtype=np.int64)

    return rule


def _cartpole(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Push to the side to which the pole falls, a little sooner where the cart is far out or fast."""
    weights = np.array([0.05, 0.15, 1.0, 0.35])
    return lambda seen: np.asarray(seen @ weights > 0, dtype=np.int64)


def _mountain_car(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Push the way the car moves, which adds energy in every step."""
    return lambda seen: np.where(seen[:, 1] >= 0, 2, 0)


def _acrobot(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Push the lower link the way it moves against the upper one, which adds energy in every step."""
    return lambda seen: np.where(seen[:, 5] >= 0, 2, 0)


def _lunar_lander(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Two proportional-derivative controllers: lean against place and drift, and fall the slower the lower."""

    def rule(seen: np.ndarray) -> np.ndarray:
        x, y, vx, vy, angle, spin = seen[:, :6].T
        landed = seen[:, 6:8].sum(1) > 0
        # Leaning to the left (a positive angle) lets the main engine push to the left.
        wanted_angle = np.clip(0.55 * x + 1.05 * vx, -0.4, 0.4)
        turn = np.where(landed, 0.0, 0.5 * (wanted_angle - angle) - spin)
        lift = np.where(landed, -0.5 * vy, 0.5 * (0.55 * np.abs(x) - y) - 0.5 * vy)
        action = np.where(turn > 0.05, 1, np.where(turn < -0.05, 3, 0))
        return np.asarray(np.where((lift > np.abs(turn)) & (lift > 0.05), 2, action), dtype=np.int64)

    return rule


def _cliff_walking(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Up, along the edge of the cliff, down."""

    def rule(states: np.ndarray) -> np.ndarray:
        row, column = np.divmod(states, 12)
        return np.where(column == 11, 2, np.where(row == 3, 0, 1))

    return rule


_STANDS = ((0, 0), (0, 4), (4, 0), (4, 3))
_TAXI_MAP = (":|::", ":|::", "::::", "|:|:", "|:|:")
"""Between columns, row by row: a bar is a wall."""


def _taxi(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """The shortest way to the passenger, then to the destination."""
    ways = [_ways_to(stand) for stand in _STANDS]
    table = np.zeros(500, dtype=np.int64)
    for state in range(500):
        row, column, passenger, destination = map(int, np.unravel_index(state, (5, 5, 5, 4)))
        aboard = passenger == 4
        target = destination if aboard else passenger
        there = (row, column) == _STANDS[target]
        table[state] = (5 if aboard else 4) if there else ways[target][row, column]
    return lambda states: table[states]


def _ways_to(target: tuple[int, int]) -> np.ndarray:
    """The first move of a shortest way to `target` from every cell, [5, 5]: 0 south, 1 north, 2 east, 3 west."""
    moves = np.zeros((5, 5), dtype=np.int64)
    seen, waiting = {target}, deque([target])
    while waiting:
        row, column = waiting.popleft()
        # From the neighbour one reaches this cell by the opposite move.
        for down, right, back in ((-1, 0, 0), (1, 0, 1), (0, -1, 2), (0, 1, 3)):
            cell = row + down, column + right
            inside = 0 <= cell[0] < 5 and 0 <= cell[1] < 5
            if not inside or cell in seen or (right and _TAXI_MAP[row][min(column, cell[1])] == "|"):
                continue
            seen.add(cell)
            moves[cell] = back
            waiting.append(cell)
    return moves


def _frozen_lake(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """The move of every state that leads to the goal most probably: value iteration on the game's table."""
    if env_factory is None:
        raise ConfigError(f"the rule for frozen_lake is computed from Gymnasium's table, and env={spec.name} has none")
    games = replace(env_factory, engine="batched").make(1)
    assert isinstance(games, TabularGames)
    best = games.table.best_policy()
    return lambda states: best[states]


def _commons(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """The largest amount that leaves the stock as it is if everybody takes as much."""
    amounts = np.array([int(name.removeprefix("take_")) for name in spec.action_names])
    capacity, growth = int(spec.facts["capacity"]), int(spec.facts["growth"])

    def rule(seen: np.ndarray) -> np.ndarray:
        stock = np.rint(seen[:, 0] * capacity).astype(np.int64)
        share = (stock + -stock // growth) // spec.n_players
        return np.asarray(np.searchsorted(amounts, share, side="right") - 1, dtype=np.int64)

    return rule


def _tax_economy(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """The best hours for the rest of the year under the rates, if the transfer is that of last year."""
    citizens = Citizens.from_facts(spec.facts)
    place = {name: i for i, name in enumerate(VECTOR)}
    mean_wage, full_time = spec.facts["mean_wage"], spec.facts["full_time_income"]

    def rule(seen: np.ndarray) -> np.ndarray:
        seen = seen.astype(np.float64)
        wage = mean_wage * np.exp(seen[:, place["wage"]])
        transfer, earned = (full_time * np.expm1(seen[:, place[name]]) for name in ("last_transfer", "earned"))
        left = citizens.steps_per_year - np.round(seen[:, place["share_of_year"]] * citizens.steps_per_year)
        return citizens.best_action(wage, seen[:, len(VECTOR) :], transfer, earned, left)

    return rule


_KEEPS = Heuristic("vector", "takes its sustainable share", _commons)
HEURISTICS: dict[str, Heuristic] = {
    "acrobot": Heuristic("vector", "pumps energy", _acrobot),
    "blackjack": Heuristic("vector", "basic strategy", _blackjack),
    "cartpole": Heuristic("vector", "pushes under the falling pole", _cartpole),
    "cliff_walking": Heuristic("state", "the shortest way", _cliff_walking),
    "fishery": _KEEPS,
    "frozen_lake": Heuristic("state", "the likeliest way", _frozen_lake),
    "lunar_lander": Heuristic("vector", "two PD controllers", _lunar_lander),
    "mountain_car": Heuristic("vector", "pumps energy", _mountain_car),
    "pasture": _KEEPS,
    "pollution": _KEEPS,
    "tax_economy": Heuristic("vector", "best response to rates and last transfer", _tax_economy, also=("mechanism",)),
    "taxi": Heuristic("state", "the shortest way", _taxi),
}
"""By the name of the environment's option; Gymnasium's ids are understood too."""
