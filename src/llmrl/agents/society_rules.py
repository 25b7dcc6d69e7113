"""Rules for players of a society: foragers, cleaners and turn-takers, and the crew of an escape room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec

Role = Literal["forager", "cleaner", "turn_taker"]
_OWN_CELL = (9, 5)
"""Row and column of the player's own cell in a view [11, 11]; row 0 is farthest ahead."""
_MAX_PATH_STEPS = 30
"""Maximum length of a path to a target."""
_MOVES = (("forward", -1, 0), ("step_left", 0, -1), ("step_right", 0, 1), ("backward", 1, 0))
"""Moves without a turn, with their changes of row and column; of equally good moves, the first is taken."""

_BEAM_LINES = (((-1, 0), (-2, 0), (-3, 0)), ((0, -1), (-1, -1), (-2, -1)), ((0, 1), (-1, 1), (-2, 1)))
"""The three lines of the cleaning beam, as rows and columns relative to the player; a wall ends a line."""


@dataclass(frozen=True)
class Rule:
    """Rule for all players of a game.

    Attributes:
        channels: observation channels that the rule reads; the arrays of several channels are concatenated.
        description: short description of the rule.
        choose_actions: function that returns actions [n_envs, k] of k players, from their observations [n_envs, k,
            ...], the steps of each episode so far [n_envs], and the players' indices in the game.
        counts_steps: whether the steps of episodes are counted, as the memory of the policy; otherwise they are 0.
    """

    channels: tuple[str, ...]
    description: str
    choose_actions: Callable[[np.ndarray, np.ndarray, Sequence[int]], np.ndarray]
    counts_steps: bool = True


def make_society_rule(spec: EnvSpec, role: Role | None, steps_per_turn: int, max_cleaners: int) -> Rule | None:
    """Return the rule for a society; None for other environments.

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
    players = _GridPlayers(spec)

    def take_turns(views: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        first_cleaner = (steps // steps_per_turn) * max_cleaners % spec.n_players
        is_cleaning = (np.asarray(seats)[None] - first_cleaner[:, None]) % spec.n_players < max_cleaners
        return np.where(is_cleaning, players.clean(views), players.forage(views))

    if role == "turn_taker":
        description = f"{max_cleaners} players at once clean in turn, {steps_per_turn} steps each, and forage otherwise"
        return Rule(("grid",), description, take_turns)
    if role == "cleaner":
        description = "cleans dirt in view, else looks for some"
        return Rule(("grid",), description, lambda views, *_: players.clean(views))
    description = "walks to the nearest apple in view, else looks for some"
    return Rule(("grid",), description, lambda views, *_: players.forage(views))


def _make_escape_room_rule(spec: EnvSpec) -> Rule:
    """Return the rule for an escape room: the first players go to the working lever, the others to the door."""
    min_players_at_lever, n_levers = int(spec.facts["min_agents_per_lever"]), spec.n_actions - 2

    def choose_actions(vectors: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        working_lever: Any = vectors[:, 0, -n_levers:].argmax(-1)
        is_at_lever = np.asarray(seats) < min_players_at_lever
        return np.where(is_at_lever[None], working_lever[:, None], n_levers)

    return Rule(("vector",), "enough players hold the lever, the others leave", choose_actions)


class _GridPlayers:
    """Players of Clean Up and Harvest, who walk to cells that they see on their map (`grid_text.count_grid_codes`)."""

    def __init__(self, spec: EnvSpec) -> None:
        planes = spec.observation["grid"].planes if "grid" in spec.observation else {}
        self._apple_code, self._dirt_code, self._wall_code = (
            planes.get(name, (0, -1, -1))[1] for name in ("apple", "dirt", "wall")
        )
        self._action_index = {name: i for i, name in enumerate(spec.action_names)}

    def forage(self, views: np.ndarray) -> np.ndarray:
        """Return the actions of foragers, [n_envs, k], from views [n_envs, k, 11, 11, 4]."""
        return self._move_to(views, views[..., 0] == self._apple_code)

    def clean(self, views: np.ndarray) -> np.ndarray:
        """Return the actions of cleaners, [n_envs, k], from views [n_envs, k, 11, 11, 4]."""
        dirt, wall = views[..., 0] == self._dirt_code, views[..., 0] == self._wall_code
        beam_cells = np.zeros_like(dirt)  # cells from which the beam reaches dirt, with the present orientation
        for line in _BEAM_LINES:
            is_reached = np.ones_like(dirt)
            for d_row, d_column in line:
                beam_cells |= is_reached & _shift_cells(dirt, d_row, d_column)
                is_reached &= ~_shift_cells(wall, d_row, d_column)
        y, x = _OWN_CELL
        return np.where(beam_cells[..., y, x], self._action_index["clean"], self._move_to(views, beam_cells))

    def _move_to(self, views: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the first moves of shortest paths to `targets` [..., 11, 11].

        If no target can be reached, the player searches: it walks ahead until it is blocked, with occasional turns.
        """
        is_free = (views[..., 0] != self._wall_code) & (views[..., 0] != 0) & (views[..., 1] <= 1)
        reachable = targets & is_free
        first_moves = np.full(targets.shape[:-2], -1)
        y, x = _OWN_CELL
        for _ in range(_MAX_PATH_STEPS):
            is_undecided = first_moves < 0
            for name, d_row, d_column in _MOVES:
                has_arrived = reachable[..., y + d_row, x + d_column] & is_undecided & (first_moves < 0)
                first_moves[has_arrived] = self._action_index[name]
            if (first_moves >= 0).all():
                break
            next_reachable = reachable.copy()
            next_reachable[..., 1:, :] |= reachable[..., :-1, :]
            next_reachable[..., :-1, :] |= reachable[..., 1:, :]
            next_reachable[..., :, 1:] |= reachable[..., :, :-1]
            next_reachable[..., :, :-1] |= reachable[..., :, 1:]
            reachable = next_reachable & is_free
        is_blocked = ~is_free[..., y - 1, x]
        # The checksum of the view varies the steps of turns; otherwise players could walk in circles forever.
        checksum = (views.reshape(*first_moves.shape, -1).astype(np.int64) * np.arange(1, views[0, 0].size + 1)).sum(-1)
        is_turning = is_blocked | (checksum % 12 == 0)
        turn_action = np.where(checksum % 2 == 0, self._action_index["turn_left"], self._action_index["turn_right"])
        return np.where(first_moves >= 0, first_moves, np.where(is_turning, turn_action, self._action_index["forward"]))


def _shift_cells(cells: np.ndarray, d_row: int, d_column: int) -> np.ndarray:
    """Return the cells [..., 11, 11] shifted, so that each holds the cell `d_row` below and `d_column` to its right.

    Cells outside are False.
    """
    height, width = cells.shape[-2:]
    n = max(abs(d_row), abs(d_column))
    padded = np.pad(cells, [*[(0, 0)] * (cells.ndim - 2), (n, n), (n, n)])
    return padded[..., n + d_row : n + d_row + height, n + d_column : n + d_column + width]
