"""The loops there are, and the section of the config that each reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

LoopKind = Literal["design", "search", "baseline", "clone", "learn", "play"]

LOOPS: Mapping[LoopKind, str] = {
    "design": "llmrl.loops.design.DesignLoop",
    "search": "llmrl.loops.search.SearchLoop",
    "baseline": "llmrl.loops.baseline.BaselineLoop",
    "clone": "llmrl.loops.clone.CloneLoop",
    "learn": "llmrl.loops.learn.LearnLoop",
    "play": "llmrl.loops.play.PlayLoop",
}
"""What each kind of loop is built from, with the section of the config that has its name (`section`)."""


WATCHED: tuple[LoopKind, ...] = ("design", "learn", "clone", "play")
"""Loops whose steps observers can be told of."""


def section(kind: LoopKind) -> str:
    """The section of the config that says how long a loop goes on: a baseline has the budget of the searches."""
    return "search" if kind == "baseline" else kind
