"""Gradients of a proposal's objective through the learning of the agents under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import Agent, DifferentiableAgent, GradientProposer, MetaLearner, Proposer
from llmrl.core.records import Outcome
from llmrl.core.rollouts import Rollout
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.loops.design_settings import DesignSettings


@dataclass(frozen=True)
class MetaGradient:
    """Gradients for a principal that learns from them.

    Attributes:
        agent: agent whose updates are differentiated.
        principal: the principal.
        objective, spending_cost: measure of a society.
    """

    agent: DifferentiableAgent
    principal: GradientProposer
    objective: Objective
    spending_cost: float

    def learner(self, vector: np.ndarray) -> MetaLearner:
        """Return a learner that updates the agent under a proposal, [d], and tracks how updates depend on it."""
        return self.agent.meta_learner(vector, self.principal.meta_settings)

    def gradient(self, learner: MetaLearner, rollouts: Sequence[Rollout], outcome: Outcome) -> np.ndarray:
        """Return the gradient of the outcome's value with respect to the proposal, [d], from validation rollouts."""
        return learner.gradient(rollouts, self.objective, self.spending_cost, outcome)


def make_meta_gradient(
    spec: EnvSpec, agent: Agent, principal: Proposer, settings: DesignSettings
) -> MetaGradient | None:
    """Return the gradients for a principal that learns from them; None for another principal.

    Raises:
        ConfigError: the principal learns from gradients, but the environment or the agent provides none, or the agents
            never learn.
    """
    if not isinstance(principal, GradientProposer):
        return None
    name = type(principal).__name__
    if not spec.has_reward_jacobian:
        raise ConfigError(
            f"{name} needs the derivatives of rewards with respect to the mechanism, which env={spec.name} does not "
            "provide. Use env=cleanup, harvest, escape_room or fishery, env=tax_economy env.welfare=utilitarian, or "
            "another principal"
        )
    if not settings.adapt_rounds:
        raise ConfigError(
            f"{name} differentiates the agents' learning, and with design.adapt_rounds=0 they do not learn; set it to "
            "1 or more"
        )
    if not isinstance(agent, DifferentiableAgent):
        raise Incompatible(
            Misfit.UNTAUGHT, f"{name} needs agents whose learning can be differentiated; use agent=ppo or agent=pg"
        )
    if not agent.learns:
        raise ConfigError(
            f"{name} differentiates the agents' learning, and with agent.freeze=all they do not learn; use "
            "agent.freeze=core or none"
        )
    return MetaGradient(agent, principal, settings.objective or spec.objective, settings.spending_cost)
