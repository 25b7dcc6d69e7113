"""Base of particle domains: names of the agents, and parts of their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Domain
from llmrl.teachers.particles.steering import Pair


class ParticleDomain(Domain):
    """Domain of a particle world.

    Args:
        spec: spec of the environment, with the parts of each agent's vector.

    Attributes:
        agents: names of the agents.
        layouts: for each agent, the slice of each part in its vector.
    """

    channels = ("vector",)
    idle = 0

    def __init__(self, spec: EnvSpec) -> None:
        self.n_actions = spec.n_actions
        self.agents, self.layouts = spec.agent_names, spec.observation["vector"].parts


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
