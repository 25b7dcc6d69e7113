"""Tables of the societies and the teachers of a task, with means over the runs of each group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.core.metrics import RowKind
from llmrl.core.plain_data import read_json_object
from llmrl.results.groups import find_replication_units
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import EMPTY_CELL, NumberFormat, ReportTable
from llmrl.run.metrics import FILE_NAME, read_metrics
from llmrl.statistics.estimators import average_by_unit, standard_error

NamedRuns = Sequence[tuple[str, Sequence[RunRecord]]]
"""Name of each group of a task, and its finished runs."""
Estimate = tuple[float, float]
"""A mean and its standard error; NaN if they are unknown."""
UNKNOWN_ESTIMATE: Estimate = (float("nan"), float("nan"))


def read_metric_rows(folder: Path, kind: RowKind | None = None) -> list[dict[str, Any]]:
    """Return a run's rows of metrics, of one `kind` or all; empty if the file is missing or damaged.

    The tables of scores report damaged files.
    """
    path = folder / FILE_NAME
    try:
        return read_metrics(path, kind) if path.is_file() else []
    except RunFolderError:
        return []


def metrics_contain(folder: Path, text: str) -> bool:
    """Return whether a run's file of metrics contains a text."""
    try:
        return text.encode() in read_bytes(folder / FILE_NAME)
    except OSError:
        return False


def mean_over_runs(values: Sequence[float], runs: Sequence[RunRecord]) -> Estimate:
    """Return the mean of `values` [n_runs] over top-level units with its standard error; NaN without finite values."""
    finite = [(value, run) for value, run in zip(values, runs, strict=True) if np.isfinite(value)]
    if not finite:
        return UNKNOWN_ESTIMATE
    scores = np.array([value for value, _ in finite])
    units = find_replication_units([run for _, run in finite])
    return float(average_by_unit(scores, units).mean()), float(standard_error(scores, units))


def choose_number_format(estimates: Sequence[Estimate]) -> NumberFormat:
    """Return the format of the numbers of a column, with no more decimals than their errors justify."""
    numbers = np.array(estimates, dtype=float).reshape(-1, 2)
    values, errors = (column[np.isfinite(column)] for column in numbers.T)
    return NumberFormat(values, errors)


def format_mean(estimate: Estimate, fmt: NumberFormat) -> str:
    """Return a mean with its standard error as text, `12.3 ± 0.4`; without the error if it is unknown."""
    value, error = estimate
    if not np.isfinite(value):
        return EMPTY_CELL
    return fmt(value) + (f" ± {fmt(error)}" if np.isfinite(error) else "")


TAIL_FRACTION = 0.2
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
_METRIC_PREFIXES: tuple[tuple[RowKind, str], ...] = (("proposal", "validation/"), ("evaluation", "evaluation/"))
_SHOWN_ELSEWHERE = frozenset({"return", "base_return", "length", "success", "objective"})
"""Metrics that other tables have."""
_PREFERRED = ("apples_eaten", "cells_cleaned", "cleaning_shots", "zaps", "dirt", "apples_live", "apples_per_shot")
_DETAIL_WORDS = ("quarter",)


def select_informative_metrics(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of the behavior metrics that deserve a column, preferred ones first.

    Details of other metrics, constant zeros and repeated columns are left out.

    >>> select_informative_metrics([{"return": 1.0, "dirt": 3.0, "apples_eaten": 2.0, "paid_apples": 2.0}])
    ['apples_eaten', 'dirt']
    """
    metrics = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in metrics if name not in _SHOWN_ELSEWHERE and not any(x in name for x in _DETAIL_WORDS)]
    ordered = [name for name in _PREFERRED if name in names] + [name for name in names if name not in _PREFERRED]
    selected: list[str] = []
    seen_values: set[tuple[float, ...]] = set()
    for name in ordered:
        values = tuple(round(float(row.get(name, np.nan)), 9) for row in rows)
        finite_values = [value for value in values if np.isfinite(value)]
        if values not in seen_values and finite_values and any(finite_values):
            seen_values.add(values)
            selected.append(name)
    return selected


def build_society_table(groups: NamedRuns) -> ReportTable | None:
    """Return a table with the objective, welfare and behavior metrics of each group, means over its runs.

    The result is None if no group has several agents, or nothing was measured.
    """
    measures = {name: [_average_tail(run) for run in runs] for name, runs in groups}
    if not any(_has_several_agents(row) for rows in measures.values() for row in rows):
        return None
    runs_by_name = {name: list(runs) for name, runs in groups if any(measures[name])}
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
    welfare = [key for key in _WELFARE if key in means]
    behavior_keys = [key for key in means if key.partition("/")[0] in ("validation", "evaluation")]
    behavior_rows = [{key.partition("/")[2]: means[key][name][0] for key in behavior_keys} for name in runs_by_name]
    key_by_name = {key.partition("/")[2]: key for key in behavior_keys}
    behavior = [key_by_name[name] for name in select_informative_metrics(behavior_rows)][:MAX_MEASURES_SHOWN]
    columns = [*objective, *welfare, *behavior]
    if not welfare and not behavior:
        return None
    formats = {key: choose_number_format(list(means[key].values())) for key in columns}
    rows = [[name, *(format_mean(means[key][name], formats[key]) for key in columns)] for name in runs_by_name]
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
            f"The last {TAIL_FRACTION:.0%} of each run's measurements; ± standard error over runs. Worst-off: the "
            "lowest return of an agent. Equality: 1 if all returns are equal."
        ],
    )


def _average_tail(run: RunRecord) -> dict[str, float]:
    """Return the mean of the last measurements of a run, by metric; empty if it has no welfare metrics."""
    for kind, prefix in _METRIC_PREFIXES:
        rows = read_metric_rows(run.folder, kind)
        last = rows[-max(1, round(TAIL_FRACTION * len(rows))) :] if rows else []
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


PLANS_NAME = "plans.json"
"""File of a run whose teacher is a language model: its plans by sentence, with their shares."""
MAX_SENTENCES = 12
_MAX_PLANS = 3
_TEACHER_METRICS = {
    "teacher/states": "states",
    "teacher/requested_states": "states asked about",
    "llm/parsed_replies": "replies",
    "llm/invalid_share": "invalid replies",
    "teacher/fallbacks": "fallbacks",
    "teacher/agreement": "agreement of the student",
}
_IN_PERCENT = ("llm/invalid_share", "teacher/agreement")


def build_teacher_table(groups: NamedRuns) -> ReportTable | None:
    """Return a table with the requests to each group's teacher and the agreement of its student.

    The result is None without teachers.
    """
    estimates_by_group: dict[str, dict[str, Estimate]] = {}
    counts = {name: len(runs) for name, runs in groups}
    for name, runs in groups:
        last = [_last_teacher_metrics(run) for run in runs]
        if any(last):
            estimates_by_group[name] = {
                key: mean_over_runs([row.get(key, np.nan) for row in last], runs) for key in _TEACHER_METRICS
            }
    keys = [
        key
        for key in _TEACHER_METRICS
        if any(np.isfinite(estimates[key][0]) for estimates in estimates_by_group.values())
    ]
    if not estimates_by_group:
        return None
    rows = [
        [name, str(counts[name]), *(_teacher_cell(key, estimates[key]) for key in keys)]
        for name, estimates in estimates_by_group.items()
    ]
    header: list[object] = ["group", "runs", *(cell for key in keys for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, counts[name], *(x for key in keys for x in estimates[key])]
        for name, estimates in estimates_by_group.items()
    ]
    notes = ["Means over runs, ± standard error, at the end of training."]
    if "teacher/agreement" in keys:
        notes.append(
            "Agreement: share of states in which the student's most probable action is the teacher's, when the teacher "
            "last taught."
        )
    return ReportTable(
        "teacher",
        "Teachers",
        [header, *data],
        ["group", "runs", *(_TEACHER_METRICS[key] for key in keys)],
        rows,
        1,
        notes=notes,
    )


def build_plans_table(groups: NamedRuns) -> ReportTable | None:
    """Return a table of the plans of language models by the student's situation, shares averaged over runs.

    The result is None if no run has plans.
    """
    data: list[list[object]] = [["group", "sentence", "plan", "share", "runs"]]
    rows = []
    for name, runs in groups:
        plans, run_counts = _mean_plan_shares(runs)
        for sentence_index, (sentence, shared) in enumerate(plans.items()):
            ordered = sorted(shared.items(), key=lambda item: (-item[1], item[0]))
            data += [[name, sentence, plan, share, run_counts[sentence]] for plan, share in ordered]
            if sentence_index < MAX_SENTENCES:
                plan_texts = [
                    f"{plan} ({share:.0%})" if share < 0.995 else plan for plan, share in ordered[:_MAX_PLANS]
                ]
                n_omitted = len(ordered) - _MAX_PLANS
                rows.append([name, sentence, "; ".join(plan_texts) + (f"; {n_omitted} more" if n_omitted > 0 else "")])
    if not rows:
        return None
    n_omitted_sentences = len({(line[0], line[1]) for line in data[1:]}) - len(rows)
    notes = ["Shares of its answers, averaged over runs."]
    if n_omitted_sentences:
        notes.append(f"The first {MAX_SENTENCES} of each group; {n_omitted_sentences} more are in the file.")
    return ReportTable(
        "plans", "Plans of the teacher", data, ["group", "the student sees", "plans"], rows, 3, notes=notes
    )


def _last_teacher_metrics(run: RunRecord) -> dict[str, float]:
    """Return the newest value of each of a teacher's metrics; agreement was last logged while the teacher taught."""
    newest: dict[str, float] = {}
    if not metrics_contain(run.folder, '"teacher/'):  # most runs have no teacher, and parsing takes much longer
        return newest
    for row in read_metric_rows(run.folder):
        newest |= {key: row[key] for key in _TEACHER_METRICS if key in row}
    return newest if any(key.startswith("teacher/") for key in newest) else {}


def _mean_plan_shares(runs: Sequence[RunRecord]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return plans by sentence, and the number of runs with each sentence.

    The share of a plan is the mean over the runs that have the sentence.
    """
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    run_counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for sentence, shared in _read_plans(run).items():
            run_counts[sentence] += 1
            for plan, share in shared.items():
                sums[sentence][plan] += share
    sentences = sorted(sums, key=lambda sentence: (-run_counts[sentence], sentence))
    return {s: {plan: total / run_counts[s] for plan, total in sums[s].items()} for s in sentences}, run_counts


def _read_plans(run: RunRecord) -> Mapping[str, Mapping[str, float]]:
    try:
        plans = read_json_object(run.folder / PLANS_NAME).get("plans", {})
        return {str(s): {str(plan): float(p) for plan, p in shares.items()} for s, shares in plans.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def _teacher_cell(key: str, estimate: Estimate) -> str:
    value, error = estimate
    if not np.isfinite(value):
        return EMPTY_CELL
    scale, fmt, unit = (100, ".1f", " %") if key in _IN_PERCENT else (1, ",.0f", "")
    return f"{scale * value:{fmt}}" + (f" ± {scale * error:{fmt}}" if np.isfinite(error) else "") + unit
