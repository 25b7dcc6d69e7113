"""Plans, which are sequences of skills with objects, and their parsers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.plan_parser import PlanParser
from llmrl.llms.structured import json_schema

MAX_PLAN_STEPS = 20
"""Maximum number of steps of a plan. Longer plans are invalid in plan tables, and are cut in replies."""

_STEP_PATTERN = re.compile(r"(?P<skill>[^<>]+?)(?: <(?P<object>[^<>]+)>)?")


@dataclass(frozen=True)
class Skill:
    """A skill that plans may contain: name, whether it takes an object, and meaning, which prompts state."""

    name: str
    takes_object: bool
    meaning: str


@dataclass(frozen=True)
class PlanStep:
    """One step of a plan: a skill and its object, "" for skills that take none.

    >>> str(PlanStep("go to", "key"))
    'go to <key>'
    """

    skill: str
    object: str = ""

    def __str__(self) -> str:
        return f"{self.skill} <{self.object}>" if self.object else self.skill


Plan = tuple[PlanStep, ...]
"""Steps in order of priority: in each state, the first applicable step determines the action."""


class UnknownSkill(InvalidReply):
    """Error for a plan with a skill that the domain does not define."""


class _Step(BaseModel):
    model_config = ConfigDict(extra="ignore")

    skill: str
    object: str | None = ""


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore")

    reasoning: str = ""
    plan: list[_Step]


def format_plan(plan: Plan) -> str:
    """Return a plan as text; inverse of `parse_plan`.

    >>> format_plan((PlanStep("go to", "key"), PlanStep("pick up", "key")))
    'go to <key>, pick up <key>'
    """
    return ", ".join(map(str, plan))


def build_reply_schema(skills: Sequence[Skill], vocabulary: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON schema of a reply, in which the reasoning precedes the plan.

    Objects are those of `vocabulary` or ""; any text if `vocabulary` is empty.
    """
    schema = json_schema(_Reply)
    step = schema["$defs"]["_Step"]["properties"]
    step["skill"] = {"type": "string", "enum": [skill.name for skill in skills]}
    step["object"] = {"type": "string", **({"enum": ["", *vocabulary]} if vocabulary else {})}
    return schema


def parse_reply(
    text: str, skills: Sequence[Skill], objects: Sequence[str], state: str = "", is_truncated: bool = False
) -> Plan:
    """Return the plan in a model's reply: the steps before the first invalid one, without steps for absent objects.

    Args:
        text: the reply.
        skills, objects: skills and objects that a plan may contain.
        state: sentence of the state in the request.
        is_truncated: whether the reply was cut off at the token limit.

    Raises:
        InvalidReply: the reply contains no plan, or no usable step before the first invalid one.
    """
    parser = PlanParser([(s.name, s.takes_object) for s in skills], objects, MAX_PLAN_STEPS, state)
    return tuple(PlanStep(*step) for step in parse_answer(text, parser, is_truncated).answer)


def parse_plan(text: str, skills: Sequence[Skill], objects: Sequence[str]) -> Plan:
    """Return the plan in a text with the format of `format_plan`.

    Raises:
        InvalidReply: the plan is empty or too long, or a skill or an object is unknown, missing or superfluous.
    """
    parts = text.split(",")
    if len(parts) > MAX_PLAN_STEPS:
        raise InvalidReply(f"a plan has 1 to {MAX_PLAN_STEPS} steps, and this one has {len(parts)}")
    return tuple(_parse_step(part.strip(), skills, objects) for part in parts)


def _parse_step(text: str, skills: Sequence[Skill], objects: Sequence[str]) -> PlanStep:
    match = _STEP_PATTERN.fullmatch(text)
    if match is None:
        raise InvalidReply(f"{text!r} is no step such as 'go to <key>' or 'explore'")
    name, target = match["skill"], match["object"]
    skill = next((skill for skill in skills if skill.name == name), None)
    if skill is None:
        raise UnknownSkill(f"there is no skill {name!r}; there are {', '.join(s.name for s in skills)}")
    if not skill.takes_object and target is not None:
        raise InvalidReply(f"the skill {name!r} takes no object, and {target!r} was given")
    if skill.takes_object and target not in objects:
        available = ", ".join(objects) or "none"
        raise InvalidReply(
            f"the skill {name!r} needs an object of this state, and {target!r} is none; there are: {available}"
        )
    return PlanStep(name, target or "")
