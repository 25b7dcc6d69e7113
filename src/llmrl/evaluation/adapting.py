"""Societies that adapt to mechanisms before they are evaluated under them, as in a principal's step of their run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Scorer
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import build_parts, games_of_a_society, loop_kind
from llmrl.learners.rollout import Collector
from llmrl.llms.client import ChatClient
from llmrl.loops.adaptation import Adaptation
from llmrl.loops.societies import Societies

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """How societies adapt.

    Attributes:
        rounds: episodes that each game plays.
        games: of each society.
        initial: whether they begin with the weights that the run began with, or with those that it ended with.
    """

    rounds: int
    games: int
    initial: bool

    def record(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def planned(wanted: bool | None, several: bool, names: Sequence[str], config: Config) -> Plan | None:
    """How societies adapt to what they are evaluated under; None: the agents play that the run saved.

    Args:
        wanted: whether somebody wants it; None: where `several` mechanisms are compared and it can be.
        several: whether they are.
        names: who plays.
        config: of the run.

    Raises:
        ConfigError: it is wanted and cannot be.
    """
    governed, student = loop_kind(config) == "design", list(names) == ["student"]
    if wanted is False or (wanted is None and not (several and governed and student)):
        return None
    if not governed:
        raise ConfigError("adapt: this run has no principal, whose steps say how societies adapt; leave it out")
    if not student:
        raise ConfigError(f"adapt: the run's own agents adapt, not policy={','.join(names)}; leave one of them out")
    design = config["design"]
    return Plan(design["adapt_rounds"], games_of_a_society(config), design["reset_agents"])


def adapted(
    plan: Plan,
    config: Config,
    llm: ChatClient | Scorer | None,
    vectors: Sequence[np.ndarray],
    context: int | None,
    seeds: Seeds,
    saved: State,
) -> list[State]:
    """One society for each vector, after it has adapted to it in the games of the run; the states of the agents.

    They are the first society of a principal's step that proposes `vectors`: all begin alike, in games with the same
    draws, and draw the same numbers.

    Args:
        plan: from `planned`.
        config: of the run, with its teacher.
        llm: for parts that need one.
        vectors: [d] each.
        context: index of the context; None where there is none.
        seeds: of the step.
        saved: the agent to begin with where the run does not begin its steps anew.

    Raises:
        ConfigError: the vectors are out of bounds, or the environment has no horizon.
    """
    n = len(vectors)
    config = {**config, "env": {**config["env"], "n_envs": n * plan.games}}
    parts = build_parts(config, llm, render=False, play_only=True, proposals=n)
    env, agents = parts.env, parts.agents
    try:
        if env.spec.horizon is None:
            raise ConfigError("adapt: the environment has no horizon, so nobody knows how long a round is")
        societies = Societies(env, agents, n, 1)
        if plan.initial:
            societies.reset()
        else:
            for agent in agents:
                agent.load_state_dict(copy.deepcopy(saved))
        env.set_mechanism(societies.imposed(np.stack(vectors)))
        if context is not None:
            env.set_context(context)
        keep = () if parts.teacher is None else parts.teacher.channels
        collector = Collector(env, societies.policy, parts.device, keep)
        adaptation = Adaptation(collector, societies, env.spec.horizon, config["design"]["rollout_steps"])
        for i in range(plan.rounds):
            adaptation.round(seeds.child("adapt").child(i))
        return [agent.state_dict() for agent in agents]
    finally:
        env.close()
