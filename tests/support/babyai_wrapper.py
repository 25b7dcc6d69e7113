"""BabyAI-Text as a Gymnasium wrapper of one environment."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium

from llmrl.envs.babyai.language import LanguageName, describe_view


class BabyAIText(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds `info["descriptions"]` to a level of MiniGrid or BabyAI: the agent's view as sentences.

    >>> env = BabyAIText(gymnasium.make("llmrl.envs.babyai.levels:BabyAI-MixedTrainLocal-v0", kind="goto"))
    >>> env.reset(seed=0)[1]["descriptions"][0]
    'You see a wall 2 steps left'

    Args:
        env: level to wrap; wrappers inside this one must leave its observation `image` unchanged.
        language: language of the sentences, `en` or `fr`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], language: LanguageName = "en") -> None:
        super().__init__(env)
        self._language: LanguageName = language

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._add_descriptions(observation, info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._add_descriptions(observation, info)

    def _add_descriptions(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "descriptions": describe_view(observation["image"], self._language)}
