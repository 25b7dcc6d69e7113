"""Domain of `simple_tag`: hunters (adversaries) approach prey (good agents) from two sides; prey flees."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import hypot, inf

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Scene
from llmrl.teachers.particles.particle_domain import (
    TIME_STEP,
    Body,
    Pair,
    ParticleDomain,
    brake,
    find_waypoint,
    join_words,
    move_towards,
    read_pairs,
)
from llmrl.teachers.plans import Plan, PlanStep, Skill

HUNTER_BODY = Body(acceleration=3.0, max_speed=1.0, size=0.075)
PREY_BODY = Body(acceleration=4.0, max_speed=1.3, size=0.05)
# Distances are in length units of the environment.
OBSTACLE_RADIUS = 0.2
CLOSE_DISTANCE = 0.6  # distance below which sentences call a hunter close
NEAR_EDGE_COORDINATE = 0.75  # |x| or |y| above which sentences call prey near the edge
ARENA_LIMIT = 0.9  # |x| or |y| above which the environment penalizes prey
MAX_LEAD_SECONDS = 0.5  # maximum time for which the motion of a chased agent is extrapolated, in seconds
OVERSHOOT_FRACTION = 0.3  # `cut off`: distance between prey and aim, as a fraction of the distance to the prey
FLEE_STEPS = 4  # number of steps that fleeing prey considers
THREAT_DISTANCE = 0.35  # gap below which the score of a position falls fast (`_score_position`)

_NAME_PATTERN = re.compile(r"^The agent is (\w+)\.")
_NEAREST_HUNTER_PATTERN = re.compile(r"hunter nearest to <(\w+)> is (\w+)")
_NEAREST_PATTERN = re.compile(r"is nearest to <(\w+)>")


class SimpleTagDomain(ParticleDomain):
    """Domain of hunters and prey.

    Sentences for hunters name the prey nearest to them, and the hunter nearest to each prey. Sentences for prey name
    the nearest hunter, and say whether it is close and whether the edge of the arena is near. With 3 hunters and 1
    prey, there are 9 sentences for hunters and 12 for prey.
    """

    name = prompt = "simple_tag"
    skills = (
        Skill("chase", True, "goes straight for another agent, to where it will be in a moment"),
        Skill("cut off", True, "goes to where another agent would flee from its nearest hunter, to meet it there"),
        Skill("flee from", True, "goes away from another agent, whoever else is there"),
        Skill("keep away", False, "goes where there is most room from all hunters, without leaving the arena"),
        Skill("go to the middle", False, "goes to the middle of the arena"),
        Skill("stay", False, "stops, and stays where it is"),
    )
    fallback = (PlanStep("stay"),)

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._hunters = tuple(name for name in self.agent_names if name.startswith("adversary"))
        self._prey = tuple(name for name in self.agent_names if name not in self._hunters)
        self.vocabulary = self.agent_names

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene for the channel `vector` [width]."""
        vector, layout, agent_name = observation["vector"].tolist(), self.layouts[agent], self.agent_names[agent]
        offsets = {
            name: offset
            for names, part in ((self._hunters, "adversaries"), (self._prey, "good"))
            for name, offset in zip(
                (n for n in names if n != agent_name), read_pairs(vector, layout, part), strict=True
            )
        }
        # For a good agent, the part `good_velocities` excludes its velocity.
        visible_prey = [name for name in self._prey if name != agent_name]
        prey_velocities = dict(zip(visible_prey, read_pairs(vector, layout, "good_velocities"), strict=True))
        [velocity], [position] = read_pairs(vector, layout, "velocity"), read_pairs(vector, layout, "position")
        obstacles = read_pairs(vector, layout, "obstacles")
        return TagScene(agent_name, self._hunters, position, velocity, offsets, prey_velocities, obstacles)

    def best_plan(self, sentence: str) -> Plan:
        """Return a good plan: hunters nearest to a prey chase it, other hunters cut off their nearest prey.

        Prey keeps away.
        """
        name_match = _NAME_PATTERN.match(sentence)
        if name_match is None:
            raise ValueError(f"this is not a state of simple_tag: {sentence!r}")
        if name_match.group(1) in self._prey:
            return (PlanStep("keep away"),)
        pairs = _NEAREST_HUNTER_PATTERN.findall(sentence)
        nearby_prey = [prey for prey, hunter in pairs if hunter == name_match.group(1)]
        [nearest] = _NEAREST_PATTERN.findall(sentence)
        if nearby_prey:
            return (PlanStep("chase", nearest if nearest in nearby_prey else nearby_prey[0]),)
        return (PlanStep("cut off", nearest),)


class TagScene:
    """Scene of one agent in `simple_tag`.

    Args:
        agent_name: name of this agent.
        hunters: names of all hunters.
        position, velocity: position and velocity of this agent.
        other_offsets: name of each other agent -> offset to it.
        prey_velocities: name of each visible prey -> its velocity.
        obstacles: offset to each obstacle.
    """

    def __init__(
        self,
        agent_name: str,
        hunters: Sequence[str],
        position: Pair,
        velocity: Pair,
        other_offsets: Mapping[str, Pair],
        prey_velocities: Mapping[str, Pair],
        obstacles: Sequence[Pair],
    ) -> None:
        self.is_hunter = agent_name in hunters
        self.body = HUNTER_BODY if self.is_hunter else PREY_BODY
        self.position, self.velocity, self.other_offsets = position, velocity, other_offsets
        self.prey_velocities, self.obstacles = prey_velocities, obstacles
        self.hunter_offsets = {name: other_offsets[name] for name in hunters if name in other_offsets}
        prey_offsets = {name: offset for name, offset in other_offsets.items() if name not in hunters}
        self.sentence = f"The agent is {agent_name}. " + (
            self._describe_hunter(agent_name, prey_offsets) if self.is_hunter else self._describe_prey()
        )

    def act(self, step: PlanStep) -> int | None:
        match step.skill:
            case "stay":
                return brake(self.velocity, self.body)
            case "go to the middle":
                return self._move_to((-self.position[0], -self.position[1]))
            case "keep away":
                return self._flee(list(self.hunter_offsets.values())) if self.hunter_offsets else None
            case "flee from":
                return self._flee([self.other_offsets[step.object]])
        return self._move_to(self._find_interception_point(step.object, cut_off=step.skill == "cut off"))

    def _describe_hunter(self, agent_name: str, prey_offsets: Mapping[str, Pair]) -> str:
        offsets = {agent_name: (0.0, 0.0), **self.hunter_offsets}
        sorted_names = sorted(offsets)
        phrases = [
            f"the hunter nearest to <{prey}> is {min(sorted_names, key=lambda name: _distance(offsets[name], offset))}"
            for prey, offset in prey_offsets.items()
        ]
        nearest = min(prey_offsets, key=lambda name: hypot(*prey_offsets[name]))
        return f"It is a hunter and is nearest to <{nearest}>; {join_words(phrases)}."

    def _describe_prey(self) -> str:
        nearest = min(self.hunter_offsets, key=lambda name: hypot(*self.hunter_offsets[name]))
        distance_text = "close" if hypot(*self.hunter_offsets[nearest]) < CLOSE_DISTANCE else "far"
        is_near_edge = max(map(abs, self.position)) > NEAR_EDGE_COORDINATE
        location_text = "near the edge of the arena" if is_near_edge else "inside the arena"
        return f"It is hunted; the nearest hunter, <{nearest}>, is {distance_text}. It is {location_text}."

    def _move_to(self, target: Pair) -> int:
        return move_towards(
            find_waypoint(target, self.obstacles, OBSTACLE_RADIUS + self.body.size + 0.02), self.velocity, self.body
        )

    def _find_interception_point(self, name: str, cut_off: bool) -> Pair:
        """Return the offset of the point to go to in order to catch an agent, or to cut it off (`cut_off`)."""
        x, y = self.other_offsets[name]
        vx, vy = self.prey_velocities.get(name, (0.0, 0.0))
        lead_seconds = min(hypot(x, y), MAX_LEAD_SECONDS)
        x, y = x + lead_seconds * vx, y + lead_seconds * vy
        pursuers = [offset for hunter, offset in self.hunter_offsets.items() if hunter != name]
        if not cut_off or not pursuers:
            return x, y
        pursuer_x, pursuer_y = min(pursuers, key=lambda offset: _distance(offset, (x, y)))
        gap = hypot(x - pursuer_x, y - pursuer_y) or 1.0
        overshoot = OVERSHOOT_FRACTION * hypot(x, y)
        return x + overshoot * (x - pursuer_x) / gap, y + overshoot * (y - pursuer_y) / gap

    def _flee(self, threat_offsets: Sequence[Pair]) -> int:
        """Return the move that, if repeated, has the highest sum of scores of the next positions."""
        best_move, max_score = 0, -inf
        for move, start_velocity in enumerate(self.body.list_next_velocities(self.velocity)):
            x, y = TIME_STEP * self.velocity[0], TIME_STEP * self.velocity[1]
            velocity, score = start_velocity, 0.0
            for step in range(1, FLEE_STEPS + 1):
                score += self._score_position((x, y), threat_offsets, HUNTER_BODY.max_speed * TIME_STEP * step)
                x, y = x + TIME_STEP * velocity[0], y + TIME_STEP * velocity[1]
                velocity = self.body.list_next_velocities(velocity)[move]
            score += self._score_position((x, y), threat_offsets, HUNTER_BODY.max_speed * TIME_STEP * (FLEE_STEPS + 1))
            if score > max_score:
                best_move, max_score = move, score
        return best_move

    def _score_position(self, offset: Pair, threat_offsets: Sequence[Pair], hunter_reach: float) -> float:
        """Return a hand-tuned score, <= 0, of the position `offset`, if hunters have moved by up to `hunter_reach`."""
        score = 0.0
        for threat in threat_offsets:
            gap = _distance(offset, threat) - 0.5 * hunter_reach
            score -= 1.0 / max(gap, 0.05) ** 2 if gap < THREAT_DISTANCE else 0.5 / gap
        for obstacle in self.obstacles:
            score -= 200.0 * max(OBSTACLE_RADIUS + self.body.size - _distance(offset, obstacle), 0.0)
        for axis in (0, 1):
            score -= 200.0 * max(abs(self.position[axis] + offset[axis]) - ARENA_LIMIT, 0.0)
        return score


def _distance(p: Pair, q: Pair) -> float:
    return hypot(p[0] - q[0], p[1] - q[1])
