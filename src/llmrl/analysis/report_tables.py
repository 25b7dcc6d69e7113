"""Tables of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmrl.analysis.final_episodes import players_table
from llmrl.analysis.llm_calls import CallTotals
from llmrl.analysis.once import distinct_estimates, shown_estimates
from llmrl.analysis.report import ESTIMATES, GroupNumbers, Report, Section
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.study_tasks import compare_tasks
from llmrl.results.groups import Group
from llmrl.results.principal_scores import ONLINE, RECOMMENDATION, principal_scores, score_notes
from llmrl.results.reference_lines import OBJECTIVE, ReferenceLine
from llmrl.results.table_format import NOTHING, NumberFormat, ReportTable, seed_list, with_interval
from llmrl.statistics.intervals import Band


def tables_of(report: Report) -> list[ReportTable]:
    """Return all tables of a report in reading order; names of a section's tables begin with its slug."""
    tables = [excluded_table(report)] if report.excluded else []
    tables += [players_table(report.players)] if report.players else []
    comparison = compare_tasks(report)
    tables += [comparison.table] if comparison is not None else []
    for section, name in zip(report.sections, slugs(report), strict=True):
        if section.study is not None:
            tables += [replace(table, name=f"{name}_{table.name}") for table in section.study.tables]
        tables += [replace(table, name=f"{name}_{table.name}") for table in section.story.tables]
        tables += [
            scores(section, name, report.settings, comparable_references(section, report)),
            improvement(section, name),
            *_profiles(section, name),
        ]
        tables += [efficiency(section, name)] if section.efficiency else []
        tables += [_curve(section, name, i) for i in range(len(section.curves))]
    return [*tables, *([llm_calls(report)] if report.calls else []), _runs(report)]


def slugs(report: Report) -> list[str]:
    """Return a different file name for each section of a report."""
    names: list[str] = []
    for section in report.sections:
        name = "all_tasks" if section.over_tasks else slug(section.title)
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def slug(text: str) -> str:
    """Return `text` as a file name, at most 60 characters: `env=cleanup, a/b` becomes `env_cleanup_a_b`."""
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_.")[:60] or "_"


def scores(
    section: Section, name: str, settings: ReportSettings, references: Sequence[ReferenceLine] = ()
) -> ReportTable:
    """Return the table of estimates of each group, with numbers of runs and remarks, and the reference levels."""
    estimates = shown_estimates(section, settings)
    form = NumberFormat(np.concatenate([n.pooled for n in section.numbers]))
    models = any(n.group.llm for n in section.numbers)
    remarks = any(n.remark for n in section.numbers)
    units = any("," in n.units for n in section.numbers)  # else there are only runs, which have a column
    online = online_performance(section, settings)
    rows = []
    for n in section.numbers:
        extremes = [form(float(f(n.pooled))) if n.scores else NOTHING for f in (np.min, np.max)]
        cells = [n.group.shown, *([n.group.llm or NOTHING] if models else [])]
        cells += [f"{len(n.pooled)} of {n.expected}", *(_with_interval(n, key, form) for key in estimates)]
        cells += [form(n.standard_error), *extremes]
        cells += [form(online[n.group.shown]) if n.group.shown in online else NOTHING] if online else []
        rows.append([*cells, *([n.units] if units else []), *([n.remark] if remarks else [])])
    for level in references:
        cells = [level.label, *([NOTHING] if models else []), NOTHING]
        cells += [form(level.value) if key == "mean" else NOTHING for key in estimates]
        cells += [form(level.standard_error), NOTHING, NOTHING, *([NOTHING] if online else [])]
        cells += [NOTHING] if units else []
        rows.append([*cells, *(["measured before the runs"] if remarks else [])])
    columns = ["group", *(["language model"] if models else []), "runs"]
    columns += [
        *(ESTIMATES[key] for key in estimates),
        "s.e.",
        "min",
        "max",
        *(["online performance"] if online else []),
    ]
    columns += (["levels"] if units else []) + (["remark"] if remarks else [])
    header = ["group", "llm", "finished", "expected"]
    header += [column for key in ESTIMATES for column in (key, f"{key}_low", f"{key}_high")]
    data: list[list[object]] = [[*header, "standard_error", "min", "max", "online_performance", "levels", "remark"]]
    for n in section.numbers:
        line: list[object] = [n.group.shown, n.group.llm, len(n.pooled), n.expected]
        for key in ESTIMATES:
            band = n.estimates.get(key)
            line += [None] * 3 if band is None else [band.estimate, band.low, band.high]
        line += [n.standard_error, *((f(n.pooled) if n.scores else None) for f in (np.min, np.max))]
        line += [online.get(n.group.shown), n.units, n.remark]
        data.append(line)
    for level in references:
        level_values = {"group": level.label, "mean": level.value, "standard_error": level.standard_error}
        data.append([level_values.get(str(column)) for column in data[0]])
    return ReportTable(
        f"{name}_scores",
        f"{section.title}: {'recommendations' if online else 'scores'} over runs, with 95% intervals",
        data,
        columns,
        rows,
        2 if models else 1,
        remarks,
        score_notes({n.group.shown: float(n.estimates["mean"].estimate) for n in section.compared}, online),
    )


def online_performance(section: Section, settings: ReportSettings) -> dict[str, float]:
    """Return the mean online performance of each group by display name.

    The result is empty if the scores of the section are not recommendations of principals.
    """
    if settings.rule.metric or section.over_tasks:
        return {}
    performance = {}
    for numbers in section.compared:
        finished_runs = [run for run in numbers.group.runs if run.state == "finished"]
        online = principal_scores(finished_runs, ONLINE)
        if online is not None and principal_scores(finished_runs, RECOMMENDATION) is not None:
            performance[numbers.group.shown] = float(online.mean())
    return performance


def comparable_references(section: Section, report: Report) -> tuple[ReferenceLine, ...]:
    """Return the reference lines of a section; empty if its scores are not the objective of these lines."""
    return section.references if report.settings.rule.metric in ("", OBJECTIVE) else ()


def efficiency(section: Section, name: str) -> ReportTable:
    """Return the table of the sample efficiency of each group."""
    form, keys = NumberFormat(np.concatenate([n.pooled for n in section.efficiency])), ("mean", "iqm")
    estimates = [key for key in keys if key in distinct_estimates(section.efficiency, ("mean", "iqm"))]
    data: list[list[object]] = [["group", "runs", *(f"{key}{end}" for key in keys for end in ("", "_low", "_high"))]]
    rows = []
    for n in section.efficiency:
        bands = [n.estimates.get(key) for key in keys]
        cells = [_with_interval(n, key, form) for key in estimates]
        rows.append([n.group.shown, f"{len(n.pooled)} of {n.expected}", *cells, form(n.standard_error), n.remark])
        numbers = [[None] * 3 if band is None else [band.estimate, band.low, band.high] for band in bands]
        data.append([n.group.shown, len(n.pooled), *(x for values in numbers for x in values)])
    return ReportTable(
        f"{name}_efficiency",
        f"{section.title}: sample efficiency (mean success over the frames of training), with 95% intervals",
        data,
        ["group", "runs", *(ESTIMATES[key] for key in estimates), "s.e.", "remark"],
        rows,
        1,
        True,
    )


def improvement(section: Section, name: str) -> ReportTable:
    """Return the table of the probabilities that a run of the row's group beats one of the column's."""
    groups, band, indices = section.compared, section.improvement, section.shown
    rows = []
    for k, i in enumerate(indices):
        cells = [NOTHING if i == j else _probability(band, i, j) for j in indices]
        rows.append([f"({k + 1}) {groups[i].group.shown}", *cells])
    data: list[list[object]] = [["group", "over", "probability", "low", "high"]]
    data += [
        [row_group.group.shown, column_group.group.shown, band.estimate[i, j], band.low[i, j], band.high[i, j]]
        for i, row_group in enumerate(groups)
        for j, column_group in enumerate(groups)
        if i != j
    ]
    return ReportTable(
        f"{name}_improvement",
        f"{section.title}: probability that a run of the row's group beats one of the column's, with 95% intervals",
        data,
        ["group", *(f"({k + 1})" for k in range(len(indices)))] if len(indices) > 1 else (),
        rows,
        notes=section.not_shown,
    )


def excluded_table(report: Report) -> ReportTable:
    """Return the table of the runs that are left out of the numbers, with the reasons."""
    rows = [[runs.task, runs.group.shown, seed_list(runs.seeds), runs.state, runs.reason] for runs in report.excluded]
    return ReportTable(
        "not_in_the_numbers",
        "Runs not in the numbers",
        [
            ["task", "group", "seed", "state", "reason"],
            *(
                [runs.task, runs.group.shown, seed, runs.state, runs.reason]
                for runs in report.excluded
                for seed in runs.seeds
            ),
        ],
        ["task", "group", "seeds", "state", "reason"],
        rows,
        5,
    )


def llm_calls(report: Report) -> ReportTable:
    """Return the table of calls to language models, with tokens and costs."""
    total = CallTotals()
    for *_, totals in report.calls:
        total = total.plus(totals)
    rows = [[task, group.shown, *_call_cells(totals, group)] for task, group, totals in report.calls]
    if len(rows) > 1:
        rows.append(["all", "", *_call_cells(total, None)])
    header = ["task", "group", "models", "calls", "cached", "failed", "lost"]
    header += ["prompt_tokens", "completion_tokens", "usd", "lost_usd"]
    return ReportTable(
        "llm_calls",
        "Calls to language models: all attempts of all runs, unfinished ones included",
        [
            header,
            *(
                [
                    t,
                    g.shown,
                    ", ".join(c.models),
                    c.calls,
                    c.cached,
                    c.failed,
                    c.lost,
                    c.prompt_tokens,
                    c.completion_tokens,
                    c.cost,
                    c.lost_cost,
                ]
                for t, g, c in report.calls
            ),
        ],
        ["task", "group", "model", "replies", "from cache", "failed", "lost", *_USAGE_COLUMNS],
        rows,
        3,
    )


def _with_interval(numbers: GroupNumbers, key: str, form: NumberFormat) -> str:
    band = numbers.estimates.get(key)
    return NOTHING if band is None else with_interval(float(band.estimate), float(band.low), float(band.high), form)


def _probability(band: Band, i: int, j: int) -> str:
    return with_interval(float(band.estimate[i, j]), float(band.low[i, j]), float(band.high[i, j]), "{:.2f}".format)


_USAGE_COLUMNS = ("tokens in", "tokens out", "paid, $")


def _call_cells(total: CallTotals, group: Group | None) -> list[str]:
    model = ", ".join(total.models) or (group.llm if group else "")
    counts = [f"{count:,}" for count in (total.calls, total.cached, total.failed, total.lost)]
    tokens = ["unknown" if count is None else f"{count:,}" for count in (total.prompt_tokens, total.completion_tokens)]
    return [model, *counts, *tokens, total.paid]


def _profiles(section: Section, name: str) -> list[ReportTable]:
    data: list[list[object]] = [["group", "threshold", "share_above", "low", "high"]]
    for n, band in zip(section.compared, section.profiles, strict=True):
        columns = zip(section.thresholds, band.estimate, band.low, band.high, strict=True)
        data += [[n.group.shown, *line] for line in columns]
    return [ReportTable(f"{name}_profile", f"{section.title}: performance profile", data)] if section.profiles else []


def _curve(section: Section, name: str, index: int) -> ReportTable:
    curve = section.curves[index]
    labels = {n.group.label: n.group.shown for n in section.numbers}
    data: list[list[object]] = [["group", "runs", curve.over, "mean", "low", "high"]]
    for line in curve.lines:
        columns = zip(line.places, line.band.estimate, line.band.low, line.band.high, strict=True)
        data += [[labels[line.label], line.runs, *cells] for cells in columns]
    return ReportTable(f"{name}_curve_{slug(curve.metric)}", f"{section.title}: {curve.metric}", data)


def _runs(report: Report) -> ReportTable:
    root = report.folder.absolute()
    header = ["task", "group", "seed", "state", "score", "online_performance", "llm", "folder"]
    lines: list[list[object]] = []
    for task, group, run, score in report.runs:
        online = principal_scores([run], ONLINE) if run.state == "finished" else None
        folder = run.folder.relative_to(root).as_posix()
        performance = None if online is None else float(online[0])
        lines.append([task, group.shown, run.seed, run.state, score, performance, run.llm, folder])
    return ReportTable("runs", "Every run", [list(header), *lines])
