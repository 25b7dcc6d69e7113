"""Agent `agent=heuristic`, which plays a simple rule for environments that have one.

A rule maps observations to actions, without memory or learning.
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
from llmrl.core.agent_interfaces import NonLearningAgent, PolicyWithoutValues
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.tax_citizens import Citizens
from llmrl.envs.tax_economy import VECTOR_FIELDS

Rule = Callable[[np.ndarray], np.ndarray]
"""Function from observations [n, k] or states [n] of n games to actions [n]."""
RuleFactory = Callable[[EnvSpec, EnvFactory | None], Rule]


@dataclass(frozen=True)
class Heuristic:
    """Rule for an environment.

    Attributes:
        channel: channel that the rule reads.
        description: short description of the rule.
        make: function that builds the rule for an environment.
        additional_channels: channels whose numbers are appended to those of `channel`.
    """

    channel: str
    description: str
    make: RuleFactory
    additional_channels: tuple[str, ...] = ()


class HeuristicPolicy(PolicyWithoutValues):
    """Policy that follows a rule.

    Args:
        spec: spec of the environment.
        env_factory: factory of its games, for rules computed from the game's transition table; None: not a Gymnasium
            environment.

    Raises:
        ConfigError: there is no rule for the environment.
    """

    def __init__(self, spec: EnvSpec, env_factory: EnvFactory | None = None) -> None:
        self.heuristic, self._rule = find_rule(spec, env_factory)
        self.channels: tuple[str, ...] = (self.heuristic.channel, *self.heuristic.additional_channels)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return the rule's actions; they depend only on the observations."""
        channel_arrays = [observation[channel].cpu().numpy() for channel in self.channels]
        inputs = np.concatenate(channel_arrays, axis=-1) if len(channel_arrays) > 1 else channel_arrays[0]
        games, agents = inputs.shape[:2]
        action = np.asarray(self._rule(inputs.reshape(games * agents, *inputs.shape[2:])))
        return PolicyOutput(torch.from_numpy(action.reshape(games, agents).astype(np.int64)))


class HeuristicAgent(NonLearningAgent):
    """Agent that plays by a rule and never learns.

    Args:
        spec: spec of the environment.
        env_factory: as for `HeuristicPolicy`.
        role: in Clean Up and Harvest, `forager`, `cleaner` or `turn_taker`; None: `forager`.
        turn: number of steps for which turn-takers clean.
        max_cleaners: number of turn-takers who clean at the same time.

    Raises:
        ConfigError: there is no rule for the environment; the message names those that have one.
    """

    def __init__(
        self,
        spec: EnvSpec,
        env_factory: EnvFactory | None = None,
        role: Role | None = None,
        turn: PositiveInt = 200,
        max_cleaners: PositiveInt = 3,
    ) -> None:
        rules = society_rules(spec, role, turn, max_cleaners)
        self.policy: HeuristicPolicy | SocietyRulePolicy
        if rules is None:
            self.policy = HeuristicPolicy(spec, env_factory)
            self._description = self.policy.heuristic.description
        else:
            self.policy, self._description = SocietyRulePolicy(spec, rules), rules.description

    def describe(self) -> dict[str, Any]:
        return {"policy": f"a rule: {self._description}", "parameters": 0}


def find_rule(spec: EnvSpec, env_factory: EnvFactory | None = None) -> tuple[Heuristic, Rule]:
    """Return the rule for an environment; `env_factory` makes its games if they are Gymnasium's.

    Raises:
        ConfigError: there is no rule, or the environment lacks a channel that the rule reads.
    """
    heuristic = HEURISTICS.get(_stem(spec.name))
    if heuristic is None:
        environments = ", ".join(sorted((*HEURISTICS, "cleanup", "escape_room", "harvest")))
        raise Incompatible(
            Misfit.ONE_GAME, f"agent=heuristic has no rule for env={spec.name}; it has rules for {environments}"
        )
    for channel in (heuristic.channel, *heuristic.additional_channels):
        if channel not in spec.observation:
            raise ConfigError(
                f"agent=heuristic needs the channel {channel!r} of env={spec.name}, which has only "
                f"{', '.join(spec.observation)}; see env.observe"
            )
    spec.need_discrete("agent=heuristic")
    return heuristic, heuristic.make(spec, env_factory)


def _stem(name: str) -> str:
    """Convert a name like `LunarLander-v3` to the form `lunar_lander`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2].partition("-")[0]).lower()
    return {"cart_pole": "cartpole"}.get(snake, snake)


def _blackjack(observation: np.ndarray) -> np.ndarray:
    """Play basic strategy without doubling and splitting. Dealer sums of 2 to 6 are weak, an ace is strong."""
    player, dealer = observation[:, :32].argmax(1), observation[:, 32:43].argmax(1)
    soft = observation[:, 43:45].argmax(1) == 1
    weak = (dealer >= 2) & (dealer <= 6)
    hard_hit = (
        (player <= 11) | ((player == 12) & ((dealer < 4) | (dealer > 6))) | ((player <= 16) & (player > 12) & ~weak)
    )
    soft_hit = (player <= 17) | ((player == 18) & ((dealer >= 9) | (dealer == 1)))
    return np.asarray(np.where(soft, soft_hit, hard_hit), dtype=np.int64)


def _cartpole(observation: np.ndarray) -> np.ndarray:
    """Push towards the side to which the pole falls, earlier when the cart is far from the center or fast."""
    return np.asarray(observation @ np.array([0.05, 0.15, 1.0, 0.35]) > 0, dtype=np.int64)


def _pump_energy(speed: int) -> Rule:
    """Return a rule that pushes in the direction of a speed, given by its index in an observation.

    This adds energy in every step.
    """
    return lambda observation: np.where(observation[:, speed] >= 0, 2, 0)


def _lunar_lander(observation: np.ndarray) -> np.ndarray:
    """Combine two proportional-derivative controllers.

    One leans against position and drift; the other slows the descent with decreasing height.
    """
    x, y, vx, vy, angle, spin = observation[:, :6].T
    landed = observation[:, 6:8].sum(1) > 0
    # Leaning to the left (a positive angle) lets the main engine push to the left.
    target_angle = np.clip(0.55 * x + 1.05 * vx, -0.4, 0.4)
    turn = np.where(landed, 0.0, 0.5 * (target_angle - angle) - spin)
    lift = np.where(landed, -0.5 * vy, 0.5 * (0.55 * np.abs(x) - y) - 0.5 * vy)
    action = np.where(turn > 0.05, 1, np.where(turn < -0.05, 3, 0))
    return np.asarray(np.where((lift > np.abs(turn)) & (lift > 0.05), 2, action), dtype=np.int64)


def _cliff_walking(states: np.ndarray) -> np.ndarray:
    """Walk up, along the edge of the cliff, and down."""
    row, column = np.divmod(states, 12)
    return np.where(column == 11, 2, np.where(row == 3, 0, 1))


_TAXI_STOPS = ((0, 0), (0, 4), (4, 0), (4, 3))
_TAXI_MAP = (":|::", ":|::", "::::", "|:|:", "|:|:")
"""Borders between columns, row by row: `|` is a wall."""


def _taxi(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Return a rule that takes shortest paths to the passenger and then to the destination."""
    moves = [_first_moves(stop) for stop in _TAXI_STOPS]
    table = np.zeros(500, dtype=np.int64)
    for state in range(500):
        row, column, passenger, destination = map(int, np.unravel_index(state, (5, 5, 5, 4)))
        aboard = passenger == 4
        target = destination if aboard else passenger
        at_target = (row, column) == _TAXI_STOPS[target]
        table[state] = (5 if aboard else 4) if at_target else moves[target][row, column]
    return lambda states: table[states]


def _first_moves(target: tuple[int, int]) -> np.ndarray:
    """Return the first move of a shortest path to `target` from every cell, [5, 5].

    Moves are 0 south, 1 north, 2 east, 3 west.
    """
    moves = np.zeros((5, 5), dtype=np.int64)
    visited, queue = {target}, deque([target])
    while queue:
        row, column = queue.popleft()
        # The move leads from the neighboring cell to this one.
        for d_row, d_column, move in ((-1, 0, 0), (1, 0, 1), (0, -1, 2), (0, 1, 3)):
            cell = row + d_row, column + d_column
            in_bounds = 0 <= cell[0] < 5 and 0 <= cell[1] < 5
            if not in_bounds or cell in visited or (d_column and _TAXI_MAP[row][min(column, cell[1])] == "|"):
                continue
            visited.add(cell)
            moves[cell] = move
            queue.append(cell)
    return moves


def _frozen_lake(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Return the optimal policy by value iteration on the game's transition table."""
    if env_factory is None:
        raise ConfigError(
            f"agent=heuristic needs Gymnasium's transition table of frozen_lake, but env={spec.name} has none; use "
            "another agent"
        )
    games = replace(env_factory, engine="batched").make(1)
    assert isinstance(games, TabularGames)
    best = games.table.best_policy()
    return lambda states: best[states]


def _commons(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Return a rule that takes the largest amount that keeps the stock constant if all players take it."""
    amounts = np.array([int(name.removeprefix("take_")) for name in spec.action_names])
    capacity, growth = int(spec.facts["capacity"]), int(spec.facts["growth"])

    def rule(observation: np.ndarray) -> np.ndarray:
        stock = np.rint(observation[:, 0] * capacity).astype(np.int64)
        share = (stock + -stock // growth) // spec.n_players
        return np.asarray(np.searchsorted(amounts, share, side="right") - 1, dtype=np.int64)

    return rule


def _tax_economy(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Return a rule that works the optimal hours for the rest of the year, assuming last year's transfer."""
    citizens = Citizens.from_facts(spec.facts)
    column = {name: i for i, name in enumerate(VECTOR_FIELDS)}
    mean_wage, full_time = spec.facts["mean_wage"], spec.facts["full_time_income"]

    def rule(observation: np.ndarray) -> np.ndarray:
        observation = observation.astype(np.float64)
        wage = mean_wage * np.exp(observation[:, column["wage"]])
        transfer, earned = (full_time * np.expm1(observation[:, column[name]]) for name in ("last_transfer", "earned"))
        steps_left = citizens.steps_per_year - np.round(
            observation[:, column["share_of_year"]] * citizens.steps_per_year
        )
        return citizens.best_actions(wage, observation[:, len(VECTOR_FIELDS) :], transfer, earned, steps_left)

    return rule


def _same_for_all(rule: Rule) -> RuleFactory:
    """Return the factory of a rule that does not depend on the options of an environment."""
    return lambda spec, env_factory: rule


_ACROBOT = _same_for_all(_pump_energy(speed=5))
_MOUNTAIN_CAR = _same_for_all(_pump_energy(speed=1))
_SUSTAINABLE_SHARE = Heuristic("vector", "takes its sustainable share", _commons)
HEURISTICS: dict[str, Heuristic] = {
    "acrobot": Heuristic("vector", "pumps energy", _ACROBOT),
    "blackjack": Heuristic("vector", "basic strategy", _same_for_all(_blackjack)),
    "cartpole": Heuristic("vector", "pushes under the falling pole", _same_for_all(_cartpole)),
    "cliff_walking": Heuristic("state", "the shortest way", _same_for_all(_cliff_walking)),
    "fishery": _SUSTAINABLE_SHARE,
    "frozen_lake": Heuristic("state", "the likeliest way", _frozen_lake),
    "lunar_lander": Heuristic("vector", "two PD controllers", _same_for_all(_lunar_lander)),
    "mountain_car": Heuristic("vector", "pumps energy", _MOUNTAIN_CAR),
    "pasture": _SUSTAINABLE_SHARE,
    "pollution": _SUSTAINABLE_SHARE,
    "tax_economy": Heuristic(
        "vector", "best response to rates and last transfer", _tax_economy, additional_channels=("mechanism",)
    ),
    "taxi": Heuristic("state", "the shortest way", _taxi),
}
"""Rules by the value of `env`; Gymnasium's ids are accepted, too (`_stem`)."""
