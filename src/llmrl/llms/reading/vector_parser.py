"""Parser of lists of numbers in a reply: under their names, in a list, on lines, or in sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL, AnswerParser, CandidateAnswer
from llmrl.llms.reading.json_and_markup import TRUNCATION_MARKER, DuplicateKey, strip_tags
from llmrl.llms.reading.name_matcher import NameMatcher, normalize_name
from llmrl.llms.reading.number_list_parser import LISTS, MEASUREMENT, OPERATOR, NumberListFinder
from llmrl.llms.reading.number_parser import NUMBER_IN_DIGITS, ORDINALS, parse_number
from llmrl.llms.reading.word_lists import load_word_list
from llmrl.llms.reply_cleaning import to_ascii

_FOREIGN_KEYS = tuple(load_word_list("foreign_keys"))
_HIDDEN = (*load_word_list("reasons"), "confidence")
_TURN = re.compile(r"\b(generation|gen|iteration|round|step)\b[\s*#:]{0,4}(\d{1,9})", re.IGNORECASE)
_PROPOSAL = re.compile(
    rf"\bproposal\b[\s*#]{{0,3}}(?P<number>\d{{1,6}})\b(?! of)|\b(?P<order>{'|'.join(ORDINALS)}) proposal\b",
    re.IGNORECASE,
)
_NUMBERS = re.compile(NUMBER_IN_DIGITS)
_RESPECTIVELY = re.compile(
    rf"({NUMBER_IN_DIGITS}(?:\s*(?:,\s*and|,|and)\s*{NUMBER_IN_DIGITS}){{1,40}})\s*,?\s*respectively\b", re.IGNORECASE
)
_EXPECTED = re.compile(r"\b(?:expect\w*|predict\w*|estimat\w+|hope\w*|my guess)\b", re.IGNORECASE)
"""Words next to a value that has not been measured."""


@dataclass(frozen=True)
class VectorQuestion:
    """Place and content of the question that a reply answers.

    Attributes:
        turn: number of the present generation or iteration; None: none.
        proposal: number of this question among several of one turn; None: none.
        context, contexts: name of the present context, and names of all contexts.
        tried: lists shown in the question; a reply that only quotes them holds no answer.
    """

    turn: int | None = None
    proposal: int | None = None
    context: str | None = None
    contexts: Sequence[str] = ()
    tried: Sequence[Sequence[float]] = ()


class VectorParser(AnswerParser[np.ndarray]):
    """Parser of a list of `d` named numbers, [d] float64, returned as written even if out of bounds.

    Args:
        names: names of the d numbers; an index in brackets counts from 0.
        bounds: (low, high) of each number; percentages are divided by 100 for numbers with bounds within [-1, 1].
        question: place and content of the question; None: unknown.
        words: words that stand for the numbers 0, 1, 2, ...
        answer_name: name of the answer in error messages.
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
        turn = self.question.turn
        self.contexts = {normalize_name(name) for name in self.question.contexts}
        self.tried = {tuple(float(x) for x in row) for row in self.question.tried}
        shares = [low >= -1 and high <= 1 for low, high in bounds] or [False] * self.d
        self.finder = NumberListFinder(names, shares, NameMatcher(words, numbered=True) if words else None, turn)
        lookahead = "" if turn is None else rf"(?!{turn}\b)"
        self.turn = re.compile(
            rf"^[ \t*#]*(?:iteration|generation|round)\W{{0,4}}{lookahead}\d+", re.IGNORECASE | re.MULTILINE
        )

    def parse_value(self, value: Any) -> np.ndarray | None:
        numbers = self._parse_list(value, 0)
        return None if numbers is None else np.array(numbers, dtype=np.float64)

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[np.ndarray]]:
        return self.finder.find_lists(to_ascii(strip_tags(text)) if "<" in text else to_ascii(text), truncated)

    def parse_prose(self, text: str) -> np.ndarray | None:
        if REFUSAL.search(text):
            return None
        if "respectively" in text and (enumeration := _RESPECTIVELY.search(text)) is not None:
            values = [parse_number(token[0]) for token in _NUMBERS.finditer(enumeration[1])]
            return np.array(values, dtype=np.float64) if len(values) == self.d and None not in values else None
        numbers = self.finder.parse_sentences(text)
        return None if numbers is None else np.array(numbers)

    def contradicts(self, text: str, answer: np.ndarray) -> bool:
        return self.finder.contradicts(to_ascii(text), answer)

    def hint(self, text: str) -> str:
        return self.finder.describe_incomplete(to_ascii(text))

    def answers_this_question(self, text: str, candidate: CandidateAnswer[np.ndarray]) -> bool | None:
        begin = max(text.rfind("\n", 0, candidate.start) + 1, candidate.start - 400)
        line = text[begin : candidate.start]
        turns, proposals = list(_TURN.finditer(line)), list(_PROPOSAL.finditer(line))
        if turns and self.question.turn is not None:
            return int(turns[-1][2]) == self.question.turn
        if proposals and self.question.proposal is not None:
            proposal = proposals[-1]
            number = int(proposal["number"]) if proposal["number"] else ORDINALS.index(proposal["order"].lower()) + 1
            return number == self.question.proposal
        after = to_ascii(text[candidate.end : candidate.end + 80])
        if candidate.form == 1 and (OPERATOR.search(line) or re.match(r"\s*(?:[+/]|\*(?!\*))", after)):
            return False
        measurement = None if _EXPECTED.search(after) else MEASUREMENT.match(after)
        is_repeat = tuple(candidate.answer.tolist()) in self.tried
        if (is_repeat or measurement) and (candidate.form == 1 or (is_repeat and measurement)):
            return False
        candidate.weak = candidate.weak or measurement is not None
        return None

    def _parse_list(self, value: Any, depth: int) -> list[float] | None:
        """Return the d numbers of one list; None if the value holds no such list."""
        if depth > 6 or isinstance(value, bool) or value is None:
            return None
        if isinstance(value, dict):
            return self._parse_object(value, depth)
        if isinstance(value, list):
            return self._parse_sequence(value, depth)
        return self.finder.parse_numbers(value) if isinstance(value, str) else None

    def _parse_object(self, value: Mapping[str, Any], depth: int) -> list[float] | None:
        if "properties" in value or "observation" in value:
            return None
        if self.question.context is not None:
            for key, inner in value.items():
                if normalize_name(key) == normalize_name(self.question.context) and isinstance(inner, dict):
                    return self._parse_object(inner, depth + 1)
        numbers: dict[int, float] = {}
        self._collect(value, numbers, 0)
        if len(numbers) == self.d:
            return [numbers[i] for i in range(self.d)]
        if self.finder.indexed and sorted(value) == sorted(str(i) for i in range(self.d)):
            return self._parse_sequence([value[str(i)] for i in range(self.d)], depth)
        fitting, errors = self._lists_in(value, depth)
        if len(fitting) > 1:
            raise InvalidReply("there are several different lists of numbers in one object")
        if fitting:
            return fitting[0]
        if numbers or errors:
            raise InvalidReply(self.finder.describe_missing(numbers) if numbers else errors[-1])
        return None

    def _lists_in(self, value: Mapping[str, Any], depth: int) -> tuple[list[list[float]], list[str]]:
        """Return the different lists under the names of lists in an object, and what is wrong with others."""
        fitting: list[list[float]] = []
        errors: list[str] = []
        parameter_keys = [key for key in value if normalize_name(key) in ("params", "parameters")]
        for key, inner in [(key, value[key]) for key in parameter_keys or value]:
            name = normalize_name(key)
            if (
                name.startswith((*_HIDDEN, *_FOREIGN_KEYS))
                or name in self.contexts
                or (not isinstance(inner, dict | list) and name not in LISTS)
            ):
                continue
            is_flat = isinstance(inner, list) and not any(isinstance(x, bool | dict | list | None) for x in inner)
            if is_flat and name in LISTS and len(inner) != self.d:
                errors.append(f"{key} holds {len(inner)} number{'s' * (len(inner) != 1)}, {self.d} are needed")
            try:
                numbers = self._parse_list(inner, depth + 1)
                if self.d == 1 and name in LISTS and (number := self.finder.parse_value(inner)) is not None:
                    numbers = [number]
            except InvalidReply as error:
                errors.append(str(error))
                continue
            if numbers is not None and numbers not in fitting:
                fitting.append(numbers)
        return fitting, errors

    def _collect(self, value: Any, numbers: dict[int, float], depth: int) -> None:
        """Add the numbers under their names, nested up to four levels deep, to `numbers`."""
        if depth > 4:
            return
        if isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    self._collect(item, numbers, depth + 1)
            return
        if not isinstance(value, dict):
            return
        fields = {normalize_name(str(key)): inner for key, inner in value.items()}
        if (
            isinstance(fields.get("name"), str)
            and (i := self.finder.position_by_name.get(normalize_name(fields["name"]))) is not None
        ):
            self._add_number(i, fields.get("value"), numbers)
        for key, inner in value.items():
            name = normalize_name(str(key))
            if name in _HIDDEN or name in self.contexts:
                continue
            i = self.finder.name_index(str(key))
            if i is not None:
                inner = _sole_number(inner) if isinstance(inner, dict) else inner
                self._add_number(i, inner, numbers)
            elif isinstance(inner, dict | list) and not name.startswith(_FOREIGN_KEYS):
                self._collect(inner, numbers, depth + 1)

    def _add_number(self, i: int, raw: Any, numbers: dict[int, float]) -> None:
        if isinstance(raw, DuplicateKey):
            raise InvalidReply(f"{self.names[i]} is given twice, with different values")
        number = self.finder.parse_value(raw, i)
        if number is None:
            raise InvalidReply(f"{self.names[i]} must be a number, got {repr(raw)[:60]}")
        if numbers.setdefault(i, number) != number:
            raise InvalidReply(f"{self.names[i]} is given twice, with different values")

    def _parse_sequence(self, value: Sequence[Any], depth: int) -> list[float] | None:
        if TRUNCATION_MARKER in value:
            raise InvalidReply("a list of numbers was cut off")
        if value and all(isinstance(item, dict) for item in value):
            number_map: dict[int, float] = {}
            self._collect(list(value), number_map, 0)
            return [number_map[i] for i in range(self.d)] if len(number_map) == self.d else None
        flat = (
            [item for row in value for item in (row if isinstance(row, list) else [row])]
            if any(isinstance(item, list) for item in value)
            else list(value)
        )
        if any(isinstance(item, dict | list) for item in flat):
            return None
        if len(flat) != self.d:
            return None
        numbers = [self.finder.parse_value(item, i) for i, item in enumerate(flat)]
        if any(number is None for number in numbers):
            wrong = next(item for item, number in zip(flat, numbers, strict=True) if number is None)
            raise InvalidReply(f"a list of numbers holds {repr(wrong)[:60]}")
        return [float(number) for number in numbers if number is not None]


def _sole_number(fields: Mapping[str, Any]) -> Any:
    """Return the only number of an object such as `{"value": 0.5, "unit": "apples"}`; else the object itself."""
    numbers = [inner for inner in fields.values() if isinstance(inner, int | float) and not isinstance(inner, bool)]
    return fields["value"] if "value" in fields else numbers[0] if len(numbers) == 1 else fields
