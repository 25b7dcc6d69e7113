"""Parser of single numbers, also with units, as fractions, in words, and as arithmetic expressions."""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from llmrl.llms.reading.word_lists import load_word_list

_NUMBER = r"[+-]?\s?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,10})?"
_PLAIN_NUMBER = re.compile(_NUMBER)
_FRACTION = re.compile(rf"({_NUMBER})\s?/\s?({_NUMBER})")
_DECIMAL_COMMA = re.compile(r"([+-]?[0-9]{1,20}),([0-9]{1,20})")
_CHANGE_NOTE = re.compile(
    r"(?<=[\d%])\s*\((?:up|down|was|from|increased|decreased|raised|lowered|unchanged|same|as before|slightly)\b"
    r"[^()]{0,80}\)\s*$",
    re.IGNORECASE,
)
_EXPRESSION = re.compile(r"[\s\d.()+\-*/eE]{3,80}")
_COMPARISON_WORD = re.compile(rf"\b(?:{'|'.join(load_word_list('comparisons'))})\b", re.IGNORECASE)
"""Words after a number that is a bound, a difference or a direction; other words after a number are units."""
_NUMBER_WITH_UNIT = re.compile(
    rf"({_NUMBER})\s*(%|per ?cent|percent|[A-Za-z\u00b0\u00b5][A-Za-z\u00b0/\u00b2*^ ]{{0,24}})?\s*\.?"
)
_RANGE = re.compile(
    r"\d\s*(?:-|\u2013|\u2014|\.\.|to|bis|and|or|~|\u223c)\s*[-+.]?\d|[<>\u2264\u2265~\u2248]|\bbetween\b|"
    r"\bfrom\b|\babout\b"
)

_DIFFERENCE = re.compile(rf"{_NUMBER}\s*-\s*{_NUMBER}")
"""Two numbers with a minus sign, which may also be a range."""

SMALL_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
"""Words for the numbers from 0 to 19."""
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_FRACTION_BY_WORD = {
    "half": 1 / 2,
    "third": 1 / 3,
    "thirds": 1 / 3,
    "quarter": 1 / 4,
    "quarters": 1 / 4,
    "fifth": 1 / 5,
}
_NUMBER_BY_WORD = {word: float(i) for word, i in [*zip(SMALL_NUMBERS, range(20), strict=True), *TENS.items()]}

_UNARY_OPERATORS: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}

_NUMERAL = "|".join([*SMALL_NUMBERS, *TENS])
_FRACTION_WORD = r"(?:half|third|thirds|quarter|quarters)"
NUMBER_IN_WORDS = (
    rf"(?:(?:minus|negative)\s+)?(?:(?:a|an|{_NUMERAL})\s+(?:and\s+a\s+)?{_FRACTION_WORD}|half|"
    rf"(?:{_NUMERAL})(?:\s+point(?:\s+(?:{_NUMERAL}))+)?(?:\s+and\s+(?:a\s+half|a\s+quarter|one\s+half))?|nothing|nil)"
)
"""Regular expression of numbers in words."""
NUMBER_IN_DIGITS = rf"{_NUMBER}(?:\s?/\s?[0-9]{{1,9}})?(?:,(?=[0-9])[0-9]{{1,9}})?\s?(?:%|per ?cent\b|percent\b)?"
"""Regular expression of numbers in digits."""


def parse_number(value: Any, is_fraction: bool = False) -> float | None:
    """Return the finite number in `value`; None if there is none or if it is uncertain.

    Args:
        value: number, or text such as `"0.8 N"`, `"3/4"`, `"0,25"`, `"-50%"`, `"one half"`, `"0.25 + 0.1"`.
        is_fraction: whether percentages are accepted, and divided by 100.
    """
    if isinstance(value, str) and len(value) <= 1000:
        text = _CHANGE_NOTE.sub("", value)
        value = _parse_number_text(" ".join(text.split()).strip("$\u20ac\u00a3\u00a5`*\"'= \\"), is_fraction)
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None


def evaluate_arithmetic(text: str) -> float | None:
    """Return the value of an expression of +, -, * and / such as `(0.5 + 1) / 2`; None for other texts."""
    if not _EXPRESSION.fullmatch(text):
        return None
    try:
        return _evaluate_tree(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None


def _evaluate_tree(node: ast.expr) -> float:
    """Return the value of a syntax tree of numbers and the four operations; raise ValueError for another tree."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY_OPERATORS:
        return _UNARY_OPERATORS[type(node.op)](_evaluate_tree(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY_OPERATORS:
        return _BINARY_OPERATORS[type(node.op)](_evaluate_tree(node.left), _evaluate_tree(node.right))
    raise ValueError("the text is not an arithmetic expression")


def _parse_number_text(text: str, is_fraction: bool) -> float | None:
    """Return the number in a text without surrounding signs; None if there is none (`parse_number`)."""
    if _PLAIN_NUMBER.fullmatch(text):
        return float(text.replace(" ", ""))
    if decimal_match := _DECIMAL_COMMA.fullmatch(text):
        return float(f"{decimal_match[1]}.{decimal_match[2]}")
    if fraction_match := _FRACTION.fullmatch(text):
        denominator = float(fraction_match[2].replace(" ", ""))
        return float(fraction_match[1].replace(" ", "")) / denominator if denominator else None
    if not _DIFFERENCE.fullmatch(text) and (value := evaluate_arithmetic(text)) is not None:
        return value
    if (value := parse_number_words(text)) is not None:
        return value
    unit_match = _NUMBER_WITH_UNIT.fullmatch(re.sub(r"\A([+-]?\d{1,20}),(?=\d{1,20}\s?[A-Za-z%])", r"\1.", text))
    if unit_match is None or _RANGE.search(text) or _COMPARISON_WORD.search(unit_match[2] or ""):
        return None
    number = float(unit_match[1].replace(" ", ""))
    if unit_match[2] and unit_match[2].replace(" ", "") in ("%", "percent"):
        return number / 100 if is_fraction else None
    return number


def parse_number_words(text: str) -> float | None:
    """Return the value of a number in words: `minus two`, `one and a half`, `zero point five`; None for other texts."""
    words = text.lower().replace("-", " ").split()
    sign = 1.0
    if words and words[0] in ("minus", "negative"):
        sign, words = -1.0, words[1:]
    if words in (["nothing"], ["nil"], ["none"]):
        return 0.0
    if not words or len(words) > 8:
        return None
    if "point" in words:
        point_index = words.index("point")
        integer = parse_number_words(" ".join(words[:point_index]) or "zero")
        digits = [_NUMBER_BY_WORD.get(word) for word in words[point_index + 1 :]]
        if integer is None or not digits or any(digit is None or digit > 9 for digit in digits):
            return None
        return sign * float(f"{int(integer)}.{''.join(str(int(digit or 0)) for digit in digits)}")
    if words[-1] in _FRACTION_BY_WORD:
        fraction = _FRACTION_BY_WORD[words[-1]]
        if words[:-3] and words[-3] == "and" and words[-2] in ("a", "an", "one"):  # an integer and a fraction
            integer = parse_number_words(" ".join(words[:-3]))
            return None if integer is None or integer < 0 else sign * (integer + fraction)
        multipliers = [word for word in words[:-1] if word not in ("and", "a", "an")]
        if not multipliers:
            return sign * fraction
        count = _NUMBER_BY_WORD.get(multipliers[0]) if len(multipliers) == 1 else None
        return None if count is None else sign * (count + fraction if "and" in words else count * fraction)
    if len(words) == 1 or (len(words) == 2 and words[0] in TENS and words[1] in SMALL_NUMBERS[1:10]):
        numbers = [_NUMBER_BY_WORD.get(word) for word in words]
        return None if None in numbers else sign * sum(number for number in numbers if number is not None)
    return None
