"""Comparison of the groups of a study over several tasks, as one table and one figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.report import Report
from llmrl.results.study_settings import StudySettings
from llmrl.results.table_format import NumberFormat, ReportTable, interval_cells, with_interval

NAME = "study_tasks"
"""Name of the table and the figure."""


@dataclass(frozen=True)
class TaskComparison:
    """The groups of a study in each of its tasks.

    Attributes:
        settings: settings of the study.
        titles: short titles of the tasks.
        studies: comparison of the groups in each task.
    """

    settings: StudySettings
    titles: tuple[str, ...]
    studies: tuple[GroupComparison, ...]

    @property
    def names(self) -> list[str]:
        """Names of all groups of any task, sorted; those that the others are compared with are last."""
        names = sorted({trace.name for study in self.studies for trace in study.traces})
        return sorted(names, key=lambda name: name in self.settings.baselines)

    def shown(self, name: str) -> str:
        """Return the display name of a group."""
        return next(trace.shown for study in self.studies for trace in study.traces if trace.name == name)

    @property
    def caption(self) -> str:
        """Caption of the figure."""
        runs = sorted({len(trace.scores) for study in self.studies for trace in study.traces})
        counts = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else f"{runs[0]}"
        return (
            f"{self.settings.score_name} in {len(self.titles)} tasks: means over {counts} runs a group with 95% bands; "
            "dashes at the right end are the scores. Groups without a curve are drawn as a level."
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences with the number of tasks in which each group is above or below the compared ones."""
        sentences = []
        for other in self.settings.baselines:
            verdicts: dict[str, Counter[str]] = {}
            for study in self.studies:
                for comparison in study.comparisons:
                    if comparison.other.name == other:
                        verdicts.setdefault(comparison.one.name, Counter())[comparison.verdict] += 1
            if verdicts:
                group_texts = "; ".join(
                    f"{self.shown(name)} above in {counts['above']}, below in {counts['below']}, no difference shown "
                    f"in {counts['unclear']}"
                    + (f", too few runs in {counts['untested']}" if counts["untested"] else "")
                    for name, counts in verdicts.items()
                )
                sentences.append(f"Against {self.shown(other)}, of {len(self.titles)} tasks: {group_texts}.")
        return tuple(sentences)

    @property
    def table(self) -> ReportTable:
        """Table of mean scores with their intervals, a row for each task and a column for each group."""
        data: list[list[object]] = [["task", "group", "runs", "score", "low", "high"]]
        rows = []
        for title, study in zip(self.titles, self.studies, strict=True):
            traces = {trace.name: trace for trace in study.traces}
            form = NumberFormat(np.concatenate([trace.scores for trace in traces.values()]))
            scores = {name: trace.score for name, trace in traces.items()}
            rows.append([title, *(with_interval(scores.get(name), form) for name in self.names)])
            for name, trace in traces.items():
                data.append([title, trace.shown, len(trace.scores), *interval_cells(scores[name])])
        columns = ["task", *(self.shown(name) for name in self.names)]
        return ReportTable(NAME, f"{self.settings.score_name} in each task, with 95% intervals", data, columns, rows)


def compare_tasks(report: Report) -> TaskComparison | None:
    """Return the groups of a report's study over its tasks; None if it is not a study, or has only one task."""
    pairs = [(section, section.study) for section in report.sections if isinstance(section.study, GroupComparison)]
    if len(pairs) < 2:
        return None
    titles = _short([section.title for section, _ in pairs])
    return TaskComparison(pairs[0][1].settings, titles, tuple(study for _, study in pairs))


def _short(titles: Sequence[str]) -> tuple[str, ...]:
    """Return titles without the parts that all of them share, and without keys.

    >>> _short(["rooms, env=two_door", "rooms, env=lava_doorkey"])
    ('two_door', 'lava_doorkey')
    """
    title_parts = [title.split(", ") for title in titles]
    shared = set.intersection(*(set(parts) for parts in title_parts))
    remaining = [[part for part in parts if part not in shared] for parts in title_parts]
    return tuple(
        ", ".join(part.rpartition("=")[2] for part in parts) or title
        for parts, title in zip(remaining, titles, strict=True)
    )
