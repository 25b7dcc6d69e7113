"""Players that act by reading descriptions of a game instead of learning: chat models and simple rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.agents.llm_player.gym_player import Player as Player
    from llmrl.agents.llm_player.gym_player import make_player as make_player

__all__ = ["Player", "make_player"]


def __getattr__(name: str) -> Any:
    """Import and return an object of the Python API at its first access."""
    if name in __all__:
        from llmrl.agents.llm_player import gym_player

        return getattr(gym_player, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
