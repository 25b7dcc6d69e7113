"""Kinds of loops, their classes and config sections, and the kind of loop that a config determines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from llmrl.config.builder import Builder
from llmrl.core.agent_interfaces import NonLearningAgent
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.protocols import AgentLoop

LoopKind = Literal["design", "search", "baseline", "clone", "learn", "play"]

LOOP_CLASSES: Mapping[LoopKind, str] = {
    "design": "llmrl.loops.design.DesignLoop",
    "search": "llmrl.loops.search.SearchLoop",
    "baseline": "llmrl.loops.baseline.BaselineLoop",
    "clone": "llmrl.loops.clone.CloneLoop",
    "learn": "llmrl.loops.learn.LearnLoop",
    "play": "llmrl.loops.play.PlayLoop",
}
"""Dotted name of the class of each kind of loop."""

LOOP_SETTINGS: Mapping[LoopKind, str] = {
    "design": "llmrl.loops.design_settings.DesignSettings",
    "search": "llmrl.loops.search_settings.SearchSettings",
    "baseline": "llmrl.loops.search_settings.SearchSettings",
    "clone": "llmrl.loops.clone.CloneSettings",
    "learn": "llmrl.loops.learn.LearnSettings",
    "play": "llmrl.loops.play.PlaySettings",
}
"""Dotted name of the class of each kind of loop's settings, which are built from its config section (`get_section`)."""

OBSERVED_LOOPS: tuple[LoopKind, ...] = ("design", "learn", "clone", "play")
"""Kinds of loops whose steps observers can receive."""


def get_section(kind: LoopKind) -> str:
    """Return the config section with the settings of a loop; a baseline has the section of policy searches."""
    return "search" if kind == "baseline" else kind


def get_declared_loop(agent: Mapping[str, Any], builder: Builder) -> AgentLoop:
    """Return the kind of loop that the class of an agent declares (`Agent.loop`).

    Raises:
        ConfigError: the class declares no loop, or an unknown one.
    """
    target = agent["_target_"]
    loop: AgentLoop | None = getattr(builder.locate(target, "agent"), "loop", None)
    if loop is None or loop not in get_args(AgentLoop):
        problem = "it declares no loop" if loop is None else f"its loop is {loop!r}"
        raise ConfigError(
            f"agent._target_={target}: {problem}; give the class an attribute `loop`, one of "
            f"{', '.join(get_args(AgentLoop))} (docs/extending.md#an-agent)"
        )
    return loop


def agent_learns(config: Mapping[str, Any], builder: Builder | None = None) -> bool | None:
    """Return whether the agent of a config learns; None if its class does not declare it.

    A class declares it by the attribute `learns`, or by `no_learning_setting`: the name of an option of the agent or of
    the model (`llm.<name>`), and the value of this option with which the agent does not learn.
    """
    builder = builder or Builder(trusted=config["trusted_modules"])
    agent = builder.locate(config["agent"]["_target_"], "agent")
    if isinstance(agent, type) and issubclass(agent, NonLearningAgent):
        return False
    if (no_learning_setting := getattr(agent, "no_learning_setting", None)) is not None:
        option, value = no_learning_setting
        group, _, name = option.rpartition(".")
        option_value = (config.get(group or "agent") or {}).get(name)
        if isinstance(option_value, Mapping):
            option_value = option_value.get("_target_")
        return bool(option_value != value)
    learns = getattr(agent, "learns", None)
    return learns if isinstance(learns, bool) else None


def get_loop_kind(config: Mapping[str, Any], builder: Builder | None = None) -> LoopKind:
    """Return the kind of loop that the parts determine, before any part is built.

    A principal sets the mechanism of a game (`design`), or proposes the parameters of an agent with a parametric policy
    (`search`). Without a principal, the agent's class declares the loop (`Agent.loop`), and an agent with parameters to
    propose only plays (`play`). `parts.build_loop` changes `learn` to `play` if the built agent does not learn.

    Raises:
        ConfigError: there is a principal, but the agent has its own training loop; or the agent declares no loop.
    """
    builder = builder or Builder(trusted=config["trusted_modules"])
    loop = get_declared_loop(config["agent"], builder)
    if loop == "play" and agent_learns(config, builder):
        loop = "learn"
    if config["principal"].get("_target_") is None:
        return "play" if loop == "search" else loop
    if loop in ("baseline", "clone"):
        agent = config["agent"]["_target_"].rpartition(".")[2]
        raise Incompatible(
            IncompatibilityReason.NOT_TRAINABLE, f"{agent} learns by itself and needs no proposals; use principal=none"
        )
    return "search" if loop == "search" else "design"
