"""What a page leaves out because something else on it says the same: nothing is told twice. Files have all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmrl.analysis.group_comparison import GroupsCompared
from llmrl.analysis.report import ESTIMATES, GroupNumbers, Section
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.scores import DEFAULT_CURVES
from llmrl.analysis.story.proposed import parameters_of
from llmrl.analysis.table_format import NOTHING, ReportTable

BEST_SO_FAR = ("search/best_return",)
"""Metrics whose curves say what the figure of proposals without names would."""
_NEAR = 0.02
"""Share of the range of a study's scores by which the runs' results may differ and are still the same to a reader: a
last fifth of other rows."""
_PROFILED = 5
"""Runs of a group from which on a performance profile says more than the dots of its runs do."""


def estimates_shown(section: Section, settings: ReportSettings) -> list[str]:
    """Return which of `ESTIMATES` differ from those before them: with three runs the IQM is the mean.

    The gap to the best group's mean is the difference of two means, and shown where another target was asked for.
    """
    kept = differing(section.compared, ("mean", "iqm", "median"))
    if section.over_tasks or settings.target is not None:
        kept.append("gap")
    return [key for key in ESTIMATES if key in kept]


def differing(numbers: Sequence[GroupNumbers], keys: Sequence[str]) -> list[str]:
    """Return those of `keys` whose estimates are not those of an earlier one in all groups."""
    known = [each for each in numbers if each.estimates]
    kept: list[str] = []
    for key in keys:
        if not any(all(_equal(each, key, other) for each in known) for other in kept):
            kept.append(key)
    return kept


def left_out(section: Section, drawn: bool) -> set[str]:
    """Return the kinds of tables and figures of a section that its page leaves out, as their names end.

    Args:
        section: of a report.
        drawn: whether the page has figures.
    """
    kinds: set[str] = set()
    if drawn:
        kinds.add("improvement_table")  # its figure has the same numbers
    if all(len(numbers.pooled) < _PROFILED for numbers in section.compared):
        kinds.add("profile")
    study = section.study
    if not isinstance(study, GroupsCompared):
        return kinds
    if study.settings.metric in BEST_SO_FAR and not parameters_of(section.story.proposals):
        kinds.add("proposals")
    if any(trace.curve is not None for trace in study.traces):
        kinds.add(f"curve_{study.settings.metric}")
        if study.settings.metric is None:
            kinds.update(f"curve_{metric}" for metric in DEFAULT_CURVES)
    # Of a level all of its values are measured, not the last ones.
    levels = {trace.group.label for trace in study.traces if trace.name in study.settings.lines}
    means = {
        n.group.label: float(n.estimates["mean"].estimate) for n in section.compared if n.group.label not in levels
    }
    scores = {t.group.label: float(t.score.estimate) for t in study.traces if t.group.label not in levels}
    near = _NEAR * float(np.ptp(list(scores.values()))) if scores else 0.0
    if means.keys() == scores.keys() and all(np.isclose(means[k], scores[k], rtol=1e-6, atol=near) for k in means):
        kinds.add("scores")
    pairs = {frozenset((each.one.name, each.other.name)) for each in study.comparisons}
    if len(pairs) == len(study.traces) * (len(study.traces) - 1) // 2:  # the table of comparisons has them all
        kinds.update(("improvement", "improvement_table"))
    return kinds


def narrowed(table: ReportTable) -> ReportTable:
    """Return a table of all tasks without its task where there is one, and without models where nobody asked any."""
    told = {column: {row[i] for row in table.rows} for i, column in enumerate(table.columns)}
    gone = {column for column, cells in told.items() if column == "task" and len(cells) == 1 and len(table.rows) > 1}
    gone |= {column for column, cells in told.items() if column == "language model" and cells == {NOTHING}}
    kept = [i for i, column in enumerate(table.columns) if column not in gone]
    return replace(
        table,
        columns=[table.columns[i] for i in kept],
        rows=[[row[i] for i in kept] for row in table.rows],
        texts=table.texts - len(gone),
    )


def remarks_of(section: Section) -> list[str]:
    """Return the remarks on a section's groups, each once, for a page without its table of scores."""
    whose: dict[str, list[str]] = {}
    for numbers in section.numbers:
        for remark in filter(None, numbers.remark.split("; ")):
            whose.setdefault(remark, []).append(numbers.group.shown)
    said = []
    for remark, names in whose.items():
        some = f" ({'; '.join(names)})" if len(names) < len(section.numbers) else ""
        said.append(f"{remark[:1].upper()}{remark[1:]}{some}.")
    return said


def _equal(numbers: GroupNumbers, key: str, other: str) -> bool:
    one, two = numbers.estimates[key], numbers.estimates[other]
    return bool(
        np.allclose(
            [one.estimate, one.low, one.high], [two.estimate, two.low, two.high], rtol=1e-9, atol=1e-12, equal_nan=True
        )
    )
