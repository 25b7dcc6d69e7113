"""Parts of a section that its page leaves out, because another part shows the same. Files have all parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.report import ESTIMATES, GroupNumbers, Section
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.scores import DEFAULT_CURVES
from llmrl.analysis.story.proposed import shared_parameters
from llmrl.results.table_format import NOTHING, ReportTable

INCUMBENT_CURVES = ("search/best_return",)
"""Metrics whose curves show the same as the figure of proposals without parameter names."""
_TOLERANCE = 0.02
"""Share of the range of a study's scores by which the runs' results may differ and still count as the same numbers."""
_MIN_RUNS_OF_PROFILE = 5
"""Minimum number of runs of a group for a performance profile to show more than the dots of its runs."""


def shown_estimates(section: Section, settings: ReportSettings) -> list[str]:
    """Return the keys of `ESTIMATES` that differ from earlier ones: with three runs, the IQM is the mean.

    The gap to the best group's mean is the difference of two means, so it is shown only if another target was set.
    """
    distinct = distinct_estimates(section.compared, ("mean", "iqm", "median"))
    if section.over_tasks or settings.target is not None:
        distinct.append("gap")
    return [key for key in ESTIMATES if key in distinct]


def distinct_estimates(numbers: Sequence[GroupNumbers], keys: Sequence[str]) -> list[str]:
    """Return those of `keys` whose estimates differ from all earlier ones in at least one group."""
    scored = [group_numbers for group_numbers in numbers if group_numbers.estimates]
    distinct: list[str] = []
    for key in keys:
        if not any(all(_equal(numbers, key, other) for numbers in scored) for other in distinct):
            distinct.append(key)
    return distinct


def redundant_parts(section: Section, has_figures: bool) -> set[str]:
    """Return the kinds of tables and figures of a section that its page leaves out, as in their file names.

    Args:
        section: section of a report.
        has_figures: whether the page has figures.
    """
    kinds: set[str] = set()
    if has_figures:
        kinds.add("improvement_table")  # its figure has the same numbers
    if all(len(numbers.pooled) < _MIN_RUNS_OF_PROFILE for numbers in section.compared):
        kinds.add("profile")
    study = section.study
    if not isinstance(study, GroupComparison):
        return kinds
    if study.settings.metric in INCUMBENT_CURVES and not shared_parameters(section.story.proposals):
        kinds.add("proposals")
    if any(trace.curve is not None for trace in study.traces):
        kinds.add(f"curve_{study.settings.metric}")
        if study.settings.metric is None:
            kinds.update(f"curve_{metric}" for metric in DEFAULT_CURVES)
    # The score of a level is over all of its values, not the last ones.
    levels = {trace.group.label for trace in study.traces if trace.name in study.settings.levels}
    means = {
        n.group.label: float(n.estimates["mean"].estimate) for n in section.compared if n.group.label not in levels
    }
    scores = {t.group.label: float(t.score.estimate) for t in study.traces if t.group.label not in levels}
    tolerance = _TOLERANCE * float(np.ptp(list(scores.values()))) if scores else 0.0
    if means.keys() == scores.keys() and all(np.isclose(means[k], scores[k], rtol=1e-6, atol=tolerance) for k in means):
        kinds.add("scores")
    pairs = {frozenset((comparison.one.name, comparison.other.name)) for comparison in study.comparisons}
    if len(pairs) == len(study.traces) * (len(study.traces) - 1) // 2:  # the table of comparisons has them all
        kinds.update(("improvement", "improvement_table"))
    return kinds


def drop_constant_columns(table: ReportTable) -> ReportTable:
    """Return a table without its task if there is only one, and without models if no model was used."""
    cells_by_column = {column: {row[i] for row in table.rows} for i, column in enumerate(table.columns)}
    constant = {
        column
        for column, cells in cells_by_column.items()
        if column == "task" and len(cells) == 1 and len(table.rows) > 1
    }
    constant |= {
        column for column, cells in cells_by_column.items() if column == "language model" and cells == {NOTHING}
    }
    indices = [i for i, column in enumerate(table.columns) if column not in constant]
    return replace(
        table,
        columns=[table.columns[i] for i in indices],
        rows=[[row[i] for i in indices] for row in table.rows],
        texts=table.texts - len(constant),
    )


def collect_remarks(section: Section) -> list[str]:
    """Return the remarks on a section's groups, each once, for a page without the table of scores."""
    names_by_remark: dict[str, list[str]] = {}
    for numbers in section.numbers:
        for remark in filter(None, numbers.remark.split("; ")):
            names_by_remark.setdefault(remark, []).append(numbers.group.shown)
    sentences = []
    for remark, names in names_by_remark.items():
        scope = f" ({'; '.join(names)})" if len(names) < len(section.numbers) else ""
        sentences.append(f"{remark[:1].upper()}{remark[1:]}{scope}.")
    return sentences


def _equal(numbers: GroupNumbers, key: str, other: str) -> bool:
    first, second = numbers.estimates[key], numbers.estimates[other]
    return bool(np.isclose(first.estimate, second.estimate, rtol=1e-9, atol=1e-12))
