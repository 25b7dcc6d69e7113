"""Time to solution: measurements until a principal's recommendation has most of the value that can be reached.

The level is the objective without a mechanism plus `SHARE` of the distance to the best known value. A run that does not
reach it within its budget is censored there (Kaplan and Meier, 1958, JASA 53).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.results.table_format import ReportTable

SHARE = 0.9
"""Share of the distance from no mechanism to the best known value that counts as the solution."""


@dataclass(frozen=True)
class SolutionTimes:
    """Times to solution of the runs of one group.

    Attributes:
        name: display name of the group.
        times: measurements until the level was reached, [n_runs]; of other runs, all of their measurements.
        reached: whether the level was reached, [n_runs].
        budget: largest number of measurements that was evaluated.
    """

    name: str
    times: np.ndarray
    reached: np.ndarray
    budget: float

    @property
    def median(self) -> float | None:
        """Median of the times; None if less than half of the runs reach the level."""
        return kaplan_meier_median(self.times, self.reached)

    @property
    def text(self) -> str:
        """Median with the number of runs that reach the level; `> n` if there is no median within n measurements."""
        median, n = self.median, len(self.times)
        time = f"> {self.budget:,.0f}" if median is None else f"{median:,.0f}"
        return f"{time} ({self.reached.sum()} of {n} run{'' if n == 1 else 's'})"


def solution_level(no_mechanism: float, best_known: float) -> float:
    """Return the objective above which a recommendation counts as a solution.

    Args:
        no_mechanism: objective without a mechanism.
        best_known: highest known objective, `report.best_known`.

    Raises:
        RunFolderError: `best_known` is not above `no_mechanism`.
    """
    if not best_known > no_mechanism:
        raise RunFolderError(
            f"report.best_known={best_known:g} must be above the objective without a mechanism, {no_mechanism:.4g}"
        )
    return no_mechanism + SHARE * (best_known - no_mechanism)


def solution_times(name: str, places: np.ndarray, values: np.ndarray, level: float) -> SolutionTimes:
    """Return the first numbers of measurements at which the runs of a group reach a level.

    Args:
        name: display name of the group.
        places: numbers of measurements, [n_places], increasing.
        values: objective of the recommendation at these, [n_places, n_runs].
        level: objective to reach.
    """
    is_above = values >= level
    reached = np.asarray(is_above.any(axis=0))
    return SolutionTimes(
        name, np.where(reached, places[is_above.argmax(axis=0)], places[-1]), reached, float(places[-1])
    )


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


def times_table(groups: Sequence[SolutionTimes], level: float, unit: str) -> ReportTable:
    """Return the table of times to solution, shortest first."""
    ordered = sorted(
        groups, key=lambda group: (np.inf if group.median is None else group.median, -group.reached.mean())
    )
    data: list[list[object]] = [["group", "runs", "reached", "median", "measurements", "level"]]
    data += [
        [group.name, len(group.times), int(group.reached.sum()), group.median, group.budget, level] for group in ordered
    ]
    caption = (
        f"Time to solution: measurements until the recommendation reaches {level:.4g} ({unit}), {SHARE:.0%} of the "
        "distance from no mechanism to the best known value"
    )
    note = (
        "Median over runs (Kaplan-Meier) at the numbers of measurements that were evaluated, with the number of runs "
        'that reach the level; "> n": fewer than half of the runs do within n measurements.'
    )
    return ReportTable(
        "study_time_to_solution",
        caption,
        data,
        ["group", "measurements"],
        [[group.name, group.text] for group in ordered],
        notes=[note],
    )
