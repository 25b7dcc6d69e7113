"""MiniGrid's bot as an adviser: what it would do in every step of many games."""

# mypy: disallow-untyped-calls=False
# MiniGrid leaves most of what is called here without types.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minigrid.utils.baby_ai_bot import BabyAIBot

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

NO_ADVICE = -1
_PATIENCE = 500
"""Searches for a path that a bot may make for one action; one that makes more goes round in circles."""
_FAILURES = Exception
"""Whatever it raises, as it says in many ways that it does not know what to do: failed assertions, indices of objects
that are gone, None where it expected a cell."""


class Experts:
    """A bot for each of some games of BabyAI, asked once in every step.

    A bot that comes upon something it cannot handle gives up for the rest of the episode. That it ever does is known of
    boxes that somebody opens, and of a few levels.

    Args:
        envs: the games.
        n_actions: those that an agent has; the bot's advice is none if it is another.

    Attributes:
        gave_up: episodes in which a bot did.
    """

    def __init__(self, envs: list[MiniGridEnv], n_actions: int) -> None:
        self._envs, self._n_actions = envs, n_actions
        self._bots: list[_Bot | None] = [None] * len(envs)
        self.gave_up = 0

    def start(self, game: int) -> int:
        """An episode begins; what to do first."""
        try:
            self._bots[game] = _Bot(self._envs[game])
        except _FAILURES:
            self._give_up(game)
        return self.advise(game, None)

    def advise(self, game: int, done: int | None) -> int:
        """What to do after the action that was `done`, as its number in MiniGrid; None: none yet. -1: no advice."""
        bot = self._bots[game]
        if bot is None:
            return NO_ADVICE
        try:
            bot.patience = _PATIENCE
            advice = int(bot.replan(None if done is None else self._envs[game].actions(done)))
        except _FAILURES:
            return self._give_up(game)
        return advice if advice < self._n_actions else NO_ADVICE

    def _give_up(self, game: int) -> int:
        self._bots[game] = None
        self.gave_up += 1
        return NO_ADVICE


class _Bot(BabyAIBot):
    patience = _PATIENCE

    def _shortest_path(self, *args: Any, **kwargs: Any) -> Any:
        self.patience -= 1
        if self.patience < 0:
            raise RuntimeError("the bot plans in circles")
        return super()._shortest_path(*args, **kwargs)
