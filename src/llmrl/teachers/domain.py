"""What a world needs to be taught in: a describer, skills, and a prompt."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.teachers.plans import Plan, PlanStep, Skill, parse_text

_NAMED = re.compile(r"<([^<>]+)>")

NOTHING = "nothing"
"""In a sentence, `<nothing>` stands for no object."""


class Scene(Protocol):
    """One agent's view of one state."""

    @property
    def sentence(self) -> str:
        """The abstract state: all a planner is told. States with equal sentences get the same plans."""
        ...

    def act(self, step: PlanStep) -> int | None:
        """The action with which a skill goes on here; None if it has nothing left to do, or can do nothing."""
        ...


class Domain(ABC):
    """A world in three pieces: `scene` describes it and knows the skills, `prompt` explains it to a language model.

    Attributes:
        name: usually the environment's.
        channels: observation channels that `scene` reads.
        prompt: file in `teachers/prompts/`, or in `<prompts>/teacher/` of a user's own folder, without `.j2`.
        skills: the plan grammar.
        n_actions: of the environment.
        idle: what is done if no skill of a plan has anything to do.
        fallback: the plan where no valid one was had.
        memory: numbers remembered for each agent from step to step of an episode; 0: none.
        parity: whether it behaves as published, flaws included.
    """

    name: str
    channels: tuple[str, ...]
    prompt: str
    skills: tuple[Skill, ...]
    n_actions: int
    idle: int
    fallback: Plan
    memory: int = 0
    parity: bool = False
    vocabulary: tuple[str, ...] = ()
    """Names of all objects that states may tell of, for a schema that is the same in all of them; empty: not known."""
    tables: ClassVar[str | None] = None
    """Path of the JSON file with its frozen plan tables (`llmrl.teachers.offline`); None: there are none."""

    @abstractmethod
    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """The scene of agent number `agent`, whose own observation (channel -> [*channel.shape]) is given.

        `memory` [self.memory] float64 is what was remembered of this episode so far, zeros at its start; it may be
        written to. None where `self.memory` is 0.
        """

    def action(self, scene: Scene, plan: Plan) -> int:
        """What a plan does in a scene: what its first skill does that has something to do; `idle` if none has."""
        for step in plan:
            action = scene.act(step)
            if action is not None:
                return action
        return self.idle

    def objects(self, sentence: str) -> tuple[str, ...]:
        """The objects that a plan for this state may name: here those between angle brackets, each once."""
        return tuple(dict.fromkeys(name for name in _NAMED.findall(sentence) if name != NOTHING))

    def read_plan(self, text: str, sentence: str) -> Plan:
        """A plan of a table for the state `sentence`.

        Raises:
            InvalidReply: it is none.
        """
        return parse_text(text, self.skills, self.objects(sentence))

    def read_published(self, reply: str, sentence: str) -> Plan:
        """The plan in a model's reply for the state `sentence`, as the published teacher reads it.

        Raises:
            ConfigError: this domain has no such reading.
        """
        raise ConfigError(
            f"teacher.reading=published: the domain {self.name} with parity={str(self.parity).lower()} has no "
            "published reading; set teacher.parity=true in a room that was published, or teacher.reading=shared"
        )

    def best_plan(self, sentence: str) -> Plan:
        """A good plan for this state by a rule of ours; what `teacher=oracle` teaches.

        Raises:
            ConfigError: the domain has no such rule.
        """
        raise ConfigError(f"the domain {self.name} has no rule for teacher=oracle; use teacher=llm")
