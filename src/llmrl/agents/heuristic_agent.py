"""Agent `agent=heuristic`, which follows a hand-written rule for some environments.

Game: one parallel copy of an environment. Player: an agent in it. Seat: the index of a player in its game.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from llmrl.core.agent_interfaces import NonLearningAgent, PolicyWithoutValues
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.tax_citizens import EconomyRules
from llmrl.envs.tax_economy import VECTOR_FIELDS

Role = Literal["forager", "cleaner", "turn_taker"]
PlayerRule = Callable[[np.ndarray], np.ndarray]
"""Function from observations [n, k] or states [n] of n players to actions [n]."""
PlayerRuleFactory = Callable[[EnvSpec, EnvFactory | None], PlayerRule]
"""Function that returns a rule, given the spec of an environment and the factory of its games."""


@dataclass(frozen=True)
class GameRule:
    """Rule for all players of a game.

    Attributes:
        channels: observation channels that the rule reads; the arrays of several channels are concatenated.
        description: short description of the rule.
        choose_actions: function that returns actions [n_envs, k] of k players, given their observations [n_envs, k,
            ...], the number of steps of each episode so far [n_envs], and the players' seats.
        counts_steps: whether steps are counted in the memory state of the policy; otherwise they are always 0.
    """

    channels: tuple[str, ...]
    description: str
    choose_actions: Callable[[np.ndarray, np.ndarray, Sequence[int]], np.ndarray]
    counts_steps: bool = True


@dataclass(frozen=True)
class Heuristic:
    """Rule by which each player acts only on its current observation.

    Attributes:
        channels: channels that the rule reads; the arrays of several channels are concatenated.
        description: short description of the rule.
        make_player_rule: function that returns the rule for an environment.
    """

    channels: tuple[str, ...]
    description: str
    make_player_rule: PlayerRuleFactory


class HeuristicPolicy(PolicyWithoutValues):
    """Policy that follows a rule; its memory state is the step of the episode, if the rule reads it.

    Args:
        spec: spec of the environment, restricted to the players with this policy.
        rule: rule to follow.

    Raises:
        ConfigError: the environment lacks a channel that the rule reads.
    """

    def __init__(self, spec: EnvSpec, rule: GameRule) -> None:
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
    """Agent that follows a rule and never learns.

    Args:
        spec: spec of the environment.
        env_factory: factory of its games, for rules computed from a transition table; None: the environment is not a
            Gymnasium environment.
        role: in Clean Up and Harvest, `forager`, `cleaner` or `turn_taker`; None: `forager`.
        turn: number of steps for which turn-takers clean.
        max_cleaners: number of turn-takers who clean at the same time.

    Raises:
        ConfigError: the environment has no such role, or lacks a channel or transition table that the rule needs.
        Incompatible: there is no rule for the environment.
    """

    def __init__(
        self,
        spec: EnvSpec,
        env_factory: EnvFactory | None = None,
        role: Role | None = None,
        turn: PositiveInt = 200,
        max_cleaners: PositiveInt = 3,
    ) -> None:
        rule = _make_society_rule(spec, role, turn, max_cleaners) or _make_rule(spec, env_factory)
        self.policy = HeuristicPolicy(spec, rule)

    def describe(self) -> dict[str, Any]:
        return {"policy": f"a rule: {self.policy.rule.description}", "parameters": 0}


def _make_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> GameRule:
    """Return the rule of `HEURISTICS` for an environment; `env_factory`: see `HeuristicAgent`.

    Raises:
        Incompatible: there is no rule.
    """
    heuristic = HEURISTICS.get(_to_snake_case(spec.name))
    if heuristic is None:
        environments = ", ".join(sorted((*HEURISTICS, "cleanup", "escape_room", "harvest")))
        raise Incompatible(
            IncompatibilityReason.WRONG_GAME,
            f"agent=heuristic has no rule for env={spec.name}; it has rules for {environments}",
        )
    spec.require_discrete_actions("agent=heuristic")
    player_rule = heuristic.make_player_rule(spec, env_factory)

    def choose_actions(observations: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        n_envs, n_players = observations.shape[:2]
        actions = np.asarray(player_rule(observations.reshape(n_envs * n_players, *observations.shape[2:])))
        return actions.reshape(n_envs, n_players)

    return GameRule(heuristic.channels, heuristic.description, choose_actions, counts_steps=False)


_PLAYER_CELL = (9, 5)
"""Row and column of the player in a view [11, 11]; row 0 is farthest ahead."""
_MAX_PATH_STEPS = 30
"""Maximum number of steps of a path to a target; targets farther away are ignored."""
_MOVES = (("forward", -1, 0), ("step_left", 0, -1), ("step_right", 0, 1), ("backward", 1, 0))
"""Moves without a turn, with their changes of row and column, in order of priority among equally good moves."""

_BEAM_LINES = (((-1, 0), (-2, 0), (-3, 0)), ((0, -1), (-1, -1), (-2, -1)), ((0, 1), (-1, 1), (-2, 1)))
"""Cells (row, column) of the three lines of the cleaning beam, relative to the player; a wall ends a line."""


def _make_society_rule(spec: EnvSpec, role: Role | None, steps_per_turn: int, max_cleaners: int) -> GameRule | None:
    """Return the rule for Clean Up, Harvest or the escape room; None for other environments.

    Args:
        spec: spec of the environment.
        role: role of the players in Clean Up or Harvest; None: forager.
        steps_per_turn: number of steps for which turn-takers clean before the next players do.
        max_cleaners: number of players who clean at the same time.

    Raises:
        ConfigError: the environment does not have the role.
    """
    if spec.name not in ("cleanup", "harvest"):
        if role is not None:
            raise ConfigError(f"agent.role={role} is for env=cleanup and env=harvest; leave it null")
        return _make_escape_room_rule(spec) if spec.name == "escape_room" else None
    if role in ("cleaner", "turn_taker") and "clean" not in spec.action_names:
        raise ConfigError(f"agent.role={role} needs a river to clean; use env=cleanup or agent.role=forager")
    grid_rules = _GridRules(spec)

    def choose_actions_in_turns(views: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        first_cleaner = (steps // steps_per_turn) * max_cleaners % spec.n_players
        is_cleaning = (np.asarray(seats)[None] - first_cleaner[:, None]) % spec.n_players < max_cleaners
        return np.where(is_cleaning, grid_rules.find_cleaning_actions(views), grid_rules.find_foraging_moves(views))

    if role == "turn_taker":
        description = f"{max_cleaners} players at once clean in turn, {steps_per_turn} steps each, and forage otherwise"
        return GameRule(("grid",), description, choose_actions_in_turns)
    if role == "cleaner":
        description = "cleans dirt in view, else looks for some"
        return GameRule(("grid",), description, lambda views, *_: grid_rules.find_cleaning_actions(views))
    description = "walks to the nearest apple in view, else looks for some"
    return GameRule(("grid",), description, lambda views, *_: grid_rules.find_foraging_moves(views))


def _make_escape_room_rule(spec: EnvSpec) -> GameRule:
    """Return the rule for an escape room: the first players go to the working lever, the others to the door."""
    min_players_at_lever, n_levers = int(spec.facts["min_agents_per_lever"]), spec.n_actions - 2

    def choose_actions(vectors: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        working_lever: Any = vectors[:, 0, -n_levers:].argmax(-1)
        is_at_lever = np.asarray(seats) < min_players_at_lever
        return np.where(is_at_lever[None], working_lever[:, None], n_levers)

    return GameRule(("vector",), "enough players hold the lever, the others leave", choose_actions)


class _GridRules:
    """Rules for players of Clean Up and Harvest, who walk to cells in their view (`grid_text.count_grid_codes`)."""

    def __init__(self, spec: EnvSpec) -> None:
        planes = spec.observation["grid"].planes if "grid" in spec.observation else {}
        self._apple_code, self._dirt_code, self._wall_code = (
            planes.get(name, (0, -1, -1))[1] for name in ("apple", "dirt", "wall")
        )
        self._action_index = {name: i for i, name in enumerate(spec.action_names)}

    def find_foraging_moves(self, views: np.ndarray) -> np.ndarray:
        """Return the actions of foragers, [n_envs, k], given views [n_envs, k, 11, 11, 4]."""
        return self._find_moves_to(views, views[..., 0] == self._apple_code)

    def find_cleaning_actions(self, views: np.ndarray) -> np.ndarray:
        """Return the actions of cleaners, [n_envs, k], given views [n_envs, k, 11, 11, 4]."""
        dirt, wall = views[..., 0] == self._dirt_code, views[..., 0] == self._wall_code
        beam_cells = np.zeros_like(dirt)  # cells from which the beam reaches dirt, with the current heading
        for line in _BEAM_LINES:
            is_reached = np.ones_like(dirt)
            for d_row, d_column in line:
                beam_cells |= is_reached & _shift_cells(dirt, d_row, d_column)
                is_reached &= ~_shift_cells(wall, d_row, d_column)
        y, x = _PLAYER_CELL
        return np.where(beam_cells[..., y, x], self._action_index["clean"], self._find_moves_to(views, beam_cells))

    def _find_moves_to(self, views: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the first moves of shortest paths to cells where `targets` [..., 11, 11] is true.

        If no target is reachable, the player explores: it walks ahead, turns where blocked, and sometimes elsewhere.
        """
        is_free = (views[..., 0] != self._wall_code) & (views[..., 0] != 0) & (views[..., 1] <= 1)
        can_reach_target = targets & is_free
        first_moves = np.full(targets.shape[:-2], -1)
        y, x = _PLAYER_CELL
        for _ in range(_MAX_PATH_STEPS):
            is_undecided = first_moves < 0
            for name, d_row, d_column in _MOVES:
                leads_to_target = can_reach_target[..., y + d_row, x + d_column] & is_undecided & (first_moves < 0)
                first_moves[leads_to_target] = self._action_index[name]
            if (first_moves >= 0).all():
                break
            can_reach_next = can_reach_target.copy()
            can_reach_next[..., 1:, :] |= can_reach_target[..., :-1, :]
            can_reach_next[..., :-1, :] |= can_reach_target[..., 1:, :]
            can_reach_next[..., :, 1:] |= can_reach_target[..., :, :-1]
            can_reach_next[..., :, :-1] |= can_reach_target[..., :, 1:]
            can_reach_target = can_reach_next & is_free
        is_blocked = ~is_free[..., y - 1, x]
        # Turns depend on a checksum of the view, as a substitute for random numbers, so that players leave cycles.
        checksum = (views.reshape(*first_moves.shape, -1).astype(np.int64) * np.arange(1, views[0, 0].size + 1)).sum(-1)
        is_turning = is_blocked | (checksum % 12 == 0)
        turn_action = np.where(checksum % 2 == 0, self._action_index["turn_left"], self._action_index["turn_right"])
        return np.where(first_moves >= 0, first_moves, np.where(is_turning, turn_action, self._action_index["forward"]))


def _shift_cells(cells: np.ndarray, d_row: int, d_column: int) -> np.ndarray:
    """Return cells [..., 11, 11] whose element (i, j) is element (i + `d_row`, j + `d_column`) of `cells`.

    It is False where that element is outside of `cells`.
    """
    height, width = cells.shape[-2:]
    n = max(abs(d_row), abs(d_column))
    padded = np.pad(cells, [*[(0, 0)] * (cells.ndim - 2), (n, n), (n, n)])
    return padded[..., n + d_row : n + d_row + height, n + d_column : n + d_column + width]


def _to_snake_case(name: str) -> str:
    """Convert a name like `LunarLander-v3` to the form `lunar_lander`."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition("/")[2].partition("-")[0]).lower()
    return {"cart_pole": "cartpole"}.get(snake, snake)


def _play_blackjack(observation: np.ndarray) -> np.ndarray:
    """Return the actions of basic strategy without doubling and splitting; dealer cards from 2 to 6 are weak."""
    player_sum, dealer_card = observation[:, :32].argmax(1), observation[:, 32:43].argmax(1)
    is_soft = observation[:, 43:45].argmax(1) == 1
    is_dealer_weak = (dealer_card >= 2) & (dealer_card <= 6)
    hits_hard_hand = (
        (player_sum <= 11)
        | ((player_sum == 12) & ((dealer_card < 4) | (dealer_card > 6)))
        | ((player_sum <= 16) & (player_sum > 12) & ~is_dealer_weak)
    )
    hits_soft_hand = (player_sum <= 17) | ((player_sum == 18) & ((dealer_card >= 9) | (dealer_card == 1)))
    return np.asarray(np.where(is_soft, hits_soft_hand, hits_hard_hand), dtype=np.int64)


def _play_cartpole(observation: np.ndarray) -> np.ndarray:
    """Return pushes to where the pole falls; hand-tuned weights of position, velocity, angle and angular velocity."""
    return np.asarray(observation @ np.array([0.05, 0.15, 1.0, 0.35]) > 0, dtype=np.int64)


def _make_energy_pumping_rule(velocity_index: int) -> PlayerRule:
    """Return a rule that adds energy by pushes in the direction of the velocity `observation[:, velocity_index]`."""
    return lambda observation: np.where(observation[:, velocity_index] >= 0, 2, 0)


def _play_lunar_lander(observation: np.ndarray) -> np.ndarray:
    """Return the actions of two proportional-derivative controllers: tilt against drift, and descent by height.

    The gains are those of the heuristic in Gymnasium's LunarLander, modified.
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
    """Return the actions of the path that goes up, right along the edge of the cliff, and down."""
    row, column = np.divmod(states, 12)
    return np.where(column == 11, 2, np.where(row == 3, 0, 1))


_TAXI_STOP_CELLS = ((0, 0), (0, 4), (4, 0), (4, 3))  # (row, column) of the four locations
_TAXI_WALLS = (":|::", ":|::", "::::", "|:|:", "|:|:")
"""Borders between neighboring cells of each row: `|` is a wall."""


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
        # `move` leads from the neighboring cell to this cell.
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
    """Return the rule of the optimal policy, computed by value iteration on the transition table of the environment."""
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
    """Return a rule that takes the largest amount that does not reduce the stock if all players take it."""
    amounts = np.array([int(name.removeprefix("take_")) for name in spec.action_names])
    capacity, growth = int(spec.facts["capacity"]), int(spec.facts["growth"])

    def rule(observation: np.ndarray) -> np.ndarray:
        stock = np.rint(observation[:, 0] * capacity).astype(np.int64)
        amount_per_player = (stock + -stock // growth) // spec.n_players
        return np.asarray(np.searchsorted(amounts, amount_per_player, side="right") - 1, dtype=np.int64)

    return rule


def _make_tax_economy_rule(spec: EnvSpec, env_factory: EnvFactory | None) -> PlayerRule:
    """Return a rule that chooses the optimal hours for the rest of the year, if the transfer is that of last year."""
    economy_rules = EconomyRules.from_facts(spec.facts)
    columns = {name: i for i, name in enumerate(VECTOR_FIELDS)}
    mean_wage, full_time = spec.facts["mean_wage"], spec.facts["full_time_income"]

    def rule(observation: np.ndarray) -> np.ndarray:
        observation = observation.astype(np.float64)
        wage = mean_wage * np.exp(observation[:, columns["wage"]])
        transfer, income = (full_time * np.expm1(observation[:, columns[name]]) for name in ("last_transfer", "earned"))
        steps_left = economy_rules.steps_per_year - np.round(
            observation[:, columns["share_of_year"]] * economy_rules.steps_per_year
        )
        return economy_rules.find_best_actions(wage, observation[:, len(VECTOR_FIELDS) :], transfer, income, steps_left)

    return rule


def _make_constant_factory(rule: PlayerRule) -> PlayerRuleFactory:
    """Return a factory that returns `rule`, which does not depend on the spec of an environment."""
    return lambda spec, env_factory: rule


_ACROBOT_FACTORY = _make_constant_factory(_make_energy_pumping_rule(velocity_index=5))
_MOUNTAIN_CAR_FACTORY = _make_constant_factory(_make_energy_pumping_rule(velocity_index=1))
_SUSTAINABLE_HARVEST = Heuristic(("vector",), "takes its sustainable share", _make_commons_rule)
HEURISTICS: dict[str, Heuristic] = {
    "acrobot": Heuristic(("vector",), "pumps energy", _ACROBOT_FACTORY),
    "blackjack": Heuristic(("vector",), "basic strategy", _make_constant_factory(_play_blackjack)),
    "cartpole": Heuristic(("vector",), "pushes under the falling pole", _make_constant_factory(_play_cartpole)),
    "cliff_walking": Heuristic(("state",), "the shortest way", _make_constant_factory(_play_cliff_walking)),
    "fishery": _SUSTAINABLE_HARVEST,
    "frozen_lake": Heuristic(("state",), "the likeliest way", _make_frozen_lake_rule),
    "lunar_lander": Heuristic(("vector",), "two PD controllers", _make_constant_factory(_play_lunar_lander)),
    "mountain_car": Heuristic(("vector",), "pumps energy", _MOUNTAIN_CAR_FACTORY),
    "pasture": _SUSTAINABLE_HARVEST,
    "pollution": _SUSTAINABLE_HARVEST,
    "tax_economy": Heuristic(
        ("vector", "mechanism"), "best response to rates and last transfer", _make_tax_economy_rule
    ),
    "taxi": Heuristic(("state",), "the shortest way", _make_taxi_rule),
}
"""Name of the environment, or Gymnasium id in snake case (`_to_snake_case`) -> heuristic."""
