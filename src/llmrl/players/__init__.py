"""Players that read a game instead of learning it: chat models, and simple rules beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.players.api import Player as Player
    from llmrl.players.api import make_player as make_player

__all__ = ["Player", "make_player"]


def __getattr__(name: str) -> Any:
    """The Python API, imported when it is asked for."""
    if name in __all__:
        from llmrl.players import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
