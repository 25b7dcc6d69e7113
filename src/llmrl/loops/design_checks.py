"""Which parts and numbers of a design run cannot work together."""

from __future__ import annotations

from llmrl.core.errors import ConfigError
from llmrl.core.gradients import GradientProposer
from llmrl.core.protocols import Proposer
from llmrl.core.spaces import EnvSpec


def checked_horizon(
    spec: EnvSpec,
    principal: Proposer,
    candidates: int,
    societies: int,
    reset_agents: bool,
    race: int,
    rollout_steps: int | None,
) -> int:
    """Return the steps of an episode; see `DesignLoop` for the arguments.

    Raises:
        ConfigError: they cannot work together.
    """
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
    if candidates > 1 and not reset_agents:
        raise ConfigError(
            f"design.candidates={candidates} compares proposals on societies that start alike, and with "
            "design.reset_agents=false they would grow apart; set design.reset_agents=true or design.candidates=1"
        )
    if societies > 1 and isinstance(principal, GradientProposer):
        raise ConfigError(
            f"design.societies={societies}: {type(principal).__name__} (principal=metagrad) differentiates the "
            "learning of one society; set design.societies=1, or choose another principal"
        )
    if race and not reset_agents:
        raise ConfigError(
            f"design.race={race} measures proposals again on societies that start anew, and with "
            "design.reset_agents=false none does: what a proposal did depended on those before it; set "
            "design.reset_agents=true or design.race=0"
        )
    if rollout_steps is not None and spec.horizon % rollout_steps:
        raise ConfigError(
            f"design.rollout_steps={rollout_steps} must divide an episode of {spec.horizon} steps "
            "(env.horizon), or be null"
        )
    return spec.horizon
