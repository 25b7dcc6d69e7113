"""`simple_spread` as a domain: who goes where, told by who is nearest to what."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from math import hypot

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Scene
from llmrl.teachers.particles.particle_domain import ParticleDomain, listed, pairs
from llmrl.teachers.particles.steering import Body, Pair, brake, towards
from llmrl.teachers.plans import Plan, PlanStep, Skill

BODY = Body(size=0.15)
APART = 0.4  # distance from which on `keep apart` has nothing to do, units

_SELF = re.compile(r"^The agent is (\w+)\.")
_NEAREST = re.compile(r"nearest to <landmark (\d+)> is (\w+)", re.IGNORECASE)


class SimpleSpreadDomain(ParticleDomain):
    """Each agent is told its name, and for each landmark the name of the agent nearest to it.

    Everybody sees everybody, so all agents of a game are told the same but for their own names, and whoever follows the
    same rule comes to the same assignment. With n agents there are n^n such descriptions, each in n agents' words.
    """

    name = prompt = "simple_spread"
    skills = (
        Skill("go to", True, "goes to a landmark and stays there"),
        Skill("keep apart", False, f"moves away from the nearest other agent if it is nearer than {APART:g}"),
        Skill("stay", False, "stops, and stays where it is"),
    )
    fallback = (PlanStep("stay"),)
    reads = ("velocity", "landmarks", "agents")

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._number = {name: i for i, name in enumerate(self.agents)}
        self._assign = functools.cache(assign)
        self.vocabulary = tuple(f"landmark {i}" for i in range(len(self.agents)))

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """The scene in channel `vector` [width]."""
        vector, layout = observation["vector"].tolist(), self.layouts[agent]
        [velocity] = pairs(vector, layout, "velocity")
        return SpreadScene(
            self.agents, agent, velocity, pairs(vector, layout, "landmarks"), pairs(vector, layout, "agents")
        )

    def best_plan(self, sentence: str) -> Plan:
        """Go to the landmark that `assign` gives the agent."""
        me = _SELF.match(sentence)
        nearest = {int(landmark): self._number[name] for landmark, name in _NEAREST.findall(sentence)}
        if me is None or not nearest:
            raise ValueError(f"this is no state of simple_spread: {sentence!r}")
        chosen = self._assign(tuple(nearest[landmark] for landmark in sorted(nearest)))
        return (PlanStep("go to", f"landmark {chosen[self._number[me.group(1)]]}"),)


class SpreadScene:
    """One agent's view of a state of `simple_spread`.

    Args:
        names: of all agents.
        agent: number of this one.
        velocity: its own.
        landmarks, others: offsets to each landmark and to each other agent.
    """

    def __init__(
        self, names: tuple[str, ...], agent: int, velocity: Pair, landmarks: list[Pair], others: list[Pair]
    ) -> None:
        self.velocity, self.landmarks, self.others = velocity, landmarks, others
        places = [*others[:agent], (0.0, 0.0), *others[agent:]]
        told = []
        for number, (lx, ly) in enumerate(landmarks):
            distance = [hypot(lx - x, ly - y) for x, y in places]
            told.append(f"nearest to <landmark {number}> is {names[distance.index(min(distance))]}")
        self.sentence = f"The agent is {names[agent]}. N{listed(told)[1:]}."

    def act(self, step: PlanStep) -> int | None:
        if step.skill == "go to":
            return towards(self.landmarks[int(step.object.split()[1])], self.velocity, BODY)
        if step.skill == "stay":
            return brake(self.velocity, BODY)
        x, y = min(self.others, key=lambda place: hypot(*place), default=(np.inf, np.inf))
        return towards((-x, -y), self.velocity, BODY) if hypot(x, y) < APART else None


def assign(nearest: tuple[int, ...]) -> tuple[int, ...]:
    """The landmark of each agent, from the agent nearest to each landmark; as many landmarks as agents.

    An agent nearest to several landmarks takes the first of them, one nearest to none the first that is then left, in
    the order of the agents. No other assignment sends more agents to a landmark that they are the nearest to.

    >>> assign((2, 2, 1))
    (1, 2, 0)
    """
    agents = range(len(nearest))
    chosen = {agent: nearest.index(agent) for agent in agents if agent in nearest}
    left = iter([landmark for landmark in agents if landmark not in chosen.values()])
    return tuple(chosen[agent] if agent in chosen else next(left) for agent in agents)
