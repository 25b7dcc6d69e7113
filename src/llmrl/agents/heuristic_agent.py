"""Agent `agent=heuristic`, which plays a simple rule for environments that have one."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from llmrl.agents.society_rules import Role, Rule, make_society_rule
from llmrl.core.agent_interfaces import NonLearningAgent, PolicyWithoutValues
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.tax_citizens import Citizens
from llmrl.envs.tax_economy import VECTOR_FIELDS

PlayerRule = Callable[[np.ndarray], np.ndarray]
"""Function from observations [n, k] or states [n] of n players to actions [n]."""
RuleFactory = Callable[[EnvSpec, EnvFactory | None], PlayerRule]
"""Function from the spec of an environment and the factory of its games to a rule."""


@dataclass(frozen=True)
class Heuristic:
    """Rule for an environment in which each player acts by its own present observation.

    Attributes:
        channels: channels that the rule reads; the arrays of several channels are concatenated.
        description: short description of the rule.
        make_rule: function that builds the rule for an environment.
    """

    channels: tuple[str, ...]
    description: str
    make_rule: RuleFactory


class HeuristicPolicy(PolicyWithoutValues):
    """Policy that follows a rule; its memory is the step of the episode, if the rule reads it.

    Args:
        spec: spec of the environment, or of a part of its players.
        rule: rule to follow.

    Raises:
        ConfigError: the environment lacks a channel that the rule reads.
    """

    def __init__(self, spec: EnvSpec, rule: Rule) -> None:
        for channel in rule.channels:
            if channel not in spec.observation:
                raise ConfigError(
                    f"agent=heuristic needs the channel {channel!r} of env={spec.name}, which has only "
                    f"{', '.join(spec.observation)}; see env.observe"
                )
        self.rule, self.channels, self.seats = rule, rule.channels, spec.seats or tuple(range(spec.n_agents))

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return the rule's actions; they depend only on observations and steps."""
        arrays = [observation[channel].cpu().numpy() for channel in self.channels]
        inputs = np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]
        steps = torch.zeros((*inputs.shape[:2], 1)) if state is None else state
        action = self.rule.choose_actions(inputs, steps[:, 0, 0].cpu().numpy().astype(np.int64), self.seats)
        next_state = steps + 1 if self.rule.counts_steps else None
        return PolicyOutput(torch.from_numpy(action.astype(np.int64)), state=next_state)


class HeuristicAgent(NonLearningAgent):
    """Agent that plays by a rule and never learns.

    Args:
        spec: spec of the environment.
        env_factory: factory of its games, for rules computed from the game's transition table; None: not a Gymnasium
            environment.
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
        rule = make_society_rule(spec, role, turn, max_cleaners) or _make_rule(spec, env_factory)
        self.policy = HeuristicPolicy(spec, rule)

    def describe(self) -> dict[str, Any]:
        return {"policy": f"a rule: {self.policy.rule.description}", "parameters": 0}


def _make_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> Rule:
    """Return the rule of `HEURISTICS` for an environment; `env_factory` makes its games if they are Gymnasium's.

    Raises:
        ConfigError: there is no rule.
    """
    heuristic = HEURISTICS.get(_to_snake_case(spec.name))
    if heuristic is None:
        environments = ", ".join(sorted((*HEURISTICS, "cleanup", "escape_room", "harvest")))
        raise Incompatible(
            Misfit.ONE_GAME, f"agent=heuristic has no rule for env={spec.name}; it has rules for {environments}"
        )
    spec.need_discrete("agent=heuristic")
    player_rule = heuristic.make_rule(spec, env_factory)

    def choose_actions(observations: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        n_envs, n_players = observations.shape[:2]
        actions = np.asarray(player_rule(observations.reshape(n_envs * n_players, *observations.shape[2:])))
        return actions.reshape(n_envs, n_players)

    return Rule(heuristic.channels, heuristic.description, choose_actions, counts_steps=False)


def _to_snake_case(name: str) -> str:
    """Convert a name like `LunarLander-v3` to the form `lunar_lander`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2].partition("-")[0]).lower()
    return {"cart_pole": "cartpole"}.get(snake, snake)


def _play_blackjack(observation: np.ndarray) -> np.ndarray:
    """Play basic strategy without doubling and splitting. Dealer sums of 2 to 6 are weak, an ace is strong."""
    player_sum, dealer_sum = observation[:, :32].argmax(1), observation[:, 32:43].argmax(1)
    is_soft = observation[:, 43:45].argmax(1) == 1
    is_weak = (dealer_sum >= 2) & (dealer_sum <= 6)
    hits_hard_hand = (
        (player_sum <= 11)
        | ((player_sum == 12) & ((dealer_sum < 4) | (dealer_sum > 6)))
        | ((player_sum <= 16) & (player_sum > 12) & ~is_weak)
    )
    hits_soft_hand = (player_sum <= 17) | ((player_sum == 18) & ((dealer_sum >= 9) | (dealer_sum == 1)))
    return np.asarray(np.where(is_soft, hits_soft_hand, hits_hard_hand), dtype=np.int64)


def _play_cartpole(observation: np.ndarray) -> np.ndarray:
    """Push towards the side to which the pole falls, earlier when the cart is far from the center or fast."""
    return np.asarray(observation @ np.array([0.05, 0.15, 1.0, 0.35]) > 0, dtype=np.int64)


def _make_energy_pumping_rule(speed_index: int) -> PlayerRule:
    """Return a rule that pushes in the direction of the speed at an index of the observation, which adds energy."""
    return lambda observation: np.where(observation[:, speed_index] >= 0, 2, 0)


def _play_lunar_lander(observation: np.ndarray) -> np.ndarray:
    """Combine two proportional-derivative controllers.

    One leans against position and drift; the other slows the descent with decreasing height.
    """
    x, y, vx, vy, angle, spin = observation[:, :6].T
    has_landed = observation[:, 6:8].sum(1) > 0
    # Leaning to the left (a positive angle) lets the main engine push to the left.
    target_angle = np.clip(0.55 * x + 1.05 * vx, -0.4, 0.4)
    turn = np.where(has_landed, 0.0, 0.5 * (target_angle - angle) - spin)
    lift = np.where(has_landed, -0.5 * vy, 0.5 * (0.55 * np.abs(x) - y) - 0.5 * vy)
    action = np.where(turn > 0.05, 1, np.where(turn < -0.05, 3, 0))
    return np.asarray(np.where((lift > np.abs(turn)) & (lift > 0.05), 2, action), dtype=np.int64)


def _play_cliff_walking(states: np.ndarray) -> np.ndarray:
    """Walk up, along the edge of the cliff, and down."""
    row, column = np.divmod(states, 12)
    return np.where(column == 11, 2, np.where(row == 3, 0, 1))


_TAXI_STOP_CELLS = ((0, 0), (0, 4), (4, 0), (4, 3))
_TAXI_WALLS = (":|::", ":|::", "::::", "|:|:", "|:|:")
"""Borders between the cells of each row: `|` is a wall."""


def _make_taxi_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> PlayerRule:
    """Return a rule that takes shortest paths to the passenger and then to the destination."""
    moves = [_find_first_moves(stop) for stop in _TAXI_STOP_CELLS]
    table = np.zeros(500, dtype=np.int64)
    for state in range(500):
        row, column, passenger, destination = map(int, np.unravel_index(state, (5, 5, 5, 4)))
        is_aboard = passenger == 4
        target = destination if is_aboard else passenger
        is_at_target = (row, column) == _TAXI_STOP_CELLS[target]
        table[state] = (5 if is_aboard else 4) if is_at_target else moves[target][row, column]
    return lambda states: table[states]


def _find_first_moves(target: tuple[int, int]) -> np.ndarray:
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
            is_inside = 0 <= cell[0] < 5 and 0 <= cell[1] < 5
            if not is_inside or cell in visited or (d_column and _TAXI_WALLS[row][min(column, cell[1])] == "|"):
                continue
            visited.add(cell)
            moves[cell] = move
            queue.append(cell)
    return moves


def _make_frozen_lake_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> PlayerRule:
    """Return the optimal policy by value iteration on the game's transition table."""
    if env_factory is None:
        raise ConfigError(
            f"agent=heuristic needs Gymnasium's transition table of frozen_lake, but env={spec.name} has none; use "
            "another agent"
        )
    games = replace(env_factory, engine="batched").make(1)
    assert isinstance(games, TabularGames)
    best_actions = games.table.best_policy()
    return lambda states: best_actions[states]


def _make_commons_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> PlayerRule:
    """Return a rule that takes the largest amount that keeps the stock constant if all players take it."""
    amounts = np.array([int(name.removeprefix("take_")) for name in spec.action_names])
    capacity, growth = int(spec.facts["capacity"]), int(spec.facts["growth"])

    def rule(observation: np.ndarray) -> np.ndarray:
        stock = np.rint(observation[:, 0] * capacity).astype(np.int64)
        amount_per_player = (stock + -stock // growth) // spec.n_players
        return np.asarray(np.searchsorted(amounts, amount_per_player, side="right") - 1, dtype=np.int64)

    return rule


def _make_tax_economy_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> PlayerRule:
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


def _make_constant_factory(rule: PlayerRule) -> RuleFactory:
    """Return the factory of a rule that does not depend on the options of an environment."""
    return lambda spec, env_factory: rule


_ACROBOT = _make_constant_factory(_make_energy_pumping_rule(speed_index=5))
_MOUNTAIN_CAR = _make_constant_factory(_make_energy_pumping_rule(speed_index=1))
_SUSTAINABLE_HARVEST = Heuristic(("vector",), "takes its sustainable share", _make_commons_rule)
HEURISTICS: dict[str, Heuristic] = {
    "acrobot": Heuristic(("vector",), "pumps energy", _ACROBOT),
    "blackjack": Heuristic(("vector",), "basic strategy", _make_constant_factory(_play_blackjack)),
    "cartpole": Heuristic(("vector",), "pushes under the falling pole", _make_constant_factory(_play_cartpole)),
    "cliff_walking": Heuristic(("state",), "the shortest way", _make_constant_factory(_play_cliff_walking)),
    "fishery": _SUSTAINABLE_HARVEST,
    "frozen_lake": Heuristic(("state",), "the likeliest way", _make_frozen_lake_rule),
    "lunar_lander": Heuristic(("vector",), "two PD controllers", _make_constant_factory(_play_lunar_lander)),
    "mountain_car": Heuristic(("vector",), "pumps energy", _MOUNTAIN_CAR),
    "pasture": _SUSTAINABLE_HARVEST,
    "pollution": _SUSTAINABLE_HARVEST,
    "tax_economy": Heuristic(
        ("vector", "mechanism"), "best response to rates and last transfer", _make_tax_economy_rule
    ),
    "taxi": Heuristic(("state",), "the shortest way", _make_taxi_rule),
}
"""Rules by the value of `env`; Gymnasium's ids are accepted, too (`_to_snake_case`)."""
