"""Domain of `simple_spread`: agents choose landmarks; sentences name the agent nearest to each landmark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import hypot

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Scene
from llmrl.teachers.particles.particle_domain import (
    Body,
    Pair,
    ParticleDomain,
    brake,
    join_words,
    move_towards,
    to_pairs,
)
from llmrl.teachers.plans import Plan, PlanStep, Skill

BODY = Body(size=0.15)
APART_DISTANCE = 0.4  # distance from which on `keep apart` is not applicable, in length units

_NAME_PATTERN = re.compile(r"^The agent is (\w+)\.")
_NEAREST_PATTERN = re.compile(r"nearest to <landmark (\d+)> is (\w+)", re.IGNORECASE)


class SimpleSpreadDomain(ParticleDomain):
    """Domain in which each agent knows its name and, for each landmark, the name of the nearest agent.

    All agents see each other, so their sentences differ only in the name of the agent, and the same rule leads all of
    them to the same assignment. With n agents, each agent has n^n possible sentences.
    """

    name = prompt = "simple_spread"
    skills = (
        Skill("go to", True, "goes to a landmark and stays there"),
        Skill("keep apart", False, f"moves away from the nearest other agent if it is nearer than {APART_DISTANCE:g}"),
        Skill("stay", False, "stops, and stays where it is"),
    )
    fallback = (PlanStep("stay"),)

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._agent_index = {name: i for i, name in enumerate(self.agents)}
        self.vocabulary = tuple(f"landmark {i}" for i in range(len(self.agents)))

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene in channel `vector` [width]."""
        vector, layout = observation["vector"].tolist(), self.layouts[agent]
        [velocity] = to_pairs(vector, layout, "velocity")
        return SpreadScene(
            self.agents, agent, velocity, to_pairs(vector, layout, "landmarks"), to_pairs(vector, layout, "agents")
        )

    def best_plan(self, sentence: str) -> Plan:
        """Return the plan to go to the landmark that `assign_landmarks` assigns to the agent."""
        name_match = _NAME_PATTERN.match(sentence)
        nearest = {int(landmark): self._agent_index[name] for landmark, name in _NEAREST_PATTERN.findall(sentence)}
        if name_match is None or not nearest:
            raise ValueError(f"this is not a state of simple_spread: {sentence!r}")
        assignment = assign_landmarks(tuple(nearest[landmark] for landmark in sorted(nearest)))
        return (PlanStep("go to", f"landmark {assignment[self._agent_index[name_match.group(1)]]}"),)


class SpreadScene:
    """Scene of one agent in `simple_spread`.

    Args:
        names: names of all agents.
        agent: index of this agent.
        velocity: velocity of this agent.
        landmarks, others: offsets to each landmark and to each other agent.
    """

    def __init__(
        self, names: tuple[str, ...], agent: int, velocity: Pair, landmarks: list[Pair], others: list[Pair]
    ) -> None:
        self.velocity, self.landmarks, self.others = velocity, landmarks, others
        positions = [*others[:agent], (0.0, 0.0), *others[agent:]]
        phrases = []
        for landmark, (lx, ly) in enumerate(landmarks):
            distance = [hypot(lx - x, ly - y) for x, y in positions]
            phrases.append(f"nearest to <landmark {landmark}> is {names[distance.index(min(distance))]}")
        self.sentence = f"The agent is {names[agent]}. N{join_words(phrases)[1:]}."

    def act(self, step: PlanStep) -> int | None:
        if step.skill == "go to":
            return move_towards(self.landmarks[int(step.object.split()[1])], self.velocity, BODY)
        if step.skill == "stay":
            return brake(self.velocity, BODY)
        x, y = min(self.others, key=lambda offset: hypot(*offset), default=(np.inf, np.inf))
        return move_towards((-x, -y), self.velocity, BODY) if hypot(x, y) < APART_DISTANCE else None


def assign_landmarks(nearest: tuple[int, ...]) -> tuple[int, ...]:
    """Return the landmark of each agent, given the agent nearest to each landmark; there are as many as agents.

    An agent that is nearest to several landmarks gets the first of them; agents that are nearest to none get the
    remaining ones in order. No assignment gives more agents a landmark to which they are nearest.

    >>> assign_landmarks((2, 2, 1))
    (1, 2, 0)
    """
    agents = range(len(nearest))
    assignment = {agent: nearest.index(agent) for agent in agents if agent in nearest}
    free_landmarks = iter([landmark for landmark in agents if landmark not in assignment.values()])
    return tuple(assignment[agent] if agent in assignment else next(free_landmarks) for agent in agents)
