"""Text interfaces of Gymnasium's environments, for language-model players."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmrl.core.trust import NOBODY, Trust

if TYPE_CHECKING:
    import gymnasium

    from llmrl.envs.gym.env_factory import EnvFactory
    from llmrl.envs.gym.interfaces import Describer
    from llmrl.envs.gym.success import SuccessCriterion


def describer(text: str, env_factory: EnvFactory, criterion: SuccessCriterion | None = None) -> Describer:
    """Return `describer_of` an environment that `env_factory` makes, always with Gymnasium's own engine.

    Raises:
        ConfigError: see `describer_of` and `EnvFactory.make`.
    """
    from llmrl.envs.gym.gymnasium_games import make

    env = make(env_factory, render=False)
    try:
        return describer_of(text, env, criterion, env_factory.trust)
    finally:
        env.close()


def describer_of(
    text: str, env: gymnasium.Env[Any, Any], criterion: SuccessCriterion | None = None, trust: Trust = NOBODY
) -> Describer:
    """Return the text interface of an environment.

    Args:
        text: a shipped text (`taxi`), a file (`my/game.yaml`), a class (`package.module.Class`, called with the
            environment), `own` (the environment's own texts, see `describers.EnvDescriber`) or `auto` (names and ranges
            of its spaces).
        env: environment to describe; it is only inspected.
        criterion: criterion of a successful episode, which the text states (a class must state it itself); None: none.
        trust: modules in which a class may be defined.

    Raises:
        ConfigError: there is no such text, its class is not trusted, it is incomplete, or it describes another
            environment.
    """
    from llmrl.envs.texts.registry import find_describer

    return find_describer(text, env, criterion, trust)
