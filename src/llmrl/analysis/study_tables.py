"""Tables of a study in addition to scores and comparisons: published results, solution times, figure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llmrl.analysis.time_to_solution import SolutionTimes, solution_level, solution_times, times_table
from llmrl.results.principal_scores import MEASUREMENTS
from llmrl.results.reference_lines import ReferenceLine
from llmrl.results.study_settings import StudySettings
from llmrl.results.table_format import ReportTable

if TYPE_CHECKING:
    from llmrl.analysis.group_traces import GroupCurve, GroupTrace


def published_table(settings: StudySettings, unit: str) -> ReportTable:
    """Return the table of published results, which have other agents and budgets than the runs."""
    ordered = sorted(settings.published.items(), key=lambda item: -item[1])
    rows = [[name, f"{value:g}"] for name, value in ordered]
    notes = [settings.source] if settings.source else []
    caption = f"Published results ({unit}), with other agents and budgets"
    data: list[list[object]] = [["group", "published"], *([name, value] for name, value in ordered)]
    return ReportTable("study_published", caption, data, ["group", "published"], rows, notes=notes)


def time_tables(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], unit: str
) -> list[ReportTable]:
    """Return the table of times to solution; empty if they are not defined.

    They need a best known value, a level without mechanism, and curves of recommendations.
    """
    traces_with_curves = [line.value for line in references if line.line == "no_mechanism"]
    # If there are several values, they belong to different groups.
    levels = traces_with_curves if len(traces_with_curves) == 1 else []
    levels += [float(trace.score.estimate) for name in settings.levels for trace in traces if trace.name == name]
    if settings.best_known is None or not levels:
        return []
    level = solution_level(levels[0], settings.best_known)
    times: list[SolutionTimes] = [
        solution_times(trace.shown, trace.anytime.places, trace.anytime.values, level)
        for trace in traces
        if trace.anytime is not None
    ]
    return [times_table(times, level, unit)] if times else []


def curves_table(name: str, curves: Mapping[str, GroupCurve | None], over: str) -> ReportTable:
    """Return a table of curves by display name of their groups, which is written as a file only."""
    data: list[list[object]] = [["group", over, "mean", "low", "high"]]
    for group, curve in curves.items():
        if curve is not None:
            points = zip(curve.places, curve.band.estimate, curve.band.low, curve.band.high, strict=True)
            data += [[group, *point] for point in points]
    return ReportTable(name, "Curves of a figure of the study", data)


def recommendations_table(traces: Sequence[GroupTrace]) -> ReportTable:
    """Return the table of the recommendations of each run, which is written as a file only."""
    data: list[list[object]] = [["group", "run", "seed", MEASUREMENTS, "objective"]]
    for trace in traces:
        if trace.anytime is None:
            continue
        for i, seed in enumerate(trace.seeds):
            points = zip(trace.anytime.places, trace.anytime.values[:, i], strict=True)
            data += [[trace.shown, i, seed, *point] for point in points]
    return ReportTable("study_recommendations", "Recommendations of each run", data)
