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
    to_pairs,
)
from llmrl.teachers.plans import Plan, PlanStep, Skill

HUNTER = Body(3.0, 1.0, 0.075)
PREY = Body(4.0, 1.3, 0.05)
# Distances are in length units of the environment.
OBSTACLE_RADIUS = 0.2
CLOSE_DISTANCE = 0.6  # distance from which on sentences call a hunter far
NEAR_EDGE = 0.75  # |x| or |y| above which sentences call prey near the edge
ARENA_LIMIT = 0.9  # |x| or |y| above which the environment penalizes prey
MAX_LEAD_SECONDS = 0.5  # maximum time for which the motion of a chased agent is extrapolated
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
        self._hunters = tuple(name for name in self.agents if name.startswith("adversary"))
        self._prey = tuple(name for name in self.agents if name not in self._hunters)
        self.vocabulary = self.agents

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene in channel `vector` [width]."""
        vector, layout, me = observation["vector"].tolist(), self.layouts[agent], self.agents[agent]
        offsets = {
            name: offset
            for names, part in ((self._hunters, "adversaries"), (self._prey, "good"))
            for name, offset in zip((n for n in names if n != me), to_pairs(vector, layout, part), strict=True)
        }
        # For a good agent, the part `good_velocities` excludes its velocity.
        visible_prey = [name for name in self._prey if name != me]
        velocities = dict(zip(visible_prey, to_pairs(vector, layout, "good_velocities"), strict=True))
        [velocity], [position] = to_pairs(vector, layout, "velocity"), to_pairs(vector, layout, "position")
        obstacles = to_pairs(vector, layout, "obstacles")
        return TagScene(me, self._hunters, position, velocity, offsets, velocities, obstacles)

    def best_plan(self, sentence: str) -> Plan:
        """Return a good plan: hunters nearest to a prey chase it, other hunters cut off their nearest prey.

        Prey keeps away.
        """
        name_match = _NAME_PATTERN.match(sentence)
        if name_match is None:
            raise ValueError(f"this is not a state of simple_tag: {sentence!r}")
        if name_match.group(1) in self._prey:
            return (PlanStep("keep away"),)
        own_prey = [prey for prey, hunter in _NEAREST_HUNTER_PATTERN.findall(sentence) if hunter == name_match.group(1)]
        [nearest] = _NEAREST_PATTERN.findall(sentence)
        if own_prey:
            return (PlanStep("chase", nearest if nearest in own_prey else own_prey[0]),)
        return (PlanStep("cut off", nearest),)


class TagScene:
    """Scene of one agent in `simple_tag`.

    Args:
        me: name of this agent.
        hunters: names of all hunters.
        position, velocity: position and velocity of this agent.
        others: offset to each other agent.
        velocities: velocities of the visible prey.
        obstacles: offset to each obstacle.
    """

    def __init__(
        self,
        me: str,
        hunters: Sequence[str],
        position: Pair,
        velocity: Pair,
        others: Mapping[str, Pair],
        velocities: Mapping[str, Pair],
        obstacles: Sequence[Pair],
    ) -> None:
        self.is_hunter = me in hunters
        self.body = HUNTER if self.is_hunter else PREY
        self.position, self.velocity, self.others = position, velocity, others
        self.velocities, self.obstacles = velocities, obstacles
        self.hunters = {name: others[name] for name in hunters if name in others}
        targets = {name: offset for name, offset in others.items() if name not in hunters}
        self.sentence = f"The agent is {me}. " + (
            self._describe_hunter(me, targets) if self.is_hunter else self._describe_prey()
        )

    def act(self, step: PlanStep) -> int | None:
        match step.skill:
            case "stay":
                return brake(self.velocity, self.body)
            case "go to the middle":
                return self._move_to((-self.position[0], -self.position[1]))
            case "keep away":
                return self._flee(list(self.hunters.values())) if self.hunters else None
            case "flee from":
                return self._flee([self.others[step.object]])
        return self._move_to(self._find_interception_point(step.object, intercept=step.skill == "cut off"))

    def _describe_hunter(self, me: str, targets: Mapping[str, Pair]) -> str:
        offsets = {me: (0.0, 0.0), **self.hunters}
        order = sorted(offsets)
        phrases = [
            f"the hunter nearest to <{prey}> is {min(order, key=lambda name: _distance(offsets[name], offset))}"
            for prey, offset in targets.items()
        ]
        nearest = min(targets, key=lambda name: hypot(*targets[name]))
        return f"It is a hunter and is nearest to <{nearest}>; {join_words(phrases)}."

    def _describe_prey(self) -> str:
        nearest = min(self.hunters, key=lambda name: hypot(*self.hunters[name]))
        distance = "close" if hypot(*self.hunters[nearest]) < CLOSE_DISTANCE else "far"
        location = "near the edge of the arena" if max(map(abs, self.position)) > NEAR_EDGE else "inside the arena"
        return f"It is hunted; the nearest hunter, <{nearest}>, is {distance}. It is {location}."

    def _move_to(self, target: Pair) -> int:
        return move_towards(
            find_waypoint(target, self.obstacles, OBSTACLE_RADIUS + self.body.size + 0.02), self.velocity, self.body
        )

    def _find_interception_point(self, name: str, intercept: bool) -> Pair:
        """Return the offset of the point to go to in order to catch an agent, or to cut it off (`intercept`)."""
        x, y = self.others[name]
        vx, vy = self.velocities.get(name, (0.0, 0.0))
        lead = min(hypot(x, y), MAX_LEAD_SECONDS)
        x, y = x + lead * vx, y + lead * vy
        pursuers = [offset for hunter, offset in self.hunters.items() if hunter != name]
        if not intercept or not pursuers:
            return x, y
        hx, hy = min(pursuers, key=lambda offset: _distance(offset, (x, y)))
        gap = hypot(x - hx, y - hy) or 1.0
        overshoot = OVERSHOOT_FRACTION * hypot(x, y)
        return x + overshoot * (x - hx) / gap, y + overshoot * (y - hy) / gap

    def _flee(self, threats: Sequence[Pair]) -> int:
        """Return the move that, if repeated, has the highest sum of scores of the next positions."""
        best_move, max_score = 0, -inf
        for move, start_velocity in enumerate(self.body.list_next_velocities(self.velocity)):
            x, y = TIME_STEP * self.velocity[0], TIME_STEP * self.velocity[1]
            velocity, score = start_velocity, 0.0
            for k in range(1, FLEE_STEPS + 1):
                score += self._score_position((x, y), threats, HUNTER.max_speed * TIME_STEP * k)
                x, y = x + TIME_STEP * velocity[0], y + TIME_STEP * velocity[1]
                velocity = self.body.list_next_velocities(velocity)[move]
            score += self._score_position((x, y), threats, HUNTER.max_speed * TIME_STEP * (FLEE_STEPS + 1))
            if score > max_score:
                best_move, max_score = move, score
        return best_move

    def _score_position(self, offset: Pair, threats: Sequence[Pair], reach: float) -> float:
        """Return a hand-tuned score, <= 0, of a position (an offset), given the distance `reach` that hunters move."""
        score = 0.0
        for threat in threats:
            gap = _distance(offset, threat) - 0.5 * reach
            score -= 1.0 / max(gap, 0.05) ** 2 if gap < THREAT_DISTANCE else 0.5 / gap
        for obstacle in self.obstacles:
            score -= 200.0 * max(OBSTACLE_RADIUS + self.body.size - _distance(offset, obstacle), 0.0)
        for axis in (0, 1):
            score -= 200.0 * max(abs(self.position[axis] + offset[axis]) - ARENA_LIMIT, 0.0)
        return score


def _distance(p: Pair, q: Pair) -> float:
    return hypot(p[0] - q[0], p[1] - q[1])
