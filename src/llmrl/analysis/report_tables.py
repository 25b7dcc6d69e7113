"""Tables of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmrl.analysis.final_episodes import players_table
from llmrl.analysis.llm_calls import CallTotals, summed
from llmrl.analysis.report import ESTIMATES, Report, ReportSettings, Section, highest_groups
from llmrl.analysis.study_tasks import compare_tasks
from llmrl.results.principal_scores import ONLINE, RECOMMENDATION, principal_scores, score_notes
from llmrl.results.reference_lines import OBJECTIVE, ReferenceLine
from llmrl.results.table_format import (
    NOTHING,
    NumberFormat,
    ReportTable,
    interval_cells,
    seed_list,
    with_interval,
)


def tables_of(report: Report) -> list[ReportTable]:
    """Return all tables of a report in reading order; names of a section's tables begin with its slug."""
    tables = [excluded_table(report)] if report.excluded else []
    tables += [players_table(report.players)] if report.players else []
    comparison = compare_tasks(report)
    tables += [comparison.table] if comparison is not None else []
    for section, name in zip(report.sections, slugs(report), strict=True):
        section_tables = list(section.study.tables) if section.study is not None else []
        section_tables += [*section.story.tables, scores_table(section, report.settings), _improvement(section)]
        section_tables += [efficiency_table(section)] if section.efficiency else []
        section_tables += _curves(section)
        tables += [replace(table, name=f"{name}_{table.name}") for table in section_tables]
    return [*tables, *([_llm_calls(report)] if report.calls else []), _runs(report)]


def slugs(report: Report) -> list[str]:
    """Return a different file name for each section of a report."""
    names: list[str] = []
    for section in report.sections:
        name = slug(section.title)
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def slug(text: str) -> str:
    """Return `text` as a file name, at most 60 characters: `env=cleanup, a/b` becomes `env_cleanup_a_b`."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[:60] or "_"


def scores_table(section: Section, settings: ReportSettings) -> ReportTable:
    """Return the table of estimates of each group, with numbers of runs and remarks, and the reference levels."""
    form = NumberFormat(np.concatenate([n.scores for n in section.numbers]))
    models = any(n.group.llm for n in section.numbers)
    online = online_performance(section, settings)
    columns = ["group", *(["language model"] if models else []), "runs", *ESTIMATES.values(), "s.e.", "min", "max"]
    columns += ["online performance"] if online else []
    header: list[object] = ["group", "llm", "finished", "expected", "mean", "mean_low", "mean_high", "iqm", "median"]
    header += ["standard_error", "min", "max", "online_performance", "remark"]
    data, rows = [header], []
    for n in section.numbers:
        name = n.group.shown
        extremes = [float(n.scores.min()), float(n.scores.max())] if n.estimates else [np.nan] * 2
        points = [float(n.estimates[key].estimate) if n.estimates else np.nan for key in ("iqm", "median")]
        cells = [name, *([n.group.llm or NOTHING] if models else []), f"{len(n.scores)} of {n.group.expected}"]
        cells += [with_interval(n.estimates.get(key), form) for key in ESTIMATES]
        cells += [form(x) for x in (n.standard_error, *extremes)]
        rows.append([*cells, *([form(online.get(name, np.nan))] if online else []), n.remark])
        line: list[object] = [name, n.group.llm, len(n.scores), n.group.expected]
        line += [*interval_cells(n.estimates.get("mean")), *points, n.standard_error, *extremes]
        data.append([*line, online.get(name), n.remark])
    means = {n.group.shown: float(n.estimates["mean"].estimate) for n in section.compared}
    rows.sort(key=lambda row: -means.get(row[0], -np.inf))
    for level in _comparable_references(section, settings):
        values = {"group": level.label, "mean": form(level.value), "s.e.": form(level.standard_error)}
        rows.append([*(values.get(column, NOTHING) for column in columns), "measured before the runs"])
        numbers = {"group": level.label, "mean": level.value, "standard_error": level.standard_error}
        data.append([numbers.get(str(column)) for column in header])
    return ReportTable(
        "scores",
        f"{section.title}: {'recommendations' if online else 'scores'} over runs, with 95% intervals",
        data,
        [*columns, "remark"],
        rows,
        2 if models else 1,
        last_text=True,
        notes=score_notes(means, online),
    )


def online_performance(section: Section, settings: ReportSettings) -> dict[str, float]:
    """Return the mean online performance of each group by display name.

    The result is empty if the scores of the section are not recommendations of principals.
    """
    if settings.rule.metric:
        return {}
    performance = {}
    for numbers in section.compared:
        finished_runs = [run for run in numbers.group.runs if run.state == "finished"]
        online = principal_scores(finished_runs, ONLINE)
        if online is not None and principal_scores(finished_runs, RECOMMENDATION) is not None:
            performance[numbers.group.shown] = float(online.mean())
    return performance


def _comparable_references(section: Section, settings: ReportSettings) -> Sequence[ReferenceLine]:
    """Return the reference lines of a section; empty if its scores are not the objective of these lines."""
    return section.references if settings.rule.metric in ("", OBJECTIVE) else ()


def efficiency_table(section: Section) -> ReportTable:
    """Return the table of the sample efficiency of each group."""
    form = NumberFormat(np.concatenate([n.scores for n in section.efficiency]))
    data: list[list[object]] = [["group", "runs", "mean", "mean_low", "mean_high", "iqm"]]
    rows = []
    for n in section.efficiency:
        mean, iqm = n.estimates.get("mean"), n.estimates.get("iqm")
        cells = [n.group.shown, f"{len(n.scores)} of {n.group.expected}", with_interval(mean, form)]
        rows.append([*cells, with_interval(iqm, form), form(n.standard_error), n.remark])
        data.append([n.group.shown, len(n.scores), *interval_cells(mean), interval_cells(iqm)[0]])
    return ReportTable(
        "efficiency",
        f"{section.title}: sample efficiency (mean success over the frames of training), with 95% intervals",
        data,
        ["group", "runs", ESTIMATES["mean"], ESTIMATES["iqm"], "s.e.", "remark"],
        rows,
        last_text=True,
    )


def _improvement(section: Section) -> ReportTable:
    """Return the table of the probabilities that a run of the row's group beats one of the column's."""
    paired, band = highest_groups(section.compared), section.improvement
    names = [section.compared[i].group.shown for i in paired]
    indices = [paired.index(i) for i in section.shown]
    rows = [
        [
            f"({k + 1}) {names[i]}",
            *(NOTHING if i == j else with_interval(band[i, j], "{:.2f}".format) for j in indices),
        ]
        for k, i in enumerate(indices)
    ]
    data: list[list[object]] = [["group", "over", "probability", "low", "high"]]
    data += [
        [name, other, *interval_cells(band[i, j])]
        for i, name in enumerate(names)
        for j, other in enumerate(names)
        if i != j
    ]
    total = len(section.compared)
    notes = [f"The file has the {len(paired)} groups with the highest IQM, of {total}."] if total > len(paired) else []
    return ReportTable(
        "improvement",
        f"{section.title}: probability that a run of the row's group beats one of the column's, with 95% intervals",
        data,
        ["group", *(f"({k + 1})" for k in range(len(indices)))] if len(indices) > 1 else (),
        rows,
        notes=[*section.not_shown, *notes],
    )


def excluded_table(report: Report) -> ReportTable:
    """Return the table of the runs that are left out of the numbers, with the reasons."""
    columns = ["task", "group", "seeds", "state", "reason"]
    data: list[list[object]] = [["task", "group", "seed", "state", "reason"]]
    rows = []
    for runs in report.excluded:
        rows.append([runs.task, runs.group.shown, seed_list(runs.seeds), runs.state, runs.reason])
        data += [[runs.task, runs.group.shown, seed, runs.state, runs.reason] for seed in runs.seeds]
    return ReportTable("not_in_the_numbers", "Runs not in the numbers", data, columns, rows, len(columns))


def _llm_calls(report: Report) -> ReportTable:
    """Return the table of calls to language models, with tokens and costs."""
    lines = [(task, group.shown, group.llm, totals) for task, group, totals in report.calls]
    total = summed(totals for *_, totals in report.calls)
    header: list[object] = ["task", "group", "models", "calls", "cached", "failed", "lost"]
    header += ["prompt_tokens", "completion_tokens", "usd", "lost_usd"]
    data = [[task, name, ", ".join(c.models), *_counts(c), c.cost, c.lost_cost] for task, name, _, c in lines]
    columns = ["task", "group", "model", "replies", "from cache", "failed", "lost", "tokens in", "tokens out"]
    rows = [
        [task, name, ", ".join(totals.models) or model, *_count_texts(totals), totals.paid]
        for task, name, model, totals in [*lines, *([("all", "", "", total)] if len(lines) > 1 else [])]
    ]
    return ReportTable(
        "llm_calls",
        "Calls to language models: all attempts of all runs, unfinished ones included",
        [header, *data],
        [*columns, "paid, $"],
        rows,
        3,
    )


def _counts(totals: CallTotals) -> list[int | None]:
    counts = [totals.calls, totals.cached, totals.failed, totals.lost]
    return [*counts, totals.prompt_tokens, totals.completion_tokens]


def _count_texts(totals: CallTotals) -> list[str]:
    return ["unknown" if count is None else f"{count:,}" for count in _counts(totals)]


def _curves(section: Section) -> list[ReportTable]:
    names = {n.group.label: n.group.shown for n in section.numbers}
    tables = []
    for curve in section.curves:
        data: list[list[object]] = [["group", "runs", curve.over, "mean", "low", "high"]]
        for label, line in curve.lines.items():
            data += [[names[label], line.values.shape[1], *point] for point in line.points]
        tables.append(ReportTable(f"curve_{slug(curve.metric)}", f"{section.title}: {curve.metric}", data))
    return tables


def _runs(report: Report) -> ReportTable:
    root = report.folder.absolute()
    data: list[list[object]] = [
        ["task", "group", "seed", "state", "score", "online_performance", "llm", "folder"],
    ]
    for task, group, run, score in report.runs:
        online = principal_scores([run], ONLINE) if run.state == "finished" else None
        performance = None if online is None else float(online[0])
        folder = run.folder.relative_to(root).as_posix()
        data.append([task, group.shown, run.seed, run.state, score, performance, run.llm, folder])
    return ReportTable("runs", "Every run", data)
