"""Parser of plans in a reply: skills, each with its object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llmrl.llms.reading.answer_parser import AnswerParser, CandidateAnswer
from llmrl.llms.reading.json_and_markup import CUT
from llmrl.llms.reading.name_matcher import NameMatcher, letters, words
from llmrl.llms.reading.reply_cleaning import plain
from llmrl.llms.reading.word_lists import listed
from llmrl.llms.reading.written_steps import SPLIT, Step, WrittenSteps
from llmrl.llms.structured import InvalidReply

_LONGEST_STEP = 300
NO_OBJECT = frozenset(letters(word) for word in ("", "none", "nothing", "null", "no object", "n/a", "nil"))

_PLANS, _SKILLS, _OBJECTS = listed("plans"), listed("skills"), listed("objects")
_CALLED = ("arguments", "parameters", "input", "function", "functioncall")
_IT = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)
_AND = re.compile(r"\band\s+(?:then\s+)?", re.IGNORECASE)
_TOOL = re.compile(r"\b(?:with|using|by)\b.*", re.IGNORECASE | re.DOTALL)
_SELF = re.compile(r"\bthe agent is (\w+)", re.IGNORECASE)
_STATE_OF = re.compile(
    r"^[ \t*]*State\W{1,4}(?P<line>[^\n]+)$|\bstate\b[^\n\"]{0,20}\"(?P<quoted>[^\"\n]{1,300})\"",
    re.MULTILINE | re.IGNORECASE,
)


class _Ahead(str):
    """Reason why a step is skipped: it looks ahead to an object that is absent from the present state."""


class PlanParser(AnswerParser[tuple[Step, ...]]):
    """Parser of a list of steps (skill, object), in the names' own spelling; "" for no object.

    Steps for absent objects are skipped, because they cannot be done yet. A plan ends before its first invalid step,
    and after its first `most` steps.

    Args:
        skills: pairs (name, whether the skill takes an object).
        objects: objects that a plan may name in this state.
        most: most steps of a plan.
        state: sentence of the state in the question; another sentence begins another turn.
    """

    wanted = "plan"

    def __init__(self, skills: Sequence[tuple[str, bool]], objects: Sequence[str], most: int, state: str = "") -> None:
        self.skills, self.objects, self.most = list(skills), list(objects), most
        self.names = NameMatcher([name for name, _ in skills])
        self.things = NameMatcher(objects) if objects else None
        self.state = letters(state)
        own = _SELF.search(state)
        self.written = WrittenSteps(self, own[1] if own else "")
        self.turn = re.compile(r"^[ \t*]*(?:(?:next |new )?state|agent sees)\b", re.MULTILINE | re.IGNORECASE)

    def of_text(self, text: str, cut: bool) -> list[CandidateAnswer[tuple[Step, ...]]]:
        return self.written.found(text, cut)

    def of_prose(self, text: str) -> tuple[Step, ...] | None:
        return self.written.spoken(text)

    def mine(self, text: str, candidate: CandidateAnswer[tuple[Step, ...]]) -> bool | None:
        """Return False for an answer under another state, True under a line with this state, else None."""
        if not self.state:
            return None
        states = list(_STATE_OF.finditer(plain(text[max(candidate.start - 3000, 0) : candidate.start])))
        if not states:
            return None
        said = letters(states[-1]["line"] or states[-1]["quoted"])
        return said == self.state if states[-1]["line"] or said != self.state else None

    def plan(self, steps: Sequence[Any]) -> tuple[Step, ...]:
        """Return the steps before the first invalid one, without those for absent objects.

        Raises:
            InvalidReply: no step is left, or the plan was cut off.
        """
        if not steps:
            raise InvalidReply(f"a plan has 1 to {self.most} steps, and this one has 0")
        if any(said == CUT for said in steps):
            raise InvalidReply("the plan was cut off")
        found: list[Step] = []
        fault = ""
        for said in steps[: self.most]:
            step = self.step(said, found[-1][1] if found else "")
            if isinstance(step, str):
                fault = fault or step
                if isinstance(step, _Ahead):
                    continue
                break
            found.append(step)
        if not found:
            raise InvalidReply(fault)
        return tuple(found)

    def of_value(self, value: Any, depth: int = 0) -> tuple[Step, ...] | None:
        if depth > 6:
            return None
        if isinstance(value, list):
            return self._of_list(value, depth)
        if not isinstance(value, dict) or "properties" in value:
            return None
        by_key = {letters(str(key)): inner for key, inner in value.items()}
        for key in _PLANS:
            inner = by_key.get(key)
            if inner is None or (
                key in ("action", "answer") and not isinstance(inner, list | dict) and "object" in by_key
            ):
                continue
            if isinstance(inner, str):
                return self.of_string(inner)
            if isinstance(inner, list):
                return self.plan(inner) if key != "answer" or _steplike(inner) else self.of_value(inner, depth + 1)
            if isinstance(inner, dict) and (plan := self._of_steps(inner, depth)) is not None:
                return plan
        if self._is_step(value) and "skill" in by_key:
            return self.plan([value])
        return self._inside(list(value.values()), depth)

    def _of_steps(self, value: dict[Any, Any], depth: int) -> tuple[Step, ...] | None:
        if self._is_step(value):
            return self.plan([value])
        if value and all(str(k).strip().lower().removeprefix("step").strip(" _").isdigit() for k in value):
            return self.plan(list(value.values()))
        if (found := self.of_value(value, depth + 1)) is not None:
            return found
        only = next(iter(value.values())) if len(value) == 1 else None
        return self.plan(only if isinstance(only, list) else [only]) if isinstance(only, dict | list) else None

    def _inside(self, values: Sequence[Any], depth: int) -> tuple[Step, ...] | None:
        """Return the only plan inside `values`; None if there is none. Raises InvalidReply for different plans."""
        nested = [inner for inner in values if isinstance(inner, dict | list)]
        plans = {plan for inner in nested if (plan := self.of_value(inner, depth + 1))}
        if len(plans) > 1:
            raise InvalidReply("there are several different plans in the reply; give one")
        return plans.pop() if plans else None

    def _of_list(self, value: Sequence[Any], depth: int) -> tuple[Step, ...] | None:
        called = [
            item for item in value if isinstance(item, dict) and any(letters(str(key)) in _CALLED for key in item)
        ]
        if (
            not called
            and _steplike(value)
            and any(self._is_step(item) if isinstance(item, dict) else isinstance(item, str) for item in value)
        ):
            usable = isinstance(value[0], dict) or self.possible(self.step(value[0]))
            return self.plan(value) if usable else None
        if value and all(isinstance(item, list) and 1 <= len(item) <= 2 for item in value):
            return self.plan(value) if self.possible(self.step(value[0])) else None
        return self._inside(value, depth)

    def of_string(self, text: str) -> tuple[Step, ...] | None:
        """Return the plan of a text that consists of steps with separators between them; None if it is empty."""
        items = [item for item in SPLIT.split(plain(text).strip(" .{}[]\n")) if item and item.strip(" .*`")]
        if not items:
            return None
        return self.plan([part for item in items for part in self._parts(item)])

    def _parts(self, item: str) -> list[str]:
        """Split `go to the door and open it` into two steps; a part after `and` is a step if it begins with a skill."""
        parts: list[str] = []
        for part in _AND.split(item):
            mentioned = self.names.mentions(part)
            if parts and not (mentioned and not part[: mentioned[0][0]].strip()):
                parts[-1] += f" and {part}"
            else:
                parts.append(part)
        return parts

    def _is_step(self, value: Any) -> bool:
        return isinstance(value, dict) and any(
            letters(str(key)) in _SKILLS and isinstance(inner, str) for key, inner in value.items()
        )

    def step(self, said: Any, before: str = "") -> Step | str:
        """Return the step that a value means, or a text that says why it means none; "it" stands for `before`."""
        skill, thing = "", ""
        if isinstance(said, dict):
            by_key = {letters(str(key)): inner for key, inner in said.items()}
            skill = next((str(by_key[key]) for key in _SKILLS if isinstance(by_key.get(key), str)), "")
            given = next((by_key[key] for key in _OBJECTS if by_key.get(key) is not None), "")
            if isinstance(given, dict):
                given = next(iter(given.values()), "")
            if isinstance(given, list):
                given = given[0] if len(given) == 1 else " ".join(map(str, given))
            if not skill and len(said) == 1:
                skill, given = next(iter(said.items()))
            thing = "" if given is None or isinstance(given, bool | dict | list) else str(given)
        elif isinstance(said, list) and 1 <= len(said) <= 2 and all(isinstance(each, str | None) for each in said):
            skill, thing = said[0] or "", (said[1] or "") if len(said) == 2 else ""
        elif isinstance(said, str):
            skill = said
        return self._meant(f"{skill} <{thing}>" if thing else skill, skill, before)

    def _meant(self, text: str, skill: str, before: str) -> Step | str:
        text = text[:_LONGEST_STEP]
        text = (
            plain(re.sub(r"\((?![^()]*\d\))[^()]*\)", " ", text))
            if "(" in text and not re.search(r"\w\(", text)
            else plain(text)
        )
        spans = [(word, a, b) for word, a, b in words(text)]
        while (
            spans
            and spans[0][0]
            in (
                "the",
                "agent",
                "i",
                "should",
                "to",
                "then",
                "first",
                "and",
                "step",
                "finally",
                "next",
                "will",
                "it",
                "must",
            )
            and len(spans) > 1
        ):
            if self.names.mentions(text[spans[0][1] :])[:1] and self.names.mentions(text[spans[0][1] :])[0][0] == 0:
                break
            spans = spans[1:]
        text = text[spans[0][1] :] if spans else ""
        mentioned = self.names.mentions(text)
        if not mentioned or mentioned[0][0] > 0:
            tried = " ".join(re.sub(r"[<>]", " ", text if not skill or len(skill) > 60 else skill).split())[:60]
            return f"there is no skill {tried!r}; there are {', '.join(name for name, _ in self.skills)}"
        name, takes = self.skills[mentioned[0][2]]
        rest = text[mentioned[0][1] :]
        if not takes:
            return name, ""
        thing = self._object(_TOOL.sub("", rest)) or self._object(rest)
        if thing is None and before and _IT.search(text):
            thing = before
        if thing is None:
            shown = " ".join(re.sub(r"[<>\"'`*_()]", " ", rest).split())[:60]
            there = ", ".join(self.objects) or "none"
            fault = f"the skill {name!r} needs an object of this state, and {shown!r} is none; there are: {there}"
            return fault if letters(shown) in NO_OBJECT or self._several(rest) else _Ahead(fault)
        return name, thing

    def _object(self, text: str) -> str | None:
        """Return the object that a text means by its name or the end of it; None if there is none or several."""
        if self.things is None:
            return None
        said = [
            word
            for word, _, _ in words(text)
            if word not in ("the", "a", "an", "object", "to", "it", "this", "that", "of")
        ]
        if not said or "".join(said) in NO_OBJECT:
            return None
        whole = self.things.exact(" ".join(said))
        if whole is not None:
            return self.objects[whole]
        parts = [i for i, name in enumerate(self.objects) if _part_of(said, [word for word, _, _ in words(name)])]
        if len(parts) == 1:
            return self.objects[parts[0]]
        mentioned = {i for _, _, i in self.things.mentions(text)}
        return self.objects[mentioned.pop()] if not parts and len(mentioned) == 1 and len(said) <= 6 else None

    def _several(self, text: str) -> bool:
        """Return whether a text fits the end of the names of several objects."""
        said = [word for word, _, _ in words(text) if word not in ("the", "a", "an")]
        return sum(_part_of(said, [word for word, _, _ in words(name)]) for name in self.objects) > 1

    @staticmethod
    def possible(step: Step | str) -> bool:
        """Return whether a step can be done, now or later."""
        return not isinstance(step, str) or isinstance(step, _Ahead)


def _steplike(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(item, dict | str) for item in value)


def _part_of(said: Sequence[str], name: Sequence[str]) -> bool:
    """Return whether the words `said` are the last words of a name, but not the whole name."""
    joined = "".join(said)
    return any("".join(name[i:]) == joined for i in range(1, len(name)))
