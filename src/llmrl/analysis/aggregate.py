"""Computation of the estimates of a report from a folder of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from llmrl.analysis.curves import build_curves
from llmrl.analysis.final_episodes import summarize_final_episodes
from llmrl.analysis.group_comparison import compare_groups
from llmrl.analysis.landscape import Landscape, build_landscape
from llmrl.analysis.llm_calls import CallTotals, read_run_totals
from llmrl.analysis.report import ExcludedRuns, GroupSummary, Report, ReportSettings, Section, select_best_groups
from llmrl.analysis.scores import ScoreRule, list_metric_names
from llmrl.analysis.story.story import build_story
from llmrl.analysis.training_curves import (
    EFFICIENCY_METRIC,
    TRAIN_PREFIX,
    FrameBudget,
    find_frame_budget,
    is_training_metric,
)
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.results.groups import (
    FinishedGroups,
    Group,
    ReportTask,
    find_interval_caveats,
    find_replication_units,
    group_into_tasks,
)
from llmrl.results.principal_scores import ReferenceLine, read_reference_lines
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.results.study_settings import StudyResult, StudySettings, read_study_settings, shorten_group_names
from llmrl.statistics.estimators import standard_error
from llmrl.statistics.intervals import compute_estimates, improvement_matrix


def compute_report(
    folder: Path,
    settings: ReportSettings,
    runs: Sequence[RunRecord] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Read the runs in a folder and return their report.

    Args:
        folder: folder of the runs, at any level.
        settings: settings of the report.
        runs: records of the runs, which may include the state of a scheduler's queue; None: read them from `folder`.
        on_progress: function that is called with a progress message for each task.

    Raises:
        RunFolderError: `folder` does not exist, or has no run.
        ConfigError: no run has logged a metric, or a setting is invalid.
    """
    for option, n_frames in (("bin", settings.bin_width), ("budget", settings.budget)):
        if n_frames is not None and n_frames < 1:
            raise ConfigError(f"--{option}={n_frames} must be a number of frames, 1 or more")
    runs = read_runs(folder) if runs is None else list(runs)
    if not runs:
        raise RunFolderError(f"there are no runs in {folder} (folders s<seed>); give outputs, or a folder in it")
    if metrics := [name for name in (settings.rule.metric, *settings.curves) if name]:
        logged_metrics = list_metric_names(runs)
        for name in metrics:
            if name not in logged_metrics:
                raise ConfigError(f"no run has logged {name}; logged metrics: {', '.join(logged_metrics) or 'none'}")
    excluded: list[ExcludedRuns] = []
    scored_runs: list[tuple[str, Group, RunRecord, float | None]] = []
    sections, players = [], []
    tasks = group_into_tasks(runs, folder, settings.by_name)
    for task_number, task in enumerate(tasks, start=1):
        on_progress(f"numbers of task {task_number} of {len(tasks)} ({len(runs)} runs)")
        finished_groups = [(group, [run for run in group.runs if run.state == "finished"]) for group in task.groups]
        folders = [run.folder for _, finished_runs in finished_groups for run in finished_runs]
        frames = find_frame_budget(folders, settings.budget, settings.bin_width)
        # The runs of a task are compared over the same number of frames.
        rule = settings.rule if frames is None else replace(settings.rule, budget=settings.rule.budget or frames.budget)
        scores = {group.label: _score_runs(task, group, rule, excluded) for group in task.groups}
        for group, finished_runs in finished_groups:
            scored_runs += [(task.title, group, run, scores[group.label].get(run.folder)) for run in group.runs]
            if (episodes := summarize_final_episodes(task, group, finished_runs)) is not None:
                players.append(episodes)
        sections.append(_build_section(task, scores, settings, frames))
    call_totals = [
        (task.title, group, sum((read_run_totals(run.folder) for run in group.runs), CallTotals()))
        for task in tasks
        for group in task.groups
    ]
    calls = tuple((title, group, total) for title, group, total in call_totals if group.llm or total.models)
    return Report(folder, settings, tuple(scored_runs), tuple(sections), tuple(excluded), calls, tuple(players))


def _score_runs(task: ReportTask, group: Group, rule: ScoreRule, excluded: list[ExcludedRuns]) -> dict[Path, float]:
    """Return the scores of a group's runs by folder; append runs without a score to `excluded`."""
    scores: dict[Path, float] = {}
    seeds_by_reason: dict[tuple[str, str], list[int]] = {}  # by state and reason
    for run in group.runs:
        score_or_reason = rule.score(run) if run.state == "finished" else _explain_missing_score(run)
        if isinstance(score_or_reason, float):
            scores[run.folder] = score_or_reason
        else:
            seeds_by_reason.setdefault((run.state, score_or_reason), []).append(run.seed)
    if group.missing_seeds:
        reason = "has no run folder; other groups of this task have this seed"
        seeds_by_reason["missing", reason] = list(group.missing_seeds)
    excluded += [ExcludedRuns(task.title, group, tuple(seeds), *key) for key, seeds in seeds_by_reason.items()]
    return scores


def _explain_missing_score(run: RunRecord) -> str:
    done, total = run.progress.done, run.progress.total
    share = f" ({done / total:.0%})" if total else ""
    queue_note = "waits in the queue" if run.state == "queued" else ""
    return run.error or queue_note or f"not finished: {done:,.0f} {run.progress.unit} done{share}"


def _build_section(
    task: ReportTask, scores: Mapping[str, Mapping[Path, float]], settings: ReportSettings, frames: FrameBudget | None
) -> Section:
    """Return the results of a task.

    Args:
        task: task with its groups.
        scores: scores of the runs of each group, by group label and run folder.
        settings: settings of the report.
        frames: frames over which metrics of training episodes are compared; None without such metrics.
    """
    groups = [
        (group, [run for run in group.runs if run.folder in scores[group.label]])
        for group in task.groups
        if scores[group.label]
    ]
    bin_width = None if frames is None else frames.bin_width
    curves, notes = build_curves(groups, settings.curves, settings.x_axis, bin_width)
    if frames is not None:
        notes = (
            *notes,
            f"{TRAIN_PREFIX}... are means over training episodes, in bins of {frames.bin_width:,} frames, the same for "
            "all groups: each frame has the value of the next episode that starts in its game, so short episodes do "
            f"not count more than long ones. Sample efficiency is the mean over the first {frames.budget:,} frames.",
        )
    references, warnings = read_reference_lines(groups)
    study = _analyze_study(task, groups, references, settings.study, bin_width) if settings.by_name else None
    if not isinstance(study, Landscape):  # all runs of a landscape measure the same proposals
        warnings = (*warnings, *find_identical_proposal_warnings(groups))
    summaries = tuple(_summarize_group(group, scores[group.label]) for group in task.groups)
    compared = [groups[i] for i in select_best_groups([summary for summary in summaries if summary.estimates])]
    return Section(
        task.title,
        task.common_overrides,
        summaries,
        improvement_matrix(
            [np.array(list(scores[group.label].values())) for group, _ in compared],
            [find_replication_units(runs) for _, runs in compared],
        ),
        curves,
        notes,
        () if frames is None else _summarize_efficiency(task, frames),
        references,
        (*find_task_warnings(groups), *warnings),
        study,
        build_story(task, groups),
    )


def _summarize_group(group: Group, scores: Mapping[Path, float]) -> GroupSummary:
    values = np.array(list(scores.values()))
    if not scores:
        return GroupSummary(group, values, remark="no finished run")
    runs = [run for run in group.runs if run.folder in scores]
    units = find_replication_units(runs)
    error = float(standard_error(values, units))
    return GroupSummary(group, values, compute_estimates(values, units), error, "; ".join(find_interval_caveats(runs)))


def _summarize_efficiency(task: ReportTask, frames: FrameBudget) -> tuple[GroupSummary, ...]:
    """Return the sample efficiency of each group over the same frames of training; () if no run logs success."""
    rule, summaries = ScoreRule(EFFICIENCY_METRIC, budget=frames.budget), []
    for group in task.groups:
        finished_runs = [run for run in group.runs if run.state == "finished"]
        runs = [run for run in finished_runs if is_training_metric(run.folder, EFFICIENCY_METRIC)]
        scores_or_reasons = {run.folder: rule.score(run) for run in runs}
        scores = {folder: score for folder, score in scores_or_reasons.items() if isinstance(score, float)}
        if scores:
            summaries.append(_summarize_group(group, scores))
        elif scores_or_reasons:
            summaries.append(GroupSummary(group, np.array([]), remark=str(next(iter(scores_or_reasons.values())))))
    return tuple(summaries)


def _analyze_study(
    task: ReportTask,
    groups: FinishedGroups,
    references: Sequence[ReferenceLine],
    settings: StudySettings | None,
    bin_width: int | None,
) -> StudyResult | None:
    """Return the result of the study of a task; None if its runs do not belong to a study, or none is finished.

    Raises:
        RunFolderError: the settings of the study or a run cannot be read.
    """
    runs = [run for _, group_runs in groups for run in group_runs]
    settings = settings or read_study_settings(runs)
    if settings is None or not runs:
        return None
    names = shorten_group_names(task)
    if settings.map is not None:
        return build_landscape(settings, {names[group.label]: group_runs for group, group_runs in groups})
    return compare_groups(settings, names, groups, references, bin_width)


_FIXED_PRINCIPALS = ("fixed", "listed")
"""Principals whose proposals are part of the config."""
_OBJECTIVE_KEYS = ("design.objective", "design.spending_cost")
"""Options that determine which quantity the score of a run is."""


def find_task_warnings(finished: FinishedGroups) -> tuple[str, ...]:
    """Return warnings about debug runs and different objectives among the finished runs of groups."""
    debug_groups = "; ".join(g.display_name for g, runs in finished if any("debug" in run.overrides for run in runs))
    warnings = [f"{debug_groups}: runs of a debug preset have minimal sizes, so their scores are not meaningful."]
    return (
        *(warnings if debug_groups else []),
        *(
            f"The groups differ in {option}: their scores are different quantities and cannot be ranked."
            for option in _OBJECTIVE_KEYS
            if len({runs[0].overrides.get(option) for _, runs in finished}) > 1
        ),
    )


def find_identical_proposal_warnings(finished_groups: FinishedGroups) -> tuple[str, ...]:
    """Return a warning for each group whose runs of different seeds proposed the same vectors in the same order.

    There are no warnings for groups with a single vector or with `principal=fixed` or `listed`.

    Args:
        finished_groups: groups and their finished runs.
    """
    return tuple(
        f"{group.display_name}: all {len({run.seed for run in runs})} seeds proposed the same vectors in the same "
        "order. A principal with random proposals must draw them from its argument `seeds` (docs/extending.md)."
        for group, runs in finished_groups
        if _are_proposals_identical(runs)
    )


def _are_proposals_identical(runs: Sequence[RunRecord]) -> bool:
    if len({run.seed for run in runs}) < 2 or any(run.overrides.get("principal") in _FIXED_PRINCIPALS for run in runs):
        return False
    histories = [run.summary().get("history") or [] for run in runs]
    [proposals, *other_proposals] = {
        tuple((row.get("context"), *(row.get("mechanism") or {}).values()) for row in rows) for rows in histories
    }
    return not other_proposals and len(set(proposals)) > 1
