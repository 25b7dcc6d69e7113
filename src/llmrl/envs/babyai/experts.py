"""MiniGrid's bot as an expert that advises an action in every step of each game (copy of an environment)."""

# mypy: disallow-untyped-calls=False
# MiniGrid has no types for most of the functions called here.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minigrid.utils.baby_ai_bot import BabyAIBot

if TYPE_CHECKING:
    from minigrid.minigrid_env import MiniGridEnv

NO_ADVICE = -1
_MAX_PATH_SEARCHES = 500
"""Maximum number of path searches of a bot for one action; more mean that the bot is in an endless loop."""


class BotExperts:
    """One bot for each of several BabyAI environments, queried once in every step.

    After a situation that a bot cannot handle, there is no more advice in the episode. This happens with opened boxes
    and in a few levels. MiniGrid's bot then raises exceptions of many types: failed assertions, indices of removed
    objects, None instead of a cell.

    Args:
        envs: the environments; `game` in the methods is an index into them.
        n_actions: number of actions of an agent, which are the first ones of MiniGrid. Other actions are not advised.
    """

    def __init__(self, envs: list[MiniGridEnv], n_actions: int) -> None:
        self._envs, self._n_actions = envs, n_actions
        self._bots: list[_BoundedBot | None] = [None] * len(envs)

    def start(self, game: int) -> int:
        """Start an episode; return the advised first action."""
        try:
            self._bots[game] = _BoundedBot(self._envs[game])
        except Exception:  # noqa: BLE001 (see the class)
            self._bots[game] = None
        return self.advise(game, None)

    def advise(self, game: int, previous_action: int | None) -> int:
        """Return the action advised after `previous_action` (None: at the start), as MiniGrid's index, or NO_ADVICE."""
        bot = self._bots[game]
        if bot is None:
            return NO_ADVICE
        try:
            bot.remaining_path_searches = _MAX_PATH_SEARCHES
            action = None if previous_action is None else self._envs[game].actions(previous_action)
            advised_action = int(bot.replan(action))
        except Exception:  # noqa: BLE001 (see the class)
            self._bots[game] = None
            return NO_ADVICE
        return advised_action if advised_action < self._n_actions else NO_ADVICE


class _BoundedBot(BabyAIBot):
    remaining_path_searches = _MAX_PATH_SEARCHES

    def _shortest_path(self, *args: Any, **kwargs: Any) -> Any:
        self.remaining_path_searches -= 1
        if self.remaining_path_searches < 0:
            raise RuntimeError("the bot exceeded the maximum number of path searches")
        return super()._shortest_path(*args, **kwargs)
