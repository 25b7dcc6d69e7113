"""Which shipped options work where the chosen one does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.core.protocols import AgentLoop, VecEnv

Config = Mapping[str, Any]


def can_search(principal: Config, builder: Builder) -> bool:
    """Whether a principal takes any space, and not the mechanism of an environment only."""
    return any(builder.needs(principal, name, "principal") for name in ("space", "controller"))


def needs_mechanism(principal: str) -> str:
    works = [
        name for name, option in options("principal").items() if option["_target_"] and can_search(option, Builder())
    ]
    return (
        f"{principal.rpartition('.')[2]} looks at what happens in a society under a mechanism and cannot search the "
        f"parameters of a policy; use principal={', '.join(works)}"
    )


def no_mechanism(env: VecEnv, principal: Config) -> str:
    """Why a principal has nothing to govern in `env`, and what would work."""
    works = [name for name, option in options("env").items() if option.get("mechanism")]
    searched = ""
    if hasattr(env, "evaluator") and can_search(principal, Builder()):
        agents = ", ".join(name for name, option in options("agent").items() if _is_function(option))
        searched = f"an agent whose parameters it can search, agent={agents}; or "
    return (
        f"a principal needs an environment with a mechanism, and {env.spec.name} has none (env.mechanism may be off); "
        f"use {searched}env={', '.join(works)} with their mechanism, or principal=none"
    )


def _is_function(agent: Config) -> bool:
    """Whether an agent is a function of parameters that a principal can propose."""
    return agent_loop(agent, Builder()) == "search"


def agent_loop(agent: Config, builder: Builder) -> AgentLoop:
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
