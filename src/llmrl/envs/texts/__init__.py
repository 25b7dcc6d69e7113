"""Gymnasium's environments put into words, for players that read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmrl.core.trust import NOBODY, Trust

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.games import GameMaker
    from llmrl.envs.gym.protocols import Describer
    from llmrl.envs.gym.success import Criterion


def describer(text: str, maker: GameMaker, criterion: Criterion | None = None) -> Describer:
    """`describer_of` an environment that `maker` makes; whatever engine plays, Gymnasium's own is looked at.

    Raises:
        ConfigError: as `describer_of` and `GameMaker.make`.
    """
    from llmrl.envs.gym.stock import make

    env = make(maker, render=False)
    try:
        return describer_of(text, env, criterion, maker.trust)
    finally:
        env.close()


def describer_of(
    text: str, env: gymnasium.Env[Any, Any], criterion: Criterion | None = None, trust: Trust = NOBODY
) -> Describer:
    """What puts an environment into words.

    Args:
        text: a shipped text (`taxi`), a file (`my/game.yaml`), a class (`package.module.Class`, called with the
            environment), `own` (the environment says it itself, see `own.OwnWords`) or `auto` (names and ranges of its
            spaces).
        env: the environment; it is only looked at.
        criterion: what makes an episode a success, which is told (a class says it itself); None: nothing does.
        trust: which modules a class may be in.

    Raises:
        ConfigError: there is no such text, its class is not trusted, it lacks something, or it is not about this
            environment.
    """
    from llmrl.envs.texts.find import find

    return find(text, env, criterion, trust)
