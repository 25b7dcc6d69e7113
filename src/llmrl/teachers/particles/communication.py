"""Domains of `simple_reference` and `simple_speaker_listener`, in which agents tell each other their goals.

Here words have a fixed meaning: word 0 is red, word 1 green, word 2 blue.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.core.spaces import EnvSpec
from llmrl.teachers.domain import Scene
from llmrl.teachers.particles.particle_domain import Body, ParticleDomain, brake, join_words, move_towards, read_pairs
from llmrl.teachers.plans import Plan, PlanStep, Skill

COLORS = ("red", "green", "blue")
"""Colors of the landmarks, and meanings of the first three words."""
N_MOVES = 5  # number of moves of a disc
BODY = Body()

_GO_SKILL = Skill("go to", True, "goes to the landmark of a color and stays there")
_STAY_SKILL = Skill("stay", False, "stops, and stays where it is")
_ASSIGNMENT_PATTERN = re.compile(r"(\w+) must go to <(\w+)>")
_SPOKEN_COLOR_PATTERN = re.compile(r"says <(\w+)>")


class SimpleReferenceDomain(ParticleDomain):
    """Domain in which each agent knows the goal of the next agent, and hears the previous agent, which knows its goal.

    Each agent has 15 possible sentences. An action consists of a word and a move, which are the first `say` of a plan
    and its first applicable move. Without a `say`, the word is the last one, which has no meaning.
    """

    name = prompt = "simple_reference"
    skills = (
        Skill("say", True, "says a color, together with what the other steps of the plan do"),
        _GO_SKILL,
        _STAY_SKILL,
    )
    fallback = (PlanStep("stay"),)
    vocabulary = COLORS

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._n_words = spec.n_actions // N_MOVES
        self.idle = N_MOVES * (self._n_words - 1)

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene for the channel `vector` [width]."""
        vector, layout, names = observation["vector"].tolist(), self.layouts[agent], self.agent_names
        previous_index, next_index = (agent - 1) % len(names), (agent + 1) % len(names)
        start = layout["heard"].start + self._n_words * (previous_index - (previous_index > agent))
        sentence = (
            f"The agent is {names[agent]}. It knows that {names[next_index]} must go to "
            f"<{_read_color(vector[layout['told_goal']])}>. {names[previous_index]}, who knows where it must go "
            f"itself, says {_describe_word(vector[start : start + self._n_words])}."
        )
        return _MoverScene(sentence, vector, layout)

    def action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of word and move, 5 * word + move."""
        assert isinstance(scene, _MoverScene)
        word = next((COLORS.index(step.object) for step in plan if step.skill == "say"), self._n_words - 1)
        return N_MOVES * word + scene.choose_move(plan)

    def best_plan(self, sentence: str) -> Plan:
        """Return the plan to say the next agent's goal and to go to the goal that the previous agent said."""
        [(_, goal)] = _ASSIGNMENT_PATTERN.findall(sentence)
        return PlanStep("say", goal), *_plan_from_spoken_color(sentence)


class SimpleSpeakerListenerDomain(ParticleDomain):
    """Domain of a speaker that knows each listener's goal, and of k listeners that hear the speaker.

    The speaker has 3^k possible sentences, each listener 4. The speaker has a skill for each listener, and all steps of
    its plan form one action. A listener without a step in the plan hears red, because the speaker cannot be silent.
    """

    name = prompt = "simple_speaker_listener"
    fallback = (PlanStep("stay"),)
    vocabulary = COLORS

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self._listeners = self.agent_names[1:]
        tell_skills = [
            Skill(f"tell {name}", True, f"tells {name} a color; for the speaker only") for name in self._listeners
        ]
        self.skills = (*tell_skills, _GO_SKILL, _STAY_SKILL)

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene for the channel `vector` [width]."""
        vector, layout, name = observation["vector"].tolist(), self.layouts[agent], self.agent_names[agent]
        if agent > 0:
            spoken_phrase = _describe_word(vector[layout["heard"]])
            sentence = f"The agent is {name}. {self.agent_names[0]}, who knows where it must go, says {spoken_phrase}."
            return _MoverScene(sentence, vector, layout)
        goals = vector[layout["told_goal"]]
        assignments = [
            f"{name} must go to <{_read_color(goals[3 * k : 3 * k + 3])}>" for k, name in enumerate(self._listeners)
        ]
        return _SpeakerScene(
            f"The agent is {name}, who speaks and cannot move. It knows that {join_words(assignments)}.",
            self._listeners,
        )

    def action(self, scene: Scene, plan: Plan) -> int:
        """Return the action with the speaker's words, or the move of a listener."""
        return scene.encode_words(plan) if isinstance(scene, _SpeakerScene) else super().action(scene, plan)

    def best_plan(self, sentence: str) -> Plan:
        """Return the speaker's plan to tell all listeners their goals, or a listener's plan to go to the heard goal."""
        steps = tuple(PlanStep(f"tell {name}", color) for name, color in _ASSIGNMENT_PATTERN.findall(sentence))
        return steps or _plan_from_spoken_color(sentence)


class _MoverScene:
    """Scene of an agent that can move, with the offsets to the landmarks."""

    def __init__(self, sentence: str, vector: Sequence[float], layout: Mapping[str, slice]) -> None:
        self.sentence = sentence
        [self.velocity] = read_pairs(vector, layout, "velocity")
        self.landmark_offsets = dict(zip(COLORS, read_pairs(vector, layout, "landmarks"), strict=True))

    def act(self, step: PlanStep) -> int | None:
        """Return the move of a step; None for words."""
        if step.skill == "go to":
            return move_towards(self.landmark_offsets[step.object], self.velocity, BODY)
        return brake(self.velocity, BODY) if step.skill == "stay" else None

    def choose_move(self, plan: Plan) -> int:
        """Return the first move of a plan; 0 (no move) if there is none."""
        return next((move for move in map(self.act, plan) if move is not None), 0)


class _SpeakerScene:
    """Scene of the speaker."""

    def __init__(self, sentence: str, listeners: Sequence[str]) -> None:
        self.sentence = sentence
        self._listener_index_by_skill = {f"tell {name}": k for k, name in enumerate(listeners)}

    def act(self, step: PlanStep) -> int | None:
        """Return the action that tells one listener a color; None for moves."""
        return self.encode_words((step,)) if step.skill in self._listener_index_by_skill else None

    def encode_words(self, plan: Plan) -> int:
        """Return the action with the words for all listeners in a plan; the first word for others."""
        words = [0] * len(self._listener_index_by_skill)
        for step in reversed(plan):
            if step.skill in self._listener_index_by_skill:
                words[self._listener_index_by_skill[step.skill]] = COLORS.index(step.object)
        return N_MOVES + functools.reduce(lambda number, word: number * len(COLORS) + word, words)


def _plan_from_spoken_color(sentence: str) -> Plan:
    colors = _SPOKEN_COLOR_PATTERN.findall(sentence)
    return (PlanStep("go to", colors[0]) if colors else PlanStep("stay"),)


def _read_color(color_levels: Sequence[float]) -> str:
    return COLORS[max(range(3), key=lambda i: color_levels[i])]


def _describe_word(one_hot_word: Sequence[float]) -> str:
    """Return the phrase for the one-hot vector of a word, as used in sentences."""
    if not any(one_hot_word):
        return "nothing"
    word = max(range(len(one_hot_word)), key=lambda i: one_hot_word[i])
    return f"<{COLORS[word]}>" if word < len(COLORS) else "a word without meaning"
