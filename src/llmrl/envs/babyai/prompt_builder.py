"""What an agent that reads is shown in each step: the mission, and what was seen and done lately."""

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
        # The space between a prompt and the action that follows it is the prompt's end, as published, or the action's.
        self._follow = [name if self._glam else f" {name}" for name in actions]
        self._replace = tuple(replace.items())
        self._heads = [""] * n
        self._seen: list[deque[str]] = [deque(maxlen=history) for _ in range(n)]
        self._done: list[deque[str]] = [deque(maxlen=history - 1) for _ in range(n)]
        if self._glam:
            self._before = [f" \n {self._words.observation} {i}: " for i in range(history)]
            self._after = [f"\n {self._words.action} {i}: " for i in range(history)]
        else:
            self._before = [f"\n{self._words.observation}: "] * history
            self._after = [f"\n{self._words.action}:"] * history

    @property
    def continuations(self) -> tuple[str, ...]:
        """How a prompt goes on when each action is taken, as the next prompts show it."""
        return tuple(self.replaced(text) for text in self._follow)

    def start(self, game: int, mission: str, seen: Sequence[str]) -> None:
        """An episode begins with what is seen; nothing of the one before is remembered."""
        possible = f"{self._words.possible}{', '.join(self._actions)} \n " if self._glam else ""
        self._heads[game] = f"{possible}{self._words.goal}{mission}"
        self._seen[game].clear()
        self._done[game].clear()
        self._see(game, seen)

    def go_on(self, game: int, action: int, seen: Sequence[str]) -> None:
        """An action was taken, and then this is seen."""
        self._done[game].append(self._follow[action])
        self._see(game, seen)

    def _see(self, game: int, seen: Sequence[str]) -> None:
        self._seen[game].append("".join([f"{said}, " for said in seen]) if self._glam else ", ".join(seen))

    def prompts(self) -> np.ndarray:
        """One a game, [n, 1] of `str`."""
        made = np.empty((len(self._heads), 1), dtype=object)
        for game, head in enumerate(self._heads):
            parts = [head]
            done = self._done[game]
            for i, seen in enumerate(self._seen[game]):
                parts += (self._before[i], seen, self._after[i])
                if i < len(done):
                    parts.append(done[i])
            made[game, 0] = self.replaced("".join(parts))
        return made

    def replaced(self, text: str) -> str:
        for old, new in self._replace:
            text = text.replace(old, new)
        return text
