"""Base of particle domains: names of the agents, and parts of their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Domain
from llmrl.teachers.particles.steering import Pair


class ParticleDomain(Domain):
    """Domain of a particle world.

    Args:
        spec: spec of the environment, with the parts of each agent's vector.

    Attributes:
        reads: parts of vectors that the domain reads, of at least some agents.
        agents: names of the agents.
        layouts: for each agent, the slice of each part in its vector.

    Raises:
        ConfigError: the spec has no names of agents or no such parts.
    """

    channels = ("vector",)
    idle = 0
    reads: ClassVar[tuple[str, ...]]

    def __init__(self, spec: EnvSpec) -> None:
        vector = spec.observation.get("vector")
        if vector is None or not vector.parts or not spec.agent_names:
            raise ConfigError(
                f"the teacher's domain {self.name} needs a particle world, whose agents have names and whose vectors "
                f"have named parts, but env={spec.name} is none; use another environment or domain"
            )
        if missing := set(self.reads).difference(*vector.parts):
            raise ConfigError(
                f"the teacher's domain {self.name} needs {', '.join(sorted(missing))} in the agents' vectors, but "
                f"env={spec.name} has no such part; use teacher.domain=null for the environment's own domain"
            )
        self.n_actions = spec.n_actions
        self.agents, self.layouts = spec.agent_names, vector.parts


def pairs(vector: Sequence[float], layout: Mapping[str, slice], part: str) -> list[Pair]:
    """Return the (x, y) pairs in a part of a vector."""
    numbers = vector[layout[part]]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def join_words(words: Sequence[str]) -> str:
    """Join words as `a`, `a and b`, `a, b and c`.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
