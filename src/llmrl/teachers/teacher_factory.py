"""Factories of the options `teacher=`, which return a `PolicyTeacher` with one of three planners."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.model_protocols import ChatModel
from llmrl.core.ranges import NonNegativeInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.teachers.debate import Debate
from llmrl.teachers.domain import Domain
from llmrl.teachers.llm_planner import LLMPlanner, LLMPlannerSettings
from llmrl.teachers.offline_planner import CORRECTED_TABLE, PUBLISHED_TABLE, OfflinePlanner
from llmrl.teachers.planners import ErroneousPlanner, OraclePlanner, Planner
from llmrl.teachers.policy_teacher import AdviceMode, AdviceSharing, PlanPolicy, PolicyTeacher
from llmrl.teachers.schedules import Schedule


@dataclass(frozen=True)
class LLMTeacherSettings(LLMPlannerSettings):
    """Options of `llm_teacher`; meanings, units and ranges are in `conf/teacher/llm.yaml`."""

    schedule: Schedule | None
    mode: AdviceMode
    debate_rounds: NonNegativeInt
    sharing: AdviceSharing
    domain: Domain | None
    parity: bool


def llm_teacher(
    settings: LLMTeacherSettings,
    spec: EnvSpec,
    seeds: Seeds,
    llm: ChatModel | None,
    prompt_folder: Path | None = None,
    folder: Path | None = None,
) -> PolicyTeacher:
    """Return a teacher with plans of a language model; for the arguments see `LLMPlanner`."""
    domain = _select_domain(spec, settings.domain, settings.parity)
    llm_planner = LLMPlanner(settings, domain, llm, prompt_folder, folder, spec.horizon)
    planner: Planner = llm_planner
    if settings.debate_rounds:
        agent_names = spec.agent_names or [f"agent_{i}" for i in range(spec.n_agents)]
        planner = Debate(llm_planner, agent_names, settings.debate_rounds)
    if settings.sharing == "mixture" and spec.n_agents == 1:
        raise ConfigError(
            "teacher.sharing=mixture needs several agents in a game, but there is only one; use teacher.sharing=own"
        )
    if settings.sharing == "mixture" and "action_mask" in spec.observation:
        raise ConfigError(
            f"teacher.sharing=mixture needs agents with equal actions, but those of env={spec.name} differ; use "
            "teacher.sharing=own"
        )
    return _build_teacher(PlanPolicy(planner, settings.mode, settings.sharing, spec.n_agents), seeds, settings.schedule)


def offline_teacher(
    spec: EnvSpec,
    seeds: Seeds,
    schedule: Schedule | None = None,
    mode: AdviceMode = "soft",
    table: str | None = None,
    missing_state: Literal["fallback", "error"] = "fallback",
    domain: Domain | None = None,
    parity: bool = False,
    error_rate: UnitInterval = 0.0,
) -> PolicyTeacher:
    """Return a teacher with plans from a table (None: `published` with `parity`, else `corrected`)."""
    selected_domain = _select_domain(spec, domain, parity)
    table_name = table or (PUBLISHED_TABLE if selected_domain.parity else CORRECTED_TABLE)
    planner = OfflinePlanner(selected_domain, table_name, missing_state)
    return _build_teacher(PlanPolicy(_add_errors(planner, error_rate, seeds), mode), seeds, schedule)


def oracle_teacher(
    spec: EnvSpec,
    seeds: Seeds,
    schedule: Schedule | None = None,
    domain: Domain | None = None,
    parity: bool = False,
    error_rate: UnitInterval = 0.0,
) -> PolicyTeacher:
    """Return a teacher with plans by the domain's hand-written rule."""
    selected_domain = _select_domain(spec, domain, parity)
    if type(selected_domain).best_plan is Domain.best_plan:
        raise ConfigError(f"the domain {selected_domain.name} has no rule for teacher=oracle; use teacher=llm")
    return _build_teacher(PlanPolicy(_add_errors(OraclePlanner(selected_domain), error_rate, seeds)), seeds, schedule)


def _add_errors(planner: Planner, error_rate: UnitInterval, seeds: Seeds) -> Planner:
    return ErroneousPlanner(planner, error_rate, seeds) if error_rate else planner


def _build_teacher(plan_policy: PlanPolicy, seeds: Seeds, schedule: Schedule | None) -> PolicyTeacher:
    if schedule is None:
        raise ConfigError(
            "teacher.schedule=null gives the teacher's loss no weight; set a schedule, e.g. "
            "'teacher.schedule={_target_: llmrl.teachers.schedules.Constant, weight: 0.3}'"
        )
    return PolicyTeacher(plan_policy, schedule, seeds)


def _select_domain(spec: EnvSpec, domain: Domain | None, parity: bool) -> Domain:
    """Return the given domain, or the one for the environment if it is None, and check that it fits.

    Raises:
        ConfigError: see `find_domain` and `check_domain`; or `parity` contradicts the given domain.
    """
    if domain is not None and domain.parity != parity:
        raise ConfigError(
            f"teacher.parity={str(parity).lower()} contradicts the parity={str(domain.parity).lower()} of "
            "teacher.domain; use the same value for both"
        )
    selected_domain = find_domain(spec.name, parity, spec) if domain is None else domain
    check_domain(selected_domain, spec)
    return selected_domain


DOMAIN_CLASS_PATHS = {
    "simple_doorkey": "llmrl.teachers.rooms.room_domains:SimpleDoorKeyDomain",
    "lava_doorkey": "llmrl.teachers.rooms.room_domains:LavaDoorKeyDomain",
    "colored_doorkey": "llmrl.teachers.rooms.room_domains:ColoredDoorKeyDomain",
    "two_door": "llmrl.teachers.rooms.room_domains:TwoDoorDomain",
    "unlock_pickup": "llmrl.teachers.rooms.unlock_pickup:UnlockPickupDomain",
    "simple_spread": "llmrl.teachers.particles.spread:SimpleSpreadDomain",
    "simple_tag": "llmrl.teachers.particles.tag:SimpleTagDomain",
    "simple_reference": "llmrl.teachers.particles.communication:SimpleReferenceDomain",
    "simple_speaker_listener": "llmrl.teachers.particles.communication:SimpleSpeakerListenerDomain",
}
"""Name of an environment -> `module:class` of its domain."""


def find_domain(env: str, parity: bool = False, spec: EnvSpec | None = None) -> Domain:
    """Return the domain of this package for the environment `env`; with `parity` that of the published code.

    `spec` is passed to constructors with this parameter.

    Raises:
        Incompatible: there is no domain for the environment.
        ConfigError: with `parity`, there is no published teacher of the environment.
    """
    if env not in DOMAIN_CLASS_PATHS:
        raise Incompatible(
            IncompatibilityReason.WRONG_GAME,
            f"no teacher's domain is shipped for env={env}; use env={', '.join(DOMAIN_CLASS_PATHS)}, "
            "or give teacher.domain={_target_: <your class derived from llmrl.teachers.domain.Domain>}",
        )
    module_name, _, class_name = DOMAIN_CLASS_PATHS[env].partition(":")
    domain_class = getattr(importlib.import_module(module_name), class_name)
    parameters = inspect.signature(domain_class).parameters
    if parity and "parity" not in parameters:
        raise ConfigError(f"teacher.parity=true: there is no published teacher of {env}; set teacher.parity=false")
    constructor_arguments = ({"parity": True} if parity else {}) | ({"spec": spec} if "spec" in parameters else {})
    return domain_class(**constructor_arguments)


def check_domain(domain: Domain, spec: EnvSpec) -> None:
    """Raise ConfigError if a domain lacks attributes or does not fit the channels or number of actions in `spec`."""
    if missing_attributes := [name for name in _REQUIRED_ATTRIBUTES if not hasattr(domain, name)]:
        raise ConfigError(
            f"the teacher's domain {type(domain).__name__} has no {', '.join(missing_attributes)}; set "
            f"{', '.join(_REQUIRED_ATTRIBUTES)} on the class or in the constructor"
        )
    if missing_channels := [name for name in domain.channels if name not in spec.observation]:
        raise ConfigError(
            f"the teacher's domain {domain.name} needs the channel {missing_channels[0]!r}, but env={spec.name} has "
            f"only {', '.join(spec.observation)}; add it to env.observe if the environment has that option"
        )
    if domain.n_actions != spec.n_actions:
        raise ConfigError(
            f"the teacher's domain {domain.name} has {domain.n_actions} actions, but env={spec.name} has "
            f"{spec.n_actions}; use a domain for this environment"
        )


_REQUIRED_ATTRIBUTES = ("name", "channels", "prompt", "skills", "n_actions", "idle", "fallback")
