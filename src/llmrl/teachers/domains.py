"""Which domain an environment is taught in."""

from __future__ import annotations

import importlib
import inspect

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Domain

DOMAINS = {
    "simple_doorkey": "llmrl.teachers.rooms.domains:SimpleDoorKey",
    "lava_doorkey": "llmrl.teachers.rooms.domains:LavaDoorKey",
    "colored_doorkey": "llmrl.teachers.rooms.domains:ColoredDoorKey",
    "two_door": "llmrl.teachers.rooms.domains:TwoDoor",
    "unlock_pickup": "llmrl.teachers.rooms.unlock_pickup:UnlockPickup",
    "simple_spread": "llmrl.teachers.particles.spread:SimpleSpread",
    "simple_tag": "llmrl.teachers.particles.tag:SimpleTag",
    "simple_reference": "llmrl.teachers.particles.telling:SimpleReference",
    "simple_speaker_listener": "llmrl.teachers.particles.telling:SimpleSpeakerListener",
}
"""Environment name -> `module:class`."""


def find_domain(env: str, parity: bool = False, spec: EnvSpec | None = None) -> Domain:
    """The domain shipped for an environment; with `parity` as published. `spec` is given to domains that ask for it.

    Raises:
        ConfigError: there is none, or it was never published.
    """
    if env not in DOMAINS:
        raise ConfigError(
            f"no domain is shipped for env={env}, so a teacher has no words for it; use env={', '.join(DOMAINS)}, "
            "or give teacher.domain={_target_: <your class derived from llmrl.teachers.domain.Domain>}"
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
    """Raise ConfigError unless a domain fits an environment: what it reads is observed, and its actions are there."""
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
