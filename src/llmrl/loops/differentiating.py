"""Whether agents can do what a principal that learns through their learning needs."""

from __future__ import annotations

from llmrl.core.errors import ConfigError
from llmrl.core.gradients import DifferentiableAgent, GradientProposer
from llmrl.core.protocols import Agent, Proposer, VecEnv


def differentiable_agent(
    env: VecEnv, agent: Agent, principal: Proposer, adapt_rounds: int
) -> DifferentiableAgent | None:
    """The agent, if the principal learns from gradients through its learning; None if it does not.

    Raises:
        ConfigError: it does, and the environment or the agent gives none, or the agents never learn.
    """
    if not isinstance(principal, GradientProposer):
        return None
    name = type(principal).__name__
    if not env.spec.exposure:
        raise ConfigError(
            f"{name} needs to know how rewards depend on the mechanism, which env={env.spec.name} does not tell; use "
            "env=cleanup, harvest or escape_room, or another principal"
        )
    if not adapt_rounds:
        raise ConfigError(
            f"{name} learns through the agents' learning, and design.adapt_rounds=0 leaves none; set it to 1 or more"
        )
    if not isinstance(agent, DifferentiableAgent):
        raise ConfigError(f"{name} needs agents whose learning can be differentiated; use agent=ppo or agent=pg")
    if not agent.learns:
        raise ConfigError(f"{name} learns through the agents' learning, which agent.freeze=all stops; use core or none")
    return agent
