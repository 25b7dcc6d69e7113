"""Table of the societies of a task: objective, welfare and behavior metrics of each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.analysis.story.means import UNKNOWN, Estimate, bars, estimate_text, mean_over_runs, number_form
from llmrl.analysis.story.records import read_rows
from llmrl.core.metric_kinds import Kind
from llmrl.results.groups import Group
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import ReportTable

SHARE = 0.2
"""Share of a run's logged rows, from the end, that are averaged."""
MAX_MEASURES_SHOWN = 8
"""Maximum number of behavior metrics in the table; its file has all."""

_OBJECTIVES = {"principal/objective": "objective", "evaluation/objective": "objective"}
_WELFARE = {
    "welfare/minimum": "worst-off",
    "welfare/equality": "equality",
    "welfare/spending": "paid out",
}
"""Welfare measures in addition to the objective; sum and Gini coefficient follow from mean and equality."""
_PLACES: tuple[tuple[Kind, str], ...] = (("proposal", "validation/"), ("evaluation", "evaluation/"))
_SHOWN_ELSEWHERE = frozenset({"return", "base_return", "length", "success", "objective"})
"""Metrics that other tables have."""
_PREFERRED = ("apples_eaten", "cells_cleaned", "cleaning_shots", "zaps", "dirt", "apples_live", "apples_per_shot")
_DETAILS = ("quarter",)


def informative_metrics(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of the behavior metrics that deserve a column, preferred ones first.

    Details of other metrics, constant zeros and repeated columns are left out.

    >>> informative_metrics([{"return": 1.0, "dirt": 3.0, "apples_eaten": 2.0, "paid_apples": 2.0}])
    ['apples_eaten', 'dirt']
    """
    metrics = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in metrics if name not in _SHOWN_ELSEWHERE and not any(part in name for part in _DETAILS)]
    ordered = [name for name in _PREFERRED if name in names] + [name for name in names if name not in _PREFERRED]
    selected: list[str] = []
    value_sets: set[tuple[float, ...]] = set()
    for name in ordered:
        values = tuple(round(float(row.get(name, np.nan)), 9) for row in rows)
        finite_values = [value for value in values if np.isfinite(value)]
        if values not in value_sets and finite_values and any(finite_values):
            value_sets.add(values)
            selected.append(name)
    return selected


def society_table(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> ReportTable | None:
    """Return a table with the objective, welfare and behavior metrics of each group, means over its runs.

    The result is None if no group has several agents, or nothing was measured.

    Args:
        groups: short name, group and finished runs of each.
    """
    measures = {name: [_tail(run) for run in runs] for name, _, runs in groups}
    if not any(_has_several_agents(row) for rows in measures.values() for row in rows):
        return None
    runs_by_name = {name: list(runs) for name, _, runs in groups if any(measures[name])}
    metrics = dict.fromkeys(key for rows in measures.values() for row in rows for key in row)
    means: dict[str, dict[str, Estimate]] = {
        key: {
            name: mean_over_runs([row.get(key, np.nan) for row in measures[name]], runs)
            for name, runs in runs_by_name.items()
        }
        for key in metrics
    }
    objective = [key for key in _OBJECTIVES if key in means][:1]
    if objective:  # best group first
        runs_by_name = dict(sorted(runs_by_name.items(), key=lambda item: -means[objective[0]][item[0]][0]))
    welfare = [key for key in _WELFARE if key in means and _is_informative(means[key])]
    behavior_keys = [key for key in means if key.partition("/")[0] in ("validation", "evaluation")]
    behavior_rows = [
        {key.partition("/")[2]: means[key].get(name, UNKNOWN)[0] for key in behavior_keys} for name in runs_by_name
    ]
    welfare_columns = {_column(means[key]) for key in welfare}
    key_by_name = {key.partition("/")[2]: key for key in behavior_keys}
    behavior = [
        key_by_name[name]
        for name in informative_metrics(behavior_rows)
        if _column(means[key_by_name[name]]) not in welfare_columns
    ][:MAX_MEASURES_SHOWN]
    columns = [*objective, *welfare, *behavior]
    if not welfare and not behavior:
        return None
    forms = {key: number_form(list(means[key].values())) for key in columns}
    rows = [[name, *(estimate_text(means[key][name], forms[key]) for key in columns)] for name in runs_by_name]
    sizes = [bars([means[key][name] for name in runs_by_name]) for key in columns]
    titles = [_OBJECTIVES.get(key) or _WELFARE.get(key) or key.partition("/")[2].replace("_", " ") for key in columns]
    header = ["group", "runs", *(cell for key in metrics for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, len(runs), *(x for key in metrics for x in means[key][name])] for name, runs in runs_by_name.items()
    ]
    return ReportTable(
        "society",
        "Welfare and behavior: means per episode",
        [list(header), *data],
        ["group", *titles],
        rows,
        notes=[
            f"The last {SHARE:.0%} of each run's measurements; ± standard error over runs. Worst-off: the lowest "
            "return of an agent. Equality: 1 if all returns are equal."
        ],
        bars=[[None, *(size[i] for size in sizes)] for i in range(len(rows))],
    )


def _tail(run: RunRecord) -> dict[str, float]:
    """Return the mean of the last measurements of a run, by metric; empty if it has no welfare metrics."""
    for kind, prefix in _PLACES:
        rows = read_rows(run.folder, kind)
        last = rows[-max(1, round(SHARE * len(rows))) :] if rows else []
        prefixes = (prefix, "welfare/")
        names = dict.fromkeys(n for row in last for n in row if n.startswith(prefixes) or n in _OBJECTIVES)
        if any(name.startswith("welfare/") for name in names):
            return {
                name: float(np.mean(values))
                for name in names
                if (values := [row[name] for row in last if np.isfinite(row.get(name, np.nan))])
            }
    return {}


def _has_several_agents(row: Mapping[str, float]) -> bool:
    """Return whether a row is of several agents, whose sum then differs from their mean."""
    total, mean = row.get("welfare/sum", 0.0), row.get("welfare/mean", 0.0)
    return abs(total - mean) > 1e-9


def _is_informative(means: Mapping[str, Estimate]) -> bool:
    """Return whether the means of a metric differ between groups; for one group, whether they are not zero."""
    return len(set(_column(means))) > 1 or (len(means) == 1 and any(value for value, _ in means.values()))


def _column(means: Mapping[str, Estimate]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value, _ in means.values())  # metrics have single precision
