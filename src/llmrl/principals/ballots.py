"""Votes: the form of a ballot's answer, how approvals are read, and how votes are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.llms.reading.answer_parser import AnswerParser, parse_answer
from llmrl.llms.reading.name_matcher import letters
from llmrl.llms.structured import InvalidReply


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


class _Approvals(AnswerParser[list[int]]):
    """Parser of a list of options under `choices`."""

    wanted = "list of choices"

    def __init__(self, options: Sequence[str]) -> None:
        self._options = {letters(option): i for i, option in enumerate(options)}

    def of_value(self, value: Any) -> list[int] | None:
        if not isinstance(value, Mapping):
            return None
        named = next((x for key, x in value.items() if letters(str(key)) in ("choices", "choice", "approved")), None)
        if named is None:
            return None
        entries = named if isinstance(named, list) else [named]
        found = [self._options.get(letters(str(entry))) for entry in entries]
        if unknown := [entry for entry, i in zip(entries, found, strict=True) if i is None]:
            raise InvalidReply(f"there is no option {str(unknown[0])[:40]!r}")
        return sorted({i for i in found if i is not None})


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
