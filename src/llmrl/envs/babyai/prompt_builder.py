"""Prompts of agents that read: the mission, and the last observations and actions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from llmrl.envs.babyai.language import LANGUAGES

Template = Literal["glam", "plain"]


class PromptBuilder:
    """The prompts of `n` games.

    `glam` is the published one (Carta et al. 2023), its spaces and commas included. `plain` names neither the actions
    nor the places of observations.

    Args:
        n: games.
        language: `en` or `fr`.
        template: how a prompt is laid out.
        actions: their names.
        history: observations that are shown, with the actions between them. >= 1
        replace: texts to put in place of others, one after another, in the whole prompt.
    """

    def __init__(
        self,
        n: int,
        language: str,
        template: Template,
        actions: Sequence[str],
        history: int,
        replace: Mapping[str, str],
    ) -> None:
        self._words, self._glam, self._actions = LANGUAGES[language], template == "glam", tuple(actions)
        # The space between a prompt and the next action belongs to the prompt in the published template, else to the
        # action.
        self._continuations = [name if self._glam else f" {name}" for name in actions]
        self._replace = tuple(replace.items())
        self._heads = [""] * n
        self._observations: list[deque[str]] = [deque(maxlen=history) for _ in range(n)]
        self._actions_taken: list[deque[str]] = [deque(maxlen=history - 1) for _ in range(n)]
        if self._glam:
            self._observation_prefixes = [f" \n {self._words.observation} {i}: " for i in range(history)]
            self._action_prefixes = [f"\n {self._words.action} {i}: " for i in range(history)]
        else:
            self._observation_prefixes = [f"\n{self._words.observation}: "] * history
            self._action_prefixes = [f"\n{self._words.action}:"] * history

    @property
    def continuations(self) -> tuple[str, ...]:
        """Text that follows a prompt after each action, as in the next prompts."""
        return tuple(self.replaced(text) for text in self._continuations)

    def start(self, game: int, mission: str, sentences: Sequence[str]) -> None:
        """Start an episode with its first observation; clear the history of the previous one."""
        possible = f"{self._words.possible}{', '.join(self._actions)} \n " if self._glam else ""
        self._heads[game] = f"{possible}{self._words.goal}{mission}"
        self._observations[game].clear()
        self._actions_taken[game].clear()
        self._append_observation(game, sentences)

    def append_step(self, game: int, action: int, sentences: Sequence[str]) -> None:
        """Append an action and the observation after it."""
        self._actions_taken[game].append(self._continuations[action])
        self._append_observation(game, sentences)

    def _append_observation(self, game: int, sentences: Sequence[str]) -> None:
        self._observations[game].append(
            "".join([f"{sentence}, " for sentence in sentences]) if self._glam else ", ".join(sentences)
        )

    def prompts(self) -> np.ndarray:
        """Return the current prompt of each game, [n, 1] of `str`."""
        prompts = np.empty((len(self._heads), 1), dtype=object)
        for game, head in enumerate(self._heads):
            parts = [head]
            actions = self._actions_taken[game]
            for i, observation in enumerate(self._observations[game]):
                parts += (self._observation_prefixes[i], observation, self._action_prefixes[i])
                if i < len(actions):
                    parts.append(actions[i])
            prompts[game, 0] = self.replaced("".join(parts))
        return prompts

    def replaced(self, text: str) -> str:
        for old, new in self._replace:
            text = text.replace(old, new)
        return text
