"""What all particle domains share: an agent's vector taken apart, and who the agents are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Domain
from llmrl.teachers.particles.steering import Pair


class ParticleDomain(Domain):
    """A domain of a particle world.

    Args:
        spec: of the environment, which tells what the entries of each agent's vector mean.

    Attributes:
        reads: parts of vectors that it reads, of some agent's at least.
        agents: their names.
        layouts: for each agent, which entries of its vector hold what.

    Raises:
        ConfigError: the environment does not tell.
    """

    channels = ("vector",)
    idle = 0
    reads: ClassVar[tuple[str, ...]]

    def __init__(self, spec: EnvSpec) -> None:
        vector = spec.observation.get("vector")
        if vector is None or not vector.parts or not spec.agent_names:
            raise ConfigError(
                f"the teacher's domain {self.name} is for a particle world, whose agents have names and whose vectors "
                f"have named parts; env={spec.name} is none"
            )
        if missing := set(self.reads).difference(*vector.parts):
            raise ConfigError(
                f"the teacher's domain {self.name} reads {', '.join(sorted(missing))} in what agents see, which is not "
                f"there in env={spec.name}; leave teacher.domain=null for the environment's own"
            )
        self.n_actions = spec.n_actions
        self.agents, self.layouts = spec.agent_names, vector.parts


def pairs(vector: Sequence[float], layout: Mapping[str, slice], part: str) -> list[Pair]:
    """The pairs in a part of a vector."""
    numbers = vector[layout[part]]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
