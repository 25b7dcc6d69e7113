"""Parser of lists of numbers in a reply: under their names, in a list, on lines, or in sentences."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.llms.reading.answer_parser import REFUSAL, AnswerParser, CandidateAnswer
from llmrl.llms.reading.json_and_markup import CUT, DuplicateKey, structures, without_tags
from llmrl.llms.reading.name_matcher import NameMatcher, letters
from llmrl.llms.reading.number_list_parser import LISTS, MEASURED, WrittenNumbers
from llmrl.llms.reading.number_parser import ORDINALS, WRITTEN, number_of
from llmrl.llms.reading.reply_cleaning import plain
from llmrl.llms.structured import InvalidReply

_HIDDEN = ("reasoning", "reflection", "reason", "reasons", "thought", "explanation", "rationale", "confidence")
_TURN = re.compile(r"\b(generation|gen|iteration|round|step)\b[\s*#:]{0,4}(\d{1,9})", re.IGNORECASE)
_PROPOSAL = re.compile(
    rf"\bproposal\b[\s*#]{{0,3}}(?P<number>\d{{1,6}})\b(?! of)|\b(?P<order>{'|'.join(ORDINALS)}) proposal\b",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(
    r"\b(?:one could|could try|you (?:can|could|might)|might be|either|or keep|options? (?:are|would)|directions?)\b",
    re.IGNORECASE,
)
_NUMBERS = re.compile(WRITTEN)
_RESPECTIVELY = re.compile(
    rf"({WRITTEN}(?:\s*(?:,\s*and|,|and)\s*{WRITTEN}){{1,40}})\s*,?\s*respectively\b", re.IGNORECASE
)
_EXPECTED = re.compile(r"\b(?:expect\w*|predict\w*|estimat\w+|hope\w*|my guess)\b", re.IGNORECASE)
"""Words beside a value that nobody has measured."""


class VectorParser(AnswerParser[np.ndarray]):
    """Parser of `n` lists of `d` named numbers, [n, d] float64, returned as written even if out of bounds.

    Args:
        names: names of the d numbers; an index in brackets counts from 0.
        n: number of lists.
        bounds: (low, high) of each number; percentages are divided by 100 for numbers with bounds within [-1, 1].
        turn: number of the present generation or iteration; None: none.
        proposal: number of this question among several of one turn; None: none.
        context, contexts: name of the present context, and names of all contexts.
        tried: lists shown in the question; a reply that only quotes them holds no answer.
        words: words that stand for the numbers 0, 1, 2, ...
        wanted: name of the answer in error messages.
    """

    def __init__(
        self,
        names: Sequence[str],
        n: int = 1,
        bounds: Sequence[tuple[float, float]] = (),
        turn: int | None = None,
        proposal: int | None = None,
        context: str | None = None,
        contexts: Sequence[str] = (),
        tried: Sequence[Sequence[float]] = (),
        words: Sequence[str] = (),
        wanted: str = "",
    ) -> None:
        self.names, self.n, self.d = list(names), n, len(names)
        self.wanted = wanted or (f"list of {self.d} numbers" if n == 1 else f"{n} lists of {self.d} numbers")
        self.number, self.proposal = turn, proposal
        self.context, self.contexts = context, {letters(name) for name in contexts}
        self.tried = {tuple(float(x) for x in row) for row in tried}
        shares = [low >= -1 and high <= 1 for low, high in bounds] or [False] * self.d
        self.written = WrittenNumbers(names, n, shares, NameMatcher(words, numbered=True) if words else None, turn)
        other = "" if turn is None else rf"(?!{turn}\b)"
        self.turn = re.compile(
            rf"^[ \t*#]*(?:iteration|generation|round)\W{{0,4}}{other}\d+", re.IGNORECASE | re.MULTILINE
        )

    def of_value(self, value: Any) -> np.ndarray | None:
        rows = self._one(value, 0) if self.n == 1 else self._several(value, 0)
        return None if rows is None else np.array([rows] if self.n == 1 else rows[: self.n], dtype=np.float64)

    def of_text(self, text: str, cut: bool) -> list[CandidateAnswer[np.ndarray]]:
        found = self.written.found(plain(without_tags(text)) if "<" in text else plain(text), cut)
        return found if self.n == 1 else self._one_by_one(text, cut) or found

    def of_prose(self, text: str) -> np.ndarray | None:
        if self.n > 1 or REFUSAL.search(text) or _UNDECIDED.search(text):
            return None
        if "respectively" in text and (listed := _RESPECTIVELY.search(text)) is not None:
            said = [number_of(each[0]) for each in _NUMBERS.finditer(listed[1])]
            return np.array([said], dtype=np.float64) if len(said) == self.d and None not in said else None
        numbers = self.written.spoken(text)
        return None if numbers is None else np.array([numbers])

    def hint(self, text: str) -> str:
        return self.written.incomplete(plain(text))

    def mine(self, text: str, candidate: CandidateAnswer[np.ndarray]) -> bool | None:
        begin = max(text.rfind("\n", 0, candidate.start) + 1, candidate.start - 400)
        line = text[begin : candidate.start]
        turns, proposals = list(_TURN.finditer(line)), list(_PROPOSAL.finditer(line))
        if turns and self.number is not None:
            return int(turns[-1][2]) == self.number
        if proposals and self.proposal is not None and self.n == 1:
            said = proposals[-1]
            number = int(said["number"]) if said["number"] else ORDINALS.index(said["order"].lower()) + 1
            return number == self.proposal
        after = plain(text[candidate.end : candidate.end + 80])
        measured = None if _EXPECTED.search(after) else MEASURED.match(after)
        tried = len(candidate.answer) == 1 and tuple(candidate.answer[0].tolist()) in self.tried
        if (tried or measured) and (candidate.form == 1 or (tried and measured)):
            return False
        candidate.weak = candidate.weak or measured is not None
        return None

    def _one(self, value: Any, depth: int) -> list[float] | None:
        """Return the d numbers of one list; None if the value holds no such list."""
        if depth > 6 or isinstance(value, bool) or value is None:
            return None
        if isinstance(value, dict):
            return self._of_object(value, depth)
        if isinstance(value, list):
            return self._of_list(value, depth)
        return self.written.split(value) if isinstance(value, str) else None

    def _of_object(self, value: Mapping[str, Any], depth: int) -> list[float] | None:
        if "properties" in value or "observation" in value:
            return None
        if self.context is not None:
            for key, inner in value.items():
                if letters(key) == letters(self.context) and isinstance(inner, dict):
                    return self._of_object(inner, depth + 1)
        named: dict[int, float] = {}
        self._collect(value, named, 0)
        if len(named) == self.d:
            return [named[i] for i in range(self.d)]
        if self.written.indexed and sorted(value) == sorted(str(i) for i in range(self.d)):
            return self._of_list([value[str(i)] for i in range(self.d)], depth)
        fitting, faults = self._lists_in(value, depth)
        if len(fitting) > 1:
            raise InvalidReply("there are several different lists of numbers in one object")
        if fitting:
            return fitting[0]
        if named or faults:
            raise InvalidReply(self.written.lacking(named) if named else faults[-1])
        return None

    def _lists_in(self, value: Mapping[str, Any], depth: int) -> tuple[list[list[float]], list[str]]:
        """Return the different lists under the names of lists in an object, and what is wrong with others."""
        fitting: list[list[float]] = []
        faults: list[str] = []
        asked = [key for key in value if letters(key) in ("params", "parameters")]
        for key, inner in [(key, value[key]) for key in asked or value]:
            name = letters(key)
            if name in _HIDDEN or name in self.contexts or (not isinstance(inner, dict | list) and name not in LISTS):
                continue
            is_flat = isinstance(inner, list) and not any(isinstance(x, bool | dict | list | None) for x in inner)
            if is_flat and name in LISTS and len(inner) != self.d:
                faults.append(f"{key} holds {len(inner)} number{'s' * (len(inner) != 1)}, {self.d} are needed")
            try:
                found = self._one(inner, depth + 1)
                if self.d == 1 and name in LISTS and (number := self.written.number(inner)) is not None:
                    found = [number]
            except InvalidReply as fault:
                faults.append(str(fault))
                continue
            if found is not None and found not in fitting:
                fitting.append(found)
        return fitting, faults

    def _collect(self, value: Any, named: dict[int, float], depth: int) -> None:
        """Add the numbers under their names, nested up to four levels deep, to `named`."""
        if depth > 4:
            return
        if isinstance(value, list):
            for item in value:
                if isinstance(item, dict):
                    self._collect(item, named, depth + 1)
            return
        if not isinstance(value, dict):
            return
        by_key = {letters(str(key)): inner for key, inner in value.items()}
        if isinstance(by_key.get("name"), str) and (i := self.written.place.get(letters(by_key["name"]))) is not None:
            self._take(i, by_key.get("value"), named)
        for key, inner in value.items():
            name = letters(str(key))
            if name in _HIDDEN or name in self.contexts:
                continue
            i = self.written.called(str(key))
            if i is not None:
                inner = _alone(inner) if isinstance(inner, dict) else inner
                self._take(i, inner, named)
            elif isinstance(inner, dict | list):
                self._collect(inner, named, depth + 1)

    def _take(self, i: int, said: Any, named: dict[int, float]) -> None:
        if isinstance(said, DuplicateKey):
            raise InvalidReply(f"{self.names[i]} is given twice, with different values")
        number = self.written.number(said, i)
        if number is None:
            raise InvalidReply(f"{self.names[i]} must be a number, got {repr(said)[:60]}")
        if named.setdefault(i, number) != number:
            raise InvalidReply(f"{self.names[i]} is given twice, with different values")

    def _of_list(self, value: Sequence[Any], depth: int) -> list[float] | None:
        if CUT in value:
            raise InvalidReply("a list of numbers was cut off")
        if (
            len(value) == 1
            and isinstance(value[0], dict | list | str)
            and (self.d > 1 or not isinstance(value[0], str))
        ):
            return self._one(value[0], depth + 1)
        if value and all(isinstance(item, dict) for item in value):
            named: dict[int, float] = {}
            self._collect(list(value), named, 0)
            return [named[i] for i in range(self.d)] if len(named) == self.d else None
        flat = (
            [item for row in value for item in (row if isinstance(row, list) else [row])]
            if any(isinstance(item, list) for item in value)
            else list(value)
        )
        if any(isinstance(item, dict | list) for item in flat):
            return None
        if len(flat) != self.d:
            return None
        numbers = [self.written.number(item, i) for i, item in enumerate(flat)]
        if any(number is None for number in numbers):
            wrong = next(item for item, number in zip(flat, numbers, strict=True) if number is None)
            raise InvalidReply(f"a list of numbers holds {repr(wrong)[:60]}")
        return [float(number) for number in numbers if number is not None]

    def _several(self, value: Any, depth: int) -> list[list[float]] | None:
        """Return the numbers of `n` lists or more; None if the value holds no such lists."""
        if depth > 5:
            return None
        if isinstance(value, list):
            if CUT in value:
                raise InvalidReply("a list of lists was cut off")
            rows = [self._one(item, depth + 1) for item in value if isinstance(item, dict | list)]
            if rows and all(row is not None for row in rows) and len(rows) == len(value):
                if len(rows) < self.n:
                    raise InvalidReply(f"proposals holds {len(rows)} lists, {self.n} are needed")
                return [row for row in rows if row is not None]
            return self._several(value[0], depth + 1) if len(value) == 1 else None
        if isinstance(value, dict) and "properties" not in value:
            for inner in value.values():
                if isinstance(inner, dict | list) and (found := self._several(inner, depth + 1)) is not None:
                    return found
            rows = [
                self._one(inner, depth + 1)
                for key, inner in value.items()
                if letters(key) not in _HIDDEN and isinstance(inner, dict | list)
            ]
            if len(rows) >= self.n and all(row is not None for row in rows):
                return [row for row in rows if row is not None]
        return None

    def _one_by_one(self, text: str, cut: bool) -> list[CandidateAnswer[np.ndarray]]:
        """Return one candidate made of the first `n` JSON objects that each hold a list; [] if there are fewer."""
        rows = []
        for each in structures(text, cut):
            with contextlib.suppress(InvalidReply):
                if isinstance(each.value, dict) and (numbers := self._one(each.value, 0)) is not None:
                    rows.append(CandidateAnswer(each.start, each.end, np.array([numbers])))
        if len(rows) < self.n:
            return []
        return [
            CandidateAnswer(rows[0].start, rows[self.n - 1].end, np.concatenate([row.answer for row in rows[: self.n]]))
        ]


def _alone(said: Mapping[str, Any]) -> Any:
    """Return the only number of an object such as `{"value": 0.5, "unit": "apples"}`; else the object itself."""
    numbers = [inner for inner in said.values() if isinstance(inner, int | float) and not isinstance(inner, bool)]
    return said["value"] if "value" in said else numbers[0] if len(numbers) == 1 else said
