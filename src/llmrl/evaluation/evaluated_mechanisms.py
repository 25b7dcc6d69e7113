"""Which mechanisms an evaluation imposes (words and numbers, and the context they are played in), and societies that
adapt to them first, as in a principal's step of their run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import Scorer
from llmrl.core.printable import is_number
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.experiment.parts import Config, build_parts, games_of_a_society, loop_kind
from llmrl.llms.client import ChatClient
from llmrl.loops.executor import serve
from llmrl.loops.societies import Adaptation, Societies
from llmrl.rollout.collector import Collector

WORDS = ("none", "last", "best")
Row = Mapping[str, Any]
"""Of a run's history."""


@dataclass(frozen=True)
class EvaluatedMechanism:
    """A mechanism that is evaluated.

    Attributes:
        name: what was asked for: one of `WORDS`, or numbers like `0,2,0`.
        vector: its values, [d]; None: what the environment begins with, where nobody proposed anything.
        words: the values for people.
        shown: what it is called above a video.
        sentence: what it does, for people who know nothing of the values.
    """

    name: str
    vector: np.ndarray | None
    words: str
    shown: str = ""
    sentence: str = ""

    @property
    def title(self) -> str:
        """What it is called where it is named."""
        return f"{self.words} ({self.name})" if self.name in ("best", "last") else self.words


def parse_mechanisms(texts: Sequence[str]) -> list[str]:
    """The mechanisms that some texts name, each one of `WORDS` or numbers like `0,2,0`.

    A text holds words, several with commas, or the numbers of one vector.

    Raises:
        ConfigError: neither words nor numbers, or one of them twice.
    """
    asked: list[str] = []
    for text in texts:
        parts = [part.strip() for part in text.split(",")]
        words = [part in WORDS for part in parts]
        if all(words):
            asked += parts
        elif any(words) or not all(is_number(part) for part in parts):
            raise ConfigError(
                f"mechanism {text}: give words ({', '.join(WORDS)}; several with commas) or the numbers of one vector "
                "(0.5,1,0); several vectors are given one by one"
            )
        else:
            asked.append(",".join(f"{float(part):.12g}" for part in parts))
    if twice := [name for i, name in enumerate(asked) if name in asked[:i]]:
        raise ConfigError(f"mechanism: {twice[0]} is there twice")
    return asked


def mechanisms_asked_for(
    asked: Sequence[str], context: int | None, state: Mapping[str, Any], spec: EnvSpec
) -> tuple[list[EvaluatedMechanism], int | None]:
    """The mechanisms `asked` for in a run with a checkpoint `state`, and the index of the context they are played in.

    That is `context`, else that of the best recommendation, of the last or the first there is, whichever is asked for
    first in this order. `best` is the recommendation in a context that was asked for.

    Raises:
        ConfigError: there is no such mechanism or context, or numbers are out of bounds.
    """
    history = state.get("history", [])
    if context is not None and spec.contexts and not 0 <= context < len(spec.contexts):
        listed = ", ".join(f"{i} = {name}" for i, name in enumerate(spec.contexts))
        raise ConfigError(f"context={context}: there is {listed}")
    rows = {"best": _best(state, context, spec) if history and "best" in asked else None, "last": last(history)}
    if len(asked) > 1:
        if spec.mechanism is None:
            raise ConfigError(f"mechanism {','.join(asked)}: env={spec.name} has no mechanism to compare")
        if lacking := [name for name in asked if name in rows and rows[name] is None]:
            raise ConfigError(f"mechanism {lacking[0]}: nobody has proposed anything in this run; give numbers")
    named = [_evaluated(name, rows.get(name), spec) for name in asked]
    if not spec.contexts:
        return named, None
    if context is not None:
        return named, context
    row = (rows["best"] if "best" in asked else None) or rows["last"]
    return named, 0 if row is None else spec.contexts.index(row["context"])


def last(history: Sequence[Row]) -> Row | None:
    """The row of the history with the highest objective of the last step."""
    rows = [row for row in history if row["step"] == history[-1]["step"]]
    return max(rows, key=lambda row: float(row["objective"]), default=None)


def society(history: Sequence[Row], several: int) -> int:
    """Which of the saved societies plays: of several that were tried side by side, that of the last step's best; of
    `several` under one proposal, the first, which is the one that the run's own seed gives."""
    row = last(history)
    return 0 if row is None else int(row["candidate"]) * several


def _best(state: Mapping[str, Any], context: int | None, spec: EnvSpec) -> Row:
    rows: Sequence[Row] = state["recommended"]
    if context is None or not spec.contexts:
        return rows[0]
    for row in rows:
        if row["context"] == spec.contexts[context]:
            return row
    raise ConfigError(f"context={context}: nothing was proposed in {spec.contexts[context]}; give numbers")


def _evaluated(name: str, row: Row | None, spec: EnvSpec) -> EvaluatedMechanism:
    space = spec.mechanism
    if space is None or (row is None and name in ("best", "last")):
        return EvaluatedMechanism(name, None, name)
    if name == "none":
        vector = space.neutral
    elif row is not None:
        vector = space.check(list(row["mechanism"].values()))
    else:
        vector = space.check([float(x) for x in name.split(",")])
    shown = {
        "best": f"With the recommended {space.name}",
        "last": f"With the {space.name} of the last step",
    }.get(name, f"With {space.name} {name.replace(',', ', ')}")
    if (vector == space.neutral).all():
        shown = f"Without {space.name}"
    return EvaluatedMechanism(name, vector, space.in_words(vector), shown, space.in_a_sentence(vector))


@dataclass(frozen=True)
class AdaptationPlan:
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


def plan_adaptation(wanted: bool | None, several: bool, names: Sequence[str], config: Config) -> AdaptationPlan | None:
    """How societies adapt to what they are evaluated under; None: the agents play that the run saved.

    Args:
        wanted: whether somebody wants it; None: where `several` mechanisms are compared and it can be.
        several: whether they are.
        names: who plays.
        config: of the run.

    Raises:
        ConfigError: it is wanted and cannot be.
    """
    has_principal, student = loop_kind(config) == "design", list(names) == ["student"]
    if wanted is False or (wanted is None and not (several and has_principal and student)):
        return None
    if not has_principal:
        raise ConfigError("adapt: this run has no principal, whose steps say how societies adapt; leave it out")
    if not student:
        raise ConfigError(f"adapt: the run's own agents adapt, not policy={','.join(names)}; leave one of them out")
    design = config["design"]
    return AdaptationPlan(design["adapt_rounds"], games_of_a_society(config), design["reset_agents"])


def adapt_societies(
    plan: AdaptationPlan,
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
        plan: from `plan_adaptation`.
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
        keep = () if parts.teacher is None else parts.teacher.channels
        collector = Collector(env, societies.policy, parts.device, keep)
        adaptation = Adaptation(collector, societies, env.spec.horizon, config["design"]["rollout_steps"])
        for i in range(plan.rounds):
            nodes = [seeds.child("adapt").child(i)] * len(vectors)
            serve(adaptation.round(nodes, np.stack(vectors), context))
        return [agent.state_dict() for agent in agents]
    finally:
        env.close()
