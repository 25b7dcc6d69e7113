"""Domains: descriptions of an environment's states, skills, and a prompt for teachers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.teachers.plans import Plan, PlanStep, Skill, parse_plan

_NAME_PATTERN = re.compile(r"<([^<>]+)>")

NO_OBJECT_NAME = "nothing"
"""Name that represents no object in a sentence, as `<nothing>`."""
ANNOUNCEMENT_PREFIX = "The others mean to do this: "
"""Text of a debate between an agent's own sentence and the plans of the others."""


class Scene(Protocol):
    """State as seen by one agent."""

    @property
    def sentence(self) -> str:
        """Description of the abstract state and the only input of a planner; equal sentences get the same plans."""
        ...

    def act(self, step: PlanStep) -> int | None:
        """Return the skill's next action in this state; None if the skill is finished or not applicable."""
        ...


class Domain(ABC):
    """Environment as seen by teachers: `scene` describes states and executes skills, `prompt` explains it to an LLM.

    Attributes:
        name: name of the domain, usually the environment's.
        channels: observation channels that `scene` reads.
        prompt: file in `teachers/prompts/`, or in `<prompts>/teacher/` of a user's own folder, without `.j2`.
        skills: skills of the plan grammar.
        n_actions: number of the environment's actions.
        idle: action taken if no skill of a plan is applicable.
        fallback: plan used if the planner returned no valid one.
        memory_size: count of numbers remembered for each agent during an episode; 0: none.
        parity: whether the domain behaves as published, errors included.
    """

    name: str
    channels: tuple[str, ...]
    prompt: str
    skills: tuple[Skill, ...]
    n_actions: int
    idle: int
    fallback: Plan
    memory_size: int = 0
    parity: bool = False
    vocabulary: tuple[str, ...] = ()
    """Names of the objects of all states, for one schema of replies in all states; empty: unknown."""
    tables: ClassVar[str | None] = None
    """Path of the JSON file with frozen plan tables (`llmrl.teachers.offline_planner`); None: there are none."""

    @abstractmethod
    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene of agent number `agent` for its own observation, channel -> [*channel.shape].

        `memory` [self.memory_size] float64 holds the numbers remembered in this episode, zeros at its start. The method
        may write to it; it is None if `self.memory_size` is 0.
        """

    def action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of the plan's first applicable step in the scene; `idle` if there is none."""
        for step in plan:
            action = scene.act(step)
            if action is not None:
                return action
        return self.idle

    def objects(self, sentence: str) -> tuple[str, ...]:
        """Return the objects that a plan for this state may name.

        By default these are the names in angle brackets, without duplicates.
        """
        return tuple(dict.fromkeys(name for name in _NAME_PATTERN.findall(sentence) if name != NO_OBJECT_NAME))

    def read_plan(self, text: str, sentence: str) -> Plan:
        """Parse a plan of a plan table for the state `sentence`.

        Raises:
            InvalidReply: the text is not a valid plan.
        """
        return parse_plan(text, self.skills, self.objects(sentence))

    def read_published(self, reply: str, sentence: str) -> Plan:
        """Return the plan in a model's reply for the state `sentence`, parsed like the published teacher does.

        Raises:
            ConfigError: this domain has no published parser, the default.
        """
        raise ConfigError(
            f"teacher.parser=published: the domain {self.name} with parity={str(self.parity).lower()} has no "
            "published parser; set teacher.parity=true in a published room, or teacher.parser=shared"
        )

    def best_plan(self, sentence: str) -> Plan:
        """Return a good plan for this state by a hand-written rule, which `teacher=oracle` uses.

        Raises:
            ConfigError: the domain has no such rule, the default.
        """
        raise ConfigError(f"the domain {self.name} has no rule for teacher=oracle; use teacher=llm")
