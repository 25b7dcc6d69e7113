"""Result pages, rendered from the templates in `docs/results/templates` (Jinja) and the files in `docs/results/data`.

A template has no measured numbers. These are expressions over CSV files, or stand in one of two lists:

* `measurements.csv`: a quantity that no run record gives, such as a duration:
  `{{ measurement("harvest_figure.cpu") }}`.
* `passages.csv`: the numbers of a passage whose per-run values were not stored. The passage stays in the template,
  inside `{% filter passage("key") %}...{% endfilter %}`.

All other numbers of a template have to be part of a phrase in `settings.csv`, which names the option or publication
that the number is from. Numbers in code, links, images, headings and names (`Walker2d`) need no source.
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

from llmrl.statistics.intervals import mean_interval

README = "README.md"
ALL_PAGES = "*"
"""Page of the phrases in `settings.csv` that all templates may contain."""
_REGION = re.compile(r"(?<=<!-- results:start -->\n).*?(?=<!-- results:end -->)", re.DOTALL)
_FREE = re.compile(
    r"\A---\n.*?\n---\n|^```.*?^```|^#[^\n]*|<!--.*?-->|<[a-z/][^>]*>|`[^`\n]*`|!\[[^\]]*\]\([^)]*\)|\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.-])[-+\u2212]?\.?\d[\d.,]*(?:[-\u2013]\d[\d.,]*)*")
_PASSAGE = re.compile(r"\{%\+? filter passage\(.*?\{% endfilter %\}", re.DOTALL)
_CONSTANT = re.compile(r"\{\{\s*[-\"']?\d[^}]*\}\}")
_EXPRESSION = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


class ResultPages:
    """The result pages and the parts of the README between `<!-- results:start -->` and `<!-- results:end -->`.

    Args:
        root: root of the repository.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._results = root / "docs" / "results"
        self._templates = self._results / "templates"
        self._tables: dict[tuple[str, bool], list[dict[str, Any]]] = {}
        self._passages = {row["key"]: row["numbers"] for row in self.rows("passages", text=True)}
        self._cited: set[str] = set()
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
            measurement=self.measurement,
            run_values=self.run_values,
        )
        self._jinja.filters.update(
            number=number,
            interval=interval,
            signed=signed,
            negated=negated,
            mean_error=mean_error,
            passage=self._check_passage,
        )

    @cached_property
    def templates(self) -> list[Path]:
        """Paths of the templates of pages; `.j2` files have macros for these."""
        return sorted(self._templates.glob("*.md"))

    def write(self) -> None:
        """Write all pages, and the parts of the README."""
        for template in self.templates:
            self._page(template).write_text(self._rendered(template))

    def problems(self) -> list[str]:
        """Return a message for each page that differs from its template, and each number without a source."""
        found = []
        for template in self.templates:
            page = self._page(template)
            try:
                rendered = self._rendered(template)
            except (ValueError, TemplateError) as error:
                found.append(f"{template}: {error}")
                continue
            stored = page.read_text() if page.exists() else ""
            names = str(page), f"rendered from {template}"
            lines = list(difflib.unified_diff(stored.splitlines(), rendered.splitlines(), *names, lineterm="", n=0))
            found += ["\n".join(lines)] if lines else []
            found += self._numbers_without_source(template)
        return found or self._unused_entries()

    def rows(self, name: str, *, text: bool = False, **where: Any) -> list[dict[str, Any]]:
        """Return the rows of a CSV file in `docs/results/data` by column name.

        Args:
            name: file name without `.csv`.
            text: return all cells as text; False: numbers as floats, and empty cells as None.
            where: values of columns; other rows are left out.
        """
        if (name, text) not in self._tables:
            cells: list[dict[str, Any]] = [*read_rows(self._results / "data" / f"{name}.csv")]
            if not text:
                cells = [{column: _value(cell) for column, cell in row.items()} for row in cells]
            self._tables[name, text] = cells
        found = self._tables[name, text]
        return [row for row in found if all(row[column] == value for column, value in where.items())]

    def row(self, name: str, **where: Any) -> dict[str, Any]:
        """Return the only row of a CSV file with these values.

        Raises:
            ValueError: no row, or several rows, have them.
        """
        found = self.rows(name, **where)
        if len(found) != 1:
            raise ValueError(f"{name}.csv has {len(found)} rows with {where}; expected 1")
        return found[0]

    def summary(self, name: str, column: str, minus: str | None = None, **where: Any) -> dict[str, Any]:
        """Return mean, standard_error, low, high (None with too few runs) and runs of a column of a CSV file with runs.

        `low` and `high` are the ends of the 95 % t-interval.

        Args:
            name: file name without `.csv`.
            column: column of the values; empty cells are left out.
            minus: column that is subtracted in each row.
            where: values of other columns; rows with other values are left out.
        """
        columns = [column] if minus is None else [column, minus]
        rows = [row for row in self.rows(name, **where) if all(row[each] is not None for each in columns)]
        values = [row[column] - (row[minus] if minus else 0.0) for row in rows]
        ends: dict[str, float] = {}
        if len(values) > 1:
            band = mean_interval(np.array(values))
            ends = {name: float(x) for name, x in (("low", band.low), ("high", band.high)) if not np.isnan(x)}
            ends["standard_error"] = stdev(values) / math.sqrt(len(values))
        mean = fmean(values) if values else None
        return {"mean": mean, "standard_error": None, "low": None, "high": None, "runs": len(values)} | ends

    def score(self, study: str, group: str, **where: Any) -> dict[str, Any]:
        """Return the row of a group in `<study>_scores.csv`."""
        return self.row(f"{study}_scores", group=group, **where)

    def comparison(self, study: str, group: str, against: str, **where: Any) -> dict[str, Any]:
        """Return the row of two groups in `<study>_comparisons.csv`."""
        return self.row(f"{study}_comparisons", group=group, against=against, **where)

    def measurement(self, key: str) -> str:
        """Return a value of `measurements.csv` with its unit.

        Raises:
            ValueError: there is no entry, or there are several.
        """
        found = self.rows("measurements", text=True, key=key)
        if len(found) != 1:
            raise ValueError(f"measurements.csv has {len(found)} entries {key!r}; expected 1")
        return f"{found[0]['value']} {found[0]['unit']}".strip()

    def run_values(self, study: str) -> str:
        """Return a sentence on the per-run values of a study: a link, or that they were not stored."""
        if (self._results / "data" / f"{study}_runs.csv").exists():
            curves = self._results / "data" / f"{study}_run_curves.csv"
            link = f", [curves](data/{curves.name})" if curves.exists() else ""
            return f"Per-run values: [runs](data/{study}_runs.csv){link}."
        return "Per-run values of this study were not stored; its intervals are percentile bootstrap intervals."

    def _page(self, template: Path) -> Path:
        return self._root / README if template.name == README else self._results / template.name

    def _rendered(self, template: Path) -> str:
        text = self._jinja.get_template(template.name).render()
        if template.name != README:
            return text
        parts, page = iter(_REGION.findall(text)), (self._root / README).read_text()
        if len(_REGION.findall(text)) != len(_REGION.findall(page)):
            raise ValueError(f"{README} and {template} have different numbers of parts <!-- results:start -->")
        return _REGION.sub(lambda _: next(parts), page)

    def _check_passage(self, text: str, key: str) -> str:
        self._cited.add(key)
        found, expected = " ".join(numbers_in(text)), self._passages.get(key)
        if found != expected:
            raise ValueError(
                f"passages.csv, {key}: the passage has the numbers\n  {found}\nand the entry\n  {expected}"
            )
        return text

    def _unused_entries(self) -> list[str]:
        pages = {ALL_PAGES, *(template.stem for template in self.templates)}
        passages = [f"passages.csv, {key}: no template has this passage" for key in self._passages.keys() - self._cited]
        rows = self.rows("settings", text=True)
        return passages + [
            f"settings.csv: there is no template {row['page']}" for row in rows if row["page"] not in pages
        ]

    def _numbers_without_source(self, template: Path) -> Iterator[str]:
        text = template.read_text()
        if template.name == README:
            text = "\n".join(_REGION.findall(text))
        for constant in _CONSTANT.findall(text):
            yield f"{template.name}: an expression that is a number has no source: {constant}"
        text = rest = _without(_FREE, _without(_EXPRESSION, _without(_PASSAGE, text)))
        rows = [row for row in self.rows("settings", text=True) if row["page"] in (ALL_PAGES, template.stem)]
        for row in sorted(rows, key=lambda row: -len(row["phrase"])):  # a phrase may be a part of a longer one
            pattern = re.compile(r"(?<![\w.])" + r"\s+".join(map(re.escape, row["phrase"].split())) + r"(?!\w)")
            if row["page"] != ALL_PAGES and not pattern.search(text):
                yield f"settings.csv: {template.name} has no phrase {row['phrase']!r}"
            rest = _without(pattern, rest)
        for number, line in enumerate(rest.splitlines(), start=1):
            if literals := _NUMBER.findall(line):
                yield f"{template.name}, line {number}: numbers without a source: {', '.join(literals)}: {line.strip()}"


def numbers_in(text: str) -> list[str]:
    """Return the numbers of a Markdown text outside code, links, images and headings.

    >>> numbers_in("- 41.5 [38.0, 44], see [below](a.md#b-2) and `seed=3`, in Walker2d")
    ['41.5', '38.0', '44']
    """
    return [each.rstrip(".,") for each in _NUMBER.findall(_without(_FREE, text))]


def number(value: float, digits: int = 0, thousands: bool = False) -> str:
    """Return a number with a fixed number of decimals, and no sign if it is rounded to zero.

    >>> number(-0.04, 1), number(27000.0, thousands=True)
    ('0.0', '27,000')
    """
    text = f"{value:{',' if thousands else ''}.{digits}f}"
    return text.lstrip("-") if not text.strip("-0.") else text


def interval(row: dict[str, Any], digits: int = 0, column: str = "score", low: str = "low", high: str = "high") -> str:
    """Return an estimate and its interval; the estimate alone if the interval is unknown.

    >>> interval({"score": 46.31, "low": 41.38, "high": 51.34}, 1)
    '46.3 [41.4, 51.3]'
    """
    estimate = number(row[column], digits)
    return estimate if row[low] is None else f"{estimate} [{number(row[low], digits)}, {number(row[high], digits)}]"


def mean_error(row: dict[str, Any], digits: int = 0) -> str:
    """Return a mean and its standard error; a dash without values.

    >>> mean_error({"mean": 0.521, "standard_error": 0.016}, 2), mean_error({"mean": None, "standard_error": None})
    ('0.52 ± 0.02', '-')
    """
    if row["mean"] is None:
        return "-"
    error = row["standard_error"]
    return number(row["mean"], digits) + ("" if error is None else f" ± {number(error, digits)}")


def signed(row: dict[str, Any], digits: int = 0) -> str:
    """Return the column `difference` with its sign and its interval."""
    return ("+" if row["difference"] > 0 else "") + interval(row, digits, "difference")


def negated(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a comparison with the two groups exchanged."""
    bounds = {end: None if row[other] is None else -row[other] for end, other in (("low", "high"), ("high", "low"))}
    return {**row, "difference": -row["difference"], **bounds}


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without the matches of a pattern, with the same number of lines."""
    return pattern.sub(lambda found: " " + "\n" * found[0].count("\n") + " ", text)


def _value(cell: str) -> object:
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell
