"""The options of `teacher=`: one class, with one of three planners."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.teachers.debate import Debate
from llmrl.teachers.domain import Domain
from llmrl.teachers.domain_registry import check_domain, find_domain
from llmrl.teachers.llm_planner import LLMPlanner, Reading
from llmrl.teachers.offline_planner import CORRECTED, PUBLISHED, OfflinePlanner
from llmrl.teachers.plan_policy import Mode, PlanPolicy, Sharing
from llmrl.teachers.planners import OraclePlanner, Planner
from llmrl.teachers.policy_teacher import PolicyTeacher
from llmrl.teachers.schedules import Schedule


def llm_teacher(
    spec: EnvSpec,
    seeds: Seeds,
    llm: ChatModel | None,
    prompt_folder: Path | None = None,
    folder: Path | None = None,
    schedule: Schedule | None = None,
    mode: Mode = "soft",
    samples: PositiveInt = 10,
    repair_turns: NonNegativeInt = 1,
    debate_rounds: NonNegativeInt = 0,
    sharing: Sharing = "own",
    prompt: str | None = None,
    reading: Reading = "shared",
    domain: Domain | None = None,
    parity: bool = False,
) -> PolicyTeacher:
    """A language model plans; arguments as in `LLMPlanner`, and of all teachers those of `_teacher`."""
    words = _domain(spec, domain, parity)
    planner: Planner = LLMPlanner(
        words, llm, prompt_folder, samples, repair_turns, folder, prompt, spec.horizon, reading
    )
    names = spec.agent_names or tuple(f"agent_{i}" for i in range(spec.n_agents))
    if debate_rounds:
        planner = Debate(planner, names, debate_rounds)
    if sharing == "mixture" and len(names) == 1:
        raise ConfigError("teacher.sharing=mixture needs several agents in a game, and here there is one: use own")
    if sharing == "mixture" and "action_mask" in spec.observation:
        raise ConfigError(f"teacher.sharing=mixture: the agents of env={spec.name} have different actions; use own")
    return _teacher(planner, seeds, schedule, mode, sharing, spec.n_agents)


def offline_teacher(
    spec: EnvSpec,
    seeds: Seeds,
    schedule: Schedule | None = None,
    mode: Mode = "soft",
    table: str | None = None,
    miss: Literal["fallback", "error"] = "fallback",
    domain: Domain | None = None,
    parity: bool = False,
) -> PolicyTeacher:
    """Plans come from a table; `table` None is the published one in parity, else the corrected one."""
    words = _domain(spec, domain, parity)
    chosen = table or (PUBLISHED if words.parity else CORRECTED)
    return _teacher(OfflinePlanner(words, chosen, miss), seeds, schedule, mode)


def oracle_teacher(
    spec: EnvSpec,
    seeds: Seeds,
    schedule: Schedule | None = None,
    domain: Domain | None = None,
    parity: bool = False,
) -> PolicyTeacher:
    """Plans by the domain's own rule."""
    words = _domain(spec, domain, parity)
    if type(words).best_plan is Domain.best_plan:
        raise ConfigError(f"the domain {words.name} has no rule for teacher=oracle; use teacher=llm")
    return _teacher(OraclePlanner(words), seeds, schedule, "soft")


def _teacher(
    planner: Planner,
    seeds: Seeds,
    schedule: Schedule | None,
    mode: Mode,
    sharing: Sharing = "own",
    n_agents: int = 1,
) -> PolicyTeacher:
    plan_policy = PlanPolicy(planner.domain, planner, mode, sharing, n_agents)
    if schedule is None:
        raise ConfigError(
            "teacher.schedule=null says nothing of how much the teacher counts; give one, e.g. "
            "'teacher.schedule={_target_: llmrl.teachers.schedules.Constant, weight: 0.3}' after it"
        )
    return PolicyTeacher(plan_policy, schedule, seeds)


def _domain(spec: EnvSpec, domain: Domain | None, parity: bool) -> Domain:
    """The given domain, or the environment's own, if it fits the environment."""
    if domain is not None and domain.parity != parity:
        raise ConfigError(
            f"teacher.parity={str(parity).lower()} and teacher.domain, which has parity={str(domain.parity).lower()}, "
            "contradict each other; set both alike"
        )
    chosen = find_domain(spec.name, parity, spec) if domain is None else domain
    check_domain(chosen, spec)
    return chosen
