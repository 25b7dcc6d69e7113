"""One table in the forms a reader wants: Markdown, LaTeX, a terminal's rows, and CSV in full precision."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

NOTHING = "-"
"""Shown where there is no number."""

_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "†": r"\dag{}",
}


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: of its files.
        caption: what it shows.
        columns, rows: as shown; no columns: it is there as CSV only.
        texts: leading columns that hold text, and with `last_text` the last; the others hold numbers.
        data: the lines of the CSV, header first, numbers in full precision, empty where there is none.
        notes: below the table.
    """

    name: str
    caption: str
    data: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    texts: int = 1
    last_text: bool = False
    notes: Sequence[str] = ()

    @property
    def sides(self) -> str:
        """`l` for each column that is flush left, `r` for the others."""
        numbers = len(self.columns) - self.texts - self.last_text
        return "l" * self.texts + "r" * numbers + "l" * self.last_text

    def csv(self) -> str:
        """The data as CSV (RFC 4180, but lines end in a line feed)."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[_plain(cell) for cell in line] for line in self.data])
        return text.getvalue()

    def markdown(self) -> str:
        """A pipe table with its notes."""
        ruler = ["---" if side == "l" else "---:" for side in self.sides]
        lines = [[_markdown(cell) for cell in line] for line in (self.columns, *self.rows)]
        lines.insert(1, ruler)
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return text + "".join(f"\n\n{_markdown(note)}" for note in self.notes)

    def latex(self) -> str:
        """A `table` for a document that loads booktabs."""
        # A bracket after a line's end would be read as an argument of it.
        header, *lines = [
            ("{}" if line[0].startswith(("[", "*")) else "") + " & ".join(latex_text(cell) for cell in line) + r" \\"
            for line in (self.columns, *self.rows)
        ]
        notes = [rf"\par\smallskip\footnotesize {latex_text(note)}" for note in self.notes]
        return "\n".join(
            [
                "% \\usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{latex_text(self.caption)}}}",
                rf"\label{{tab:{self.name.replace('_', '-')}}}",
                rf"\begin{{tabular}}{{{self.sides}}}",
                r"\toprule",
                header,
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                *notes,
                r"\end{table}",
                "",
            ]
        )


def latex_text(text: str) -> str:
    """`text` as LaTeX would print it: no character keeps a special meaning, minus signs are minus signs."""
    escaped = "".join(_TEX.get(character, character) for character in " ".join(text.split()))
    return re.sub(r"(?<![\w}-])-(?=[\d.])", "$-$", escaped) if escaped != NOTHING else "--"


def seed_list(seeds: Iterable[int]) -> str:
    """Seeds with runs of three or more drawn together: `0, 1, 4-9`."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 2 else ", ".join(map(str, p)) for p in parts)


class NumberFormat:
    """Writes numbers with as many decimals as tell `values` apart: three digits of their spread."""

    def __init__(self, values: np.ndarray) -> None:
        size = float(np.abs(values).max()) if len(values) else 1.0
        spread = float(np.ptp(values)) if len(values) else 1.0
        self._decimals = max(0, 2 - math.floor(math.log10(spread or size or 1.0)))
        self._short = size >= 1e7 or self._decimals > 6

    def __call__(self, value: float) -> str:
        if not math.isfinite(value):
            return NOTHING
        text = f"{value:.4g}" if self._short else f"{value:.{self._decimals}f}"
        return text.lstrip("-") if not text.strip("-0.") else text


def with_interval(estimate: float, low: float, high: float, form: Callable[[float], str]) -> str:
    """An estimate and its interval, `12.3 [11.8, 12.8]`; `12.3 [-]` where there is none."""
    bounds = f"{form(low)}, {form(high)}" if math.isfinite(low) else NOTHING
    return f"{form(estimate)} [{bounds}]"


def _plain(cell: object) -> object:
    """Numbers in full precision, nothing for what is not known."""
    if isinstance(cell, np.ndarray | np.generic):
        cell = cell.item()
    if isinstance(cell, float):
        return repr(cell) if math.isfinite(cell) else ""
    if isinstance(cell, str):
        return cell.replace("\r", " ")  # which the csv module neither quotes nor escapes
    return "" if cell is None else cell


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*|<]|\](?=\())", r"\\\1", " ".join(text.split()))
