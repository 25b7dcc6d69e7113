"""Parser of replies that contain a list of named numbers: in JSON, with names, in lists, on lines, or in sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL_PHRASE, AnswerParser, CandidateAnswer
from llmrl.llms.reading.json_and_markup import TRUNCATION_MARKER, ConflictingValues, strip_tags
from llmrl.llms.reading.name_matcher import NameMatcher, normalize_name
from llmrl.llms.reading.number_list_parser import LIST_KEYS, LIST_MEASUREMENT, LIST_OPERATOR, NumberListFinder
from llmrl.llms.reading.number_parser import NUMBER_IN_DIGITS, ORDINALS, parse_number
from llmrl.llms.reading.word_lists import load_word_list
from llmrl.llms.reply_cleaning import to_ascii

_FOREIGN_KEYS = tuple(load_word_list("foreign_keys"))
_IGNORED_KEYS = (*load_word_list("reasons"), "confidence")
_TURN_NUMBER = re.compile(r"\b(generation|gen|iteration|round|step)\b[\s*#:]{0,4}(\d{1,9})", re.IGNORECASE)
_PROPOSAL_NUMBER = re.compile(
    rf"\bproposal\b[\s*#]{{0,3}}(?P<number>\d{{1,6}})\b(?! of)|\b(?P<ordinal>{'|'.join(ORDINALS)}) proposal\b",
    re.IGNORECASE,
)

_RESPECTIVELY = re.compile(
    rf"({NUMBER_IN_DIGITS}(?:\s*(?:,\s*and|,|and)\s*{NUMBER_IN_DIGITS}){{1,40}})\s*,?\s*respectively\b", re.IGNORECASE
)
_EXPECTATION_WORD = re.compile(r"\b(?:expect\w*|predict\w*|estimat\w+|hope\w*|my guess)\b", re.IGNORECASE)
"""Words after a list that introduce an expected, not a measured, value."""


@dataclass(frozen=True)
class VectorQuestion:
    """Properties of the question that a reply answers.

    Attributes:
        turn: number of the present generation or iteration; None: unknown.
        proposal: number of the requested proposal among those of the turn, from 1; None: unknown.
        context, contexts: name of the present context (None: there is none), and names of all contexts.
        history: lists of numbers in the question; a quotation of one of them is not an answer.
    """

    turn: int | None = None
    proposal: int | None = None
    context: str | None = None
    contexts: Sequence[str] = ()
    history: Sequence[Sequence[float]] = ()


class VectorParser(AnswerParser[np.ndarray]):
    """Parser of replies that contain a list of `d` named numbers, [d] float64, which may be out of bounds.

    Args:
        names: names of the d numbers; indices in brackets count from 0.
        bounds: (low, high) of each number; percentages are accepted only for bounds within [-1, 1], and divided by 100.
        question: properties of the question; None: all unknown.
        words: words that mean the numbers 0, 1, 2, ...
        answer_name: name of the answer in error messages; "": "list of <d> numbers".
    """

    def __init__(
        self,
        names: Sequence[str],
        bounds: Sequence[tuple[float, float]] = (),
        question: VectorQuestion | None = None,
        words: Sequence[str] = (),
        answer_name: str = "",
    ) -> None:
        self.names, self.d = list(names), len(names)
        self.answer_name = answer_name or f"list of {self.d} numbers"
        self.question = question or VectorQuestion()
        self.context_names = {normalize_name(name) for name in self.question.contexts}
        self.history = {tuple(map(float, vector)) for vector in self.question.history}
        are_fractions = [low >= -1 and high <= 1 for low, high in bounds] or [False] * self.d
        word_matcher, turn = NameMatcher(words, numbered=True) if words else None, self.question.turn
        self.finder = NumberListFinder(names, are_fractions, word_matcher, turn)
        lookahead = "" if turn is None else rf"(?!{turn}\b)"
        self.next_turn_pattern = re.compile(
            rf"^[ \t*#]*(?:iteration|generation|round)\W{{0,4}}{lookahead}\d+", re.IGNORECASE | re.MULTILINE
        )

    def parse_value(self, value: Any) -> np.ndarray | None:
        numbers = self._parse_list(value, 0)
        return None if numbers is None else np.array(numbers, dtype=np.float64)

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[np.ndarray]]:
        return self.finder.find_lists(to_ascii(strip_tags(text)) if "<" in text else to_ascii(text), truncated)

    def parse_prose(self, text: str) -> np.ndarray | None:
        if REFUSAL_PHRASE.search(text):
            return None
        if "respectively" in text and (enumeration := _RESPECTIVELY.search(text)) is not None:
            values = [parse_number(token) for token in re.findall(NUMBER_IN_DIGITS, enumeration[1])]
            return np.array(values, dtype=np.float64) if len(values) == self.d and None not in values else None
        numbers = self.finder.assignments.find_numbers(to_ascii(text))
        return None if numbers is None else np.array(numbers)

    def contradicts(self, text: str, answer: np.ndarray) -> bool:
        return self.finder.contradicts(to_ascii(text), answer)

    def describe_missing_answer(self, text: str) -> str:
        return self.finder.describe_incomplete_list(to_ascii(text))

    def answers_this_question(self, text: str, candidate: CandidateAnswer[np.ndarray]) -> bool | None:
        """See `AnswerParser`. A candidate that a measured value follows becomes a fallback."""
        line = text[max(text.rfind("\n", 0, candidate.start) + 1, candidate.start - 400) : candidate.start]
        turns, proposals = list(_TURN_NUMBER.finditer(line)), list(_PROPOSAL_NUMBER.finditer(line))
        if turns and self.question.turn is not None:
            return int(turns[-1][2]) == self.question.turn
        if proposals and self.question.proposal is not None:
            number, ordinal = proposals[-1]["number"], proposals[-1]["ordinal"]
            return self.question.proposal == (int(number) if number else ORDINALS.index(ordinal.lower()) + 1)
        after = to_ascii(text[candidate.end : candidate.end + 80])
        if candidate.certainty == 1 and (LIST_OPERATOR.search(line) or re.match(r"\s*(?:[+/]|\*(?!\*))", after)):
            return False
        measurement = None if _EXPECTATION_WORD.search(after) else LIST_MEASUREMENT.match(after)
        is_repeat = tuple(candidate.answer.tolist()) in self.history
        if (is_repeat or measurement) and (candidate.certainty == 1 or (is_repeat and measurement)):
            return False
        candidate.is_fallback = candidate.is_fallback or measurement is not None
        return None

    def _parse_list(self, value: Any, depth: int) -> list[float] | None:
        """Return the only list of `d` numbers in a JSON-like value; None if there is none."""
        if isinstance(value, dict) and depth <= 6:
            return self._parse_object(value, depth)
        if isinstance(value, list) and depth <= 6:
            return self._parse_sequence(value, depth)
        return self.finder.parse_numbers(value) if isinstance(value, str) and depth <= 6 else None

    def _parse_object(self, value: Mapping[str, Any], depth: int) -> list[float] | None:
        """Return the numbers of an object, in fields with their names or in one list; None if there are none."""
        if "properties" in value or "observation" in value:
            return None
        if self.question.context is not None:
            for key, inner in value.items():
                if normalize_name(key) == normalize_name(self.question.context) and isinstance(inner, dict):
                    return self._parse_object(inner, depth + 1)
        numbers: dict[int, float] = {}
        self._collect_named_numbers(value, numbers, 0)
        if len(numbers) == self.d:
            return [numbers[i] for i in range(self.d)]
        if self.finder.is_indexed and sorted(value) == sorted(str(i) for i in range(self.d)):
            return self._parse_sequence([value[str(i)] for i in range(self.d)], depth)
        lists, errors = self._find_lists(value, depth)
        if len(lists) > 1:
            raise InvalidReply("there are several different lists of numbers in one object")
        if not lists and (numbers or errors):
            raise InvalidReply(self.finder.describe_missing_numbers(numbers) if numbers else errors[-1])
        return lists[0] if lists else None

    def _find_lists(self, value: Mapping[str, Any], depth: int) -> tuple[list[list[float]], list[str]]:
        """Return the distinct lists of numbers in the fields of an object, and error messages for other fields."""
        lists: list[list[float]] = []
        errors: list[str] = []
        parameter_keys = [key for key in value if normalize_name(key) in ("params", "parameters")]
        for key, inner in [(key, value[key]) for key in parameter_keys or value]:
            field = normalize_name(key)
            if (
                field.startswith((*_IGNORED_KEYS, *_FOREIGN_KEYS))
                or field in self.context_names
                or (not isinstance(inner, dict | list) and field not in LIST_KEYS)
            ):
                continue
            is_flat = isinstance(inner, list) and not any(isinstance(x, bool | dict | list | None) for x in inner)
            if is_flat and field in LIST_KEYS and len(inner) != self.d:
                errors.append(f"{key} holds {len(inner)} number{'s' * (len(inner) != 1)}, {self.d} are needed")
            try:
                numbers = self._parse_list(inner, depth + 1)
                if self.d == 1 and field in LIST_KEYS and (number := self.finder.parse_value(inner)) is not None:
                    numbers = [number]
            except InvalidReply as error:
                errors.append(str(error))
                continue
            if numbers is not None and numbers not in lists:
                lists.append(numbers)
        return lists, errors

    def _collect_named_numbers(self, value: Any, numbers: dict[int, float], depth: int) -> None:
        """Add the numbers in fields with their names, at most five levels deep, to `numbers`, by index of the name."""
        if isinstance(value, list) and depth <= 4:
            for inner in value:
                if isinstance(inner, dict):
                    self._collect_named_numbers(inner, numbers, depth + 1)
        if not isinstance(value, dict) or depth > 4:
            return
        fields = {normalize_name(str(key)): inner for key, inner in value.items()}
        if (
            isinstance(fields.get("name"), str)
            and (i := self.finder.index_by_name.get(normalize_name(fields["name"]))) is not None
        ):
            self._add_number(i, fields.get("value"), numbers)
        for key, inner in value.items():
            name = normalize_name(str(key))
            if name in _IGNORED_KEYS or name in self.context_names:
                continue
            if (i := self.finder.find_name_index(str(key))) is not None:
                self._add_number(i, _sole_number(inner) if isinstance(inner, dict) else inner, numbers)
            elif isinstance(inner, dict | list) and not name.startswith(_FOREIGN_KEYS):
                self._collect_named_numbers(inner, numbers, depth + 1)

    def _add_number(self, i: int, value: Any, numbers: dict[int, float]) -> None:
        number = self.finder.parse_value(value, i)
        if number is None and not isinstance(value, ConflictingValues):
            raise InvalidReply(f"{self.names[i]} must be a number, got {repr(value)[:60]}")
        if number is None or numbers.setdefault(i, number) != number:
            raise InvalidReply(f"{self.names[i]} is given twice, with different values")

    def _parse_sequence(self, value: Sequence[Any], depth: int) -> list[float] | None:
        """Return the numbers of a flat list, a list of rows, or a list of objects; None for other lists."""
        if TRUNCATION_MARKER in value:
            raise InvalidReply("a list of numbers was cut off")
        if value and all(isinstance(item, dict) for item in value):
            number_by_index: dict[int, float] = {}
            self._collect_named_numbers(value, number_by_index, 0)
            return [number_by_index[i] for i in range(self.d)] if len(number_by_index) == self.d else None
        elements = [element for row in value for element in (row if isinstance(row, list) else [row])]
        if len(elements) != self.d or any(isinstance(element, dict | list) for element in elements):
            return None
        numbers = [self.finder.parse_value(element, i) for i, element in enumerate(elements)]
        if None in numbers:
            raise InvalidReply(f"a list of numbers holds {repr(elements[numbers.index(None)])[:60]}")
        return [float(number) for number in numbers if number is not None]


def _sole_number(fields: Mapping[str, Any]) -> Any:
    """Return the field `value`, or the only number, of an object; else the object."""
    numbers = [inner for inner in fields.values() if isinstance(inner, int | float) and not isinstance(inner, bool)]
    return fields["value"] if "value" in fields else numbers[0] if len(numbers) == 1 else fields
