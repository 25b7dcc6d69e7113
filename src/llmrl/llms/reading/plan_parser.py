"""Parser of plans in a reply: skills, each with its object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import AnswerParser, CandidateAnswer
from llmrl.llms.reading.json_and_markup import TRUNCATION_MARKER
from llmrl.llms.reading.name_matcher import NameMatcher, normalize_name, words
from llmrl.llms.reading.word_lists import load_word_list
from llmrl.llms.reading.written_steps import SPLIT, PlanFinder, Step
from llmrl.llms.reply_cleaning import to_ascii

_MAX_STEP_LENGTH = 300
NO_OBJECT = frozenset(normalize_name(word) for word in ("", "none", "nothing", "null", "no object", "n/a", "nil"))

_PLANS, _SKILLS, _OBJECTS = load_word_list("plans"), load_word_list("skills"), load_word_list("objects")
_UNDECIDED = re.compile(r"\W*(?:or|either|maybe|perhaps)\b", re.IGNORECASE)
_LEADS = load_word_list("leads")
"""Words before the skill of a step."""
_CALL_KEYS = ("arguments", "parameters", "input", "function", "functioncall")
_PRONOUN = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)
_AND = re.compile(r"\band\s+(?:then\s+)?", re.IGNORECASE)
_TOOL = re.compile(r"\b(?:with|using|by)\b.*", re.IGNORECASE | re.DOTALL)
_SELF = re.compile(r"\bthe agent is (\w+)", re.IGNORECASE)
_STATE = re.compile(
    r"^[ \t*]*State\W{1,4}(?P<line>[^\n]+)$|\bstate\b[^\n\"]{0,20}\"(?P<quoted>[^\"\n]{1,300})\"",
    re.MULTILINE | re.IGNORECASE,
)


class _AbsentObject(str):
    """Reason why a step is skipped: it looks ahead to an object that is absent from the present state."""


class PlanParser(AnswerParser[tuple[Step, ...]]):
    """Parser of a list of steps (skill, object), in the names' own spelling; "" for no object.

    Steps for absent objects are skipped, because they cannot be done yet. A plan ends before its first invalid step,
    and after its first `max_steps` steps.

    Args:
        skills: pairs (name, whether the skill takes an object).
        objects: objects that a plan may name in this state.
        max_steps: maximum number of steps of a plan.
        state: sentence that describes the state in the question; any other such sentence starts another turn.
    """

    answer_name = "plan"

    def __init__(
        self, skills: Sequence[tuple[str, bool]], objects: Sequence[str], max_steps: int, state: str = ""
    ) -> None:
        self.skills, self.objects, self.max_steps = list(skills), list(objects), max_steps
        self.names = NameMatcher([name for name, _ in skills])
        self.object_matcher = NameMatcher(objects) if objects else None
        self.state = normalize_name(state)
        agent_match = _SELF.search(state)
        self.finder = PlanFinder(self, agent_match[1] if agent_match else "")
        self.turn = re.compile(r"^[ \t*]*(?:(?:next |new )?state|agent sees)\b", re.MULTILINE | re.IGNORECASE)

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[tuple[Step, ...]]]:
        return self.finder.find_plans(text, truncated)

    def parse_prose(self, text: str) -> tuple[Step, ...] | None:
        return self.finder.parse_sentences(text)

    def answers_this_question(self, text: str, candidate: CandidateAnswer[tuple[Step, ...]]) -> bool | None:
        """Return False for an answer under another state, True under a line with this state, else None."""
        if not self.state:
            return None
        states = list(_STATE.finditer(to_ascii(text[max(candidate.start - 3000, 0) : candidate.start])))
        if not states:
            return None
        sentence = normalize_name(states[-1]["line"] or states[-1]["quoted"])
        return sentence == self.state if states[-1]["line"] or sentence != self.state else None

    def plan(self, steps: Sequence[Any]) -> tuple[Step, ...]:
        """Return the steps before the first invalid one, without those for absent objects.

        Raises:
            InvalidReply: no step is left, or the plan was cut off.
        """
        if not steps:
            raise InvalidReply(f"a plan has 1 to {self.max_steps} steps, and this one has 0")
        if any(raw_step == TRUNCATION_MARKER for raw_step in steps):
            raise InvalidReply("the plan was cut off")
        if any(isinstance(raw_step, str) and _UNDECIDED.match(raw_step) for raw_step in steps):
            raise InvalidReply("the plan is not decided")
        valid_steps: list[Step] = []
        error = ""
        for raw_step in steps[: self.max_steps]:
            step = self.step(raw_step, valid_steps[-1][1] if valid_steps else "")
            if isinstance(step, str):
                error = error or step
                if isinstance(step, _AbsentObject):
                    continue
                break
            valid_steps.append(step)
        if not valid_steps:
            raise InvalidReply(error)
        return tuple(valid_steps)

    def parse_value(self, value: Any, depth: int = 0) -> tuple[Step, ...] | None:
        if depth > 6:
            return None
        if isinstance(value, list):
            return self._parse_sequence(value, depth)
        if not isinstance(value, dict) or "properties" in value:
            return None
        fields = {normalize_name(str(key)): inner for key, inner in value.items()}
        for key in _PLANS:
            inner = fields.get(key)
            if inner is None or (
                key in ("action", "answer") and not isinstance(inner, list | dict) and "object" in fields
            ):
                continue
            if isinstance(inner, str):
                return self.of_string(inner)
            if isinstance(inner, list):
                return self.plan(inner) if key != "answer" or _steplike(inner) else self.parse_value(inner, depth + 1)
            if isinstance(inner, dict) and (plan := self._of_steps(inner, depth)) is not None:
                return plan
        if self._is_step(value) and "skill" in fields:
            return self.plan([value])
        return self._nested_plan(list(value.values()), depth)

    def _of_steps(self, value: dict[Any, Any], depth: int) -> tuple[Step, ...] | None:
        if self._is_step(value):
            return self.plan([value])
        if value and all(str(k).strip().lower().removeprefix("step").strip(" _").isdigit() for k in value):
            return self.plan(list(value.values()))
        return self.parse_value(value, depth + 1)

    def _nested_plan(self, values: Sequence[Any], depth: int) -> tuple[Step, ...] | None:
        """Return the only plan inside `values`; None if there is none. Raises InvalidReply for different plans."""
        nested = [inner for inner in values if isinstance(inner, dict | list)]
        plans = {plan for inner in nested if (plan := self.parse_value(inner, depth + 1))}
        if len(plans) > 1:
            raise InvalidReply("there are several different plans in the reply; give one")
        return plans.pop() if plans else None

    def _parse_sequence(self, value: Sequence[Any], depth: int) -> tuple[Step, ...] | None:
        calls = [
            item
            for item in value
            if isinstance(item, dict) and any(normalize_name(str(key)) in _CALL_KEYS for key in item)
        ]
        if (
            not calls
            and _steplike(value)
            and any(self._is_step(item) if isinstance(item, dict) else isinstance(item, str) for item in value)
        ):
            usable = isinstance(value[0], dict) or self.is_possible(self.step(value[0]))
            return self.plan(value) if usable else None
        if value and all(isinstance(item, list) and 1 <= len(item) <= 2 for item in value):
            return self.plan(value) if self.is_possible(self.step(value[0])) else None
        return self._nested_plan(value, depth)

    def of_string(self, text: str) -> tuple[Step, ...] | None:
        """Return the plan of a text that consists of steps with separators between them; None if it is empty."""
        items = [item for item in SPLIT.split(to_ascii(text).strip(" .{}[]\n")) if item and item.strip(" .*`")]
        if not items:
            return None
        return self.plan([part for item in items for part in self._parts(item)])

    def _parts(self, item: str) -> list[str]:
        """Split `go to the door and open it` into two steps; a part after `and` is a step if it begins with a skill."""
        parts: list[str] = []
        for part in _AND.split(item):
            mentions = self.names.mentions(part)
            if parts and not (mentions and not part[: mentions[0][0]].strip()):
                parts[-1] += f" and {part}"
            else:
                parts.append(part)
        return parts

    def _is_step(self, value: Any) -> bool:
        return isinstance(value, dict) and any(
            normalize_name(str(key)) in _SKILLS and isinstance(inner, str) for key, inner in value.items()
        )

    def step(self, raw_step: Any, previous_object: str = "") -> Step | str:
        """Return the step that a value means, or a text that says why it means none.

        The pronoun "it" refers to `previous_object`, the object of the previous step.
        """
        skill, target = "", ""
        if isinstance(raw_step, dict):
            fields = {normalize_name(str(key)): inner for key, inner in raw_step.items()}
            skill = next((str(fields[key]) for key in _SKILLS if isinstance(fields.get(key), str)), "")
            argument = next((fields[key] for key in _OBJECTS if fields.get(key) is not None), "")
            if isinstance(argument, dict):
                argument = next(iter(argument.values()), "")
            if isinstance(argument, list):
                argument = argument[0] if len(argument) == 1 else " ".join(map(str, argument))
            if not skill and len(raw_step) == 1:
                skill, argument = next(iter(raw_step.items()))
            target = "" if argument is None or isinstance(argument, bool | dict | list) else str(argument)
        elif (
            isinstance(raw_step, list)
            and 1 <= len(raw_step) <= 2
            and all(isinstance(part, str | None) for part in raw_step)
        ):
            skill, target = raw_step[0] or "", (raw_step[1] or "") if len(raw_step) == 2 else ""
        elif isinstance(raw_step, str):
            skill = raw_step
        return self._parse_step(f"{skill} <{target}>" if target else skill, skill, previous_object)

    def _parse_step(self, text: str, skill: str, antecedent: str) -> Step | str:
        text = text[:_MAX_STEP_LENGTH]
        text = (
            to_ascii(re.sub(r"\((?![^()]*\d\))[^()]*\)", " ", text))
            if "(" in text and not re.search(r"\w\(", text)
            else to_ascii(text)
        )
        spans = [(word, start, end) for word, start, end in words(text)]
        while len(spans) > 1 and spans[0][0] in _LEADS:
            if self.names.mentions(text[spans[0][1] :])[:1] and self.names.mentions(text[spans[0][1] :])[0][0] == 0:
                break
            spans = spans[1:]
        text = text[spans[0][1] :] if spans else ""
        mentions = self.names.mentions(text)
        if not mentions or mentions[0][0] > 0:
            skill_text = " ".join(re.sub(r"[<>]", " ", text if not skill or len(skill) > 60 else skill).split())[:60]
            return f"there is no skill {skill_text!r}; there are {', '.join(name for name, _ in self.skills)}"
        name, takes = self.skills[mentions[0][2]]
        rest = text[mentions[0][1] :]
        if not takes:
            return name, ""
        target = self._find_object(_TOOL.sub("", rest)) or self._find_object(rest)
        if target is None and antecedent and _PRONOUN.search(text):
            target = antecedent
        if target is None:
            object_text = " ".join(re.sub(r"[<>\"'`*_()]", " ", rest).split())[:60]
            objects = ", ".join(self.objects) or "none"
            error = (
                f"the skill {name!r} needs an object of this state, and {object_text!r} is none; there are: {objects}"
            )
            is_invalid = normalize_name(object_text) in NO_OBJECT or self._is_ambiguous(rest)
            return error if is_invalid else _AbsentObject(error)
        return name, target

    def _find_object(self, text: str) -> str | None:
        """Return the object that a text means by its name or the end of it; None if there is none or several."""
        if self.object_matcher is None:
            return None
        tokens = [
            word
            for word, _, _ in words(text)
            if word not in ("the", "a", "an", "object", "to", "it", "this", "that", "of")
        ]
        if not tokens or "".join(tokens) in NO_OBJECT:
            return None
        index = self.object_matcher.exact(" ".join(tokens))
        if index is not None:
            return self.objects[index]
        parts = [i for i, name in enumerate(self.objects) if _is_suffix(tokens, [word for word, _, _ in words(name)])]
        if len(parts) == 1:
            return self.objects[parts[0]]
        indices = {i for _, _, i in self.object_matcher.mentions(text)}
        return self.objects[indices.pop()] if not parts and len(indices) == 1 and len(tokens) <= 6 else None

    def _is_ambiguous(self, text: str) -> bool:
        """Return whether a text fits the end of the names of several objects."""
        tokens = [word for word, _, _ in words(text) if word not in ("the", "a", "an")]
        return sum(_is_suffix(tokens, [word for word, _, _ in words(name)]) for name in self.objects) > 1

    @staticmethod
    def is_possible(step: Step | str) -> bool:
        """Return whether a step can be done, now or later."""
        return not isinstance(step, str) or isinstance(step, _AbsentObject)


def _steplike(value: Sequence[Any]) -> bool:
    return bool(value) and all(isinstance(item, dict | str) for item in value)


def _is_suffix(tokens: Sequence[str], name: Sequence[str]) -> bool:
    """Return whether the words `tokens` are the last words of a name, but not the whole name."""
    text = "".join(tokens)
    return any("".join(name[i:]) == text for i in range(1, len(name)))
