"""Rules for players of a society: foragers, cleaners and turn-takers, and the crew of an escape room.

A rule reads the observation of one player, the step of the episode, and the player's index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from llmrl.core.agent_interfaces import PolicyWithoutValues
from llmrl.core.errors import ConfigError
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec

Role = Literal["forager", "cleaner", "turn_taker"]
_OWN_CELL = (9, 5)
"""Row and column of the player's own cell in a view [11, 11]; row 0 is farthest ahead."""
_MAX_PATH = 30
"""Maximum length of a path to a target, steps."""
_MOVES = (("forward", -1, 0), ("step_left", 0, -1), ("step_right", 0, 1), ("backward", 1, 0))
"""Moves without a turn, with their changes of row and column; of equally good moves, the first is taken."""

_BEAM = (((-1, 0), (-2, 0), (-3, 0)), ((0, -1), (-1, -1), (-2, -1)), ((0, 1), (-1, 1), (-2, 1)))
"""The three lines of the cleaning beam, as rows and columns relative to the player; a wall ends a line."""


@dataclass(frozen=True)
class Rules:
    """Rules for all players of a society.

    Attributes:
        channel: observation channel that the rules read.
        description: short description of the rules.
        act: function that returns actions [n_envs, k] of k players, from their observations [n_envs, k, ...], the steps
            of each episode so far [n_envs], and the players' indices in the game.
    """

    channel: str
    description: str
    act: Callable[[np.ndarray, np.ndarray, Sequence[int]], np.ndarray]


class SocietyRulePolicy(PolicyWithoutValues):
    """Policy that follows `Rules`; its memory is the step of the episode.

    Args:
        spec: spec of the environment, or of a part of its players.
        rules: rules to follow.
    """

    def __init__(self, spec: EnvSpec, rules: Rules) -> None:
        if rules.channel not in spec.observation:
            raise ConfigError(
                f"agent=heuristic needs the channel {rules.channel!r} of env={spec.name}, which has only "
                f"{', '.join(spec.observation)}; see env.observe"
            )
        self.rules, self.seats = rules, spec.seats or tuple(range(spec.n_agents))
        self.channels: tuple[str, ...] = (rules.channel,)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return the rules' actions; they depend only on observations and steps."""
        inputs = observation[self.rules.channel].cpu().numpy()
        steps = torch.zeros((*inputs.shape[:2], 1)) if state is None else state
        action = self.rules.act(inputs, steps[:, 0, 0].cpu().numpy().astype(np.int64), self.seats)
        return PolicyOutput(torch.from_numpy(action.astype(np.int64)), state=steps + 1)


def society_rules(spec: EnvSpec, role: Role | None, turn: int, max_cleaners: int) -> Rules | None:
    """Return the rules of a society; None for other environments.

    Args:
        spec: spec of the environment.
        role: role of the players in Clean Up or Harvest; None: forager.
        turn: number of steps for which turn-takers clean before the next players do.
        max_cleaners: number of players who clean at the same time.

    Raises:
        ConfigError: the environment does not have the role.
    """
    if spec.name not in ("cleanup", "harvest"):
        if role is not None:
            raise ConfigError(f"agent.role={role} is for env=cleanup and env=harvest; leave it null")
        is_escape_room = spec.name == "escape_room"
        description = "enough players hold the lever, the others leave"
        return Rules("vector", description, _Crew(spec).act) if is_escape_room else None
    if role in ("cleaner", "turn_taker") and "clean" not in spec.action_names:
        raise ConfigError(f"agent.role={role} needs a river to clean; use env=cleanup or agent.role=forager")
    forager = _Gatherer(spec)
    if role == "cleaner":
        return Rules("grid", "cleans dirt in view, else looks for some", lambda view, *_: forager.clean(view))
    if role == "turn_taker":
        description = f"{max_cleaners} players at once clean in turn, {turn} steps each, and forage otherwise"
        return Rules("grid", description, _TurnTakers(forager, spec, turn, max_cleaners).act)
    return Rules("grid", "walks to the nearest apple in view, else looks for some", lambda view, *_: forager.eat(view))


class _Gatherer:
    """Movement of players towards cells that they see on their map (`grid_text.count_grid_codes`)."""

    def __init__(self, spec: EnvSpec) -> None:
        planes = spec.observation["grid"].planes if "grid" in spec.observation else {}
        self._apple = planes.get("apple", (0, -1, -1))[1]
        self._dirt = planes.get("dirt", (0, -1, -1))[1]
        self._wall = planes.get("wall", (0, -1, -1))[1]
        self._action = {name: i for i, name in enumerate(spec.action_names)}

    def eat(self, views: np.ndarray) -> np.ndarray:
        """Return the actions of foragers, [n_envs, k], from views [n_envs, k, 11, 11, 4]."""
        return self._move_to(views, views[..., 0] == self._apple)

    def clean(self, views: np.ndarray) -> np.ndarray:
        """Return the actions of cleaners, [n_envs, k], from views [n_envs, k, 11, 11, 4]."""
        dirt, wall = views[..., 0] == self._dirt, views[..., 0] == self._wall
        beam_cells = np.zeros_like(dirt)  # cells from which the beam reaches dirt, with the present orientation
        for line in _BEAM:
            open_ = np.ones_like(dirt)
            for d_row, d_column in line:
                beam_cells |= open_ & _shift_cells(dirt, d_row, d_column)
                open_ &= ~_shift_cells(wall, d_row, d_column)
        y, x = _OWN_CELL
        return np.where(beam_cells[..., y, x], self._action["clean"], self._move_to(views, beam_cells))

    def _move_to(self, views: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the first moves of shortest paths to `targets` [..., 11, 11].

        If no target can be reached, the player searches: it walks ahead until it is blocked, with occasional turns.
        """
        free = (views[..., 0] != self._wall) & (views[..., 0] != 0) & (views[..., 1] <= 1)
        reachable = targets & free
        first_moves = np.full(targets.shape[:-2], -1)
        y, x = _OWN_CELL
        for _ in range(_MAX_PATH):
            undecided = first_moves < 0
            for name, d_row, d_column in _MOVES:
                arrived = reachable[..., y + d_row, x + d_column] & undecided & (first_moves < 0)
                first_moves[arrived] = self._action[name]
            if (first_moves >= 0).all():
                break
            expanded = reachable.copy()
            expanded[..., 1:, :] |= reachable[..., :-1, :]
            expanded[..., :-1, :] |= reachable[..., 1:, :]
            expanded[..., :, 1:] |= reachable[..., :, :-1]
            expanded[..., :, :-1] |= reachable[..., :, 1:]
            reachable = expanded & free
        blocked = ~free[..., y - 1, x]
        # The checksum of the view varies the time of turns; otherwise players could walk in circles forever.
        checksum = (views.reshape(*first_moves.shape, -1).astype(np.int64) * np.arange(1, views[0, 0].size + 1)).sum(-1)
        is_turning = blocked | (checksum % 12 == 0)
        turn = np.where(checksum % 2 == 0, self._action["turn_left"], self._action["turn_right"])
        return np.where(first_moves >= 0, first_moves, np.where(is_turning, turn, self._action["forward"]))


def _shift_cells(cells: np.ndarray, d_row: int, d_column: int) -> np.ndarray:
    """Return the cells [..., 11, 11] shifted, so that each holds the cell `d_row` below and `d_column` to its right.

    Cells outside are False.
    """
    height, width = cells.shape[-2:]
    shifted = np.zeros_like(cells)
    rows, columns = max(0, -d_row), max(0, -d_column)
    window = cells[..., max(0, d_row) : height + min(0, d_row), max(0, d_column) : width + min(0, d_column)]
    shifted[..., rows : rows + window.shape[-2], columns : columns + window.shape[-1]] = window
    return shifted


class _TurnTakers:
    """Players who take turns at cleaning and forage otherwise."""

    def __init__(self, gatherer: _Gatherer, spec: EnvSpec, turn: int, max_cleaners: int) -> None:
        self._gatherer, self._players, self._turn, self._max_cleaners = gatherer, spec.n_players, turn, max_cleaners

    def act(self, views: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        first = (steps // self._turn) * self._max_cleaners % self._players
        is_cleaning = (np.asarray(seats)[None] - first[:, None]) % self._players < self._max_cleaners
        return np.where(is_cleaning, self._gatherer.clean(views), self._gatherer.eat(views))


class _Crew:
    """Players of an escape room: the first players go to the working lever, the others to the door."""

    def __init__(self, spec: EnvSpec) -> None:
        self._min_at_lever = int(spec.facts["min_agents_per_lever"])
        self._levers = spec.n_actions - 2

    def act(self, views: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        lever: Any = views[:, 0, -self._levers :].argmax(-1)
        holds_lever = np.asarray(seats) < self._min_at_lever
        return np.where(holds_lever[None], lever[:, None], self._levers)
