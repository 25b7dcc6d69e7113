"""Registry of the teachers' domains by environment."""

from __future__ import annotations

import importlib
import inspect

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Domain
from llmrl.teachers.plans import PlanStep, Skill

DOMAINS = {
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
"""Environment name -> `module:class`."""


def find_domain(env: str, parity: bool = False, spec: EnvSpec | None = None) -> Domain:
    """Return the domain shipped for an environment, with `parity` as published.

    Domains whose constructor has the argument `spec` are given it.

    Raises:
        ConfigError: no domain is shipped, or with `parity` there is no published one.
    """
    if env not in DOMAINS:
        raise Incompatible(
            Misfit.ONE_GAME,
            f"no domain is shipped for env={env}, so a teacher has no words for it; use env={', '.join(DOMAINS)}, "
            "or give teacher.domain={_target_: <your class derived from llmrl.teachers.domain.Domain>}",
        )
    module, _, name = DOMAINS[env].partition(":")
    kind = getattr(importlib.import_module(module), name)
    takes = inspect.signature(kind).parameters
    if parity and "parity" not in takes:
        raise ConfigError(f"teacher.parity=true: there is no published teacher of {env}; set teacher.parity=false")
    given = ({"parity": True} if parity else {}) | ({"spec": spec} if "spec" in takes else {})
    domain: Domain = kind(**given)
    return domain


def check_domain(domain: Domain, spec: EnvSpec) -> None:
    """Raise ConfigError unless a domain is complete and fits an environment's channels and number of actions."""
    _check_attributes(domain)
    missing = [name for name in domain.channels if name not in spec.observation]
    if missing:
        raise ConfigError(
            f"the teacher's domain {domain.name} reads the channel {missing[0]!r}, and env={spec.name} gives "
            f"{', '.join(spec.observation)}; add it to env.observe if the environment has that field"
        )
    if domain.n_actions != spec.n_actions:
        raise ConfigError(
            f"the teacher's domain {domain.name} has {domain.n_actions} actions, and env={spec.name} {spec.n_actions}"
        )


def _check_attributes(domain: Domain) -> None:
    kind = type(domain).__name__
    lacking = [name for name in _NEEDED if not hasattr(domain, name)]
    if lacking:
        raise ConfigError(
            f"the teacher's domain {kind} has no {', '.join(lacking)}; a domain sets {', '.join(_NEEDED)} on its class "
            "or in its constructor"
        )
    for name in ("name", "prompt"):
        if not isinstance(getattr(domain, name), str):
            raise ConfigError(f"the teacher's domain {kind}: {name}={getattr(domain, name)!r} is no text")
    for name, parts, wanted in (
        ("channels", str, "names"),
        ("skills", Skill, "Skill"),
        ("fallback", PlanStep, "PlanStep"),
    ):
        value = getattr(domain, name)
        if not isinstance(value, tuple | list) or not value or not all(isinstance(part, parts) for part in value):
            raise ConfigError(
                f"the teacher's domain {kind}: {name}={value!r} must be a tuple of {wanted}, at least one"
            )
    skills = {skill.name for skill in domain.skills}
    unknown = [step.skill for step in domain.fallback if step.skill not in skills]
    if unknown:
        raise ConfigError(
            f"the teacher's domain {kind}: its fallback uses the skill {unknown[0]!r}; there are {', '.join(skills)}"
        )
    for name, least in (("n_actions", 1), ("idle", 0), ("memory", 0)):
        value = getattr(domain, name)
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"the teacher's domain {kind}: {name}={value!r} must be a whole number >= {least}")
    if domain.idle >= domain.n_actions:
        raise ConfigError(
            f"the teacher's domain {kind}: idle={domain.idle} is no action; there are 0 to {domain.n_actions - 1}"
        )


_NEEDED = ("name", "channels", "prompt", "skills", "n_actions", "idle", "fallback")
