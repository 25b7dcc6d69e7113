"""Conversion of LaTeX to plain text of the same length, and search for Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TABLE_ROW = re.compile(r"^[ \t>]*\|?[^\n|]*\|[^\n]*$", re.MULTILINE)
_TABLE_RULE = re.compile(r"[\s|:+\-=\u2014]+")
MAX_TABLE_ROWS = 500
"""Maximum number of rows of a table; longer tables are split."""
_STYLE_NAMES = (
    r"text(?:bf|tt|it|rm|sf|normal)?|math(?:bf|rm|tt|it|sf|bb|cal)?|operatorname|boldsymbol|bm|mbox|emph|underline|"
    r"textcolor\{\w{1,20}\}|fbox"
)
_STYLE_COMMAND = re.compile(rf"\\(?:{_STYLE_NAMES})\*?[ ]?\{{([^{{}}]{{0,2000}})\}}")
_FRACTION = re.compile(r"\\[dt]?frac[ ]?\{([^{}]{1,40})\}[ ]?\{([^{}]{1,40})\}")
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbvB]?(?:small)?matrix|array)\}(?:\{[clr|]{1,40}\})?(?P<inner>(?:(?!\\end\{)[\s\S]){0,4000})"
    r"\\end\{(?P=kind)\}"
)
_ALIGNMENT = re.compile(r"\\(?:begin|end)\{(?:aligned|align\*?|gathered|gather\*?|cases|equation\*?|split)\}")
_SIZE_COMMAND = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?=\s?[\[\](){}|.\\])")
_COMMAND_BY_SIGN = {
    "->": r"\\(?:long|Long)?(?:right|Right)arrow(?![a-z])|\\to(?![a-z])|\\mapsto(?![a-z])|\\implies(?![a-z])",
    "~": r"\\approx(?![a-z])|\\sim(?![a-z])",
    "<": r"\\leq?(?![a-z])|\\lt(?![a-z])",
    ">": r"\\geq?(?![a-z])|\\gt(?![a-z])",
    "*": r"\\times(?![a-z])|\\cdot(?![a-z])",
    "\u00b0": r"\^\{?\\circ\}?",
    "": r"\\q?quad(?![a-z])|\\[,;:! ]",
}
_ESCAPED_CHARACTER = re.compile(r"(?<!\\)\\([{}_%$#&])")
_LINE_BREAK = re.compile(r"\\\\(?:\[[^\[\]]{0,10}\])?")


def strip_latex(text: str) -> str:
    r"""Replace LaTeX commands by the text that they display, padded with spaces to the same length.

    These are styles, fractions, matrices (as lists), sizes, arrows, comparison and product signs, spaces and escaped
    characters. `\boxed{}` is not changed.

    >>> strip_latex(r"\boxed{\text{stick}}").replace(" ", "")
    '\\boxed{stick}'
    """
    if "\\" not in text:
        return text
    text = _MATRIX.sub(_format_matrix, text)
    if _ALIGNMENT.search(text):
        text = _ALIGNMENT.sub(lambda m: _pad_to_match("", m), text)
        text = _LINE_BREAK.sub(lambda m: _pad_to_match("\n", m), text).replace("&", " ")
    for _ in range(3):
        text, n_styles = _STYLE_COMMAND.subn(lambda m: _pad_to_match(" " * (m.start(1) - m.start()) + m[1], m), text)
        text, n_fractions = _FRACTION.subn(lambda m: _pad_to_match(f"{m[1].strip()}/{m[2].strip()}", m), text)
        if not n_styles + n_fractions:
            break
    text = _SIZE_COMMAND.sub(lambda m: _pad_to_match("", m), text)
    for sign, command in _COMMAND_BY_SIGN.items():
        text = re.sub(command, lambda m, sign=sign: _pad_to_match(sign, m), text)  # type: ignore[misc]
    return _ESCAPED_CHARACTER.sub(lambda m: f" {m[1]}", text)


def blank_brace_escapes(text: str) -> str:
    """Replace backslashes before curly brackets (escapes of LaTeX and Markdown) by spaces."""
    return re.sub(r"(?<!\\)\\([{}])", r" \1", text) if "\\{" in text else text


def _pad_to_match(text: str, match: re.Match[str]) -> str:
    """Append spaces to `text` up to the length of `match`."""
    return text.ljust(len(match[0]))


def _format_matrix(match: re.Match[str]) -> str:
    """Return a matrix as the list of its entries, row by row, padded to the same length."""
    inner = _LINE_BREAK.sub(lambda m: _pad_to_match(",", m), match["inner"].replace("&", ","))
    if inner.rstrip().endswith(","):
        inner = inner.rstrip()[:-1].ljust(len(inner))
    return f"[{' ' * (match.start('inner') - match.start() - 1)}{inner}{']'.ljust(match.end() - match.end('inner'))}"


@dataclass(frozen=True)
class Table:
    """Markdown table.

    Attributes:
        start, end: span of the table in the text.
        header: cells of the first row, without markup.
        rows: cells of the other rows, without markup.
    """

    start: int
    end: int
    header: list[str]
    rows: list[list[str]]

    def column_index(self, names: Sequence[str]) -> int | None:
        """Return the index of the column with the first of `names` (lower case) that is a heading; None if none is."""
        headings = [cell.casefold() for cell in self.header]
        return next((headings.index(name) for name in names if name in headings), None)


def find_tables(text: str) -> Iterator[Table]:
    """Yield all tables in a text: two or more consecutive lines with vertical bars."""
    block: list[re.Match[str]] = []
    for row in [*_TABLE_ROW.finditer(text), None]:
        if block and (row is None or text[block[-1].end() : row.start()] != "\n" or len(block) > MAX_TABLE_ROWS):
            lines = [row[0].strip(" \t>") for row in block if not _TABLE_RULE.fullmatch(row[0])]
            if len(lines) > 1 and (len(lines) < len(block) or all(line.startswith("|") for line in lines)):
                cells = [_split_cells(line) for line in lines]
                yield Table(block[0].start(), block[-1].end(), cells[0], cells[1:])
            block = []
        if row is not None:
            block.append(row)


def _split_cells(line: str) -> list[str]:
    return [cell.strip(" *`\\_$") for cell in re.split(r"(?<!\\)\|", line.removeprefix("|").removesuffix("|"))]
