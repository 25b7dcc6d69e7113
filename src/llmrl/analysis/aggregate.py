"""Computation of the numbers of a report from a folder of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from llmrl.analysis.curves import curves_of
from llmrl.analysis.final_episodes import summarize_final_episodes
from llmrl.analysis.group_comparison import compare_groups
from llmrl.analysis.landscape import Landscape, landscape
from llmrl.analysis.llm_calls import CallTotals, run_totals, summed
from llmrl.analysis.report import ExcludedRuns, GroupNumbers, Report, ReportSettings, Section, highest_groups
from llmrl.analysis.scores import ScoreRule, metric_names
from llmrl.analysis.story.story import build_story
from llmrl.analysis.task_warnings import identical_proposals, task_warnings
from llmrl.analysis.training_curves import EFFICIENCY, FrameBudget, common_frames, is_training_metric, training_note
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.results.groups import FinishedGroups, Group, ReportTask, tasks_of
from llmrl.results.reference_lines import ReferenceLine, read_references
from llmrl.results.replication import replication_remarks, units_of
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.results.study_settings import StudyResult, StudySettings, read_study_settings, short_group_names
from llmrl.statistics.estimators import standard_error
from llmrl.statistics.intervals import estimates, improvement_matrix


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
    for option, n_frames in (("bin", settings.width), ("budget", settings.budget)):
        if n_frames is not None and n_frames < 1:
            raise ConfigError(f"--{option}={n_frames} must be a number of frames, 1 or more")
    runs = read_runs(folder) if runs is None else list(runs)
    if not runs:
        raise RunFolderError(f"there are no runs in {folder} (folders s<seed>); give outputs, or a folder in it")
    _check_metrics([name for name in (settings.rule.metric, *settings.curves) if name], runs)
    excluded: list[ExcludedRuns] = []
    scored_runs: list[tuple[str, Group, RunRecord, float | None]] = []
    sections, players = [], []
    tasks = tasks_of(runs, folder, settings.by_name)
    for number, task in enumerate(tasks, start=1):
        report(f"numbers of task {number} of {len(tasks)} ({len(runs)} runs)")
        finished = [(group, [run for run in group.runs if run.state == "finished"]) for group in task.groups]
        folders = [run.folder for _, finished_runs in finished for run in finished_runs]
        frames = common_frames(folders, settings.budget, settings.width)
        scores = {group.label: _scores(task, group, settings.rule.within(frames), excluded) for group in task.groups}
        for group, finished_runs in finished:
            scored_runs += [(task.title, group, run, scores[group.label].get(run.folder)) for run in group.runs]
            if (episodes := summarize_final_episodes(task, group, finished_runs)) is not None:
                players.append(episodes)
        sections.append(_section(task, scores, settings, frames))
    return Report(folder, settings, tuple(scored_runs), tuple(sections), tuple(excluded), _calls(tasks), tuple(players))


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


def _section(
    task: ReportTask, scores: Mapping[str, Mapping[Path, float]], settings: ReportSettings, frames: FrameBudget | None
) -> Section:
    """Return the results of a task.

    Args:
        task: task with its groups.
        scores: scores of the runs of each group, by label and folder.
        settings: settings of the report.
        frames: frames over which training episodes are compared; None without these.
    """
    groups = [
        (group, [run for run in group.runs if run.folder in scores[group.label]])
        for group in task.groups
        if scores[group.label]
    ]
    width = None if frames is None else frames.width
    curves, notes = curves_of(groups, settings.curves, settings.x_axis, width)
    references, warnings = read_references(groups)
    study = _study(task, groups, references, settings.study, width) if settings.by_name else None
    if not isinstance(study, Landscape):  # whose proposals are identical by design
        warnings = (*warnings, *identical_proposals(groups))
    numbers = tuple(_numbers(group, scores[group.label]) for group in task.groups)
    paired = [groups[i] for i in highest_groups([n for n in numbers if n.estimates])]
    return Section(
        task.title,
        task.common,
        numbers,
        improvement_matrix(
            [np.array(list(scores[group.label].values())) for group, _ in paired],
            [units_of(runs) for _, runs in paired],
        ),
        curves,
        notes if frames is None else (*notes, training_note(frames)),
        () if frames is None else _efficiency(task, frames),
        references,
        (*task_warnings(groups), *warnings),
        study,
        build_story(task, groups),
    )


def _numbers(group: Group, scores: Mapping[Path, float]) -> GroupNumbers:
    values = np.array(list(scores.values()))
    if not scores:
        return GroupNumbers(group, values, remark="no finished run")
    runs = [run for run in group.runs if run.folder in scores]
    units = units_of(runs)
    error = float(standard_error(values, units))
    return GroupNumbers(group, values, estimates(values, units), error, "; ".join(replication_remarks(runs)))


def _efficiency(task: ReportTask, frames: FrameBudget) -> tuple[GroupNumbers, ...]:
    """Return the sample efficiency of the groups, over the same frames of training.

    The result is empty if no episode can succeed.
    """
    rule, numbers = ScoreRule(EFFICIENCY, budget=frames.budget), []
    for group in task.groups:
        runs = [run for run in group.runs if run.state == "finished" and is_training_metric(run.folder, EFFICIENCY)]
        results = {run.folder: rule.score(run) for run in runs}
        scores = {folder: score for folder, score in results.items() if isinstance(score, float)}
        if scores:
            numbers.append(_numbers(group, scores))
        elif results:
            numbers.append(GroupNumbers(group, np.array([]), remark=str(next(iter(results.values())))))
    return tuple(numbers)


def _study(
    task: ReportTask,
    groups: FinishedGroups,
    references: Sequence[ReferenceLine],
    settings: StudySettings | None,
    width: int | None,
) -> StudyResult | None:
    """Return the result of the study of a task; None if its runs are no study, or none is finished.

    Raises:
        RunFolderError: the settings, or a run, cannot be read.
    """
    runs = [run for _, group_runs in groups for run in group_runs]
    settings = settings or read_study_settings(runs)
    if settings is None or not runs:
        return None
    if settings.map is not None:
        return landscape(settings, runs)
    return compare_groups(settings, short_group_names(task), groups, references, width)


def _calls(tasks: Sequence[ReportTask]) -> tuple[tuple[str, Group, CallTotals], ...]:
    """Return the totals of language-model calls of each group; groups without a model are left out."""
    totals = [
        (task.title, group, summed(run_totals(run.folder) for run in group.runs))
        for task in tasks
        for group in task.groups
    ]
    return tuple((title, group, total) for title, group, total in totals if group.llm or total.models)
