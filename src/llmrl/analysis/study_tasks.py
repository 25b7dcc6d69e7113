"""One table and one figure for a study of several tasks, with its groups side by side in each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.group_comparison import GroupsCompared
from llmrl.analysis.group_traces import GroupTrace
from llmrl.analysis.report import Report
from llmrl.analysis.study_settings import StudySettings
from llmrl.analysis.table_format import NOTHING, NumberFormat, ReportTable, with_interval

NAME = "study_tasks"
"""Name of the table and the figure."""


@dataclass(frozen=True)
class TasksCompared:
    """The groups of a study in each of its tasks.

    Attributes:
        settings: settings of the study.
        titles: short titles of the tasks.
        studies: comparison of the groups in each task.
    """

    settings: StudySettings
    titles: tuple[str, ...]
    studies: tuple[GroupsCompared, ...]

    @property
    def names(self) -> list[str]:
        """Names of all groups of any task, sorted, with those that the others are compared with last."""
        every = sorted({trace.name for study in self.studies for trace in study.traces})
        return sorted(every, key=lambda name: name in self.settings.against)

    def shown(self, name: str) -> str:
        """Return the name of a group as tables and figures show it."""
        return next(trace.shown for study in self.studies for trace in study.traces if trace.name == name)

    @property
    def caption(self) -> str:
        """Caption of the figure."""
        unit = self.settings.unit or self.settings.metric or "result"
        runs = sorted({len(trace.scores) for study in self.studies for trace in study.traces})
        counts = f"{runs[0]} to {runs[-1]}" if len(runs) > 1 else f"{runs[0]}"
        return (
            f"{unit} in {len(self.titles)} tasks: means over {counts} runs a group with 95% bands; dashes at the right "
            "end are the scores. What has no curve is drawn as a level."
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences on the number of tasks in which each group is above or below those it is compared with."""
        told = []
        for other in self.settings.against:
            verdicts: dict[str, Counter[str]] = {}
            for study in self.studies:
                for each in study.comparisons:
                    if each.other.name == other:
                        verdicts.setdefault(each.one.name, Counter())[each.verdict] += 1
            if verdicts:
                each_said = "; ".join(
                    f"{self.shown(name)} above in {found['above']}, below in {found['below']}, no difference shown in "
                    f"{found['unclear']}" + (f", too few runs in {found['untested']}" if found["untested"] else "")
                    for name, found in verdicts.items()
                )
                told.append(f"Against {self.shown(other)}, of {len(self.titles)} tasks: {each_said}.")
        return tuple(told)

    @property
    def table(self) -> ReportTable:
        """Table of mean scores with their intervals, a row for each task and a column for each group."""
        data: list[list[object]] = [["task", "group", "runs", "score", "low", "high"]]
        rows = []
        for title, study in zip(self.titles, self.studies, strict=True):
            own = {trace.name: trace for trace in study.traces}
            form = NumberFormat(np.concatenate([trace.scores for trace in own.values()]))
            rows.append([title, *(_cell(own.get(name), form) for name in self.names)])
            for trace in own.values():
                numbers = [float(x) for x in (trace.score.estimate, trace.score.low, trace.score.high)]
                data.append([title, trace.shown, len(trace.scores), *numbers])
        columns = ["task", *(self.shown(name) for name in self.names)]
        unit = self.settings.unit or self.settings.metric or "result"
        return ReportTable(NAME, f"{unit} in each task, with 95% intervals", data, columns, rows)


def tasks_compared(report: Report) -> TasksCompared | None:
    """Return the groups of a report's study over its tasks; None if it is not a study, or has only one task."""
    found = [(section, section.study) for section in report.sections if isinstance(section.study, GroupsCompared)]
    if len(found) < 2:
        return None
    titles = _short([section.title for section, _ in found])
    return TasksCompared(found[0][1].settings, titles, tuple(study for _, study in found))


def _short(titles: Sequence[str]) -> tuple[str, ...]:
    """Return titles without the parts that all of them share, and without keys.

    >>> _short(["rooms, env=two_door", "rooms, env=lava_doorkey"])
    ('two_door', 'lava_doorkey')
    """
    parts = [title.split(", ") for title in titles]
    everywhere = set.intersection(*(set(each) for each in parts))
    own = [[part for part in each if part not in everywhere] for each in parts]
    return tuple(
        ", ".join(part.rpartition("=")[2] for part in each) or title for each, title in zip(own, titles, strict=True)
    )


def _cell(trace: GroupTrace | None, form: NumberFormat) -> str:
    if trace is None:
        return NOTHING
    return with_interval(float(trace.score.estimate), float(trace.score.low), float(trace.score.high), form)
