"""Replay of transitions between texts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from llmrl.core.records import State


@dataclass(frozen=True)
class Transitions:
    """n of them.

    Attributes:
        prompt, next_prompt: texts, as `Words.read` gives them.
        action: [n] int64.
        reward: [n] float32.
        terminal: nothing follows: the game ended, [n] bool.
        legal: the actions that are legal in the next state, [n, n_actions] bool; None where all always are.
    """

    prompt: Sequence[bytes]
    action: np.ndarray
    reward: np.ndarray
    next_prompt: Sequence[bytes]
    terminal: np.ndarray
    legal: np.ndarray | None = None


class Replay:
    """The newest `capacity` transitions, each drawn with equal probability. A text that many transitions share is held
    once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.added = 0
        self._columns: dict[str, np.ndarray] = {}
        self._texts: list[bytes] = []
        self._places: dict[bytes, int] = {}

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, transitions: Transitions) -> None:
        """Keep them, in the place of the oldest where there is no room left."""
        new = {
            "prompt": self._interned(transitions.prompt),
            "action": np.asarray(transitions.action, dtype=np.int16),
            "reward": np.asarray(transitions.reward, dtype=np.float32),
            "next_prompt": self._interned(transitions.next_prompt),
            "terminal": np.asarray(transitions.terminal, dtype=bool),
        }
        if transitions.legal is not None:
            new["legal"] = np.asarray(transitions.legal, dtype=bool)
        n = len(new["action"])
        self._make_room(min(self.added + n, self.capacity), new)
        places = np.arange(self.added, self.added + n) % self.capacity
        for name, column in self._columns.items():
            # More than fit at once: the last ones stay.
            column[places[-self.capacity :]] = new[name][-self.capacity :]
        rounds = (self.added + n) // self.capacity - self.added // self.capacity
        self.added += n
        if rounds and self.added > self.capacity:
            self._drop_unused()

    def sample(self, n: int, generator: torch.Generator) -> Transitions:
        """`n` independent draws.

        Raises:
            ValueError: there is nothing to draw from.
        """
        if not self.added:
            raise ValueError("nothing has been added to this replay")
        chosen = torch.randint(len(self), (n,), generator=generator).numpy()
        found = {name: column[chosen] for name, column in self._columns.items()}
        return Transitions(
            prompt=[self._texts[i] for i in found["prompt"].tolist()],
            action=found["action"].astype(np.int64),
            reward=found["reward"],
            next_prompt=[self._texts[i] for i in found["next_prompt"].tolist()],
            terminal=found["terminal"],
            legal=found.get("legal"),
        )

    def state_dict(self) -> State:
        """Arrays and numbers; texts are compressed, because prompts differ in few words."""
        together = zlib.compress(b"".join(self._texts), level=1)
        return {
            "added": self.added,
            "columns": {name: column[: len(self)].copy() for name, column in self._columns.items()},
            "texts": np.frombuffer(together, dtype=np.uint8).copy(),
            "lengths": np.array([len(text) for text in self._texts], dtype=np.int32),
        }

    def load_state_dict(self, state: State) -> None:
        self.added = state["added"]
        self._columns = {name: np.array(column) for name, column in state["columns"].items()}
        together = zlib.decompress(state["texts"].tobytes())
        ends = np.cumsum(state["lengths"], dtype=np.int64).tolist()
        starts = [0, *ends][: len(ends)]
        self._texts = [together[a:b] for a, b in zip(starts, ends, strict=True)]
        self._places = {text: i for i, text in enumerate(self._texts)}

    def _interned(self, texts: Sequence[bytes]) -> np.ndarray:
        found = np.empty(len(texts), dtype=np.int32)
        for i, text in enumerate(texts):
            place = found[i] = self._places.setdefault(text, len(self._texts))
            if place == len(self._texts):
                self._texts.append(text)
        return found

    def _make_room(self, n: int, like: dict[str, np.ndarray]) -> None:
        """Columns of at least `n` rows, twice as long each time they do not suffice."""
        have = len(next(iter(self._columns.values()))) if self._columns else 0
        if n <= have:
            return
        rows = min(max(n, 2 * have, 1024), self.capacity)
        for name, new in like.items():
            column = np.zeros((rows, *new.shape[1:]), dtype=new.dtype)
            if have:
                column[:have] = self._columns[name]
            self._columns[name] = column

    def _drop_unused(self) -> None:
        """Forget the texts of transitions that have been replaced."""
        names = ("prompt", "next_prompt")
        used, places = np.unique(np.concatenate([self._columns[name] for name in names]), return_inverse=True)
        half = len(places) // 2
        for name, column in zip(names, (places[:half], places[half:]), strict=True):
            self._columns[name] = column.astype(np.int32)
        self._texts = [self._texts[i] for i in used.tolist()]
        self._places = {text: i for i, text in enumerate(self._texts)}
