"""Nim: ten sticks, and who takes the last one loses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.batched.tabular_games import TabularGames
from llmrl.envs.gym.batched.transition_table import Outcome, Rules, TransitionTable
from llmrl.envs.gym.tasks import canvas

OBSERVED = {"sticks": {"description": "sticks that are left, before your move", "range": [0, 10], "size": 11}}
STICKS = 10
MOST = 3
TAKES = (1, 2, 3)
"""How many sticks each action takes."""


def goal_text(takes: Sequence[int] = TAKES) -> str:
    """The game in words, for a player who may take as many sticks as `takes` says."""
    who = "You and your opponent take 1, 2 or 3 of them in turn"
    if set(takes) != set(TAKES):
        own = ", ".join(map(str, takes[:-1]))
        who = f"You and your opponent take some of them in turn, you {own} or {takes[-1]}, your opponent 1, 2 or 3"
    return (
        f"Ten sticks lie on the table. {who}; you begin, and whoever takes the last stick loses.\n"
        "The game is worth 1 if you win and -1 if you lose. Taking none, more than 3, or more than are left, loses at "
        "once."
    )


def rules(takes: Sequence[int] = TAKES) -> Rules:
    """Player and opponent take 1 to 3 sticks in turn; whoever takes the last loses the game, and -1 or +1 is paid.

    The opponent leaves 1 more than a multiple of 4 where it can, which wins, and else takes any number that it may,
    each as likely as the others. Taking no stick, or more than are left, loses at once.

    Args:
        takes: sticks that each action takes.
    """
    return {
        left: {action: _outcomes(left, sticks) for action, sticks in enumerate(takes)} for left in range(STICKS + 1)
    }


def _outcomes(left: int, sticks: int) -> list[Outcome]:
    if not 1 <= sticks <= min(MOST, left):
        return [(1.0, left, -1.0, True)]
    left -= sticks
    if left == 0:
        return [(1.0, 0, -1.0, True)]
    best = (left + 3) % 4
    replies = [best] if best else list(range(1, min(MOST, left) + 1))
    return [(1 / len(replies), left - n, float(left == n), left == n) for n in replies]


def nim_games(n: int, horizon: int | None = None, takes: Sequence[int] = TAKES) -> TabularGames:
    """Games of Nim.

    Args:
        n: games.
        horizon: steps after which a game is truncated; None: never.
        takes: sticks that each of the three actions takes.

    Raises:
        ConfigError: not three numbers of sticks.
    """
    if len(takes) != MOST or any(not isinstance(sticks, int) or sticks < 0 for sticks in takes):
        raise ConfigError(f"Nim: takes={list(takes)} must be three numbers of sticks, e.g. [1, 2, 3]")
    start = np.eye(STICKS + 1)[STICKS]
    return TabularGames(n, TransitionTable.of(rules(takes), start), lambda state, _: picture(state), horizon)


def picture(left: int) -> NDArray[np.uint8]:
    """The table, [160, 400, 3]: sticks that are left are dark, those that were taken are light."""
    image = canvas.Canvas(40 * STICKS, 160)
    for stick in range(STICKS):
        image.box(40 * stick + 14, 20, 12, 120, canvas.INK if stick < left else canvas.GREY)
    return image.image
