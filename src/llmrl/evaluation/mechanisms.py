"""Which mechanisms an evaluation imposes: words and numbers, and the context they are played in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.printable import is_number
from llmrl.core.spaces import EnvSpec

WORDS = ("none", "last", "best")
Row = Mapping[str, Any]
"""Of a run's history."""


@dataclass(frozen=True)
class Imposed:
    """A mechanism that is evaluated.

    Attributes:
        name: what was asked for: one of `WORDS`, or numbers like `0,2,0`.
        vector: its values, [d]; None: what the environment begins with, where nobody proposed anything.
        words: the values for people.
    """

    name: str
    vector: np.ndarray | None
    words: str

    @property
    def title(self) -> str:
        """What a film under it is called."""
        return f"{self.words} ({self.name})" if self.name in ("best", "last") else self.words


def asked_for(texts: Sequence[str]) -> list[str]:
    """The mechanisms that some texts name, each one of `WORDS` or numbers like `0,2,0`.

    A text holds words, several with commas, or the numbers of one vector.

    Raises:
        ConfigError: neither words nor numbers, or one of them twice.
    """
    asked: list[str] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        words = [part in WORDS for part in parts]
        if all(words):
            asked += parts
        elif any(words) or not all(is_number(part) for part in parts):
            raise ConfigError(
                f"mechanism {text}: give words ({', '.join(WORDS)}; several with commas) or the numbers of one vector "
                "(0.5,1,0); several vectors are given one by one"
            )
        else:
            asked.append(",".join(f"{float(part):.12g}" for part in parts))
    if twice := [name for i, name in enumerate(asked) if name in asked[:i]]:
        raise ConfigError(f"mechanism: {twice[0]} is there twice")
    return asked


def imposed(
    asked: Sequence[str], context: int | None, state: Mapping[str, Any], spec: EnvSpec
) -> tuple[list[Imposed], int | None]:
    """The mechanisms `asked` for in a run with a checkpoint `state`, and the index of the context they are played in.

    That is `context`, else that of the best proposal, of the last or the first there is, whichever is asked for first
    in this order. `best` is the best proposal in a context that was asked for.

    Raises:
        ConfigError: there is no such mechanism or context, or numbers are out of bounds.
    """
    history = state.get("history", [])
    if context is not None and spec.contexts and not 0 <= context < len(spec.contexts):
        listed = ", ".join(f"{i} = {name}" for i, name in enumerate(spec.contexts))
        raise ConfigError(f"context={context}: there is {listed}")
    rows = {"best": _best(state, context, spec) if history and "best" in asked else None, "last": last(history)}
    if len(asked) > 1:
        if spec.mechanism is None:
            raise ConfigError(f"mechanism {','.join(asked)}: env={spec.name} has no mechanism to compare")
        if lacking := [name for name in asked if name in rows and rows[name] is None]:
            raise ConfigError(f"mechanism {lacking[0]}: nobody has proposed anything in this run; give numbers")
    named = [_imposed(name, rows.get(name), spec) for name in asked]
    if not spec.contexts:
        return named, None
    if context is not None:
        return named, context
    row = (rows["best"] if "best" in asked else None) or rows["last"]
    return named, 0 if row is None else spec.contexts.index(row["context"])


def last(history: Sequence[Row]) -> Row | None:
    """The row of the history with the highest objective of the last step."""
    rows = [row for row in history if row["step"] == history[-1]["step"]]
    return max(rows, key=lambda row: float(row["objective"]), default=None)


def society(history: Sequence[Row], several: int) -> int:
    """Which of the saved societies plays: of several that were tried side by side, that of the last step's best; of
    `several` under one proposal, the first, which is the one that the run's own seed gives."""
    row = last(history)
    return 0 if row is None else int(row["candidate"]) * several


def _best(state: Mapping[str, Any], context: int | None, spec: EnvSpec) -> Row:
    rows: Sequence[Row] = state["best"]
    if context is None or not spec.contexts:
        return rows[0]
    for row in rows:
        if row["context"] == spec.contexts[context]:
            return row
    raise ConfigError(f"context={context}: nothing was proposed in {spec.contexts[context]}; give numbers")


def _imposed(name: str, row: Row | None, spec: EnvSpec) -> Imposed:
    space = spec.mechanism
    if space is None or (row is None and name in ("best", "last")):
        return Imposed(name, None, name)
    if name == "none":
        vector = space.neutral
    elif row is not None:
        vector = space.check(list(row["mechanism"].values()))
    else:
        vector = space.check([float(x) for x in name.split(",")])
    return Imposed(name, vector, space.in_words(vector))
