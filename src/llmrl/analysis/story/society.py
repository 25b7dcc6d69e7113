"""How the agents of a task lived: welfare beside the objective, and what they did, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.analysis.groups import Group
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.story.means import UNKNOWN, Estimate, bars, form_of, over_runs, written
from llmrl.analysis.story.records import rows_of
from llmrl.analysis.table_format import ReportTable
from llmrl.core.run_context import Kind

SHARE = 0.2
"""Of a run's rows, from the end, that are averaged."""
MOST_SHOWN = 8
"""Measures of behaviour beside each other; the file has all."""

_OBJECTIVES = {"principal/objective": "objective", "evaluation/objective": "objective"}
_WELFARE = {
    "welfare/minimum": "worst-off",
    "welfare/equality": "equality",
    "welfare/spending": "paid out",
}
"""Beside the objective; the sum is the mean times the players, and the Gini coefficient one less the equality."""
_PLACES: tuple[tuple[Kind, str], ...] = (("proposal", "validation/"), ("evaluation", "evaluation/"))
_OTHERS = frozenset({"return", "base_return", "length", "success", "objective"})
"""What other tables have."""
_PREFERRED = ("apples_eaten", "cells_cleaned", "cleaning_shots", "zaps", "dirt", "apples_live", "apples_per_shot")
_DETAILS = ("entropy", "quarter")


def telling(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return names of behaviours worth a column: known first, without details of others, without what is the same.

    >>> telling([{"return": 1.0, "dirt": 3.0, "apples_eaten": 2.0, "paid_apples": 2.0}])
    ['apples_eaten', 'dirt']
    """
    found = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in found if name not in _OTHERS and not any(part in name for part in _DETAILS)]
    ordered = [name for name in _PREFERRED if name in names] + [name for name in names if name not in _PREFERRED]
    kept: list[str] = []
    seen: set[tuple[float, ...]] = set()
    for name in ordered:
        values = tuple(round(float(row.get(name, np.nan)), 9) for row in rows)
        known = [value for value in values if np.isfinite(value)]
        if values not in seen and known and any(known):
            seen.add(values)
            kept.append(name)
    return kept


def society_table(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> ReportTable | None:
    """Return a line for each group: objective, welfare and behaviour, each the mean over its runs; None where no group
    is of several agents, or nothing was measured.

    Args:
        groups: short name, group and finished runs of each.
    """
    measured = {name: [_tail(run) for run in runs] for name, _, runs in groups}
    if not any(_several(row) for rows in measured.values() for row in rows):
        return None
    runs_of = {name: list(runs) for name, _, runs in groups if any(measured[name])}
    every = dict.fromkeys(key for rows in measured.values() for row in rows for key in row)
    means: dict[str, dict[str, Estimate]] = {
        key: {name: over_runs([row.get(key, np.nan) for row in measured[name]], runs) for name, runs in runs_of.items()}
        for key in every
    }
    objective = [key for key in _OBJECTIVES if key in means][:1]
    if objective:  # the best stands first
        runs_of = dict(sorted(runs_of.items(), key=lambda item: -means[objective[0]][item[0]][0]))
    welfare = [key for key in _WELFARE if key in means and _says(means[key])]
    told = [key for key in means if key.partition("/")[0] in ("validation", "evaluation")]
    plain = [{key.partition("/")[2]: means[key].get(name, UNKNOWN)[0] for key in told} for name in runs_of]
    known = {_column(means[key]) for key in welfare}
    own = {key.partition("/")[2]: key for key in told}
    behaviour = [own[name] for name in telling(plain) if _column(means[own[name]]) not in known][:MOST_SHOWN]
    shown = [*objective, *welfare, *behaviour]
    if not welfare and not behaviour:
        return None
    forms = {key: form_of(list(means[key].values())) for key in shown}
    rows = [[name, *(written(means[key][name], forms[key]) for key in shown)] for name in runs_of]
    sizes = [bars([means[key][name] for name in runs_of]) for key in shown]
    titles = [_OBJECTIVES.get(key) or _WELFARE.get(key) or key.partition("/")[2].replace("_", " ") for key in shown]
    header = ["group", "runs", *(cell for key in every for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, len(runs), *(x for key in every for x in means[key][name])] for name, runs in runs_of.items()
    ]
    return ReportTable(
        "society",
        "Welfare and behaviour: means of an episode",
        [list(header), *data],
        ["group", *titles],
        rows,
        notes=[
            f"The last {SHARE:.0%} of each run's measurements; ± standard error over runs. Worst-off: the return of "
            "the agent that has least. Equality: 1 if all have the same."
        ],
        bars=[[None, *(size[i] for size in sizes)] for i in range(len(rows))],
    )


def _tail(run: RunRecord) -> dict[str, float]:
    """Mean of the last measurements of a run, by metric; empty where it measures nothing of the kind."""
    for kind, prefix in _PLACES:
        rows = rows_of(run.folder, kind)
        last = rows[-max(1, round(SHARE * len(rows))) :] if rows else []
        kept = (prefix, "welfare/")
        names = dict.fromkeys(n for row in last for n in row if n.startswith(kept) or n in _OBJECTIVES)
        if any(name.startswith("welfare/") for name in names):
            return {
                name: float(np.mean(known))
                for name in names
                if (known := [row[name] for row in last if np.isfinite(row.get(name, np.nan))])
            }
    return {}


def _several(row: Mapping[str, float]) -> bool:
    """Whether it is of several agents, whose sum is then not their mean."""
    total, mean = row.get("welfare/sum", 0.0), row.get("welfare/mean", 0.0)
    return abs(total - mean) > 1e-9


def _says(means: Mapping[str, Estimate]) -> bool:
    """Whether it is anything but the same number everywhere."""
    return len(set(_column(means))) > 1 or (len(means) == 1 and any(value for value, _ in means.values()))


def _column(means: Mapping[str, Estimate]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value, _ in means.values())  # games count in single precision
