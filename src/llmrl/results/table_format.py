"""Tables of reports in several formats: Markdown, LaTeX, cells for a terminal, and CSV in full precision."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.statistics.estimators import Interval
from llmrl.statistics.intervals import Band

EMPTY_CELL = "-"
"""Text of a cell without a value."""

_LATEX_ESCAPES = {
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
}


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    Attributes:
        name: name of its files, without suffix.
        caption: description of the table.
        csv_rows: rows of the CSV file, header first, numbers in full precision; unknown values are empty cells.
        columns, rows: headings and cells as text; without columns the table is written as CSV only.
        n_text_columns: number of leading columns with text; other columns have numbers.
        is_last_column_text: whether the last column has text.
        notes: notes below the table.
    """

    name: str
    caption: str
    csv_rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    n_text_columns: int = 1
    is_last_column_text: bool = False
    notes: Sequence[str] = ()

    @property
    def alignments(self) -> str:
        """Alignment of the columns, one letter each: `l` for text, `r` for numbers."""
        n_number_columns = len(self.columns) - self.n_text_columns - self.is_last_column_text
        return "l" * self.n_text_columns + "r" * n_number_columns + "l" * self.is_last_column_text

    def to_csv(self) -> str:
        """Return `csv_rows` as CSV (RFC 4180, except that lines end in a line feed)."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows([_to_csv_cell(cell) for cell in row] for row in self.csv_rows)
        return stream.getvalue()

    def to_markdown(self) -> str:
        """Return a Markdown pipe table with its notes."""
        lines = [[_escape_markdown(cell) for cell in line] for line in (self.columns, *self.rows)]
        lines.insert(1, ["---" if alignment == "l" else "---:" for alignment in self.alignments])
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return text + "".join(f"\n\n{_escape_markdown(note)}" for note in self.notes)

    def to_latex(self) -> str:
        """Return a LaTeX `table` environment for a document that loads booktabs."""
        # `{}` prevents LaTeX from reading a bracket or star at the start of a line as an argument of the previous `\\`.
        header, *lines = [
            ("{}" if line[0].startswith(("[", "*")) else "") + " & ".join(escape_latex(cell) for cell in line) + r" \\"
            for line in (self.columns, *self.rows)
        ]
        return "\n".join(
            [
                "% \\usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{escape_latex(self.caption)}}}",
                rf"\label{{tab:{self.name.replace('_', '-')}}}",
                rf"\begin{{tabular}}{{{self.alignments}}}",
                r"\toprule",
                header,
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                *[rf"\par\smallskip\footnotesize {escape_latex(note)}" for note in self.notes],
                r"\end{table}",
                "",
            ]
        )


def escape_latex(text: str) -> str:
    """Return `text` escaped for LaTeX; hyphens before numbers become minus signs, and `EMPTY_CELL` a dash."""
    escaped = "".join(_LATEX_ESCAPES.get(character, character) for character in " ".join(text.split()))
    return re.sub(r"(?<![\w}-])-(?=[\d.])", "$-$", escaped) if escaped != EMPTY_CELL else "--"


def format_seeds(seeds: Iterable[int]) -> str:
    """Return seeds as text; three or more consecutive seeds become a range: `0, 1, 4-9`."""
    ranges: list[list[int]] = []  # of consecutive seeds
    for seed in sorted(seeds):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in ranges)


class NumberFormat:
    """A formatter of numbers with a common number of decimals, which shows three digits of the range of `values`.

    Args:
        values: values that determine the number of decimals.
        errors: standard errors of the values; decimals beyond two digits of the largest error are not shown.
    """

    def __init__(self, values: np.ndarray, errors: np.ndarray | None = None) -> None:
        max_magnitude = float(np.abs(values).max()) if len(values) else 1.0
        value_range = float(np.ptp(values)) if len(values) else 1.0
        self._decimals = max(0, 2 - math.floor(math.log10(value_range or max_magnitude or 1.0)))
        error = float(errors.max()) if errors is not None and len(errors) else 0.0
        if error:
            self._decimals = min(self._decimals, max(0, 1 - math.floor(math.log10(error))))
        self._is_scientific = max_magnitude >= 1e7 or self._decimals > 6

    def __call__(self, value: float) -> str:
        if not math.isfinite(value):
            return EMPTY_CELL
        text = f"{value:.4g}" if self._is_scientific else f"{value:.{self._decimals}f}"
        return text.lstrip("-") if not text.strip("-0.") else text

    def format_signed(self, value: float) -> str:
        """Return a difference as text, with a sign unless it is shown as zero."""
        text = self(value)
        return f"+{text}" if value > 0 and text.strip("0.") else text


def format_estimate(interval: Band | Interval | None, format_number: Callable[[float], str]) -> str:
    """Return an estimate as text, `12.3 [11.8, 12.8]`, `12.3` without an interval, or `-` for None."""
    if interval is None:
        return EMPTY_CELL
    estimate, low, high = (float(x) for x in (interval.estimate, interval.low, interval.high))
    return format_number(estimate) + (f" [{format_number(low)}, {format_number(high)}]" if math.isfinite(low) else "")


def format_p_value(p: float) -> str:
    """Format a p-value without the zero before the point, or return `EMPTY_CELL` for NaN."""
    return EMPTY_CELL if math.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def interval_to_cells(interval: Band | Interval | None) -> list[float | None]:
    """Return estimate, lower bound and upper bound of an interval as cells of a CSV file."""
    if interval is None:
        return [None] * 3
    return [float(x) for x in (interval.estimate, interval.low, interval.high)]


def _to_csv_cell(cell: object) -> object:
    """Return a cell for CSV: numbers in full precision, an empty text for None, NaN and infinity."""
    if isinstance(cell, np.ndarray | np.generic):
        cell = cell.item()
    if isinstance(cell, float):
        return repr(cell) if math.isfinite(cell) else ""
    if isinstance(cell, str):
        return cell.replace("\r", " ")  # the csv module neither quotes nor escapes \r
    return "" if cell is None else cell


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*|<]|\](?=\())", r"\\\1", " ".join(text.split()))
