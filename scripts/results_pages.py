"""Rendering of result pages from the Jinja templates in `docs/results/templates` and the files in `docs/results/data`.

Templates do not contain measured numbers. Measured numbers are expressions over CSV files, or entries of two files:

* `measurements.csv` contains quantities that are not in run records, such as durations:
  `{{ measurement("harvest_figure.cpu") }}`.
* `passages.csv` contains the numbers of passages whose per-run values were not stored. The passage remains in the
  template, inside `{% filter passage("key") %}...{% endfilter %}`.

All other numbers of a template must be part of a phrase in `settings.csv`, which names the option or publication that
is the source. Numbers in code, links, images, headings and names (`Walker2d`) do not need a source.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError
from results_runs import read_rows

from llmrl.results.table_format import format_p_value
from llmrl.statistics.intervals import mean_interval

README = "README.md"
ALL_PAGES = "*"
"""Value of the column `page` in `settings.csv` for phrases that are valid in all templates."""
_REGION = re.compile(r"(?<=<!-- results:start -->\n).*?(?=<!-- results:end -->)", re.DOTALL)
_EXEMPT = re.compile(
    r"\A---\n.*?\n---\n|^```.*?^```|^#[^\n]*|<!--.*?-->|<[a-z/][^>]*>|`[^`\n]*`|!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.-])[-+\u2212]?\.?\d[\d.,]*(?:[-\u2013]\d[\d.,]*)*")
_PASSAGE = re.compile(r"\{%\+? filter passage\(.*?\{% endfilter %\}", re.DOTALL)
_CONSTANT = re.compile(r"\{\{\s*[-\"']?\d[^}]*\}\}")
_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


class ResultPages:
    """Result pages, and the parts of the README between `<!-- results:start -->` and `<!-- results:end -->`.

    Args:
        root: root of the repository.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._results = root / "docs" / "results"
        self._templates = self._results / "templates"
        self._tables: dict[tuple[str, bool], list[dict[str, Any]]] = {}
        self._passages = {row["key"]: row["numbers"] for row in self.rows("passages", text=True)}
        self._used_passages: set[str] = set()
        self._jinja = Environment(
            loader=FileSystemLoader(self._templates),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._jinja.globals.update(
            rows=self.rows,
            row=self.row,
            score=self.score,
            summary=self.summary,
            comparison=self.comparison,
            proposal_mean=self.proposal_mean,
            measurement=self.measurement,
            run_values=self.run_values,
        )
        self._jinja.filters.update(
            number=format_number,
            interval=format_interval,
            signed=format_signed_difference,
            negated=negate_comparison,
            mean_error=format_mean_error,
            p_value=lambda p: format_p_value(math.nan if p is None else p),
            passage=self._check_passage,
        )

    @cached_property
    def templates(self) -> list[Path]:
        """Paths of the templates of pages; `.j2` files have macros for these."""
        return sorted(self._templates.glob("*.md"))

    def write(self) -> None:
        """Write all pages, and the parts of the README."""
        for template in self.templates:
            self._get_page_path(template).write_text(self._render(template))

    def find_problems(self) -> list[str]:
        """Return a message for each page that differs from its template, and for each number without a source."""
        messages = []
        for template in self.templates:
            page = self._get_page_path(template)
            try:
                rendered = self._render(template)
            except (ValueError, TemplateError) as error:
                messages.append(f"{template}: {error}")
                continue
            stored = page.read_text() if page.exists() else ""
            names = str(page), f"rendered from {template}"
            lines = list(difflib.unified_diff(stored.splitlines(), rendered.splitlines(), *names, lineterm="", n=0))
            messages += ["\n".join(lines)] if lines else []
            messages += self._iterate_unsourced_numbers(template)
        return messages or self._find_unused_entries()

    def rows(self, name: str, *, text: bool = False, **where: Any) -> list[dict[str, Any]]:
        """Return the rows of a CSV file in `docs/results/data` by column name.

        Args:
            name: file name without `.csv`.
            text: whether all cells are returned as text; False: numbers as floats, and empty cells as None.
            where: values of columns by which rows are filtered.
        """
        if (name, text) not in self._tables:
            cells: list[dict[str, Any]] = [*read_rows(self._results / "data" / f"{name}.csv")]
            if not text:
                cells = [{column: _parse_cell(cell) for column, cell in row.items()} for row in cells]
            self._tables[name, text] = cells
        rows = self._tables[name, text]
        return [row for row in rows if all(row[column] == value for column, value in where.items())]

    def row(self, name: str, **where: Any) -> dict[str, Any]:
        """Return the single row of a CSV file with the given values of columns.

        Raises:
            ValueError: no rows or several rows match.
        """
        rows = self.rows(name, **where)
        if len(rows) != 1:
            raise ValueError(f"{name}.csv has {len(rows)} rows with {where}; expected 1")
        return rows[0]

    def summary(self, name: str, column: str, minus: str | None = None, **where: Any) -> dict[str, Any]:
        """Summarize a column of a CSV file with a row for each run.

        Args:
            name: file name without `.csv`.
            column: column of the values; empty cells are skipped.
            minus: column that is subtracted in each row.
            where: values of columns by which rows are filtered.

        Returns:
            `mean`, `standard_error`, the bounds `low` and `high` of the 95 % t interval, and the number of `runs`.
            Statistics are None if there are too few runs.
        """
        columns = [column] if minus is None else [column, minus]
        rows = [row for row in self.rows(name, **where) if all(row[name] is not None for name in columns)]
        return summarize_values([row[column] - (row[minus] if minus else 0.0) for row in rows])

    def proposal_mean(self, study: str, group: str, first: int, last: int) -> dict[str, Any]:
        """Summarize the mean objective of the proposals `first` to `last` (from 1) of each run of a group.

        Returns:
            The statistics of `summary`.
        """
        objectives: dict[str, list[float]] = {row["run"]: [] for row in self.rows(f"{study}_runs", group=group)}
        for row in self.rows(f"{study}_run_curves", kind="proposal"):
            if row["run"] in objectives and first <= row["proposals"] <= last:
                objectives[row["run"]].append(row["principal/objective"])
        return summarize_values([fmean(values) for values in objectives.values()])

    def score(self, study: str, group: str, **where: Any) -> dict[str, Any]:
        """Return the row of a group in `<study>_scores.csv`."""
        return self.row(f"{study}_scores", group=group, **where)

    def comparison(self, study: str, group: str, against: str, **where: Any) -> dict[str, Any]:
        """Return the row of two groups in `<study>_comparisons.csv`."""
        return self.row(f"{study}_comparisons", group=group, against=against, **where)

    def measurement(self, key: str) -> str:
        """Return a value of `measurements.csv` with its unit.

        Raises:
            ValueError: the key does not exist, or is not unique.
        """
        rows = self.rows("measurements", text=True, key=key)
        if len(rows) != 1:
            raise ValueError(f"measurements.csv has {len(rows)} entries {key!r}; expected 1")
        return f"{rows[0]['value']} {rows[0]['unit']}".strip()

    def run_values(self, study: str) -> str:
        """Return a sentence with links to the per-run values of a study, or a statement that they were not stored."""
        if (self._results / "data" / f"{study}_runs.csv").exists():
            curves = self._results / "data" / f"{study}_run_curves.csv"
            link = f", [curves](data/{curves.name})" if curves.exists() else ""
            return f"Per-run values: [runs](data/{study}_runs.csv){link}."
        return "Per-run values of this study were not stored; its intervals are percentile bootstrap intervals."

    def _get_page_path(self, template: Path) -> Path:
        return self._root / README if template.name == README else self._results / template.name

    def _render(self, template: Path) -> str:
        text = self._jinja.get_template(template.name).render()
        if template.name != README:
            return text
        parts, page = iter(_REGION.findall(text)), (self._root / README).read_text()
        if len(_REGION.findall(text)) != len(_REGION.findall(page)):
            raise ValueError(f"{README} and {template} have different numbers of parts <!-- results:start -->")
        return _REGION.sub(lambda _: next(parts), page)

    def _check_passage(self, text: str, key: str) -> str:
        self._used_passages.add(key)
        actual, expected = " ".join(extract_numbers(text)), self._passages.get(key)
        if actual != expected:
            raise ValueError(
                f"passages.csv, {key}: the passage contains the numbers\n  {actual}\nand the entry\n  {expected}"
            )
        return text

    def _find_unused_entries(self) -> list[str]:
        pages = {ALL_PAGES, *(template.stem for template in self.templates)}
        passages = [
            f"passages.csv, {key}: no template has this passage" for key in self._passages.keys() - self._used_passages
        ]
        rows = self.rows("settings", text=True)
        return passages + [
            f"settings.csv: there is no template {row['page']}" for row in rows if row["page"] not in pages
        ]

    def _iterate_unsourced_numbers(self, template: Path) -> Iterator[str]:
        text = template.read_text()
        if template.name == README:
            text = "\n".join(_REGION.findall(text))
        for constant in _CONSTANT.findall(text):
            yield f"{template.name}: a constant expression has no source: {constant}"
        text = unsourced_text = _remove_matches(_EXEMPT, _remove_matches(_EXPRESSION, _remove_matches(_PASSAGE, text)))
        rows = [row for row in self.rows("settings", text=True) if row["page"] in (ALL_PAGES, template.stem)]
        for row in sorted(rows, key=lambda row: -len(row["phrase"])):  # a phrase may be part of a longer phrase
            pattern = re.compile(r"(?<![\w.])" + r"\s+".join(map(re.escape, row["phrase"].split())) + r"(?!\w)")
            if row["page"] != ALL_PAGES and not pattern.search(text):
                yield f"settings.csv: {template.name} has no phrase {row['phrase']!r}"
            unsourced_text = _remove_matches(pattern, unsourced_text)
        for number, line in enumerate(unsourced_text.splitlines(), start=1):
            if literals := _NUMBER.findall(line):
                yield f"{template.name}, line {number}: numbers without a source: {', '.join(literals)}: {line.strip()}"


def extract_numbers(text: str) -> list[str]:
    """Return the numbers of a Markdown text outside code, links, images and headings.

    >>> extract_numbers("- 41.5 [38.0, 44], see [below](a.md#b-2) and `seed=3`, in Walker2d")
    ['41.5', '38.0', '44']
    """
    return [number.rstrip(".,") for number in _NUMBER.findall(_remove_matches(_EXEMPT, text))]


def summarize_values(values: list[float]) -> dict[str, Any]:
    """Return the statistics of `ResultPages.summary` for one value per run."""
    interval_statistics: dict[str, float] = {}
    if len(values) > 1:
        band = mean_interval(np.array(values))
        interval_statistics = {
            name: float(x) for name, x in (("low", band.low), ("high", band.high)) if not np.isnan(x)
        }
        interval_statistics["standard_error"] = stdev(values) / math.sqrt(len(values))
    mean = fmean(values) if values else None
    return {"mean": mean, "standard_error": None, "low": None, "high": None, "runs": len(values)} | interval_statistics


def format_number(value: float, digits: int = 0, thousands: bool = False) -> str:
    """Format a number with a fixed number of decimals, without a sign if it is rounded to zero.

    >>> format_number(-0.04, 1), format_number(27000.0, thousands=True)
    ('0.0', '27,000')
    """
    text = f"{value:{',' if thousands else ''}.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def format_interval(
    row: dict[str, Any], digits: int = 0, column: str = "score", low: str = "low", high: str = "high"
) -> str:
    """Format an estimate and its interval, or only the estimate if the interval is unknown.

    >>> format_interval({"score": 46.31, "low": 41.38, "high": 51.34}, 1)
    '46.3 [41.4, 51.3]'
    """
    estimate = format_number(row[column], digits)
    if row[low] is None:
        return estimate
    return f"{estimate} [{format_number(row[low], digits)}, {format_number(row[high], digits)}]"


def format_mean_error(row: dict[str, Any], digits: int = 0) -> str:
    """Format a mean and its standard error; return a dash if there are no values.

    >>> format_mean_error({"mean": 0.521, "standard_error": 0.016}, 2)
    '0.52 ± 0.02'
    >>> format_mean_error({"mean": None, "standard_error": None})
    '-'
    """
    if row["mean"] is None:
        return "-"
    error = row["standard_error"]
    return format_number(row["mean"], digits) + ("" if error is None else f" ± {format_number(error, digits)}")


def format_signed_difference(row: dict[str, Any], digits: int = 0) -> str:
    """Format the column `difference` with its sign and its interval."""
    return ("+" if row["difference"] > 0 else "") + format_interval(row, digits, "difference")


def negate_comparison(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a comparison with the two groups exchanged."""
    swapped = (("low", "high"), ("high", "low"))
    bounds = {bound: None if row[opposite] is None else -row[opposite] for bound, opposite in swapped}
    return {**row, "difference": -row["difference"], **bounds}


def _remove_matches(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without the matches of a pattern, with the same number of lines."""
    return pattern.sub(lambda match: " " + "\n" * match[0].count("\n") + " ", text)


def _parse_cell(cell: str) -> object:
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell
