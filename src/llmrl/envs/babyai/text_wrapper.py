"""BabyAI-Text as a wrapper of one environment, for users of plain Gymnasium."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium
from minigrid.minigrid_env import MiniGridEnv

from llmrl.envs.babyai.sentences import sentences
from llmrl.envs.babyai.words import LanguageName


class BabyAIText(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds `info["descriptions"]` to any level of MiniGrid or BabyAI: what the agent sees, as a list of sentences.

    >>> env = BabyAIText(gymnasium.make("llmrl.envs.babyai.registration:BabyAI-MixedTrainLocal-v0", kind="goto"))
    >>> env.reset(seed=0)[1]["descriptions"][0]
    'You see a wall 2 steps left'

    Args:
        env: the level; whatever is between it and this wrapper leaves its `image` as it is.
        language: of the sentences, `en` or `fr`.

    Raises:
        TypeError: `env` is no level of MiniGrid.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], language: LanguageName = "en") -> None:
        super().__init__(env)
        if not isinstance(env.unwrapped, MiniGridEnv):
            raise TypeError(f"BabyAIText puts levels of MiniGrid and BabyAI into words, and {env} is none")
        self._language: LanguageName = language

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._told(observation, info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._told(observation, info)

    def _told(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "descriptions": sentences(observation["image"], self._language)}
