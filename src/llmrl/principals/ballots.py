"""Votes: the form of a ballot's answer, how approvals are read, and how votes are counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.llms.reading.answer_parser import REFUSAL, AnswerParser, CandidateAnswer, parse_answer
from llmrl.llms.reading.choice_parser import RECONSIDERATION, ChoiceParser
from llmrl.llms.reading.name_matcher import NameMatcher, letters, negated
from llmrl.llms.structured import InvalidReply

_APPROVED = ("choices", "choice", "approved", "approve", "approvals", "votes", "vote", "options", "choix", "wahl")
_BULLET = re.compile(r"^[ \t]*(?:[-*\u2022]|\d{1,2}[.)])[ \t]+([^\n]{1,60}?)[ \t.]*$", re.MULTILINE)
_APPROVES = re.compile(
    r"\b(?:approve|approving|vote|voting|support|choose|pick|favou?r|accept|thumbs up)\b|"
    r"\bich stimme\b|\bje vote\b|\bvoto\b",
    re.IGNORECASE,
)


def vote_schema(options: Sequence[str], approval: bool) -> dict[str, Any]:
    """Return the JSON schema of a vote: one of the options, or a list of those that are approved of."""
    one = {"type": "string", "enum": list(options)}
    vote = {"choices": {"type": "array", "items": one}} if approval else {"choice": one}
    properties = {"reasoning": {"type": "string"}, **vote}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


class BallotParser(ChoiceParser):
    """Parser of one of the options of a ballot."""

    wanted = "option"


class _Approvals(AnswerParser[list[int]]):
    """Parser of a list of options: under `choices`, as a bare list, as bullets, or in sentences of approval."""

    wanted = "list of choices"

    def __init__(self, options: Sequence[str]) -> None:
        self._names = NameMatcher(options)

    def of_value(self, value: Any) -> list[int] | None:
        if isinstance(value, Mapping):
            named = next((x for key, x in value.items() if letters(str(key)) in _APPROVED), None)
        else:
            named = value if isinstance(value, list) and value and not isinstance(value[0], Mapping | list) else None
        if isinstance(named, Mapping) and len(named) == 1:
            [named] = named.values()  # <choices><choice>
        if named is None:
            return None
        entries = named if isinstance(named, list) else [named]
        found = [self._option(entry) for entry in entries]
        if unknown := [entry for entry, i in zip(entries, found, strict=True) if i is None]:
            raise InvalidReply(f"there is no option {str(unknown[0])[:40]!r}")
        return sorted({i for i in found if i is not None})

    def of_text(self, text: str, cut: bool) -> list[CandidateAnswer[list[int]]]:
        lines = [(match, self._names.exact(match[1])) for match in _BULLET.finditer(text)]
        named = [(match, i) for match, i in lines if i is not None]
        if not named or cut or len(named) < len(lines):
            return []
        start, end = named[0][0].start(), named[-1][0].end()
        return [CandidateAnswer(start, end, sorted({i for _, i in named}), form=1)]

    def of_prose(self, text: str) -> list[int] | None:
        if REFUSAL.search(text) or RECONSIDERATION.search(text):
            return None
        found: set[int] = set()
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", text)[:200]:
            mentioned = {i for _, _, i in self._names.mentions(sentence)}
            numbers = {self._option(int(each)) for each in re.findall(r"(?<![\w.])\d{1,3}(?![\w.]*\d)", sentence)}
            if _APPROVES.search(sentence):
                if negated(sentence) or sentence.rstrip().endswith("?"):
                    return None
                found |= mentioned | {i for i in numbers if i is not None}
        return sorted(found) or None

    def _option(self, entry: Any) -> int | None:
        if isinstance(entry, int) and not isinstance(entry, bool):
            return self._names.exact(f"option_{entry}")
        return self._names.meant(entry) if isinstance(entry, str) else None


def approved(text: str, options: Sequence[str], cut: bool) -> list[int]:
    """Return the options, by index, that a reply approves of; it may be none.

    Raises:
        InvalidReply: the reply holds no such list, or names an option that does not exist.
    """
    return parse_answer(text, _Approvals(options), cut).answer


def counted(votes: Sequence[Sequence[int] | None], options: int) -> np.ndarray:
    """Return how many votes each option got, [options]; None is an abstention."""
    given = [option for vote in votes if vote is not None for option in vote]
    return np.bincount(np.array(given, dtype=np.int64), minlength=options)
