"""The loops there are, the section of the config that each reads, and the one that an agent is made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import AgentLoop

LoopKind = Literal["design", "search", "baseline", "clone", "learn", "play"]

LOOPS: Mapping[LoopKind, str] = {
    "design": "llmrl.loops.design.DesignLoop",
    "search": "llmrl.loops.search.SearchLoop",
    "baseline": "llmrl.loops.baseline.BaselineLoop",
    "clone": "llmrl.loops.clone.CloneLoop",
    "learn": "llmrl.loops.learn.LearnLoop",
    "play": "llmrl.loops.play.PlayLoop",
}
"""The class of each kind of loop."""

SETTINGS: Mapping[LoopKind, str] = {
    "design": "llmrl.loops.design_settings.DesignSettings",
    "search": "llmrl.loops.search_settings.SearchSettings",
    "baseline": "llmrl.loops.search_settings.SearchSettings",
    "clone": "llmrl.loops.clone.CloneSettings",
    "learn": "llmrl.loops.learn.LearnSettings",
    "play": "llmrl.loops.play.PlaySettings",
}
"""What the section of the config that each kind of loop reads (`section`) is made into."""


WATCHED: tuple[LoopKind, ...] = ("design", "learn", "clone", "play")
"""Loops whose steps observers can be told of."""


def section(kind: LoopKind) -> str:
    """The section of the config that says how long a loop goes on: a baseline has the budget of the searches."""
    return "search" if kind == "baseline" else kind


def agent_loop(agent: Mapping[str, Any], builder: Builder) -> AgentLoop:
    """The loop that an agent is made for, as its class declares it.

    Raises:
        ConfigError: it declares none, or no such loop.
    """
    target = agent["_target_"]
    loop: AgentLoop | None = getattr(builder.locate(target, "agent"), "loop", None)
    if loop is None or loop not in get_args(AgentLoop):
        said = "it declares no loop" if loop is None else f"its loop is {loop!r}"
        raise ConfigError(
            f"agent._target_={target}: {said}; give the class an attribute `loop`, one of "
            f"{', '.join(get_args(AgentLoop))} (docs/extending.md#an-agent)"
        )
    return loop
