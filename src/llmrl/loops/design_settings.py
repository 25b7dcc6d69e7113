"""Settings of a design run, and which parts and numbers of it cannot work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import Agent, DifferentiableAgent, GradientProposer, Proposer, VecEnv
from llmrl.core.ranges import NonNegativeInt, PositiveInt, SpendingCost
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective


@dataclass(frozen=True)
class DesignSettings:
    """How long a principal goes on, and by what it is judged: the section `design` of the config.

    Attributes:
        steps: principal steps.
        candidates: vectors proposed in each.
        adapt_rounds: episodes each game plays, with one update after each, before validation.
        validate_episodes: episodes of a society that the objective of a vector is averaged over; rounded up to a
            multiple of its games.
        reset_agents: back to the original weights before every principal step.
        objective: the measure of welfare the principal is judged on; None is the environment's own.
        spending_cost: what it loses for each unit of reward that its mechanism pays out beyond what it takes.
        replicates: that each vector governs.
        society_seeds: `own`: each society has a seed tree of its own; `consecutive`: that of the run `s` seeds on.
        rollout_steps: steps of every game before each update, which divide an episode; None: a whole episode.
        confirm_steps: principal steps at the end that measure the leading candidates again; None: a fifth of `steps`,
            rounded down, if that is enough to compare two candidates in each context.
        evaluations: evaluations of the recommendation of each context, rounded up to a multiple of `candidates`; 0: it
            is not evaluated, and the result of the run is the online performance.
        anytime: evaluate also the recommendations that follow from the first measurements alone
            (`recommendation.ANYTIME_MEASUREMENTS`).
        validate_at: adaptation rounds after which proposals are validated as well, at most `adapt_rounds`.
        contexts: context of a step: `drawn`, or one after the other (`in_turn`).
        references: measurements of each vector of the coarse scan, by runs before this one; None: as many as cost no
            more than this run, at most 2; 0: none.
    """

    steps: PositiveInt
    candidates: PositiveInt
    adapt_rounds: NonNegativeInt
    validate_episodes: PositiveInt
    reset_agents: bool
    objective: Objective | None
    spending_cost: SpendingCost = 0.0
    replicates: PositiveInt = 1
    society_seeds: Literal["own", "consecutive"] = "own"
    rollout_steps: PositiveInt | None = None
    confirm_steps: NonNegativeInt | None = None
    evaluations: NonNegativeInt = 4
    anytime: bool = False
    validate_at: list[NonNegativeInt] | None = None
    contexts: Literal["drawn", "in_turn"] = "drawn"
    references: NonNegativeInt | None = 0


def checked_horizon(spec: EnvSpec, principal: Proposer, settings: DesignSettings) -> int:
    """Return the steps of an episode.

    Raises:
        ConfigError: the parts and the settings cannot work together.
    """
    candidates, rollout_steps = settings.candidates, settings.rollout_steps
    if spec.horizon is None:
        raise ConfigError(
            f"a principal needs episodes of one length: set env.horizon (e.g. 1000), which is null for env={spec.name}"
        )
    if candidates > 1 and not principal.parallel:
        raise ConfigError(
            f"design.candidates={candidates}: {type(principal).__name__} proposes one vector at a time; set "
            "design.candidates=1, or choose a principal that can propose several (random, egreedy, ucb, thompson, "
            "gp, cem, cmaes, dual_rl, llm)"
        )
    if candidates > 1 and not settings.reset_agents:
        raise ConfigError(
            f"design.candidates={candidates} compares proposals on societies that start alike, and with "
            "design.reset_agents=false they would grow apart; set design.reset_agents=true or design.candidates=1"
        )
    if settings.replicates > 1 and isinstance(principal, GradientProposer):
        raise ConfigError(
            f"design.replicates={settings.replicates}: {type(principal).__name__} (principal=metagrad) differentiates "
            "the learning of one society; set design.replicates=1, or choose another principal"
        )
    if settings.confirm_steps and not settings.reset_agents:
        raise ConfigError(
            f"design.confirm_steps={settings.confirm_steps} measures candidates again on societies that start anew, "
            "and with design.reset_agents=false none does: what a proposal did depended on those before it; set "
            "design.reset_agents=true or design.confirm_steps=0"
        )
    if settings.anytime and not settings.evaluations:
        raise ConfigError(
            "design.anytime=true evaluates recommendations, and design.evaluations=0 forbids it; set "
            "design.evaluations to 1 or more, or design.anytime=false"
        )
    late = [n for n in settings.validate_at or () if n > settings.adapt_rounds]
    if late:
        raise ConfigError(
            f"design.validate_at={settings.validate_at}: rounds are in 0 .. design.adapt_rounds={settings.adapt_rounds}"
        )
    if rollout_steps is not None and spec.horizon % rollout_steps:
        raise ConfigError(
            f"design.rollout_steps={rollout_steps} must divide an episode of {spec.horizon} steps "
            "(env.horizon), or be null"
        )
    return spec.horizon


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
    if not env.spec.has_reward_jacobian:
        raise ConfigError(
            f"{name} needs to know how rewards depend on the mechanism, which env={env.spec.name} does not tell; use "
            "env=cleanup, harvest, escape_room or fishery, env=tax_economy env.welfare=utilitarian, or another "
            "principal"
        )
    if not adapt_rounds:
        raise ConfigError(
            f"{name} learns through the agents' learning, and design.adapt_rounds=0 leaves none; set it to 1 or more"
        )
    if not isinstance(agent, DifferentiableAgent):
        raise Incompatible(
            Misfit.UNTAUGHT, f"{name} needs agents whose learning can be differentiated; use agent=ppo or agent=pg"
        )
    if not agent.learns:
        raise ConfigError(f"{name} learns through the agents' learning, which agent.freeze=all stops; use core or none")
    return agent


def confirmation_steps(settings: DesignSettings, n_contexts: int) -> int:
    """Return the principal steps at the end that confirm candidates.

    Each context needs a step and two measurements. By default fewer steps are not used for confirmation.

    Raises:
        ConfigError: `confirm_steps` is too small for the contexts, or leaves no step for proposals.
    """
    contexts = max(1, n_contexts)
    confirm = settings.confirm_steps
    if confirm is None:
        steps = settings.steps // 5 if settings.reset_agents else 0
        return steps if steps // contexts * settings.candidates >= 2 else 0
    if confirm >= settings.steps:
        raise ConfigError(
            f"design.confirm_steps={confirm} leaves no step for proposals; it must be less than "
            f"design.steps={settings.steps}"
        )
    if confirm and confirm // contexts * settings.candidates < 2:
        fewest = contexts * -(-2 // settings.candidates)
        raise ConfigError(
            f"design.confirm_steps={confirm} is too small to measure two candidates"
            f"{f' in each of {contexts} contexts' if contexts > 1 else ''}; set it to {fewest} or more, or to 0"
        )
    return confirm
