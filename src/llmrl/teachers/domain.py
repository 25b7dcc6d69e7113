"""Domains, which describe the states of an environment in sentences and define skills and a prompt for teachers."""

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
"""Name in a sentence, as `<nothing>`, if there is no object."""
ANNOUNCEMENT_PREFIX = "The others mean to do this: "
"""Text between an agent's sentence and the announced plans of other agents in a debate."""


class Scene(Protocol):
    """State of an episode as one agent observes it."""

    @property
    def sentence(self) -> str:
        """Description of the state and the only input of a planner; states with equal sentences get equal plans."""
        ...

    def act(self, step: PlanStep) -> int | None:
        """Return the next action of a step's skill in this state; None if the skill is finished or not applicable."""
        ...


class Domain(ABC):
    """Base class of the descriptions of environments for teachers.

    Attributes:
        name: name of the domain, usually that of the environment.
        channels: observation channels that `scene` reads.
        prompt: name of a file in `teachers/prompts/`, or in `<prompts>/teacher/` of the user's folder, without `.j2`.
        skills: skills that plans may contain.
        n_actions: number of actions of the environment.
        idle: action for a state in which no step of a plan is applicable.
        fallback: plan of states for which the planner has no valid plan.
        memory_size: number of values that are stored for each agent during an episode; 0: none.
        parity: whether skills and parser equal the code that was published with a paper, including its errors.
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
    """Names of the objects in all states, for a reply schema that all states share; empty: unknown."""
    tables: ClassVar[str | None] = None
    """Path of the JSON file with the domain's plan tables (`llmrl.teachers.offline_planner`); None: there is none."""

    @abstractmethod
    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene of one agent.

        Args:
            observation: channel -> the agent's observation, [*channel.shape].
            agent: index of the agent.
            memory: stored values, [self.memory_size] float64, zeros at the start of an episode; the method may change
                them. None if `self.memory_size` is 0.
        """

    def action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of the plan's first applicable step in the scene; `idle` if there is none."""
        for step in plan:
            action = scene.act(step)
            if action is not None:
                return action
        return self.idle

    def objects(self, sentence: str) -> tuple[str, ...]:
        """Return the objects that a plan for this state may name; by default the distinct names in angle brackets."""
        return tuple(dict.fromkeys(name for name in _NAME_PATTERN.findall(sentence) if name != NO_OBJECT_NAME))

    def read_plan(self, text: str, sentence: str) -> Plan:
        """Return the plan in a text from a plan table, for the state `sentence`.

        Raises:
            InvalidReply: the text is not a valid plan.
        """
        return parse_plan(text, self.skills, self.objects(sentence))

    def read_published(self, reply: str, sentence: str) -> Plan:
        """Return the plan in a model's reply for the state `sentence`, with the parser that was published.

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
