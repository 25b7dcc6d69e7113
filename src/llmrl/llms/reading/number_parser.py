"""Numbers as people write them: with units, as fractions, in words, as sums."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

_NUMBER = r"[+-]?\s?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,10})?"
_PLAIN = re.compile(_NUMBER)
_FRACTION = re.compile(rf"({_NUMBER})\s?/\s?({_NUMBER})")
_COMMA = re.compile(r"([+-]?[0-9]{1,20}),([0-9]{1,20})")
_ASIDE = re.compile(
    r"(?<=[\d%])\s*\((?:up|down|was|from|increased|decreased|raised|lowered|unchanged|same|as before|slightly)\b"
    r"[^()]{0,80}\)\s*$",
    re.IGNORECASE,
)
_SUM = re.compile(r"[\s\d.()+\-*/eE]{3,80}")
_UNIT = re.compile(
    rf"({_NUMBER})\s*(%|per ?cent|percent|[A-Za-z\u00b0\u00b5][A-Za-z\u00b0/\u00b2*^ "
    rf"]{{0,24}})?\s*\.?"
)
_RANGE = re.compile(
    r"\d\s*(?:-|\u2013|\u2014|\.\.|to|bis|and|or|~|\u223c)\s*[-+.]?\d|[<>\u2264\u2265~\u2248]|\bbetween\b|"
    r"\bfrom\b|\babout\b"
)

_DIFFERENCE = re.compile(rf"{_NUMBER}\s*-\s*{_NUMBER}")
"""That is a range as likely."""

UNITS: tuple[str, ...] = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
UNITS += ("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
PARTS = {"half": 1 / 2, "third": 1 / 3, "thirds": 1 / 3, "quarter": 1 / 4, "quarters": 1 / 4, "fifth": 1 / 5}
WORDS: dict[str, float] = {word: float(i) for i, word in enumerate(UNITS)} | {k: float(v) for k, v in TENS.items()}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")

_ONE = "|".join([*UNITS, *TENS])
_PART = r"(?:half|third|thirds|quarter|quarters)"
SPOKEN = (
    rf"(?:(?:minus|negative)\s+)?(?:(?:a|an|{_ONE})\s+(?:and\s+a\s+)?{_PART}|half|"
    rf"(?:{_ONE})(?:\s+point(?:\s+(?:{_ONE}))+)?(?:\s+and\s+(?:a\s+half|a\s+quarter|one\s+half))?|nothing|nil)"
)
"""Numbers in words, as a regular expression."""
WRITTEN = rf"{_NUMBER}(?:\s?/\s?[0-9]{{1,9}})?(?:,(?=[0-9])[0-9]{{1,9}})?\s?(?:%|per ?cent\b|percent\b)?"
"""Numbers in digits, as a regular expression."""


def number_of(value: Any, shares: bool = False) -> float | None:
    """The one finite number that `value` means; None where it means none, or no certain one.

    Args:
        value: a number, or a text such as `"0.8 N"`, `"3/4"`, `"0,25"`, `"-50%"`, `"one half"`, `"0.25 + 0.1"`.
        shares: whether per cent are hundredths.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value) if math.isfinite(value) else None
        except OverflowError:
            return None
    if not isinstance(value, str) or len(value) > 1000:
        return None
    value = _ASIDE.sub("", value)
    found = _of_text(" ".join(value.split()).strip("$\u20ac\u00a3\u00a5`*\"'= \\"), shares)
    return found if found is not None and math.isfinite(found) else None


def arithmetic(text: str) -> float | None:
    """The value of a sum such as `(0.5 + 1) / 2`; None where it is none. Nothing but the four operations is known."""
    if not _SUM.fullmatch(text):
        return None
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _evaluated(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _evaluated(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        a, b = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add):
            return a + b
        if isinstance(node.op, ast.Sub):
            return a - b
        if isinstance(node.op, ast.Mult):
            return a * b
        if isinstance(node.op, ast.Div):
            return a / b
    raise ValueError("no sum")


def _of_text(text: str, shares: bool) -> float | None:
    if _PLAIN.fullmatch(text):
        return float(text.replace(" ", ""))
    if comma := _COMMA.fullmatch(text):
        return float(f"{comma[1]}.{comma[2]}")
    if fraction := _FRACTION.fullmatch(text):
        below = float(fraction[2].replace(" ", ""))
        return float(fraction[1].replace(" ", "")) / below if below else None
    if not _DIFFERENCE.fullmatch(text) and (value := arithmetic(text)) is not None:
        return value
    spoken = in_words(text)
    if spoken is not None:
        return spoken
    if _RANGE.search(text):
        return None
    unit = _UNIT.fullmatch(text)
    if unit is None:
        return None
    number = float(unit[1].replace(" ", ""))
    if unit[2] and unit[2].replace(" ", "") in ("%", "percent"):
        return number / 100 if shares else None
    return number


def in_words(text: str) -> float | None:
    """The value of a number in words, `minus two`, `one and a half`, `zero point five`; None where it is none."""
    words = text.lower().replace("-", " ").split()
    sign = 1.0
    if words and words[0] in ("minus", "negative"):
        sign, words = -1.0, words[1:]
    if words in (["nothing"], ["nil"], ["none"]):
        return 0.0
    if not words or len(words) > 8:
        return None
    if "point" in words:
        at = words.index("point")
        whole, digits = in_words(" ".join(words[:at]) or "zero"), [WORDS.get(word) for word in words[at + 1 :]]
        if whole is None or not digits or any(digit is None or digit > 9 for digit in digits):
            return None
        return sign * float(f"{int(whole)}.{''.join(str(int(digit or 0)) for digit in digits)}")
    if words[-1] in PARTS:
        if words[:-3] and words[-3] == "and" and words[-2] in ("a", "an", "one"):  # a whole number and a part
            whole = in_words(" ".join(words[:-3]))
            return None if whole is None or whole < 0 else sign * (whole + PARTS[words[-1]])
        before = [word for word in words[:-1] if word not in ("and", "a", "an")]
        if not before:
            return sign * PARTS[words[-1]]
        if len(before) == 1 and before[0] in WORDS:
            count = WORDS[before[0]]
            return sign * (count + PARTS[words[-1]] if "and" in words else count * PARTS[words[-1]])
        return None
    if len(words) == 1:
        return sign * WORDS[words[0]] if words[0] in WORDS else None
    if len(words) == 2 and words[0] in TENS and words[1] in UNITS[1:10]:
        return sign * (TENS[words[0]] + WORDS[words[1]])
    return None
