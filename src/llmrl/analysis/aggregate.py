"""Computation of the numbers of a report from a folder of runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llmrl.analysis.curves import curves_of
from llmrl.analysis.final_episodes import summarize_final_episodes
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.llm_calls import CallTotals, run_totals
from llmrl.analysis.report import ExcludedRuns, GroupNumbers, Report, Section
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.scores import ScoreRule, metric_names
from llmrl.analysis.story.story import build_story
from llmrl.analysis.study_results import analyze_study
from llmrl.analysis.task_warnings import identical_proposals, task_warnings
from llmrl.analysis.training_curves import EFFICIENCY, FrameBudget, common_frames, is_training_metric, training_note
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.results.groups import Group, ReportTask, tasks_of
from llmrl.results.reference_lines import read_references
from llmrl.results.replication import Structure, structure
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.statistics.estimators import mean, standard_error_over_tasks
from llmrl.statistics.intervals import estimates, improvement_matrix, performance_profile

_MAX_THRESHOLDS = 200


def summarize(
    folder: Path,
    settings: ReportSettings,
    runs: Sequence[RunRecord] | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Report:
    """Read the runs in a folder and return their report.

    Args:
        folder: folder of the runs, at any level.
        settings: settings of the report.
        runs: records of the runs, if they hold more than the folders do (the queue of a scheduler); None: read here.
        report: function that is called with a progress message for each task.

    Raises:
        RunFolderError: `folder` does not exist, or has no run.
        ConfigError: no run has logged a metric, or a setting is invalid.
    """
    if settings.target is not None and not math.isfinite(settings.target):
        raise ConfigError(f"--target={settings.target} must be a finite number")
    for option, frames in (("bin", settings.width), ("budget", settings.budget)):
        if frames is not None and frames < 1:
            raise ConfigError(f"--{option}={frames} must be a number of frames, 1 or more")
    runs = read_runs(folder) if runs is None else list(runs)
    if not runs:
        raise RunFolderError(f"there are no runs in {folder} (folders s<seed>); give outputs, or a folder in it")
    _check_metrics([name for name in (settings.rule.metric, *settings.curves) if name], runs)
    excluded: list[ExcludedRuns] = []
    scored_runs: list[tuple[str, Group, RunRecord, float | None]] = []
    sections, task_scores, players = [], [], []
    tasks = tasks_of(runs, folder, settings.by_name)
    is_result = not settings.rule.metric
    for number, task in enumerate(tasks, start=1):
        report(f"numbers of task {number} of {len(tasks)} ({len(runs)} runs)")
        finished_folders = [run.folder for group in task.groups for run in group.runs if run.state == "finished"]
        common = common_frames(finished_folders, settings.budget, settings.width)
        rule = settings.rule.within(common)
        scores_by_label: dict[str, np.ndarray] = {}
        scored_groups: list[tuple[Group, list[RunRecord]]] = []
        structures: dict[str, Structure] = {}
        for group in task.groups:
            finished_runs = [run for run in group.runs if run.state == "finished"]
            if (episodes := summarize_final_episodes(task, group, finished_runs)) is not None:
                players.append(episodes)
            scores = _scores(task, group, rule, excluded)
            scored_runs += [(task.title, group, run, scores.get(run.folder)) for run in group.runs]
            if scores:
                scores_by_label[group.label] = np.array(list(scores.values()))
                runs_with_scores = [run for run in group.runs if run.folder in scores]
                structures[group.label] = structure(runs_with_scores, list(scores.values()), is_result)
                scored_groups.append((group, runs_with_scores))
        curves, curve_notes = curves_of(
            scored_groups,
            settings.curves,
            settings.x_axis,
            None if common is None else common.width,
        )
        task_scores.append(TaskScores(task, scores_by_label, structures))
        section = _section(task.title, task_scores[-1:], settings)
        efficiency = () if common is None else _efficiency(task, common)
        curve_notes += () if common is None else (training_note(common),)
        references, warnings = read_references(scored_groups)
        warnings = (*task_warnings(scored_groups), *warnings)
        width = None if common is None else common.width
        study = analyze_study(task, scored_groups, references, width, settings.study) if settings.by_name else None
        if not isinstance(study, Landscape):  # whose proposals are identical by design
            warnings = (*warnings, *identical_proposals(scored_groups))
        section = replace(section, common=task.common, curves=curves, notes=curve_notes, efficiency=efficiency)
        story = build_story(task, scored_groups)
        sections.append(replace(section, references=references, warnings=warnings, study=study, story=story))
    aggregates, notes = _aggregate_tasks(task_scores, settings)
    return Report(
        folder,
        settings,
        dict(Counter(run.state for run in runs)),
        tuple(scored_runs),
        (*sections, *aggregates),
        tuple(excluded),
        _calls([task_part.task for task_part in task_scores]),
        notes,
        tuple(players),
    )


@dataclass(frozen=True)
class TaskScores:
    """The scores [n_runs] of a task's groups and their sources of variation, by label of the group."""

    task: ReportTask
    scores: Mapping[str, np.ndarray]
    structures: Mapping[str, Structure]


def _check_metrics(metrics: Sequence[str], runs: Sequence[RunRecord]) -> None:
    if not metrics:
        return
    names = metric_names(runs)
    for name in metrics:
        if name not in names:
            raise ConfigError(f"no run has logged {name}; logged metrics: {', '.join(names) or 'none'}")


def _scores(task: ReportTask, group: Group, rule: ScoreRule, excluded: list[ExcludedRuns]) -> dict[Path, float]:
    """Return the scores of a group's runs by folder, in order; runs without a score are added to `excluded`."""
    scores: dict[Path, float] = {}
    reasons: dict[tuple[str, str], list[int]] = {}
    for run in group.runs:
        score = rule.score(run) if run.state == "finished" else _unfinished_reason(run)
        if isinstance(score, float):
            scores[run.folder] = score
        else:
            reasons.setdefault((run.state, score), []).append(run.seed)
    if group.missing:
        reasons["missing", "has no run folder; other groups of this task have this seed"] = list(group.missing)
    excluded += [ExcludedRuns(task.title, group, tuple(seeds), *reason) for reason, seeds in reasons.items()]
    return scores


def _unfinished_reason(run: RunRecord) -> str:
    if run.error:
        return run.error
    if run.state == "queued":
        return "waits in the queue"
    done, total = run.progress.done, run.progress.total
    progress = f"{done:,.0f} {run.progress.unit} done" + (f" ({done / total:.0%})" if total else "")
    return f"not finished: {progress}"


def _section(title: str, scored: Sequence[TaskScores], settings: ReportSettings) -> Section:
    """Return the numbers of the groups of some tasks, whose groups have the same labels."""
    tasks, scores = [task.task for task in scored], [task.scores for task in scored]
    usable = [group.label for group in tasks[0].groups if all(group.label in task_part for task_part in scores)]
    by_group = {label: tuple(task_part[label] for task_part in scores) for label in usable}
    all_scores = np.concatenate([np.concatenate(parts) for parts in by_group.values()]) if usable else np.array([])
    target, source = _target(
        {group.shown: by_group[group.label] for group in tasks[0].groups if group.label in by_group},
        settings.target,
        len(tasks) > 1,
    )
    numbers = []
    for i, group in enumerate(tasks[0].groups):
        expected = sum(task.groups[i].expected for task in tasks)
        if group.label in by_group:
            assert target is not None
            structures = [task.structures[group.label] for task in scored]
            numbers.append(_numbers(group, expected, by_group[group.label], structures, target))
        else:
            lacking = [
                task.title for task, task_part in zip(tasks, scores, strict=True) if group.label not in task_part
            ]
            location = f" in {', '.join(lacking)}" if len(tasks) > 1 else ""
            numbers.append(GroupNumbers(group, expected, remark=f"no finished run{location}"))
    thresholds = _thresholds(all_scores)
    units = {label: [task.structures[label].units for task in scored] for label in by_group}
    profiles = [performance_profile(parts, thresholds, units[label]) for label, parts in by_group.items()]
    return Section(
        title,
        {},
        tuple(task.title for task in tasks),
        tuple(numbers),
        target,
        source,
        improvement_matrix(list(by_group.values()), list(units.values())),
        thresholds,
        tuple(profiles),
    )


def _numbers(
    group: Group,
    expected: int,
    scores: tuple[np.ndarray, ...],
    structures: Sequence[Structure],
    target: float,
) -> GroupNumbers:
    units = [sources.units for sources in structures]
    error = standard_error_over_tasks(scores, units)
    remarks = list(dict.fromkeys(remark for sources in structures for remark in sources.remarks))
    counts = structures[0].counts if len(structures) == 1 else ""
    return GroupNumbers(group, expected, scores, estimates(scores, units, target), error, "; ".join(remarks), counts)


def _efficiency(task: ReportTask, common: FrameBudget) -> tuple[GroupNumbers, ...]:
    """Return the sample efficiency of the groups, over the same frames of training.

    The result is empty if no episode can succeed.
    """
    rule, numbers = ScoreRule(EFFICIENCY, budget=common.budget), []
    for group in task.groups:
        runs = [run for run in group.runs if run.state == "finished" and is_training_metric(run.folder, EFFICIENCY)]
        results = {run.folder: rule.score(run) for run in runs}
        score_by_folder = {folder: score for folder, score in results.items() if isinstance(score, float)}
        if score_by_folder:
            scores = np.array(list(score_by_folder.values()))
            source = structure([run for run in runs if run.folder in score_by_folder], scores.tolist(), is_result=False)
            numbers.append(_numbers(group, group.expected, (scores,), [source], 1.0))
        elif results:
            numbers.append(GroupNumbers(group, group.expected, remark=str(next(iter(results.values())))))
    return tuple(numbers)


def _thresholds(scores: np.ndarray) -> np.ndarray:
    """Return the thresholds of profiles: the scores, or evenly chosen ones of very many, and one beyond each end."""
    if not len(scores):
        return scores
    steps = np.unique(scores)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MAX_THRESHOLDS)).round().astype(int))]
    margin = 0.02 * float(np.ptp(scores)) or 0.5
    return np.concatenate([[steps[0] - margin], steps, [steps[-1] + margin]])


def _target(
    by_group: Mapping[str, Sequence[np.ndarray]], target: float | None, normalized: bool
) -> tuple[float | None, str]:
    if not by_group:
        return None, ""
    if normalized:
        return 1.0, "the best run of each task"
    if target is not None:
        return target, "set by --target"
    best = max(by_group, key=lambda label: float(mean(by_group[label][0])))
    return float(mean(by_group[best][0])), f"the mean of the best group, {best}; --target sets another"


def _aggregate_tasks(scored: Sequence[TaskScores], settings: ReportSettings) -> tuple[list[Section], tuple[str, ...]]:
    """Return a section, and notes, for each set of tasks with the same groups; scores are normalized within tasks."""
    families: dict[tuple[str, ...], list[TaskScores]] = {}
    for task_scores in scored:
        families.setdefault(tuple(group.label for group in task_scores.task.groups), []).append(task_scores)
    comparable = [family for labels, family in families.items() if len(labels) > 1 and len(family) > 1]
    sections, notes = [], []
    if len(scored) > 1 and not comparable:
        notes.append("There are no numbers over tasks, because no two tasks have the same groups (two or more).")
    for family in comparable:
        normalized, ranges = [], []
        for task_scores in family:
            title = task_scores.task.title
            low = min((float(part.min()) for part in task_scores.scores.values()), default=math.nan)
            high = max((float(part.max()) for part in task_scores.scores.values()), default=math.nan)
            if not high > low:
                notes.append(f"{title} is not in the numbers over tasks: {_no_range(high)}")
                continue
            scores = {label: (part - low) / (high - low) for label, part in task_scores.scores.items()}
            normalized.append(TaskScores(task_scores.task, scores, task_scores.structures))
            ranges.append(f"{title}: 0 is {low:.4g}, 1 is {high:.4g}")
        if len(normalized) > 1:
            titles = ", ".join(task_scores.task.title for task_scores in normalized)
            section = _section(f"All tasks ({titles})", normalized, settings)
            sections.append(replace(section, notes=(f"Scores are normalized within each task: {'; '.join(ranges)}.",)))
    return sections, tuple(notes)


def _no_range(high: float) -> str:
    return "no run has finished" if math.isnan(high) else "all its scores are equal, and cannot be normalized"


def _calls(tasks: Sequence[ReportTask]) -> tuple[tuple[str, Group, CallTotals], ...]:
    """Return the totals of language-model calls of each group; groups without a model are left out."""
    rows = []
    for task in tasks:
        for group in task.groups:
            total = CallTotals()
            for run in group.runs:
                total = total.plus(run_totals(run.folder))
            if group.llm or total.models:
                rows.append((task.title, group, total))
    return tuple(rows)
