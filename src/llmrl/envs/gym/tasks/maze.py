"""Maze: a grid world of 3 x 3 cells with walls between some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.tabular_games import TabularGames, TransitionOutcome, TransitionRules, TransitionTable
from llmrl.envs.gym.tasks import canvas

SIDE = 3  # cells along either axis
GOAL_TEXT = (
    "You are in a maze of 3 x 3 cells, in the upper left one, and want to get to the lower right one. There are walls "
    "between some neighboring cells, which you cannot see; a step into one, or over the edge of the maze, leaves you "
    "where you are.\n"
    "Each step costs 0.1/9. The step into the goal gives 1 instead and ends the episode."
)
OBSERVATION_SCHEMA = {
    "row": {"description": "your row, 0 at the top", "range": [0, 2], "size": 3},
    "column": {"description": "your column, 0 at the left", "range": [0, 2], "size": 3},
}
ACTION_SCHEMA = {
    "north": "one cell up (row - 1)",
    "south": "one cell down (row + 1)",
    "east": "one cell to the right (column + 1)",
    "west": "one cell to the left (column - 1)",
}
_MOVES = ((0, -1), (0, 1), (1, 0), (-1, 0))  # change of (column, row) by each action
_PASSAGES = frozenset({(0, 1), (1, 2), (2, 5), (4, 5), (0, 3), (3, 6), (6, 7), (7, 8)})
"""Pairs of neighboring cells without a wall between them, in ascending order; cell y * 3 + x is in column x, row y."""
GOAL_CELL = SIDE * SIDE - 1
_STEP_COST = 0.1 / SIDE**2
_PARITY_STEP = 200  # first step at which the goal does not end the episode, with the option `parity`
PARITY_TEXT = (
    f" That is so up to step {_PARITY_STEP - 1}. From the {_PARITY_STEP}th step on the goal does not end the episode "
    "any more, and each step into it, or in it, gives 1."
)
_CELL_PX = 100
"""Width and height of a cell, in pixels."""


def build_rules() -> TransitionRules:
    """Return the outcome of each action in each cell.

    A step costs 0.1/9; the step into the goal, cell 8, gives 1 instead and ends the episode. Walls stop a move.
    """
    actions = list(enumerate(_MOVES))
    return {cell: {action: [_build_outcome(cell, move)] for action, move in actions} for cell in range(SIDE**2)}


def _build_outcome(cell: int, move: tuple[int, int]) -> TransitionOutcome:
    x, y = cell % SIDE + move[0], cell // SIDE + move[1]
    target = y * SIDE + x
    if cell != GOAL_CELL and 0 <= x < SIDE and 0 <= y < SIDE and (min(cell, target), max(cell, target)) in _PASSAGES:
        cell = target
    return (1.0, cell, 1.0, True) if cell == GOAL_CELL else (1.0, cell, -_STEP_COST, False)


class MazeGames(TabularGames):
    """Parallel copies of the maze, whose episodes start in cell 0.

    Args:
        n: number of copies.
        horizon: steps after which an episode is truncated; None: never.
        parity: whether the goal no longer ends an episode from step 200 on, as in the published code of ProPS.
    """

    def __init__(self, n: int, horizon: int | None = None, parity: bool = False) -> None:
        table = TransitionTable.from_rules(build_rules(), np.eye(SIDE**2)[0])
        super().__init__(n, table, lambda state, _: render_state(state), horizon)
        self._parity = parity

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        reward, terminated = super().advance(actions, active)
        return reward, (terminated & (self.time < _PARITY_STEP) if self._parity else terminated)


def render_state(cell: int) -> NDArray[np.uint8]:
    """Return a frame of the maze with the player in `cell`, [300, 300, 3]; the goal is green."""
    side = SIDE * _CELL_PX
    drawing = canvas.Canvas(side, side)
    x, y = GOAL_CELL % SIDE * _CELL_PX, GOAL_CELL // SIDE * _CELL_PX
    drawing.draw_rectangle(x, y, _CELL_PX, _CELL_PX, canvas.GREEN)
    for map_cell in range(SIDE**2):
        column, row = map_cell % SIDE, map_cell // SIDE
        if column < SIDE - 1 and (map_cell, map_cell + 1) not in _PASSAGES:
            drawing.draw_rectangle((column + 1) * _CELL_PX - 2, row * _CELL_PX, 4, _CELL_PX, canvas.INK)
        if row < SIDE - 1 and (map_cell, map_cell + SIDE) not in _PASSAGES:
            drawing.draw_rectangle(column * _CELL_PX, (row + 1) * _CELL_PX - 2, _CELL_PX, 4, canvas.INK)
    for edge in ((0, 0, side, 4), (0, side - 4, side, 4), (0, 0, 4, side), (side - 4, 0, 4, side)):
        drawing.draw_rectangle(*edge, canvas.INK)
    drawing.draw_disc((cell % SIDE + 0.5) * _CELL_PX, (cell // SIDE + 0.5) * _CELL_PX, 0.28 * _CELL_PX, canvas.BLUE)
    return drawing.image
