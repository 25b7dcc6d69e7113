"""Plans: lists of skills with the objects they are for, and the strict grammar in which they are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from llmrl.llms.reading.deciding import understand
from llmrl.llms.reading.steps import Steps
from llmrl.llms.structured import InvalidReply, json_schema

LONGEST_PLAN = 20
"""Steps; what asks for more is no plan for one state."""

NO_OBJECT = ("", "none", "nothing", "null", "no object", "n/a")

_ARTICLE = re.compile(r"^(the|a|an) ")


@dataclass(frozen=True)
class Skill:
    """A word of the plan grammar: its name, whether an object follows it, and what it does, for the planner to read."""

    name: str
    takes_object: bool
    meaning: str


@dataclass(frozen=True)
class PlanStep:
    """One skill of a plan; `object` is "" where it takes none.

    >>> str(PlanStep("go to", "key"))
    'go to <key>'
    """

    skill: str
    object: str = ""

    def __str__(self) -> str:
        return f"{self.skill} <{self.object}>" if self.object else self.skill


Plan = tuple[PlanStep, ...]
"""Skills in the order in which they are tried: the first that has something to do in a state acts."""


class UnknownSkill(InvalidReply):
    """A plan uses a skill that the domain does not have in any state."""


class _Step(BaseModel):
    model_config = ConfigDict(extra="ignore")

    skill: str
    object: str | None = ""


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore")

    reasoning: str = ""
    plan: list[_Step]


def plan_text(plan: Plan) -> str:
    """The one way a plan is written; `parse_text` reads it back.

    >>> plan_text((PlanStep("go to", "key"), PlanStep("pick up", "key")))
    'go to <key>, pick up <key>'
    """
    return ", ".join(map(str, plan))


def reply_schema(skills: Sequence[Skill], vocabulary: Sequence[str] = ()) -> dict[str, Any]:
    """JSON schema of a reply: reasoning first, so that a model thinks before it decides; then the plan.

    Objects are those of `vocabulary`, or "" for none; any text where it is empty.
    """
    schema = json_schema(_Reply)
    step = schema["$defs"]["_Step"]["properties"]
    step["skill"] = {"type": "string", "enum": [skill.name for skill in skills]}
    step["object"] = {"type": "string", **({"enum": ["", *vocabulary]} if vocabulary else {})}
    return schema


def parse_reply(text: str, skills: Sequence[Skill], objects: Sequence[str], state: str = "", cut: bool = False) -> Plan:
    """The plan in a model's reply for the sentence `state`: its steps before the first that cannot be meant.

    Raises:
        InvalidReply: there is none, or its first step uses a skill or an object that there is none of.
    """
    question = Steps([(s.name, s.takes_object) for s in skills], objects, LONGEST_PLAN, state)
    return tuple(PlanStep(*step) for step in understand(text, question, cut).answer)


def parse_text(text: str, skills: Sequence[Skill], objects: Sequence[str]) -> Plan:
    """A plan written as `go to <key>, pick up <key>`; the brackets may be missing.

    Raises:
        InvalidReply: it is empty, or uses a skill or an object that there is none of.
    """
    items = [_plain(item) for item in text.split(",")]
    return checked([_split(item, skills) for item in items if item], skills, objects)


def checked(steps: Sequence[tuple[str, str]], skills: Sequence[Skill], objects: Sequence[str]) -> Plan:
    """The plan of pairs (skill, object), in the spelling of `skills` and `objects`.

    Raises:
        InvalidReply: it is empty or too long, or uses a skill or an object that there is none of.
    """
    known = {_plain(skill.name): skill for skill in skills}
    things = {_plain(name): name for name in objects}
    if not 1 <= len(steps) <= LONGEST_PLAN:
        raise InvalidReply(f"a plan has 1 to {LONGEST_PLAN} steps, and this one has {len(steps)}")
    plan = []
    for verb, thing in steps:
        skill = known.get(_plain(verb))
        if skill is None:
            raise UnknownSkill(f"there is no skill {_quoted(verb)}; there are {', '.join(s.name for s in skills)}")
        name = _ARTICLE.sub("", _plain(thing))
        if not skill.takes_object:
            if name not in NO_OBJECT:
                raise InvalidReply(f"the skill {skill.name!r} takes no object, and {_quoted(thing)} was given")
            plan.append(PlanStep(skill.name))
        elif name in things:
            plan.append(PlanStep(skill.name, things[name]))
        else:
            there = ", ".join(objects) or "none"
            raise InvalidReply(
                f"the skill {skill.name!r} needs an object of this state, and {_quoted(thing)} is none; there are: "
                f"{there}"
            )
    return tuple(plan)


def _split(item: str, skills: Sequence[Skill]) -> tuple[str, str]:
    """Skill and object of `go to key`: the longest skill the item starts with, and the rest."""
    for name in sorted((_plain(skill.name) for skill in skills), key=len, reverse=True):
        if item == name or item.startswith(f"{name} "):
            return name, item[len(name) :].strip()
    return item, ""


def _plain(text: str) -> str:
    """Lower case, single spaces, no brackets, quotes or underscores."""
    return " ".join(re.sub(r"[<>\"'`*_.\s-]+", " ", text).split()).lower()


def _quoted(text: str) -> str:
    return repr(" ".join(text.split())[:60])
