"""Domains: what a teacher needs in an environment, that is a description of states, skills, and a prompt."""

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
"""Name that in a sentence, as `<nothing>`, stands for no object."""


class Scene(Protocol):
    """View of one agent of one state."""

    @property
    def sentence(self) -> str:
        """Description of the abstract state, all that a planner is told; equal sentences get the same plans."""
        ...

    def act(self, step: PlanStep) -> int | None:
        """Return the skill's next action in this state; None if it is finished or can do nothing."""
        ...


class Domain(ABC):
    """Environment as teachers see it: `scene` describes states and executes skills, `prompt` explains it to an LLM.

    Attributes:
        name: name of the domain, usually the environment's.
        channels: observation channels that `scene` reads.
        prompt: file in `teachers/prompts/`, or in `<prompts>/teacher/` of a user's own folder, without `.j2`.
        skills: skills of the plan grammar.
        n_actions: number of the environment's actions.
        idle: action taken if no skill of a plan has anything to do.
        fallback: plan used where the planner gave no valid one.
        memory: numbers remembered for each agent from step to step of an episode; 0: none.
        parity: whether the domain behaves as published, flaws included.
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
    """Names of the objects of all states, for one schema of replies in all states; empty: unknown."""
    tables: ClassVar[str | None] = None
    """Path of the JSON file with frozen plan tables (`llmrl.teachers.offline_planner`); None: there are none."""

    @abstractmethod
    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene of agent number `agent` for its own observation, channel -> [*channel.shape].

        `memory` [self.memory] float64 holds the numbers remembered in this episode, zeros at its start. The method may
        write to it; it is None if `self.memory` is 0.
        """

    def action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of the plan's first step that has something to do in the scene; `idle` if none has."""
        for step in plan:
            action = scene.act(step)
            if action is not None:
                return action
        return self.idle

    def objects(self, sentence: str) -> tuple[str, ...]:
        """Return the objects that a plan for this state may name: by default those in angle brackets, each once."""
        return tuple(dict.fromkeys(name for name in _NAMED.findall(sentence) if name != NOTHING))

    def read_plan(self, text: str, sentence: str) -> Plan:
        """Parse a plan of a plan table for the state `sentence`.

        Raises:
            InvalidReply: the text is no valid plan.
        """
        return parse_text(text, self.skills, self.objects(sentence))

    def read_published(self, reply: str, sentence: str) -> Plan:
        """Return the plan in a model's reply for the state `sentence`, as the published teacher reads it.

        Raises:
            ConfigError: this domain has no published reading, the default.
        """
        raise ConfigError(
            f"teacher.reading=published: the domain {self.name} with parity={str(self.parity).lower()} has no "
            "published reading; set teacher.parity=true in a room that was published, or teacher.reading=shared"
        )

    def best_plan(self, sentence: str) -> Plan:
        """Return a good plan for this state by a hand-written rule, which `teacher=oracle` teaches.

        Raises:
            ConfigError: the domain has no such rule, the default.
        """
        raise ConfigError(f"the domain {self.name} has no rule for teacher=oracle; use teacher=llm")
