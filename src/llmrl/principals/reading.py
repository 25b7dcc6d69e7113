"""Lists of numbers out of a model's reply, in the forms that models write them in when asked for policy parameters."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from llmrl.llms.structured import LONGEST_REPLY, InvalidReply, cleaned, parse_json

Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]

_THOUGHT = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_CHANNEL = "<|message|>"
_PLAIN = str.maketrans({**dict.fromkeys("\u2212\u2012\u2013\ufe63\uff0d", "-"), "\u00a0": " ", "\u202f": " ", "\\": ""})
"""Minus signs and spaces of typesetters, and the backslashes of Markdown."""

# Runs of digits are taken whole (atomic groups): else n digits could be shared out in n ways.
_NUMBER = r"[+-]?\s?(?:(?>\d+)(?:\.(?>\d*))?|\.(?>\d+))(?:[eE][+-]?(?>\d+))?(?![\w%]|\.\d)"
_NAMED = re.compile(rf"params?[\s*_`]*\[\s*(\d{{1,9}})\s*\][\s*_`\"']*[:=|][\s*_`\"'$]*({_NUMBER})", re.IGNORECASE)
_VALUE = re.compile(rf"f\s*\(\s*params\s*\)[\s*_`\"']*[:=][\s*_`\"'$]*{_NUMBER}", re.IGNORECASE)
"""The value of a row of the table."""
_BETWEEN = re.compile(r"[\s;,|*_`\"'$-]*")
_LIST = re.compile(r"(?<!\w)\[([^\[\]]*)\](?!\s*->)")
"""A list in brackets that is no index and no quoted row of the table."""

LONGEST_REASONING = 2000
"""Characters of a reply that are kept as its reasons where it does not say which those are."""


class OneProposal(BaseModel):
    """The reply to a question for one vector."""

    model_config = ConfigDict(extra="ignore")
    reasoning: str = ""
    params: list[Finite]


class SeveralProposals(BaseModel):
    """The reply to a question for several vectors at once."""

    model_config = ConfigDict(extra="ignore")
    reasoning: str = ""
    proposals: list[list[Finite]]


@dataclass(frozen=True)
class Reading:
    """What a reply says.

    Attributes:
        vectors: the proposals, [n, d].
        reasoning: why, in the model's words.
        moved: numbers that were out of bounds and have been put inside.
    """

    vectors: np.ndarray
    reasoning: str = ""
    moved: int = 0


def read_numbers(text: str, n: int, d: int, lines_first: bool = False) -> Reading:
    """`n` vectors of `d` numbers in a reply.

    Understood are a JSON object (`params`, or `proposals` where n > 1); `params[i]: v` or `params[i] = v` on one line
    or on many, in any order, with Markdown around it; and bare lists in brackets. Numbers may have a sign of any kind,
    no digit before the point, or an exponent. What a model thinks aloud between <think> tags is not looked at.

    Args:
        text: the reply.
        n: vectors, >= 1.
        d: numbers of each.
        lines_first: look for `params[i]: v` before JSON.

    Raises:
        InvalidReply: there are none, or another count of them.
    """
    text = answer_of(text)
    ways = [_from_json, _from_names] if not lines_first else [_from_names, _from_json]
    faults = []
    for way in [*ways, _from_lists]:
        try:
            return way(text, n, d)
        except InvalidReply as fault:
            faults.append(str(fault))
    # What the reply looks most like comes first; that it holds no bare lists either is no news.
    told = [fault for fault in faults[:2] if not fault.startswith("there is no")]
    raise InvalidReply(told[0] if told else "; ".join(faults[:2]))


def answer_of(text: str) -> str:
    """A reply without what was thought aloud, with plain signs."""
    text = text[-LONGEST_REPLY:]
    kept: list[str] = []
    start, thinking = 0, False
    for tag in _THOUGHT.finditer(text):
        closes = bool(tag[1])
        if not thinking and not closes:
            kept.append(text[start : tag.start()])
            thinking = True
        elif closes:
            if not thinking:
                kept = []  # the beginning of this thought was cut off
            start, thinking = tag.end(), False
    kept += [] if thinking else [text[start:]]
    return cleaned("".join(kept).rpartition(_CHANNEL)[2]).translate(_PLAIN).strip()


def _from_json(text: str, n: int, d: int) -> Reading:
    if n == 1:
        one = parse_json(text, OneProposal)
        return Reading(_checked([one.params], 1, d, "params"), one.reasoning)
    several = parse_json(text, SeveralProposals)
    return Reading(_checked(several.proposals, n, d, "proposals"), several.reasoning)


def _checked(lists: list[list[float]], n: int, d: int, name: str) -> np.ndarray:
    if len(lists) != n:
        raise InvalidReply(f"{name} holds {len(lists)} lists, {n} are needed")
    for k, numbers in enumerate(lists):
        if len(numbers) != d:
            which = name if n == 1 else f"{name}[{k}]"
            raise InvalidReply(f"{which} holds {len(numbers)} number{'s' * (len(numbers) != 1)}, {d} are needed")
    return np.array(lists, dtype=np.float64)


def _from_names(text: str, n: int, d: int) -> Reading:
    """Whole lines first: a line that names every index once is what was asked for, whatever stands around it."""
    text = _without_rows(text)
    whole, reasons = [], []
    for line in text.splitlines():
        pairs = _pairs(line)
        if len(pairs) == d and {i for i, _ in pairs} == set(range(d)):
            whole.append(dict(pairs))
        else:
            reasons.append(line)
    found, rest = (whole, {}) if len(whole) >= n else _runs(_pairs(text), d)
    if len(found) < n:
        raise InvalidReply(_lacking(found, rest, n, d))
    vectors = np.array([[each[i] for i in range(d)] for each in found[:n]])
    if not np.isfinite(vectors).all():
        raise InvalidReply("numbers must be finite")
    return Reading(vectors, "\n".join(reasons).strip()[:LONGEST_REASONING])


def _without_rows(text: str) -> str:
    """`text` without quoted rows of the table: numbers, on one line or on many, and then the value they had."""
    pairs = list(_NAMED.finditer(text))
    ends = [pair.end() for pair in pairs]
    kept, done = [], 0
    for value in _VALUE.finditer(text):
        start, seen = value.start(), set[str]()
        for pair in reversed(pairs[: bisect_right(ends, start)]):
            if pair.group(1) in seen or pair.start() < done or not _BETWEEN.fullmatch(text, pair.end(), start):
                break
            seen.add(pair.group(1))
            start = pair.start()
        if seen:
            kept.append(text[done:start])
            done = value.end()
    return "".join([*kept, text[done:]])


def _pairs(text: str) -> list[tuple[int, float]]:
    return [(int(i), float(value.replace(" ", ""))) for i, value in _NAMED.findall(text)]


def _runs(pairs: list[tuple[int, float]], d: int) -> tuple[list[dict[int, float]], dict[int, float]]:
    """Whole sets of the indices 0 to d - 1 among pairs, in order, and the last one begun if it is not whole."""
    found, begun = [], dict[int, float]()
    for i, value in pairs:
        if i >= d:
            raise InvalidReply(f"params[{i}] was given, and there are only params[0] to params[{d - 1}]")
        if i in begun:
            begun = {}
        begun[i] = value
        if len(begun) == d:
            found.append(begun)
            begun = {}
    return found, begun


def _lacking(found: list[dict[int, float]], rest: dict[int, float], n: int, d: int) -> str:
    if not found and not rest:
        return "there is no `params[i]: <number>` in the reply"
    missing = [f"params[{i}]" for i in range(d) if i not in rest]
    if n > 1 and not rest:
        return f"there are {len(found)} whole lists of params, {n} are needed"
    return f"{', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''} are missing or no numbers"


def _from_lists(text: str, n: int, d: int) -> Reading:
    """The last lists in brackets with the right count of numbers."""
    found = []
    for match in _LIST.finditer(text):
        words: list[Any] = [word.strip(" *`\"'") for word in re.split(r"[,;\n]", match.group(1))]
        if len(words) == d and all(re.fullmatch(_NUMBER, word) for word in words):
            found.append([float(word.replace(" ", "")) for word in words])
    if len(found) < n:
        raise InvalidReply(f"there is no list of {d} numbers in the reply")
    vectors = np.array(found[-n:])
    if not np.isfinite(vectors).all():
        raise InvalidReply("numbers must be finite")
    return Reading(vectors, "")
