"""`simple_tag` as a domain: hunters that close in from two sides, and prey that runs where there is room."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import hypot, inf

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Scene
from llmrl.teachers.particles.particle_domain import ParticleDomain, listed, pairs
from llmrl.teachers.particles.steering import STEP, Body, Pair, around, brake, towards
from llmrl.teachers.plans import Plan, PlanStep, Skill

HUNTER = Body(3.0, 1.0, 0.075)
PREY = Body(4.0, 1.3, 0.05)
OBSTACLE = 0.2  # radius, units
CLOSE = 0.6  # distance from which on a hunter is far, units
EDGE = 0.75  # |x| or |y| beyond which prey is near the edge of the arena, units
ARENA = 0.9  # |x| or |y| beyond which it costs prey to be, units
LEAD = 0.5  # longest time for which a chased agent is expected to keep its velocity, seconds
AHEAD = 0.3  # how far beyond its prey a hunter goes that cuts it off, share of its distance
FLIGHT = 4  # steps that fleeing looks ahead
CROWDED = 0.35  # gap below which a hunter counts as a threat, units

_SELF = re.compile(r"^The agent is (\w+)\.")
_HUNTER_OF = re.compile(r"hunter nearest to <(\w+)> is (\w+)")
_NEAREST = re.compile(r"is nearest to <(\w+)>")


class SimpleTagDomain(ParticleDomain):
    """Hunters are told which prey is nearest to them, and which hunter to each prey; prey, which hunter is nearest,
    whether it is close, and whether the edge of the arena is near.

    With 3 hunters and 1 prey these are 9 and 12 descriptions.
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
    reads = ("velocity", "position", "obstacles", "adversaries", "good", "good_velocities")

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._hunters = tuple(name for name in self.agents if name.startswith("adversary"))
        self._prey = tuple(name for name in self.agents if name not in self._hunters)
        self.vocabulary = self.agents

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """The scene in channel `vector` [width]."""
        vector, layout, me = observation["vector"].tolist(), self.layouts[agent], self.agents[agent]
        others = {
            name: place
            for names, part in ((self._hunters, "adversaries"), (self._prey, "good"))
            for name, place in zip((n for n in names if n != me), pairs(vector, layout, part), strict=True)
        }
        # Good agents are not shown their own velocity twice.
        seen = [name for name in self._prey if name != me]
        velocities = dict(zip(seen, pairs(vector, layout, "good_velocities"), strict=True))
        [velocity], [position] = pairs(vector, layout, "velocity"), pairs(vector, layout, "position")
        obstacles = pairs(vector, layout, "obstacles")
        return TagScene(me, self._hunters, position, velocity, others, velocities, obstacles)

    def best_plan(self, sentence: str) -> Plan:
        """Whoever is nearest to a prey chases it, and the other hunters cut off the one nearest to them; prey keeps
        away."""
        me = _SELF.match(sentence)
        if me is None:
            raise ValueError(f"this is no state of simple_tag: {sentence!r}")
        if me.group(1) in self._prey:
            return (PlanStep("keep away"),)
        mine = [prey for prey, hunter in _HUNTER_OF.findall(sentence) if hunter == me.group(1)]
        [nearest] = _NEAREST.findall(sentence)
        if mine:
            return (PlanStep("chase", nearest if nearest in mine else mine[0]),)
        return (PlanStep("cut off", nearest),)


class TagScene:
    """One agent's view of a state of `simple_tag`.

    Args:
        me: its name.
        hunters: names of all hunters.
        position, velocity: its own.
        others: offset to each other agent.
        velocities: of the prey it sees.
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
        self.hunts = me in hunters
        self.body = HUNTER if self.hunts else PREY
        self.position, self.velocity, self.others = position, velocity, others
        self.velocities, self.obstacles = velocities, obstacles
        self.hunters = {name: others[name] for name in hunters if name in others}
        hunted = {name: place for name, place in others.items() if name not in hunters}
        self.sentence = f"The agent is {me}. " + (self._hunting(me, hunted) if self.hunts else self._hunted())

    def act(self, step: PlanStep) -> int | None:
        match step.skill:
            case "stay":
                return brake(self.velocity, self.body)
            case "go to the middle":
                return self._go((-self.position[0], -self.position[1]))
            case "keep away":
                return self._flee(list(self.hunters.values())) if self.hunters else None
            case "flee from":
                return self._flee([self.others[step.object]])
        return self._go(self._meeting(step.object, cut_off=step.skill == "cut off"))

    def _hunting(self, me: str, hunted: Mapping[str, Pair]) -> str:
        places = {me: (0.0, 0.0), **self.hunters}
        order = sorted(places)
        told = [
            f"the hunter nearest to <{prey}> is {min(order, key=lambda name: _apart(places[name], place))}"
            for prey, place in hunted.items()
        ]
        nearest = min(hunted, key=lambda name: hypot(*hunted[name]))
        return f"It is a hunter and is nearest to <{nearest}>; {listed(told)}."

    def _hunted(self) -> str:
        nearest = min(self.hunters, key=lambda name: hypot(*self.hunters[name]))
        how = "close" if hypot(*self.hunters[nearest]) < CLOSE else "far"
        where = "near the edge of the arena" if max(map(abs, self.position)) > EDGE else "inside the arena"
        return f"It is hunted; the nearest hunter, <{nearest}>, is {how}. It is {where}."

    def _go(self, target: Pair) -> int:
        return towards(around(target, self.obstacles, OBSTACLE + self.body.size + 0.02), self.velocity, self.body)

    def _meeting(self, name: str, cut_off: bool) -> Pair:
        """Where to go to catch another agent."""
        x, y = self.others[name]
        vx, vy = self.velocities.get(name, (0.0, 0.0))
        lead = min(hypot(x, y), LEAD)
        x, y = x + lead * vx, y + lead * vy
        pursuers = [place for other, place in self.hunters.items() if other != name]
        if not cut_off or not pursuers:
            return x, y
        hx, hy = min(pursuers, key=lambda place: _apart(place, (x, y)))
        gap = hypot(x - hx, y - hy) or 1.0
        ahead = AHEAD * hypot(x, y)
        return x + ahead * (x - hx) / gap, y + ahead * (y - hy) / gap

    def _flee(self, threats: Sequence[Pair]) -> int:
        """The move that, kept up, leaves most room when hunters run for where one is and for where one goes."""
        best, most = 0, -inf
        for move, first in enumerate(self.body.after(self.velocity)):
            x, y = STEP * self.velocity[0], STEP * self.velocity[1]
            velocity, score = first, 0.0
            for k in range(1, FLIGHT + 1):
                score += self._room((x, y), threats, HUNTER.max_speed * STEP * k)
                x, y = x + STEP * velocity[0], y + STEP * velocity[1]
                velocity = self.body.after(velocity)[move]
            score += self._room((x, y), threats, HUNTER.max_speed * STEP * (FLIGHT + 1))
            if score > most:
                best, most = move, score
        return best

    def _room(self, place: Pair, threats: Sequence[Pair], reach: float) -> float:
        """How good a place (an offset) is that hunters come nearer to by `reach`; at most 0."""
        score = 0.0
        for threat in threats:
            gap = _apart(place, threat) - 0.5 * reach
            score -= 1.0 / max(gap, 0.05) ** 2 if gap < CROWDED else 0.5 / gap
        for obstacle in self.obstacles:
            score -= 200.0 * max(OBSTACLE + self.body.size - _apart(place, obstacle), 0.0)
        for axis in (0, 1):
            score -= 200.0 * max(abs(self.position[axis] + place[axis]) - ARENA, 0.0)
        return score


def _apart(a: Pair, b: Pair) -> float:
    return hypot(a[0] - b[0], a[1] - b[1])
