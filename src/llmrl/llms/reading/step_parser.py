"""Parser of the steps of plans, each of which is a skill with an object."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.json_and_markup import TRUNCATION_MARKER
from llmrl.llms.reading.name_matcher import NameMatcher, normalize_name, split_words
from llmrl.llms.reading.word_lists import load_word_list
from llmrl.llms.reply_cleaning import to_ascii

Step = tuple[str, str]
"""Name of a skill, and name of its object or "" for no object."""

SKILL_KEYS, OBJECT_KEYS = load_word_list("skills"), load_word_list("objects")
STEP_SEPARATOR = re.compile(
    r",\s*(?:and\s+)?(?:then\s+)?|;|\s*(?:->|\u2192|=>|\u27f6|>>)\s*|\n|\bthen\b|\bafter that\b|(?:^|(?<=\s)|"
    r"(?<=,))\(?\d{1,2}[.)]\s+|\.(?:\s|$)"
)
_NO_OBJECT = frozenset(normalize_name(word) for word in ("", "none", "nothing", "null", "no object", "n/a", "nil"))
_ARTICLES, _OBJECT_FILLERS = ("the", "a", "an"), ("object", "to", "it", "this", "that", "of")
_LEAD_WORDS = load_word_list("leads")
"""Words that may precede the skill of a step."""
_MAX_STEP_LENGTH = 300
_UNDECIDED_WORD = re.compile(r"\W*(?:or|either|maybe|perhaps)\b", re.IGNORECASE)
_PRONOUN = re.compile(r"\b(?:it|them)\b", re.IGNORECASE)
_AND = re.compile(r"\band\s+(?:then\s+)?", re.IGNORECASE)
_TOOL_PHRASE = re.compile(r"\b(?:with|using|by)\b.*", re.IGNORECASE | re.DOTALL)


class _AbsentObjectReason(str):
    """Reason why a step is skipped: its object is absent in the present state, so the step may be possible later."""


class StepParser:
    """Parser of steps (skill, object) with names of `skills` and `objects`; "" means no object.

    Args:
        skills: pairs (name, whether the skill takes an object).
        objects: names of the objects in the present state.
        max_steps: maximum number of steps of a plan.
    """

    def __init__(self, skills: Sequence[tuple[str, bool]], objects: Sequence[str], max_steps: int) -> None:
        self.skills, self.objects, self.max_steps = list(skills), list(objects), max_steps
        self.skill_matcher = NameMatcher([name for name, _ in skills])
        self._object_matcher = NameMatcher(objects)

    def parse_plan(self, raw_steps: Sequence[Any]) -> tuple[Step, ...]:
        """Return the steps before the first invalid one, without steps with absent objects.

        Raises:
            InvalidReply: no step remains, the plan is truncated, or it contains alternatives.
        """
        if not raw_steps:
            raise InvalidReply(f"a plan has 1 to {self.max_steps} steps, and this one has 0")
        if any(raw_step == TRUNCATION_MARKER for raw_step in raw_steps):
            raise InvalidReply("the plan was cut off")
        if any(isinstance(raw_step, str) and _UNDECIDED_WORD.match(raw_step) for raw_step in raw_steps):
            raise InvalidReply("the plan is not decided")
        steps: list[Step] = []
        error = ""
        for raw_step in raw_steps[: self.max_steps]:
            step = self.parse_step(raw_step, steps[-1][1] if steps else "")
            if not isinstance(step, str):
                steps.append(step)
                continue
            error = error or step
            if not is_possible_step(step):
                break
        if not steps:
            raise InvalidReply(error)
        return tuple(steps)

    def parse_text(self, text: str) -> tuple[Step, ...] | None:
        """Return the plan of a text that consists of steps and separators; None if the text is empty."""
        texts = [part for part in STEP_SEPARATOR.split(to_ascii(text).strip(" .{}[]\n")) if part.strip(" .*`")]
        return self.parse_plan([step for part in texts for step in self._split_at_and(part)]) if texts else None

    def _split_at_and(self, text: str) -> list[str]:
        """Split a text at each `and` that is followed by a skill: `go to the door and open it`."""
        parts: list[str] = []
        for part in _AND.split(text):
            mentions = self.skill_matcher.find_mentions(part)
            if parts and not (mentions and not part[: mentions[0][0]].strip()):
                parts[-1] += f" and {part}"
            else:
                parts.append(part)
        return parts

    def parse_step(self, raw_step: Any, previous_object: str = "") -> Step | str:
        """Return the step in a JSON-like value, or the reason why it is not a valid step.

        The pronoun "it" refers to `previous_object`, the object of the previous step.
        """
        skill, object_name = "", ""
        if isinstance(raw_step, dict):
            fields = {normalize_name(str(key)): inner for key, inner in raw_step.items()}
            skill = next((str(fields[key]) for key in SKILL_KEYS if isinstance(fields.get(key), str)), "")
            argument = next((fields[key] for key in OBJECT_KEYS if fields.get(key) is not None), "")
            if isinstance(argument, dict):
                argument = next(iter(argument.values()), "")
            if isinstance(argument, list):
                argument = argument[0] if len(argument) == 1 else " ".join(map(str, argument))
            if not skill and len(raw_step) == 1:
                skill, argument = next(iter(raw_step.items()))
            object_name = "" if argument is None or isinstance(argument, bool | dict | list) else str(argument)
        elif (
            isinstance(raw_step, list)
            and 1 <= len(raw_step) <= 2
            and all(isinstance(part, str | None) for part in raw_step)
        ):
            skill, object_name = (text or "" for text in (*raw_step, "")[:2])
        elif isinstance(raw_step, str):
            skill = raw_step
        return self._match_step(f"{skill} <{object_name}>" if object_name else skill, skill, previous_object)

    def _match_step(self, text: str, skill: str, previous_object: str) -> Step | str:
        """Return the step in `text`, or the reason why it is invalid; the reason quotes `skill` (`parse_step`)."""
        text = text[:_MAX_STEP_LENGTH]
        if "(" in text and not re.search(r"\w\(", text):
            text = re.sub(r"\((?![^()]*\d\))[^()]*\)", " ", text)
        text = to_ascii(text)
        suffixes = [(word, text[start:]) for word, start, _ in split_words(text)] or [("", "")]
        while len(suffixes) > 1 and suffixes[0][0] in _LEAD_WORDS and not self._begins_with_skill(suffixes[0][1]):
            suffixes = suffixes[1:]
        text = suffixes[0][1]
        if not self._begins_with_skill(text):
            skill_text = " ".join(re.sub(r"[<>]", " ", text if not skill or len(skill) > 60 else skill).split())[:60]
            return f"there is no skill {skill_text!r}; there are {', '.join(name for name, _ in self.skills)}"
        _, end, index = self.skill_matcher.find_mentions(text)[0]
        name, takes_object = self.skills[index]
        rest = text[end:]
        if not takes_object:
            return name, ""
        object_name = self._find_object(_TOOL_PHRASE.sub("", rest)) or self._find_object(rest)
        if object_name is None and previous_object and _PRONOUN.search(text):
            object_name = previous_object
        if object_name is not None:
            return name, object_name
        object_text = " ".join(re.sub(r"[<>\"'`*_()]", " ", rest).split())[:60]
        objects = ", ".join(self.objects) or "none"
        error = f"the skill {name!r} needs an object of this state, and {object_text!r} is none; there are: {objects}"
        tokens = [word for word, _, _ in split_words(rest) if word not in _ARTICLES]
        is_invalid = normalize_name(object_text) in _NO_OBJECT or len(self._find_indices_with_ending(tokens)) > 1
        return error if is_invalid else _AbsentObjectReason(error)

    def _begins_with_skill(self, text: str) -> bool:
        return any(start == 0 for start, _, _ in self.skill_matcher.find_mentions(text)[:1])

    def _find_object(self, text: str) -> str | None:
        """Return the object whose name, or end of the name, is in a text; None if there is none or several."""
        tokens = [word for word, _, _ in split_words(text) if word not in (*_ARTICLES, *_OBJECT_FILLERS)]
        if not tokens or "".join(tokens) in _NO_OBJECT:
            return None
        index = self._object_matcher.find_exact(" ".join(tokens))
        indices = [index] if index is not None else self._find_indices_with_ending(tokens)
        if not indices and len(tokens) <= 6:
            indices = list({i for _, _, i in self._object_matcher.find_mentions(text)})
        return self.objects[indices[0]] if len(indices) == 1 else None

    def _find_indices_with_ending(self, tokens: Sequence[str]) -> list[int]:
        """Return the indices of the objects whose names end with `tokens` and have further words before them."""
        ending = "".join(tokens)
        names = [[word for word, _, _ in split_words(name)] for name in self.objects]
        return [i for i, name in enumerate(names) if any("".join(name[k:]) == ending for k in range(1, len(name)))]


def is_possible_step(step: Step | str) -> bool:
    """Return whether an output of `parse_step` is a valid step, or a step that only lacks its object in this state."""
    return not isinstance(step, str) or isinstance(step, _AbsentObjectReason)
