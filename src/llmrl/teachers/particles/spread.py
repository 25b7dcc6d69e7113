"""Domain of `simple_spread`: agents choose landmarks; sentences name the agent nearest to each landmark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
    read_pairs,
)
from llmrl.teachers.plans import Plan, PlanStep, Skill

BODY = Body(size=0.15)
APART_DISTANCE = 0.4  # distance below which `keep apart` is applicable, in length units

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
        self._agent_index_by_name = {name: i for i, name in enumerate(self.agent_names)}
        self.vocabulary = tuple(f"landmark {i}" for i in range(len(self.agent_names)))

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene for the channel `vector` [width]."""
        vector, layout = observation["vector"].tolist(), self.layouts[agent]
        [velocity] = read_pairs(vector, layout, "velocity")
        landmark_offsets, other_offsets = (read_pairs(vector, layout, part) for part in ("landmarks", "agents"))
        return SpreadScene(self.agent_names, agent, velocity, landmark_offsets, other_offsets)

    def best_plan(self, sentence: str) -> Plan:
        """Return the plan to go to the landmark that `assign_landmarks` assigns to the agent."""
        name_match = _NAME_PATTERN.match(sentence)
        pairs = _NEAREST_PATTERN.findall(sentence)
        nearest_agents = {int(landmark): self._agent_index_by_name[name] for landmark, name in pairs}
        if name_match is None or not nearest_agents:
            raise ValueError(f"this is not a state of simple_spread: {sentence!r}")
        assignment = assign_landmarks(tuple(nearest_agents[landmark] for landmark in sorted(nearest_agents)))
        return (PlanStep("go to", f"landmark {assignment[self._agent_index_by_name[name_match.group(1)]]}"),)


class SpreadScene:
    """Scene of one agent in `simple_spread`.

    Args:
        names: names of all agents.
        agent, velocity: index and velocity of this agent.
        landmark_offsets, other_offsets: offsets to each landmark and to each other agent.
    """

    def __init__(
        self, names: Sequence[str], agent: int, velocity: Pair, landmark_offsets: list[Pair], other_offsets: list[Pair]
    ) -> None:
        self.velocity, self.landmark_offsets, self.other_offsets = velocity, landmark_offsets, other_offsets
        positions = [*other_offsets[:agent], (0.0, 0.0), *other_offsets[agent:]]
        phrases = []
        for landmark, (landmark_x, landmark_y) in enumerate(landmark_offsets):
            distances = [hypot(landmark_x - x, landmark_y - y) for x, y in positions]
            phrases.append(f"nearest to <landmark {landmark}> is {names[distances.index(min(distances))]}")
        self.sentence = f"The agent is {names[agent]}. N{join_words(phrases)[1:]}."

    def act(self, step: PlanStep) -> int | None:
        if step.skill == "go to":
            return move_towards(self.landmark_offsets[int(step.object.split()[1])], self.velocity, BODY)
        if step.skill == "stay":
            return brake(self.velocity, BODY)
        x, y = min(self.other_offsets, key=lambda offset: hypot(*offset), default=(np.inf, np.inf))
        return move_towards((-x, -y), self.velocity, BODY) if hypot(x, y) < APART_DISTANCE else None


def assign_landmarks(nearest_agents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the landmark of each agent, given the agent nearest to each landmark; there are as many as agents.

    An agent that is nearest to several landmarks gets the first of them; agents that are nearest to none get the
    remaining ones in order. No assignment gives more agents a landmark to which they are nearest.

    >>> assign_landmarks((2, 2, 1))
    (1, 2, 0)
    """
    agents = range(len(nearest_agents))
    assignment = {agent: nearest_agents.index(agent) for agent in agents if agent in nearest_agents}
    free_landmarks = iter([landmark for landmark in agents if landmark not in assignment.values()])
    return tuple(assignment[agent] if agent in assignment else next(free_landmarks) for agent in agents)
