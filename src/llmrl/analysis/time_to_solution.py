"""Time to solution: measurements until a principal's recommendation has most of the value that can be reached.

The level is the objective without a mechanism plus `SHARE` of the distance to the best known value. A run that does not
reach it within its budget is censored there (Kaplan and Meier, 1958, JASA 53).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmrl.analysis.group_traces import GroupTrace
from llmrl.core.errors import RunFolderError
from llmrl.results.reference_lines import ReferenceLine
from llmrl.results.study_settings import StudySettings
from llmrl.results.table_format import ReportTable

SHARE = 0.9
"""Share of the distance from no mechanism to the best known value that counts as the solution."""


def solution_times(places: np.ndarray, values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the first numbers of measurements at which the runs of a group reach a level.

    Args:
        places: numbers of measurements, [n_places], increasing.
        values: objective of the recommendation at these, [n_places, n_runs].
        level: objective to reach.

    Returns:
        Times, [n_runs], the last of `places` for runs that do not reach the level, and whether they reach it, [n_runs].
    """
    is_above = values >= level
    reached = np.asarray(is_above.any(axis=0))
    return np.where(reached, places[is_above.argmax(axis=0)], places[-1]), reached


def kaplan_meier_median(times: np.ndarray, reached: np.ndarray) -> float | None:
    """Return the time by which half of the runs have reached a level, from right-censored times.

    The result is None if fewer than half of them reach it.

    Args:
        times: time at which a run reached the level or was censored, [n_runs].
        reached: whether it reached the level, [n_runs].
    """
    survival = 1.0
    for time in np.unique(times[reached]):
        survival *= 1 - float((reached & (times == time)).sum()) / float((times >= time).sum())
        if survival <= 0.5 + 1e-12:
            return float(time)
    return None


def solution_table(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], unit: str
) -> ReportTable | None:
    """Return the table of times to solution, shortest first; None if they are not defined.

    They need a best known value, a level without mechanism, and curves of recommendations.

    Raises:
        RunFolderError: `best_known` is not above the objective without a mechanism.
    """
    levels = [line.value for line in references if line.line == "no_mechanism"]
    # If there are several values, they belong to different groups.
    levels = levels if len(levels) == 1 else []
    levels += [float(trace.score.estimate) for name in settings.levels for trace in traces if trace.name == name]
    if settings.best_known is None or not levels or all(trace.anytime is None for trace in traces):
        return None
    if not settings.best_known > levels[0]:
        raise RunFolderError(
            f"report.best_known={settings.best_known:g} must be above the objective without a mechanism, "
            f"{levels[0]:.4g}"
        )
    level = levels[0] + SHARE * (settings.best_known - levels[0])
    lines = []
    for trace in traces:
        if trace.anytime is not None:
            times, reached = solution_times(trace.anytime.places, trace.anytime.values, level)
            median, budget = kaplan_meier_median(times, reached), float(trace.anytime.places[-1])
            lines.append((trace.shown, len(times), int(reached.sum()), median, budget))
    lines.sort(key=lambda line: (math.inf if line[3] is None else line[3], -line[2] / line[1]))
    rows = []
    for name, n_runs, n_reached, median, budget in lines:
        time = f"> {budget:,.0f}" if median is None else f"{median:,.0f}"
        rows.append([name, f"{time} ({n_reached} of {n_runs} run{'' if n_runs == 1 else 's'})"])
    return ReportTable(
        "study_time_to_solution",
        f"Time to solution: measurements until the recommendation reaches {level:.4g} ({unit}), {SHARE:.0%} of the "
        "distance from no mechanism to the best known value",
        [["group", "runs", "reached", "median", "measurements", "level"], *([*line, level] for line in lines)],
        ["group", "measurements"],
        rows,
        notes=[
            "Median over runs (Kaplan-Meier) at the numbers of measurements that were evaluated, with the number of "
            'runs that reach the level; "> n": fewer than half of the runs do within n measurements.'
        ],
    )
