"""Tables of a report, comparison of the groups of a study over several tasks, and differences between configs."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.final_episodes import build_players_table
from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.llm_calls import CallTotals
from llmrl.analysis.report import ESTIMATES, Report, ReportSettings, Section, select_best_groups
from llmrl.results.groups import ReportTask
from llmrl.results.principal_scores import (
    OBJECTIVE_METRIC,
    ONLINE_PERFORMANCE,
    RECOMMENDATION,
    explain_scores,
    read_principal_scores,
)
from llmrl.results.study_settings import StudyResult, StudySettings
from llmrl.results.table_format import (
    EMPTY_CELL,
    NumberFormat,
    ReportTable,
    format_estimate,
    format_seeds,
    interval_to_cells,
)
from llmrl.run.artifacts import read_config
from llmrl.run.config_hash import is_excluded
from llmrl.run.sink import flatten_config


def build_tables(report: Report) -> list[ReportTable]:
    """Return all tables of a report in reading order; names of a section's tables begin with its slug."""
    tables = [build_excluded_runs_table(report)] if report.excluded else []
    tables += [build_players_table(report.players)] if report.players else []
    comparison = compare_tasks(report)
    tables += comparison.tables if comparison is not None else []
    for section, slug in zip(report.sections, build_slugs(report), strict=True):
        section_tables = list(section.study.tables) if section.study is not None else []
        section_tables += [*section.story.tables, build_scores_table(section, report.settings)]
        section_tables.append(_build_improvement_table(section))
        section_tables += [build_efficiency_table(section)] if section.efficiency else []
        section_tables += _build_curve_tables(section)
        tables += [replace(table, name=f"{slug}_{table.name}") for table in section_tables]
    return [*tables, *([_build_llm_calls_table(report)] if report.calls else []), _build_runs_table(report)]


def build_slugs(report: Report) -> list[str]:
    """Return a unique text for each section of a report, from its title, with which its file names begin."""
    slugs: list[str] = []
    for slug in (to_slug(section.title) for section in report.sections):
        while slug in slugs:
            slug = f"{slug}_{len(slugs)}"
        slugs.append(slug)
    return slugs


def to_slug(text: str) -> str:
    """Convert `text` to a file name of at most 60 characters: `env=cleanup, a/b` becomes `env_cleanup_a_b`."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[:60] or "_"


def build_scores_table(section: Section, settings: ReportSettings) -> ReportTable:
    """Return the table with the number of runs, score estimates and remark of each group, and the reference levels."""
    fmt = NumberFormat(np.concatenate([summary.scores for summary in section.summaries]))
    has_models = any(summary.group.llm for summary in section.summaries)
    online_performance = compute_online_performance(section, settings)
    columns = ["group", *(["language model"] if has_models else []), "runs", *ESTIMATES.values(), "s.e.", "min", "max"]
    columns += ["online performance"] if online_performance else []
    header: list[object] = ["group", "llm", "finished", "expected", "mean", "mean_low", "mean_high", "iqm", "median"]
    header += ["standard_error", "min", "max", "online_performance", "remark"]
    data, rows = [header], []
    for summary in section.summaries:
        name, estimates = summary.group.display_name, summary.estimates
        extremes = [float(summary.scores.min()), float(summary.scores.max())] if estimates else [np.nan] * 2
        iqm_and_median = [float(estimates[key].estimate) if estimates else np.nan for key in ("iqm", "median")]
        cells = [
            name,
            *([summary.group.llm or EMPTY_CELL] if has_models else []),
            f"{len(summary.scores)} of {summary.group.n_expected_runs}",
        ]
        cells += [format_estimate(estimates.get(key), fmt) for key in ESTIMATES]
        cells += [fmt(x) for x in (summary.standard_error, *extremes)]
        cells += [fmt(online_performance.get(name, np.nan))] if online_performance else []
        rows.append([*cells, summary.remark])
        data_row: list[object] = [name, summary.group.llm, len(summary.scores), summary.group.n_expected_runs]
        data_row += [*interval_to_cells(estimates.get("mean")), *iqm_and_median, summary.standard_error, *extremes]
        data.append([*data_row, online_performance.get(name), summary.remark])
    means = {summary.group.display_name: float(summary.estimates["mean"].estimate) for summary in section.scored_groups}
    rows.sort(key=lambda row: -means.get(row[0], -np.inf))
    # Reference levels are values of the objective, so they are not comparable to scores by another metric.
    for level in section.references if settings.rule.metric in ("", OBJECTIVE_METRIC) else ():
        level_cells = {"group": level.label, "mean": fmt(level.value), "s.e.": fmt(level.standard_error)}
        rows.append([*(level_cells.get(column, EMPTY_CELL) for column in columns), "measured before the runs"])
        level_numbers = {"group": level.label, "mean": level.value, "standard_error": level.standard_error}
        data.append([level_numbers.get(str(column)) for column in header])
    return ReportTable(
        "scores",
        f"{section.title}: {'recommendations' if online_performance else 'scores'} over runs, with 95% intervals",
        data,
        [*columns, "remark"],
        rows,
        2 if has_models else 1,
        is_last_column_text=True,
        notes=explain_scores(means, online_performance),
    )


def compute_online_performance(section: Section, settings: ReportSettings) -> dict[str, float]:
    """Return the mean online performance of each group whose scores are values of recommendations, by display name."""
    if settings.rule.metric:
        return {}
    performance = {}
    for summary in section.scored_groups:
        finished_runs = [run for run in summary.group.runs if run.state == "finished"]
        scores = read_principal_scores(finished_runs, ONLINE_PERFORMANCE)
        if scores is not None and read_principal_scores(finished_runs, RECOMMENDATION) is not None:
            performance[summary.group.display_name] = float(scores.mean())
    return performance


def build_efficiency_table(section: Section) -> ReportTable:
    """Return the table of the sample efficiency of each group."""
    fmt = NumberFormat(np.concatenate([summary.scores for summary in section.efficiency]))
    data: list[list[object]] = [["group", "runs", "mean", "mean_low", "mean_high", "iqm"]]
    rows = []
    for summary in section.efficiency:
        mean, iqm = summary.estimates.get("mean"), summary.estimates.get("iqm")
        name, n_runs = summary.group.display_name, len(summary.scores)
        cells = [name, f"{n_runs} of {summary.group.n_expected_runs}", format_estimate(mean, fmt)]
        rows.append([*cells, format_estimate(iqm, fmt), fmt(summary.standard_error), summary.remark])
        data.append([name, n_runs, *interval_to_cells(mean), interval_to_cells(iqm)[0]])
    return ReportTable(
        "efficiency",
        f"{section.title}: sample efficiency (mean success over the frames of training), with 95% intervals",
        data,
        ["group", "runs", ESTIMATES["mean"], ESTIMATES["iqm"], "s.e.", "remark"],
        rows,
        is_last_column_text=True,
    )


def _build_improvement_table(section: Section) -> ReportTable:
    """Return the matrix of probabilities that a run of the row's group has a higher score than one of the column's."""
    group_indices, probabilities = select_best_groups(section.scored_groups), section.improvement  # of these groups
    names = [section.scored_groups[i].group.display_name for i in group_indices]
    indices = [group_indices.index(i) for i in section.figure_indices]
    rows = [
        [
            f"({k + 1}) {names[i]}",
            *(EMPTY_CELL if i == j else format_estimate(probabilities[i, j], "{:.2f}".format) for j in indices),
        ]
        for k, i in enumerate(indices)
    ]
    data: list[list[object]] = [["group", "over", "probability", "low", "high"]]
    data += [
        [name, other, *interval_to_cells(probabilities[i, j])]
        for i, name in enumerate(names)
        for j, other in enumerate(names)
        if i != j
    ]
    total = len(section.scored_groups)
    n_groups = len(group_indices)
    notes = [f"The file has the {n_groups} groups with the highest IQM, of {total}."] if total > n_groups else []
    return ReportTable(
        "improvement",
        f"{section.title}: probability that a run of the row's group beats one of the column's, with 95% intervals",
        data,
        ["group", *(f"({k + 1})" for k in range(len(indices)))] if len(indices) > 1 else (),
        rows,
        notes=[*section.omitted_groups_notes, *notes],
    )


def build_excluded_runs_table(report: Report) -> ReportTable:
    """Return the table of the runs that are not part of any estimate, with the reasons."""
    columns = ["task", "group", "seeds", "state", "reason"]
    data: list[list[object]] = [["task", "group", "seed", "state", "reason"]]
    rows = []
    for runs in report.excluded:
        rows.append([runs.task, runs.group.display_name, format_seeds(runs.seeds), runs.state, runs.reason])
        data += [[runs.task, runs.group.display_name, seed, runs.state, runs.reason] for seed in runs.seeds]
    return ReportTable("not_in_the_numbers", "Runs not in the numbers", data, columns, rows, len(columns))


def _build_llm_calls_table(report: Report) -> ReportTable:
    """Return the table of calls to language models, with tokens and costs."""
    lines = [(task, group.display_name, group.llm, totals) for task, group, totals in report.calls]
    grand_total = sum((totals for *_, totals in report.calls), CallTotals())
    header: list[object] = ["task", "group", "models", "calls", "cached", "failed", "lost"]
    header += ["validated", "invalid", "prompt_tokens", "completion_tokens", "usd", "lost_usd"]
    data = [[task, name, ", ".join(x.models), *x.counts, x.cost, x.lost_cost] for task, name, _, x in lines]
    columns = ["task", "group", "model", "replies", "from cache", "failed", "lost", "checked", "invalid"]
    columns += ["tokens in", "tokens out"]
    rows = [
        [task, name, ", ".join(x.models) or model, *("unknown" if n is None else f"{n:,}" for n in x.counts), x.paid]
        for task, name, model, x in [*lines, *([("all", "", "", grand_total)] if len(lines) > 1 else [])]
    ]
    return ReportTable(
        "llm_calls",
        "Calls to language models: all attempts of all runs, unfinished ones included",
        [header, *data],
        [*columns, "paid, $"],
        rows,
        3,
    )


def _build_curve_tables(section: Section) -> list[ReportTable]:
    names = {summary.group.label: summary.group.display_name for summary in section.summaries}
    tables = []
    for curve in section.curves:
        data: list[list[object]] = [["group", "runs", curve.x_axis, "mean", "low", "high"]]
        for label, line in curve.curve_by_group.items():
            data += [[names[label], line.values.shape[1], *row] for row in line.rows]
        tables.append(ReportTable(f"curve_{to_slug(curve.metric)}", f"{section.title}: {curve.metric}", data))
    return tables


def _build_runs_table(report: Report) -> ReportTable:
    root = report.folder.absolute()
    data: list[list[object]] = [["task", "group", "seed", "state", "score", "online_performance", "llm", "folder"]]
    for task, group, run, score in report.runs:
        online_scores = read_principal_scores([run], ONLINE_PERFORMANCE) if run.state == "finished" else None
        performance = None if online_scores is None else float(online_scores[0])
        folder = run.folder.relative_to(root).as_posix()
        data.append([task, group.display_name, run.seed, run.state, score, performance, run.llm, folder])
    return ReportTable("runs", "Every run", data)


TASK_COMPARISON_NAME = "study_tasks"
"""Name of the table and of the figure that compare the groups of a study over its tasks."""


@dataclass(frozen=True)
class TaskComparison(StudyResult):
    """The result of a study in several tasks.

    Attributes:
        titles: short titles of the tasks.
        studies: comparison of the groups in each task.
        group_names: names of the groups of all tasks, sorted, baselines last.
    """

    titles: tuple[str, ...]
    studies: tuple[GroupComparison, ...]
    group_names: tuple[str, ...]


def compare_tasks(report: Report) -> TaskComparison | None:
    """Compare the groups of a study over its tasks; return None unless the report has at least two tasks of a study."""
    studies = tuple(section.study for section in report.sections if isinstance(section.study, GroupComparison))
    if len(studies) < 2:
        return None
    titles = [section.title for section in report.sections if isinstance(section.study, GroupComparison)]
    short_titles, settings = _shorten_titles(titles), studies[0].settings
    # A group may have several display names; the name in its first task is used.
    display_names = {trace.name: trace.display_name for study in reversed(studies) for trace in study.traces}
    names = tuple(sorted(display_names, key=lambda name: (name in settings.baselines, name)))
    run_counts = sorted({len(trace.scores) for study in studies for trace in study.traces})
    n_runs = f"{run_counts[0]} to {run_counts[-1]}" if len(run_counts) > 1 else f"{run_counts[0]}"
    caption = (
        f"{settings.score_name} in {len(titles)} tasks: means over {n_runs} runs per group with 95% bands; dashes at "
        "the right end are the scores. Groups without a curve are drawn as a level."
    )
    sentences = _describe_verdicts(settings.baselines, studies, display_names)
    table = _build_tasks_table(settings, short_titles, studies, {name: display_names[name] for name in names})
    return TaskComparison(settings, sentences, (table,), caption, short_titles, studies, names)


def _describe_verdicts(
    baseline_names: Sequence[str], studies: Sequence[GroupComparison], display_names: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a sentence for each baseline with the number of tasks in which each group is above or below it."""
    sentences = []
    for baseline in baseline_names:
        verdict_counts: dict[str, Counter[str]] = defaultdict(Counter)
        for comparison in (comparison for study in studies for comparison in study.comparisons):
            if comparison.baseline.name == baseline:
                verdict_counts[comparison.group.name][comparison.verdict] += 1
        if verdict_counts:
            groups_text = "; ".join(
                f"{display_names[name]} above in {counts['above']}, below in {counts['below']}, "
                f"no difference shown in {counts['unclear']}"
                + (f", too few runs in {counts['untested']}" if counts["untested"] else "")
                for name, counts in verdict_counts.items()
            )
            sentences.append(f"Against {display_names[baseline]}, of {len(studies)} tasks: {groups_text}.")
    return tuple(sentences)


def _build_tasks_table(
    settings: StudySettings,
    titles: Sequence[str],
    studies: Sequence[GroupComparison],
    display_names: Mapping[str, str],
) -> ReportTable:
    """Return the table of mean scores with their intervals, a row for each task and a column for each group."""
    data: list[list[object]] = [["task", "group", "runs", "score", "low", "high"]]
    rows = []
    for title, study in zip(titles, studies, strict=True):
        fmt = NumberFormat(np.concatenate([trace.scores for trace in study.traces]))
        scores = {trace.name: trace.score for trace in study.traces}
        rows.append([title, *(format_estimate(scores.get(name), fmt) for name in display_names)])
        data += [
            [title, trace.display_name, len(trace.scores), *interval_to_cells(scores[trace.name])]
            for trace in study.traces
        ]
    caption = f"{settings.score_name} in each task, with 95% intervals"
    return ReportTable(TASK_COMPARISON_NAME, caption, data, ["task", *display_names.values()], rows)


def _shorten_titles(titles: Sequence[str]) -> tuple[str, ...]:
    """Return titles without the comma-separated parts that all of them have, and without the keys before `=`.

    >>> _shorten_titles(["rooms, env=two_door", "rooms, env=lava_doorkey"])
    ('two_door', 'lava_doorkey')
    """
    title_parts = [title.split(", ") for title in titles]
    common_parts = set.intersection(*(set(parts) for parts in title_parts))
    distinct_parts = [[part for part in parts if part not in common_parts] for parts in title_parts]
    return tuple(
        ", ".join(part.rpartition("=")[2] for part in parts) or title
        for parts, title in zip(distinct_parts, titles, strict=True)
    )


_MAX_GROUP_COLUMNS = 4
"""Maximum number of groups for which differences between configs have a column for each group."""


def build_config_differences(task: ReportTask) -> ReportTable:
    """Return the table of options in which the groups of a task differ, with the values in each group's first run.

    Up to `_MAX_GROUP_COLUMNS` groups have a column each. With more groups, each value has a row with its groups.

    Raises:
        RunFolderError: the config of a run cannot be read.
    """
    configs = [
        {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in flatten_config(read_config(group.runs[0].folder, ())).items()
            if key != "seed" and not is_excluded(key)
        }
        for group in task.groups
    ]
    keys = sorted({key for config in configs for key in config})
    cells_by_key = {key: [config.get(key, EMPTY_CELL) for config in configs] for key in keys}
    differences = {key: cells for key, cells in cells_by_key.items() if len(set(cells)) > 1}
    differences = _drop_absent_parts(differences, configs)
    names = [group.display_name for group in task.groups]
    columns, rows = ["option", *names], [[key, *cells] for key, cells in differences.items()]
    if len(names) > _MAX_GROUP_COLUMNS:
        columns = ["option", "value", "groups"]
        rows = [
            [key, value, ", ".join(name for name, cell in zip(names, cells, strict=True) if cell == value)]
            for key, cells in differences.items()
            for value in dict.fromkeys(cells)
        ]
    caption = f"Options of {task.title} in which groups differ"
    return ReportTable("config_differences", caption, [columns, *rows], columns, rows, len(columns))


def _drop_absent_parts(
    differences: Mapping[str, list[str]], configs: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """Replace the options of a part that some groups do not have by one row with the class name of the part.

    An option keeps its own row if the groups that have the part differ in it. A row has a value for each group.
    """
    part_flags = {  # whether each group has the part
        part: [any(key.startswith(f"{part}.") for key in config) for config in configs]
        for part in dict.fromkeys(key.partition(".")[0] for key in differences if "." in key)
    }
    rows: dict[str, list[str]] = {}
    for key, cells in differences.items():
        part = key.partition(".")[0]
        if part not in part_flags or all(part_flags[part]):
            rows[key] = cells
            continue
        classes = [config.get(f"{part}._target_", "set").rpartition(".")[2] for config in configs]
        rows[part] = [x if is_present else EMPTY_CELL for x, is_present in zip(classes, part_flags[part], strict=True)]
        present_cells = {cell for cell, is_present in zip(cells, part_flags[part], strict=True) if is_present}
        if len(present_cells) > 1 and not key.endswith("._target_"):
            rows[key] = cells
    return rows
