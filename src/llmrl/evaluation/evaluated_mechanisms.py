"""Mechanisms of an evaluation, their context, and the adaptation of societies to them before the evaluation."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.config.builder import Config
from llmrl.config.loop_sections import get_loop_kind
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import Scorer
from llmrl.core.printable import is_number
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.evaluation.saved_runs import ProposalRow, find_best_row_of_last_step
from llmrl.experiment.parts import build_parts, count_envs_per_society
from llmrl.llms.client import ChatClient
from llmrl.loops.executor import serve
from llmrl.loops.societies import AdaptationRounds, Societies
from llmrl.rollout.collector import Collector

MECHANISM_NAMES = ("none", "last", "best")


@dataclass(frozen=True)
class EvaluatedMechanism:
    """A mechanism that is evaluated.

    Attributes:
        name: name on the command line: one of `MECHANISM_NAMES`, or numbers like `0,2,0`.
        vector: values of the mechanism's parameters, [d]; None: the environment keeps its initial mechanism, because it
            has no settable mechanism or the run has no proposals.
        values_text: text with the names and values of the parameters, or `name` without a vector.
        heading: title above a video.
        sentence: effect of the mechanism, for readers who do not know its parameters.
    """

    name: str
    vector: np.ndarray | None
    values_text: str
    heading: str = ""
    sentence: str = ""

    @property
    def title(self) -> str:
        """Text of the values, followed by the name of the mechanism if this is `best` or `last`."""
        return f"{self.values_text} ({self.name})" if self.name in ("best", "last") else self.values_text


def parse_mechanisms(texts: Sequence[str]) -> list[str]:
    """Return the names of mechanisms, each one of `MECHANISM_NAMES` or numbers like `0,2,0`.

    Args:
        texts: texts that each contain names, separated by commas, or the numbers of one vector.

    Raises:
        ConfigError: a text contains neither names nor numbers, or a mechanism is named twice.
    """
    names: list[str] = []
    for text in texts:
        components = [component.strip() for component in text.split(",")]
        is_name = [component in MECHANISM_NAMES for component in components]
        if all(is_name):
            names += components
        elif any(is_name) or not all(is_number(component) for component in components):
            raise ConfigError(
                f"mechanism {text} is invalid: give names ({', '.join(MECHANISM_NAMES)}; several with commas) or the "
                "numbers of one vector (0.5,1,0). Give several vectors one by one"
            )
        else:
            names.append(",".join(f"{float(component):.12g}" for component in components))
    if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(f"mechanism: {repeated[0]} is given twice; remove one")
    return names


def select_mechanisms(
    names: Sequence[str], context: int | None, loop_state: Mapping[str, Any], spec: EnvSpec
) -> tuple[list[EvaluatedMechanism], int | None]:
    """Return the mechanisms of an evaluation and the index of their context, which is None without contexts.

    Args:
        names: names of the mechanisms (`parse_mechanisms`). `best` is the recommendation in `context`, or the first
            recommendation without `context`.
        context: index of the context; None: the context of the best recommendation if `best` is among the names, else
            of the best proposal of the last step, else the first context.
        loop_state: state of the loop in the checkpoint of the run.
        spec: specification of the environment.

    Raises:
        ConfigError: a mechanism or the context does not exist, or numbers are out of bounds.
    """
    history = loop_state.get("history", [])
    if context is not None and spec.contexts and not 0 <= context < len(spec.contexts):
        choices = ", ".join(f"{i} = {name}" for i, name in enumerate(spec.contexts))
        raise ConfigError(f"context={context} is unknown; use one of {choices}")
    rows = {
        "best": _find_recommended_row(loop_state, context, spec) if history and "best" in names else None,
        "last": find_best_row_of_last_step(history),
    }
    if len(names) > 1:
        if spec.mechanism is None:
            raise ConfigError(f"mechanism {','.join(names)}: env={spec.name} has no mechanism to compare")
        if names_without_proposal := [name for name in names if name in rows and rows[name] is None]:
            raise ConfigError(f"mechanism {names_without_proposal[0]}: this run has no proposals; give numbers")
    mechanisms = [_build_mechanism(name, rows.get(name), spec) for name in names]
    if not spec.contexts:
        return mechanisms, None
    if context is not None:
        return mechanisms, context
    row = (rows["best"] if "best" in names else None) or rows["last"]
    return mechanisms, 0 if row is None else spec.contexts.index(row["context"])


def _find_recommended_row(loop_state: Mapping[str, Any], context: int | None, spec: EnvSpec) -> ProposalRow:
    """Return the recommendation in a context (None: the first one)."""
    rows: Sequence[ProposalRow] = loop_state["recommended"]
    if context is not None and spec.contexts:
        rows = [row for row in rows if row["context"] == spec.contexts[context]]
    if not rows:
        raise ConfigError(f"context={context}: the run has no proposals in this context; give numbers")
    return rows[0]


def _build_mechanism(name: str, row: ProposalRow | None, spec: EnvSpec) -> EvaluatedMechanism:
    space = spec.mechanism
    if space is None or (row is None and name in ("best", "last")):
        return EvaluatedMechanism(name, vector=None, values_text=name)
    if name == "none":
        vector = space.neutral
    elif row is not None:
        vector = space.check(list(row["mechanism"].values()))
    else:
        vector = space.check([float(x) for x in name.split(",")])
    headings = {"best": f"With the recommended {space.name}", "last": f"With the {space.name} of the last step"}
    heading = headings.get(name, f"With {space.name} {name.replace(',', ', ')}")
    if (vector == space.neutral).all():
        heading = f"Without {space.name}"
    return EvaluatedMechanism(name, vector, space.format_vector(vector), heading, space.describe_effects(vector))


@dataclass(frozen=True)
class AdaptationPlan:
    """Plan of the adaptation of societies to mechanisms.

    Attributes:
        rounds: number of adaptation rounds, in each of which every game plays an episode.
        games: number of games of each society.
        initial: whether societies start with the initial weights of the run instead of the saved weights.
    """

    rounds: int
    games: int
    initial: bool


def plan_adaptation(
    adapt: bool | None, is_comparison: bool, player_names: Sequence[str], config: Config
) -> AdaptationPlan | None:
    """Return the plan by which societies adapt before their evaluation; None if the saved agents play unchanged.

    Args:
        adapt: option `adapt`; None: adapt if several mechanisms are compared and adaptation is possible.
        is_comparison: whether several mechanisms are compared.
        player_names: names of the players.
        config: config of the run.

    Raises:
        ConfigError: `adapt` is true, but adaptation is not possible.
    """
    has_principal, is_student_only = get_loop_kind(config) == "design", list(player_names) == ["student"]
    if adapt is False or (adapt is None and not (is_comparison and has_principal and is_student_only)):
        return None
    if not has_principal:
        raise ConfigError("adapt=true needs a run with a principal, whose steps define the adaptation; remove adapt")
    if not is_student_only:
        raise ConfigError(f"adapt=true needs policy=student, not {','.join(player_names)}; remove adapt, or the policy")
    design = config["design"]
    return AdaptationPlan(design["adapt_rounds"], count_envs_per_society(config), design["reset_agents"])


def adapt_societies(
    plan: AdaptationPlan,
    config: Config,
    llm: ChatClient | Scorer | None,
    vectors: Sequence[np.ndarray],
    context: int | None,
    seeds: Seeds,
    agent_state: State,
) -> list[State]:
    """Adapt one society to each mechanism vector; return the states of the societies' agents.

    A society adapts as in a principal step of the run. All societies start with the same weights, and use the same
    random numbers in their games and for sampling actions.

    Args:
        plan: plan of the adaptation (`plan_adaptation`).
        config: config of the run, with its teacher.
        llm: language model of the parts that use one.
        vectors: mechanism vectors, [d] each.
        context: index of the context; None without contexts.
        seeds: seed node of the evaluation.
        agent_state: saved state of an agent, with which all societies start unless `plan.initial`.

    Raises:
        ConfigError: the vectors are out of bounds, or the environment has no horizon.
    """
    n_societies = len(vectors)
    config = {**config, "env": {**config["env"], "n_envs": n_societies * plan.games}}
    parts = build_parts(config, llm, render=False, play_only=True, n_proposals=n_societies)
    agents = parts.agents
    with closing(parts.env) as env:
        if env.spec.horizon is None:
            raise ConfigError("adapt=true needs env.horizon, the length of a round, which is null; set it")
        societies = Societies(env, agents, n_societies, replicates=1)
        if plan.initial:
            societies.reset()
        else:
            for agent in agents:
                agent.load_state_dict(copy.deepcopy(agent_state))
        teacher_channels = () if parts.teacher is None else parts.teacher.channels
        collector = Collector(env, societies.policy, parts.device, teacher_channels)
        adaptation = AdaptationRounds(collector, societies, env.spec.horizon, config["design"]["rollout_steps"])
        for i in range(plan.rounds):
            seed_nodes = [seeds.child("adapt").child(i)] * n_societies
            serve(adaptation.play_round(seed_nodes, np.stack(vectors), context))
        return [agent.state_dict() for agent in agents]
