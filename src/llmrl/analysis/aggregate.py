"""Computing the numbers of a report from a folder of runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llmrl.analysis.curves import curves_of
from llmrl.analysis.final_episodes import played_by
from llmrl.analysis.groups import Group, ReportTask, tasks_of
from llmrl.analysis.identical_proposals import identical_proposals
from llmrl.analysis.intervals import estimates, improvement_matrix, performance_profile
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.llm_calls import CallTotals, run_totals
from llmrl.analysis.reference_lines import references_of
from llmrl.analysis.replication import Structure, structure
from llmrl.analysis.report import ExcludedRuns, GroupNumbers, Report, Section
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.runs import RunRecord, read_runs
from llmrl.analysis.scores import ScoreRule, metric_names
from llmrl.analysis.statistics import mean, standard_error_over_tasks
from llmrl.analysis.story.story import story_of
from llmrl.analysis.study_results import study_of
from llmrl.analysis.training_curves import EFFICIENCY, FrameBudget, about_training, common_frames, is_told
from llmrl.core.errors import ConfigError, RunFolderError

_MOST_THRESHOLDS = 200


def summarize(
    folder: Path,
    settings: ReportSettings,
    runs: Sequence[RunRecord] | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> Report:
    """Read the runs in and under `folder` and return their report.

    `runs` are their records, if those hold more than the folders do (the queue of a scheduler); None: they are read
    here. `said` is called with a progress message for each task.

    Raises:
        RunFolderError: `folder` does not exist, or has no run.
        ConfigError: a metric that no run has logged, or an invalid setting.
    """
    if settings.target is not None and not math.isfinite(settings.target):
        raise ConfigError(f"--target={settings.target} must be a number")
    for option, frames in (("bin", settings.width), ("budget", settings.budget)):
        if frames is not None and frames < 1:
            raise ConfigError(f"--{option}={frames} must be a positive number of frames")
    runs = read_runs(folder) if runs is None else list(runs)
    if not runs:
        raise RunFolderError(f"there are no runs in {folder} (folders s<seed>); give outputs, or a folder inside it")
    _check_metrics([name for name in (settings.rule.metric, *settings.curves) if name], runs)
    left: list[ExcludedRuns] = []
    every: list[tuple[str, Group, RunRecord, float | None]] = []
    sections, scored, players = [], [], []
    tasks = tasks_of(runs, folder, settings.by_name)
    judged = not settings.rule.metric
    for number, task in enumerate(tasks, start=1):
        said(f"numbers of task {number} of {len(tasks)} ({len(runs)} runs)")
        ended = [run.folder for group in task.groups for run in group.runs if run.state == "finished"]
        common = common_frames(ended, settings.budget, settings.width)
        rule = settings.rule.within(common)
        known: dict[str, np.ndarray] = {}
        finished: list[tuple[Group, list[RunRecord]]] = []
        structures: dict[str, Structure] = {}
        for group in task.groups:
            over = [run for run in group.runs if run.state == "finished"]
            if (played := played_by(task, group, over)) is not None:
                players.append(played)
            scores = _scores(task, group, rule, left)
            every += [(task.title, group, run, scores.get(run.folder)) for run in group.runs]
            if scores:
                known[group.label] = np.array(list(scores.values()))
                counted = [run for run in group.runs if run.folder in scores]
                structures[group.label] = structure(counted, list(scores.values()), judged)
                finished.append((group, counted))
        curves, about = curves_of(
            finished,
            settings.curves,
            settings.over,
            None if common is None else common.width,
        )
        scored.append(TaskScores(task, known, structures))
        section = _section(task.title, scored[-1:], settings)
        efficiency = () if common is None else _efficiency(task, common)
        about += () if common is None else (about_training(common),)
        references, warned = references_of(finished)
        width = None if common is None else common.width
        study = study_of(task, finished, references, width, settings.study) if settings.by_name else None
        if not isinstance(study, Landscape):  # its settings are given
            warned = (*warned, *identical_proposals(finished))
        section = replace(section, common=task.common, curves=curves, notes=about, efficiency=efficiency)
        story = story_of(task, finished)
        sections.append(replace(section, references=references, warnings=warned, study=study, story=story))
    together, notes = _over_tasks(scored, settings)
    return Report(
        folder,
        settings,
        dict(Counter(run.state for run in runs)),
        tuple(every),
        (*sections, *together),
        tuple(left),
        _calls([each.task for each in scored]),
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
    known = metric_names(runs)
    for name in metrics:
        if name not in known:
            raise ConfigError(f"no run has logged {name}; there is {', '.join(known) or 'nothing logged at all'}")


def _scores(task: ReportTask, group: Group, rule: ScoreRule, left: list[ExcludedRuns]) -> dict[Path, float]:
    """Return the scores of a group's runs by folder, in order; runs without a score are added to `left`."""
    scores: dict[Path, float] = {}
    out: dict[tuple[str, str], list[int]] = {}
    for run in group.runs:
        found = rule.score(run) if run.state == "finished" else _why_unfinished(run)
        if isinstance(found, float):
            scores[run.folder] = found
        else:
            out.setdefault((run.state, found), []).append(run.seed)
    if group.missing:
        out["missing", "has no run folder; other groups of this task have this seed"] = list(group.missing)
    left += [ExcludedRuns(task.title, group, tuple(seeds), *what) for what, seeds in out.items()]
    return scores


def _why_unfinished(run: RunRecord) -> str:
    if run.error:
        return run.error
    if run.state == "queued":
        return "waits for its turn"
    done, total = run.progress.done, run.progress.total
    so_far = f"{done:,.0f} {run.progress.unit} done" + (f" ({done / total:.0%})" if total else "")
    return f"not finished: {so_far}"


def _section(title: str, scored: Sequence[TaskScores], settings: ReportSettings) -> Section:
    """Return the numbers of the groups of some tasks, whose groups have the same labels."""
    tasks, scores = [each.task for each in scored], [each.scores for each in scored]
    usable = [group.label for group in tasks[0].groups if all(group.label in of_task for of_task in scores)]
    by_group = {label: tuple(of_task[label] for of_task in scores) for label in usable}
    everything = np.concatenate([np.concatenate(parts) for parts in by_group.values()]) if usable else np.array([])
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
            structures = [each.structures[group.label] for each in scored]
            numbers.append(_numbers(group, expected, by_group[group.label], structures, target))
        else:
            lacking = [task.title for task, of_task in zip(tasks, scores, strict=True) if group.label not in of_task]
            where = f" in {', '.join(lacking)}" if len(tasks) > 1 else ""
            numbers.append(GroupNumbers(group, expected, remark=f"no finished run{where}"))
    thresholds = _thresholds(everything)
    units = {label: [each.structures[label].units for each in scored] for label in by_group}
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
    units = [each.units for each in structures]
    error = standard_error_over_tasks(scores, units)
    remarks = list(dict.fromkeys(remark for each in structures for remark in each.remarks))
    counts = structures[0].counts if len(structures) == 1 else ""
    return GroupNumbers(group, expected, scores, estimates(scores, units, target), error, "; ".join(remarks), counts)


def _efficiency(task: ReportTask, common: FrameBudget) -> tuple[GroupNumbers, ...]:
    """Return the sample efficiency of the groups, over the same frames of training; empty if no episode can succeed."""
    rule, numbers = ScoreRule(EFFICIENCY, budget=common.budget), []
    for group in task.groups:
        runs = [run for run in group.runs if run.state == "finished" and is_told(run.folder, EFFICIENCY)]
        found = {run.folder: rule.score(run) for run in runs}
        known = {folder: score for folder, score in found.items() if isinstance(score, float)}
        if known:
            scores = np.array(list(known.values()))
            source = structure([run for run in runs if run.folder in known], scores.tolist(), judged=False)
            numbers.append(_numbers(group, group.expected, (scores,), [source], 1.0))
        elif found:
            numbers.append(GroupNumbers(group, group.expected, remark=str(next(iter(found.values())))))
    return tuple(numbers)


def _thresholds(scores: np.ndarray) -> np.ndarray:
    """Return the thresholds of profiles: the scores, or evenly chosen ones of very many, and one beyond each end."""
    if not len(scores):
        return scores
    steps = np.unique(scores)
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_THRESHOLDS)).round().astype(int))]
    around = 0.02 * float(np.ptp(scores)) or 0.5
    return np.concatenate([[steps[0] - around], steps, [steps[-1] + around]])


def _target(
    by_group: Mapping[str, Sequence[np.ndarray]], asked: float | None, normalized: bool
) -> tuple[float | None, str]:
    if not by_group:
        return None, ""
    if normalized:
        return 1.0, "the best run of each task"
    if asked is not None:
        return asked, "as asked for with --target"
    best = max(by_group, key=lambda label: float(mean(by_group[label][0])))
    return float(mean(by_group[best][0])), f"the mean of the best group, {best}; choose your own with --target"


def _over_tasks(scored: Sequence[TaskScores], settings: ReportSettings) -> tuple[list[Section], tuple[str, ...]]:
    """Return a section, and notes, for each set of tasks with the same groups; scores are normalised within tasks."""
    families: dict[tuple[str, ...], list[TaskScores]] = {}
    for each in scored:
        families.setdefault(tuple(group.label for group in each.task.groups), []).append(each)
    comparable = [family for labels, family in families.items() if len(labels) > 1 and len(family) > 1]
    sections, notes = [], []
    if len(scored) > 1 and not comparable:
        notes.append("There are no numbers over tasks: no two tasks have the same two or more groups.")
    for family in comparable:
        normalized, ranges = [], []
        for each in family:
            title = each.task.title
            low = min((float(part.min()) for part in each.scores.values()), default=math.nan)
            high = max((float(part.max()) for part in each.scores.values()), default=math.nan)
            if not high > low:
                notes.append(f"{title} is not in the numbers over tasks: {_no_range(high)}")
                continue
            scores = {label: (part - low) / (high - low) for label, part in each.scores.items()}
            normalized.append(TaskScores(each.task, scores, each.structures))
            ranges.append(f"{title}: 0 is {low:.4g}, 1 is {high:.4g}")
        if len(normalized) > 1:
            titles = ", ".join(each.task.title for each in normalized)
            section = _section(f"All tasks ({titles})", normalized, settings)
            sections.append(replace(section, notes=(f"Scores are normalised within each task: {'; '.join(ranges)}.",)))
    return sections, tuple(notes)


def _no_range(high: float) -> str:
    return "no run has finished" if math.isnan(high) else "all its scores are equal, and cannot be normalised"


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
