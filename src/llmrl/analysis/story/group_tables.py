"""Tables of welfare, behavior and teachers in the runs of a task, with means over the runs of each group."""

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
"""A mean and its standard error; NaN for an unknown number."""
UNKNOWN_ESTIMATE: Estimate = (float("nan"), float("nan"))


def read_metric_rows(folder: Path, kind: RowKind | None = None) -> list[dict[str, Any]]:
    """Return the rows of a run's `metrics.jsonl`, of one `kind` or of all kinds.

    The list is empty if the file is missing or damaged; tables of scores report damaged files.
    """
    path = folder / FILE_NAME
    try:
        return read_metrics(path, kind) if path.is_file() else []
    except RunFolderError:
        return []


def metrics_file_contains(folder: Path, text: str) -> bool:
    """Return whether the text of a run's `metrics.jsonl` contains `text`; false if the file cannot be read."""
    try:
        return text.encode() in read_bytes(folder / FILE_NAME)
    except OSError:
        return False


def estimate_mean_over_runs(values: Sequence[float], runs: Sequence[RunRecord]) -> Estimate:
    """Return the mean of finite `values` [n_runs] over replication units, with its standard error; NaN without any."""
    finite_pairs = [(value, run) for value, run in zip(values, runs, strict=True) if np.isfinite(value)]
    if not finite_pairs:
        return UNKNOWN_ESTIMATE
    scores = np.array([value for value, _ in finite_pairs])
    units = find_replication_units([run for _, run in finite_pairs])
    return float(average_by_unit(scores, units).mean()), float(standard_error(scores, units))


def choose_number_format(estimates: Sequence[Estimate]) -> NumberFormat:
    """Return the format of the numbers of a column, with no more decimals than their errors justify."""
    values, errors = (column[np.isfinite(column)] for column in np.array(estimates, dtype=float).reshape(-1, 2).T)
    return NumberFormat(values, errors)


def format_mean(estimate: Estimate, fmt: NumberFormat) -> str:
    """Return a mean with its standard error as text, `12.3 ± 0.4`; without the error if it is unknown."""
    value, error = estimate
    if not np.isfinite(value):
        return EMPTY_CELL
    return fmt(value) + (f" ± {fmt(error)}" if np.isfinite(error) else "")


TAIL_FRACTION = 0.2
"""Share of a run's logged rows, counted from the last one, that is averaged."""
MAX_BEHAVIOR_METRICS = 8
"""Maximum number of behavior metrics in the printed table; its file contains all of them."""

_OBJECTIVE_TITLES = {"principal/objective": "objective", "evaluation/objective": "objective"}
_WELFARE_TITLES = {"welfare/minimum": "worst-off", "welfare/equality": "equality", "welfare/spending": "paid out"}
"""Column titles of welfare measures. Sum and Gini coefficient are omitted: they follow from mean and equality."""
_BEHAVIOR_PREFIXES: tuple[tuple[RowKind, str], ...] = (("proposal", "validation/"), ("evaluation", "evaluation/"))
"""Kinds of rows with welfare metrics, with the prefix of their behavior metrics; a run's first kind is used."""
_METRICS_IN_OTHER_TABLES = frozenset({"return", "base_return", "length", "success", "objective"})
_FIRST_METRICS = ("apples_eaten", "cells_cleaned", "cleaning_shots", "zaps", "dirt", "apples_live", "apples_per_shot")
_DETAIL_WORDS = ("quarter",)
"""Words in the names of metrics that describe a part of an episode."""


def select_informative_metrics(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Select from the metrics of groups those that get a column of the table, preferred metrics first.

    Metrics of a part of an episode (`_DETAIL_WORDS`), constant zeros and copies of other columns are omitted.

    >>> select_informative_metrics([{"return": 1.0, "dirt": 3.0, "apples_eaten": 2.0, "paid_apples": 2.0}])
    ['apples_eaten', 'dirt']
    """
    metrics = dict.fromkeys(name for row in rows for name in row)
    names = [x for x in metrics if x not in _METRICS_IN_OTHER_TABLES and not any(word in x for word in _DETAIL_WORDS)]
    ordered = [x for x in _FIRST_METRICS if x in names] + [x for x in names if x not in _FIRST_METRICS]
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

    None if no run has several agents and a row of welfare metrics.
    """
    tail_means = {name: [_average_tail(run) for run in runs] for name, runs in groups}
    if not any(_has_several_agents(row) for rows in tail_means.values() for row in rows):
        return None
    runs_by_name = {name: list(runs) for name, runs in groups if any(tail_means[name])}
    metrics = dict.fromkeys(key for rows in tail_means.values() for row in rows for key in row)
    means: dict[str, dict[str, Estimate]] = {
        key: {
            name: estimate_mean_over_runs([row.get(key, np.nan) for row in tail_means[name]], runs)
            for name, runs in runs_by_name.items()
        }
        for key in metrics
    }
    objective_keys = [key for key in _OBJECTIVE_TITLES if key in means][:1]
    if objective_keys:  # best group first
        runs_by_name = dict(sorted(runs_by_name.items(), key=lambda item: -means[objective_keys[0]][item[0]][0]))
    welfare_keys = [key for key in _WELFARE_TITLES if key in means]
    behavior_keys = [key for key in means if key.partition("/")[0] in ("validation", "evaluation")]
    behavior_rows = [{key.partition("/")[2]: means[key][name][0] for key in behavior_keys} for name in runs_by_name]
    key_by_name = {key.partition("/")[2]: key for key in behavior_keys}
    behavior = [key_by_name[name] for name in select_informative_metrics(behavior_rows)][:MAX_BEHAVIOR_METRICS]
    columns = [*objective_keys, *welfare_keys, *behavior]
    if not welfare_keys and not behavior:
        return None
    formats = {key: choose_number_format(list(means[key].values())) for key in columns}
    rows = [[name, *(format_mean(means[key][name], formats[key]) for key in columns)] for name in runs_by_name]
    fixed_titles = _OBJECTIVE_TITLES | _WELFARE_TITLES
    titles = [fixed_titles.get(key) or key.partition("/")[2].replace("_", " ") for key in columns]
    header = ["group", "runs", *(cell for key in metrics for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, len(runs), *(number for key in metrics for number in means[key][name])]
        for name, runs in runs_by_name.items()
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
    """Return the mean of each metric over the last `TAIL_FRACTION` of a run's rows; empty without welfare metrics."""
    for kind, prefix in _BEHAVIOR_PREFIXES:
        rows = read_metric_rows(run.folder, kind)
        last_rows = rows[-max(1, round(TAIL_FRACTION * len(rows))) :] if rows else []
        keys = dict.fromkeys(key for row in last_rows for key in row)
        names = [key for key in keys if key.startswith((prefix, "welfare/")) or key in _OBJECTIVE_TITLES]
        if any(name.startswith("welfare/") for name in names):
            return {
                name: float(np.mean(values))
                for name in names
                if (values := [row[name] for row in last_rows if np.isfinite(row.get(name, np.nan))])
            }
    return {}


def _has_several_agents(row: Mapping[str, float]) -> bool:
    """Return whether the returns of a row are those of several agents, so that their sum differs from their mean."""
    total, mean = row.get("welfare/sum", 0.0), row.get("welfare/mean", 0.0)
    return abs(total - mean) > 1e-9


PLANS_FILE_NAME = "plans.json"
"""File of a run whose teacher is a language model: share of each plan, by the sentence that describes the state."""
MAX_SENTENCES, _MAX_PLANS = 12, 3
"""Maximum numbers in the printed table of plans: sentences of each group, and plans of each sentence."""
_TEACHER_METRIC_TITLES = {
    "teacher/states": "states",
    "teacher/requested_states": "states asked about",
    "llm/parsed_replies": "replies",
    "llm/invalid_share": "invalid replies",
    "teacher/fallbacks": "fallbacks",
    "teacher/agreement": "agreement of the student",
}
_PERCENT_METRICS = ("llm/invalid_share", "teacher/agreement")


def build_teacher_table(groups: NamedRuns) -> ReportTable | None:
    """Return a table with the requests to each group's teacher and the agreement of its student; None without teachers.

    Groups without a teacher have no row.
    """
    estimates_by_group: dict[str, dict[str, Estimate]] = {}
    run_counts = {name: len(runs) for name, runs in groups}
    for name, runs in groups:
        last_metrics = [_read_last_teacher_metrics(run) for run in runs]
        if any(last_metrics):
            estimates_by_group[name] = {
                key: estimate_mean_over_runs([metrics.get(key, np.nan) for metrics in last_metrics], runs)
                for key in _TEACHER_METRIC_TITLES
            }
    keys = [
        key
        for key in _TEACHER_METRIC_TITLES
        if any(np.isfinite(estimates[key][0]) for estimates in estimates_by_group.values())
    ]
    if not estimates_by_group:
        return None
    rows = [
        [name, str(run_counts[name]), *(_format_teacher_cell(key, estimates[key]) for key in keys)]
        for name, estimates in estimates_by_group.items()
    ]
    header: list[object] = ["group", "runs", *(cell for key in keys for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, run_counts[name], *(number for key in keys for number in estimates[key])]
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
        ["group", "runs", *(_TEACHER_METRIC_TITLES[key] for key in keys)],
        rows,
        1,
        notes=notes,
    )


def build_plans_table(groups: NamedRuns) -> ReportTable | None:
    """Return a table of the teacher's plans for each sentence about the student's state; None if no run has plans."""
    data: list[list[object]] = [["group", "sentence", "plan", "share", "runs"]]
    rows = []
    for name, runs in groups:
        shares_by_sentence, run_counts = _average_plan_shares(runs)
        for sentence_index, (sentence, shares) in enumerate(shares_by_sentence.items()):
            sorted_plans = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
            data += [[name, sentence, plan, share, run_counts[sentence]] for plan, share in sorted_plans]
            if sentence_index < MAX_SENTENCES:
                shown_plans = sorted_plans[:_MAX_PLANS]
                plan_texts = [f"{plan} ({share:.0%})" if share < 0.995 else plan for plan, share in shown_plans]
                n_omitted = len(sorted_plans) - _MAX_PLANS
                rows.append([name, sentence, "; ".join(plan_texts) + (f"; {n_omitted} more" if n_omitted > 0 else "")])
    if not rows:
        return None
    n_omitted_sentences = len({(line[0], line[1]) for line in data[1:]}) - len(rows)
    notes = ["Shares of the teacher's answers, averaged over runs."]
    if n_omitted_sentences:
        notes.append(f"The first {MAX_SENTENCES} of each group; {n_omitted_sentences} more are in the file.")
    return ReportTable(
        "plans", "Plans of the teacher", data, ["group", "the student sees", "plans"], rows, 3, notes=notes
    )


def _read_last_teacher_metrics(run: RunRecord) -> dict[str, float]:
    """Return the last logged value of each of a teacher's metrics, which need not be in the same row."""
    last_values: dict[str, float] = {}
    if not metrics_file_contains(run.folder, '"teacher/'):  # most runs have no teacher, and parsing takes much longer
        return last_values
    for row in read_metric_rows(run.folder):
        last_values |= {key: row[key] for key in _TEACHER_METRIC_TITLES if key in row}
    return last_values if any(key.startswith("teacher/") for key in last_values) else {}


def _average_plan_shares(runs: Sequence[RunRecord]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return the share of each plan by sentence, averaged over the runs with that sentence, and the number of runs."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    run_counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for sentence, shares in _read_plans(run).items():
            run_counts[sentence] += 1
            for plan, share in shares.items():
                sums[sentence][plan] += share
    sentences = sorted(sums, key=lambda sentence: (-run_counts[sentence], sentence))
    return {s: {plan: total / run_counts[s] for plan, total in sums[s].items()} for s in sentences}, run_counts


def _read_plans(run: RunRecord) -> Mapping[str, Mapping[str, float]]:
    try:
        plans = read_json_object(run.folder / PLANS_FILE_NAME).get("plans", {})
        return {str(s): {str(plan): float(share) for plan, share in shares.items()} for s, shares in plans.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def _format_teacher_cell(key: str, estimate: Estimate) -> str:
    value, error = estimate
    if not np.isfinite(value):
        return EMPTY_CELL
    scale, fmt, unit = (100, ".1f", " %") if key in _PERCENT_METRICS else (1, ",.0f", "")
    return f"{scale * value:{fmt}}" + (f" ± {scale * error:{fmt}}" if np.isfinite(error) else "") + unit
