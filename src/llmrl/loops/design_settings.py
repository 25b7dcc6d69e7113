"""Settings of a design run, and checks that its parts and settings can work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.protocols import Agent, DifferentiableAgent, GradientProposer, Proposer
from llmrl.core.ranges import NonNegativeInt, PositiveInt, SpendingCost
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective


@dataclass(frozen=True)
class DesignSettings:
    """Budget and objective of a principal: the section `design` of the config.

    Attributes:
        steps: number of principal steps.
        candidates: number of vectors that the principal proposes in each step.
        adapt_rounds: number of episodes that each game plays before validation; agents are updated after each.
        validate_episodes: number of episodes of each society over which the objective of a vector is averaged; rounded
            up to a multiple of the society's games.
        reset_agents: whether to restore the original weights before every principal step.
        objective: measure of welfare that the principal maximizes; None: the default of the environment.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
        replicates: number of societies that each vector governs.
        rollout_steps: steps of every game before each update, a divisor of the horizon; None: the horizon.
        confirm_steps: number of principal steps at the end that measure the leading candidates again; None: a fifth of
            `steps`, rounded down, or 0 if that is too few to compare two candidates in each context.
        evaluations: number of evaluations of the recommendation of each context, rounded up to a multiple of
            `candidates`; 0: it is not evaluated, and the result of the run is the online performance.
        anytime: whether to evaluate also recommendations from the first 1, 2, 5, ... measurements
            (`recommendation.ANYTIME_MEASUREMENTS`).
        validation_rounds: numbers of adaptation rounds, 0 to `adapt_rounds`, after which proposals are also validated.
        contexts: choice of the context of a step: at random (`drawn`), or one after the other (`in_turn`).
        references: number of measurements of each vector of the coarse scan, which reference runs make before this run;
            None: at most 2, and at most as many as cost no more than this run; 0: no scan.
    """

    steps: PositiveInt
    candidates: PositiveInt
    adapt_rounds: NonNegativeInt
    validate_episodes: PositiveInt
    reset_agents: bool
    objective: Objective | None
    spending_cost: SpendingCost = 0.0
    replicates: PositiveInt = 1
    rollout_steps: PositiveInt | None = None
    confirm_steps: NonNegativeInt | None = None
    evaluations: NonNegativeInt = 4
    anytime: bool = False
    validation_rounds: list[NonNegativeInt] | None = None
    contexts: Literal["drawn", "in_turn"] = "drawn"
    references: NonNegativeInt | None = 0


def check_settings(spec: EnvSpec, principal: Proposer, settings: DesignSettings) -> int:
    """Check the parts and the settings of a run; return the horizon of the environment.

    Raises:
        ConfigError: the parts and the settings cannot work together.
    """
    if spec.horizon is None:
        raise ConfigError(
            f"a principal needs episodes of one length: set env.horizon (e.g. 1000), which is null for env={spec.name}"
        )
    principal_name, has_reset, candidates = type(principal).__name__, settings.reset_agents, settings.candidates
    late_rounds = [n for n in settings.validation_rounds or () if n > settings.adapt_rounds]
    is_fault_by_message = {
        f"design.candidates={candidates}: {principal_name} proposes one vector at a time; set design.candidates=1, "
        "or a principal that can propose several (random, egreedy, ucb, thompson, gp, cem, cmaes, dual_rl, llm)": (
            candidates > 1 and not principal.parallel
        ),
        f"design.candidates={candidates} compares proposals on societies with equal initial weights, which "
        "design.reset_agents=false does not restore; set design.reset_agents=true or design.candidates=1": (
            candidates > 1 and not has_reset
        ),
        f"design.replicates={settings.replicates}: {principal_name} (principal=metagrad) differentiates the learning "
        "of one society; set design.replicates=1, or choose another principal": (
            settings.replicates > 1 and isinstance(principal, GradientProposer)
        ),
        f"design.confirm_steps={settings.confirm_steps} measures candidates again from the initial weights, which "
        "design.reset_agents=false does not restore; set design.reset_agents=true or design.confirm_steps=0": (
            bool(settings.confirm_steps) and not has_reset
        ),
        "design.anytime=true needs evaluations of recommendations, but design.evaluations=0; set design.evaluations to "
        "1 or more, or design.anytime=false": settings.anytime and not settings.evaluations,
        f"design.validation_rounds={settings.validation_rounds} has rounds after the last; use numbers from 0 to "
        f"design.adapt_rounds={settings.adapt_rounds}": bool(late_rounds),
        f"design.rollout_steps={settings.rollout_steps} must divide an episode of {spec.horizon} steps "
        "(env.horizon), or be null": settings.rollout_steps is not None and spec.horizon % settings.rollout_steps != 0,
    }
    for message, is_fault in is_fault_by_message.items():
        if is_fault:
            raise ConfigError(message)
    return spec.horizon


def count_confirmation_steps(settings: DesignSettings, n_contexts: int) -> int:
    """Return the number of principal steps at the end that confirm candidates.

    Each context needs at least one step and two measurements. If `confirm_steps` is None, the number is a fifth of the
    steps, or 0 if this is too few or agents are not reset.

    Raises:
        ConfigError: `confirm_steps` is too small for the contexts, or leaves no step for proposals.
    """
    n_contexts, confirm_steps = max(1, n_contexts), settings.confirm_steps
    if confirm_steps is None:
        steps = settings.steps // 5 if settings.reset_agents else 0
        return steps if steps // n_contexts * settings.candidates >= 2 else 0
    if confirm_steps >= settings.steps:
        raise ConfigError(
            f"design.confirm_steps={confirm_steps} leaves no step for proposals; it must be less than "
            f"design.steps={settings.steps}"
        )
    if confirm_steps and confirm_steps // n_contexts * settings.candidates < 2:
        min_steps = n_contexts * -(-2 // settings.candidates)
        raise ConfigError(
            f"design.confirm_steps={confirm_steps} is too small to measure two candidates"
            f"{f' in each of {n_contexts} contexts' if n_contexts > 1 else ''}; set it to {min_steps} or more, or to 0"
        )
    return confirm_steps


def check_differentiable(spec: EnvSpec, agent: Agent, principal: GradientProposer, settings: DesignSettings) -> None:
    """Check that the objective can be differentiated through the agents' learning.

    Raises:
        ConfigError: the environment or the agent provides no gradients, or the agents never learn.
    """
    name = type(principal).__name__
    if not spec.has_reward_jacobian:
        raise ConfigError(
            f"{name} needs the derivatives of rewards with respect to the mechanism, which env={spec.name} does not "
            "provide. Use env=cleanup, harvest, escape_room, fishery, pasture or pollution, env=tax_economy "
            "env.welfare=utilitarian, or another principal"
        )
    if not settings.adapt_rounds:
        raise ConfigError(
            f"{name} differentiates the agents' learning, and with design.adapt_rounds=0 they do not learn; set it to "
            "1 or more"
        )
    if not isinstance(agent, DifferentiableAgent):
        raise Incompatible(
            IncompatibilityReason.NOT_TRAINABLE,
            f"{name} needs agents whose learning can be differentiated; use agent=ppo or agent=pg",
        )
    if not agent.learns:
        raise ConfigError(
            f"{name} differentiates the agents' learning, and with agent.freeze=all they do not learn; use "
            "agent.freeze=core or none"
        )
