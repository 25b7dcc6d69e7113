"""Nim with ten sticks, in which the player who takes the last stick loses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.batched.tabular_games import TabularGames, TransitionOutcome, TransitionRules, TransitionTable
from llmrl.envs.gym.tasks import canvas

OBSERVATION_SCHEMA = {"sticks": {"description": "sticks that are left, before your move", "range": [0, 10], "size": 11}}
N_STICKS = 10
MAX_TAKE = 3
"""Maximum number of sticks that a move may take, and number of actions."""
DEFAULT_TAKES = (1, 2, 3)
"""Number of sticks that each action takes."""


def describe_goal(takes: Sequence[int] = DEFAULT_TAKES) -> str:
    """Return the description of the game for a player whose actions take the numbers of sticks in `takes`."""
    turn_phrase = "You and your opponent take 1, 2 or 3 of them in turn"
    if set(takes) != set(DEFAULT_TAKES):
        first_takes = ", ".join(map(str, takes[:-1]))
        turn_phrase = (
            f"You and your opponent take some of them in turn, you {first_takes} or {takes[-1]}, your opponent "
            "1, 2 or 3"
        )
    return (
        f"Ten sticks lie on the table. {turn_phrase}; you begin, and whoever takes the last stick loses.\n"
        "The game is worth 1 if you win and -1 if you lose. Taking none, more than 3, or more than are left, loses at "
        "once."
    )


def build_rules(takes: Sequence[int] = DEFAULT_TAKES) -> TransitionRules:
    """Return the outcome of each action for each number of remaining sticks.

    A step of the environment is a move of the player and one of the opponent. Whoever takes the last stick loses; the
    reward is 1 or -1. The opponent leaves one more than a multiple of 4 if possible, which wins; otherwise it takes
    any legal number of sticks with equal probability. A player who takes no stick, or too many, loses at once.

    Args:
        takes: number of sticks that each action takes.
    """
    return {
        remaining: {action: _build_outcomes(remaining, sticks) for action, sticks in enumerate(takes)}
        for remaining in range(N_STICKS + 1)
    }


def _build_outcomes(remaining: int, sticks: int) -> list[TransitionOutcome]:
    if not 1 <= sticks <= min(MAX_TAKE, remaining):
        return [(1.0, remaining, -1.0, True)]
    remaining -= sticks
    if remaining == 0:
        return [(1.0, 0, -1.0, True)]
    winning_take = (remaining - 1) % 4  # leaves one more than a multiple of 4; 0: there is no such move
    opponent_takes = [winning_take] if winning_take else list(range(1, min(MAX_TAKE, remaining) + 1))
    return [(1 / len(opponent_takes), remaining - n, float(remaining == n), remaining == n) for n in opponent_takes]


def make_nim_games(n: int, horizon: int | None = None, takes: Sequence[int] = DEFAULT_TAKES) -> TabularGames:
    """Return `n` games of Nim.

    Args:
        n: number of games.
        horizon: steps after which an episode is truncated; None: never.
        takes: number of sticks that each of the three actions takes.

    Raises:
        ConfigError: `takes` does not consist of three integers >= 0.
    """
    if len(takes) != MAX_TAKE or any(not isinstance(sticks, int) or sticks < 0 for sticks in takes):
        raise ConfigError(f"env.kwargs.takes={list(takes)} must be three numbers of sticks >= 0, e.g. [1, 2, 3]")
    table = TransitionTable.from_rules(build_rules(takes), np.eye(N_STICKS + 1)[N_STICKS])
    return TabularGames(n, table, lambda state, _: render_state(state), horizon)


def render_state(remaining: int) -> NDArray[np.uint8]:
    """Return a frame, [160, 400, 3] uint8, with remaining sticks dark and others light."""
    drawing = canvas.Canvas(40 * N_STICKS, 160)
    for stick in range(N_STICKS):
        drawing.draw_rectangle(40 * stick + 14, 20, 12, 120, canvas.INK if stick < remaining else canvas.GRAY)
    return drawing.image
