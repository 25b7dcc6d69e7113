"""`simple_reference` and `simple_speaker_listener` as domains: agents that must tell each other where to go.

Words get a meaning here: the first word is red, the second green, the third blue.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Scene
from llmrl.teachers.particles.particle_domain import ParticleDomain, listed, pairs
from llmrl.teachers.particles.steering import Body, Pair, brake, towards
from llmrl.teachers.plans import Plan, PlanStep, Skill

COLOURS = ("red", "green", "blue")
"""Of the landmarks, in order; and the meaning of the first three words."""
MOVES = 5
BODY = Body()

_GO = Skill("go to", True, "goes to the landmark of a colour and stays there")
_STAY = Skill("stay", False, "stops, and stays where it is")
_MUST = re.compile(r"(\w+) must go to <(\w+)>")
_SAYS = re.compile(r"says <(\w+)>")


class SimpleReferenceDomain(ParticleDomain):
    """Each agent is told where the next one must go, and what the one before, which knows its own goal, says: 15
    descriptions for each agent.

    What is said goes with every move: the first `say` of a plan and the first of its moves that has something to do
    make one action. Without a `say` the last word is said, which means nothing.
    """

    name = prompt = "simple_reference"
    skills = (Skill("say", True, "says a colour, together with what the other steps of the plan do"), _GO, _STAY)
    fallback = (PlanStep("stay"),)
    reads = ("velocity", "landmarks", "told_goal", "heard")
    vocabulary = COLOURS

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._words = spec.n_actions // MOVES
        self.idle = MOVES * (self._words - 1)

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """The scene in channel `vector` [width]."""
        vector, layout, n = observation["vector"].tolist(), self.layouts[agent], len(self.agents)
        before, after = (agent - 1) % n, (agent + 1) % n
        place = layout["heard"].start + self._words * (before - (before > agent))
        sentence = (
            f"The agent is {self.agents[agent]}. It knows that {self.agents[after]} must go to "
            f"<{_colour(vector[layout['told_goal']])}>. {self.agents[before]}, who knows where it must go itself, says "
            f"{_word(vector[place : place + self._words])}."
        )
        return _Mover(sentence, vector, layout)

    def action(self, scene: Scene, plan: Plan) -> int:
        """Word and move at once, 5 * word + move."""
        assert isinstance(scene, _Mover)
        said = next((COLOURS.index(step.object) for step in plan if step.skill == "say"), self._words - 1)
        return MOVES * said + scene.move(plan)

    def best_plan(self, sentence: str) -> Plan:
        """Say where the next one must go, and go where one is told to."""
        [(_, told)] = _MUST.findall(sentence)
        return PlanStep("say", told), *_obey(sentence)


class SimpleSpeakerListenerDomain(ParticleDomain):
    """The speaker is told where each listener must go, a listener what the speaker says to it: 3 descriptions for each
    listener's goal, and 4 for each listener.

    The speaker has a skill for each listener, and its plan makes one action. Whom it tells nothing it tells red: it
    cannot be silent.
    """

    name = prompt = "simple_speaker_listener"
    fallback = (PlanStep("stay"),)
    reads = ("velocity", "landmarks", "told_goal", "heard")
    vocabulary = COLOURS

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._listeners = self.agents[1:]
        tell = [Skill(f"tell {name}", True, f"tells {name} a colour; for the speaker only") for name in self._listeners]
        self.skills = (*tell, _GO, _STAY)

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """The scene in channel `vector` [width]."""
        vector, layout, me = observation["vector"].tolist(), self.layouts[agent], self.agents[agent]
        if agent > 0:
            says = _word(vector[layout["heard"]])
            return _Mover(
                f"The agent is {me}. {self.agents[0]}, who knows where it must go, says {says}.", vector, layout
            )
        told = vector[layout["told_goal"]]
        musts = [f"{name} must go to <{_colour(told[3 * k : 3 * k + 3])}>" for k, name in enumerate(self._listeners)]
        return _Speaker(
            f"The agent is {me}, who speaks and cannot move. It knows that {listed(musts)}.", self._listeners
        )

    def action(self, scene: Scene, plan: Plan) -> int:
        """The speaker's words at once, or a listener's move."""
        return scene.say(plan) if isinstance(scene, _Speaker) else super().action(scene, plan)

    def best_plan(self, sentence: str) -> Plan:
        """Tell every listener its goal; go where one is told to."""
        told = _MUST.findall(sentence)
        return tuple(PlanStep(f"tell {name}", colour) for name, colour in told) if told else _obey(sentence)


class _Mover:
    """One moving agent's view: what it is told, and where the landmarks are."""

    def __init__(self, sentence: str, vector: Sequence[float], layout: Mapping[str, slice]) -> None:
        self.sentence = sentence
        [self.velocity] = pairs(vector, layout, "velocity")
        self.landmarks = dict(zip(COLOURS, pairs(vector, layout, "landmarks"), strict=True))

    def act(self, step: PlanStep) -> int | None:
        """The move of a step; None for words."""
        if step.skill == "go to":
            return self._towards(self.landmarks[step.object])
        return brake(self.velocity, BODY) if step.skill == "stay" else None

    def move(self, plan: Plan) -> int:
        """The first move of a plan, or none."""
        return next((move for move in map(self.act, plan) if move is not None), 0)

    def _towards(self, target: Pair) -> int:
        return towards(target, self.velocity, BODY)


class _Speaker:
    """The speaker's view."""

    def __init__(self, sentence: str, listeners: Sequence[str]) -> None:
        self.sentence = sentence
        self._places = {f"tell {name}": k for k, name in enumerate(listeners)}

    def act(self, step: PlanStep) -> int | None:
        """What telling one listener does by itself; None for moves."""
        return self.say((step,)) if step.skill in self._places else None

    def say(self, plan: Plan) -> int:
        """All the words of a plan as one action."""
        words = [0] * len(self._places)
        for step in reversed(plan):
            if step.skill in self._places:
                words[self._places[step.skill]] = COLOURS.index(step.object)
        number = 0
        for word in words:
            number = number * len(COLOURS) + word
        return MOVES + number


def _obey(sentence: str) -> Plan:
    heard = _SAYS.findall(sentence)
    return (PlanStep("go to", heard[0]) if heard else PlanStep("stay"),)


def _colour(levels: Sequence[float]) -> str:
    return COLOURS[max(range(3), key=lambda i: levels[i])]


def _word(heard: Sequence[float]) -> str:
    """What is said, as a reader of the sentence understands it."""
    if not any(heard):
        return "nothing"
    word = max(range(len(heard)), key=lambda i: heard[i])
    return f"<{COLOURS[word]}>" if word < len(COLOURS) else "a word without meaning"
