"""Comparison of the groups of a study: curves, scores, and tests against baselines and of the planned pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.curves import GroupCurve
from llmrl.analysis.group_traces import GroupTrace, build_solution_table, read_group_traces
from llmrl.analysis.scores import X_AXES
from llmrl.results.groups import FinishedGroups, explain_scripted_groups
from llmrl.results.principal_scores import MEASUREMENTS_COUNTER, OBJECTIVE_METRIC, ReferenceLine, explain_scores
from llmrl.results.study_settings import StudyResult, StudySettings
from llmrl.results.table_format import (
    EMPTY_CELL,
    NumberFormat,
    ReportTable,
    format_estimate,
    format_p_value,
    interval_to_cells,
)
from llmrl.statistics.estimators import Interval
from llmrl.statistics.intervals import (
    SIGNIFICANCE_LEVEL,
    Band,
    adjust_p_values,
    difference_interval,
    is_paired,
    p_value,
    probability_of_improvement,
)


@dataclass(frozen=True)
class Comparison:
    """The comparison of one group with another.

    A unit is a pre-training run with all runs that start from it, or else a run.

    Attributes:
        group, baseline: the compared groups.
        difference: difference of their mean scores, `group` minus `baseline`.
        probability: probability that a run of `group` has a higher score than a run of `baseline`.
        p: p-value of equal means (`statistics.intervals.p_value`); NaN if a group has too few units.
        p_adjusted: `p` after Holm's correction for the number of comparisons in its family.
        onset: x coordinate from which the interval of the difference between the curves (`GroupTrace.main_curve`)
            stays above 0; None if there is no such coordinate.
    """

    group: GroupTrace
    baseline: GroupTrace
    difference: Band
    probability: Interval
    p: float
    p_adjusted: float
    onset: float | None

    @property
    def is_paired(self) -> bool:
        """True if both groups start from the same pre-training runs, so that units of the groups form pairs."""
        return is_paired(self.group.replication_units, self.baseline.replication_units)

    @property
    def verdict(self) -> str:
        """Verdict of the test: `above` or `below` if `p_adjusted` < `SIGNIFICANCE_LEVEL`, `unclear` otherwise.

        It is `untested` if a group has too few units.
        """
        if np.isnan(self.p_adjusted):
            return "untested"
        if self.p_adjusted >= SIGNIFICANCE_LEVEL:
            return "unclear"
        return "above" if float(self.difference.estimate) > 0 else "below"


@dataclass(frozen=True)
class GroupComparison(StudyResult):
    """The result of a comparison of groups.

    Attributes:
        traces: curves and scores of the compared groups, highest score first.
        comparisons: comparisons of groups with the baselines, then of the pairs in the settings.
        references: reference lines, which were measured before the runs.
        online_caption: caption of the figure of online performance; empty if there is no such figure.
    """

    traces: tuple[GroupTrace, ...]
    comparisons: tuple[Comparison, ...]
    references: tuple[ReferenceLine, ...]
    online_caption: str = ""

    @property
    def has_anytime_curves(self) -> bool:
        """True if the main figure shows curves of recommendations."""
        return any(trace.anytime_curve is not None for trace in self.traces)


def compare_groups(
    settings: StudySettings,
    names: Mapping[str, str],
    finished: FinishedGroups,
    references: Sequence[ReferenceLine],
    bin_width: int | None = None,
) -> GroupComparison:
    """Compare the groups of a study.

    Args:
        settings: settings of the study.
        names: short names of the groups, by label.
        finished: each group with its finished runs.
        references: reference lines, which were measured before the runs.
        bin_width: width, in frames, of the bins in which metrics of training episodes are averaged; None if no such
            metrics are compared.

    Raises:
        RunFolderError: a metric of a run cannot be read.
    """
    traces = read_group_traces(settings, [(names[group.label], group, runs) for group, runs in finished], bin_width)
    trace_by_name = {trace.name: trace for trace in traces}
    baseline_pairs = [
        (trace, trace_by_name[name])
        for i, name in enumerate(settings.baselines)
        if name in trace_by_name
        for trace in traces
        if trace.name not in settings.baselines[: i + 1]
    ]
    available_pairs = [pair for pair in settings.pairs if trace_by_name.keys() >= set(pair)]
    planned_pairs = [(trace_by_name[group], trace_by_name[baseline]) for group, baseline in available_pairs]
    # A second test of a pair would have another adjusted p-value.
    additional_pairs = [(x, y) for x, y in planned_pairs if not any(x is g and y is b for g, b in baseline_pairs)]
    comparisons = [*_compare_pairs(baseline_pairs), *_compare_pairs(additional_pairs)]
    missing_pairs = [" and ".join(pair) for pair in settings.pairs if pair not in available_pairs]
    # Reference lines are values of the objective.
    references = tuple(references) if settings.metric in (None, OBJECTIVE_METRIC) else ()
    has_anytime_curves = any(trace.anytime_curve is not None for trace in traces)
    mean_scores = {x.display_name: float(x.score.estimate) for x in traces if x.online_score is not None}
    mean_online_scores = {x.display_name: float(x.online_score.estimate) for x in traces if x.online_score is not None}
    sentences = (
        *_describe_comparisons(comparisons, settings.score_name),
        *([f"Not compared, as a group has no run with a score: {'; '.join(missing_pairs)}."] if missing_pairs else []),
        *explain_scores(mean_scores, mean_online_scores),
        *explain_scripted_groups(trace.group for trace in traces),
    )
    return GroupComparison(
        settings,
        sentences,
        tuple(_build_tables(settings, traces, comparisons, references)),
        _describe_figure(settings, traces) + (" Horizontal lines were measured before the runs." if references else ""),
        tuple(traces),
        tuple(comparisons),
        references,
        (
            f"Online performance: {settings.score_name}, {_describe_runs(traces)}. Left, the objective of proposals "
            f"over {_describe_curves(settings)}; right, mean of the last fifth of each run's proposals, as a dot, and "
            "their mean with its 95% interval."
        )
        if has_anytime_curves and mean_online_scores
        else "",
    )


def _compare_pairs(family: Sequence[tuple[GroupTrace, GroupTrace]]) -> list[Comparison]:
    """Compare the pairs (group, baseline) of a family; p-values are adjusted for the number of pairs."""
    samples = [(x.scores, y.scores, x.replication_units, y.replication_units) for x, y in family]
    p_values = [p_value(*sample) for sample in samples]
    return [
        Comparison(
            *pair,
            difference_interval(*sample),
            probability_of_improvement(*sample),
            p_raw,
            p_adjusted,
            _find_onset(*pair),
        )
        for pair, sample, p_raw, p_adjusted in zip(family, samples, p_values, adjust_p_values(p_values), strict=True)
    ]


def _find_onset(group: GroupTrace, baseline: GroupTrace) -> float | None:
    """Return the first x from which the interval of the difference between two curves stays above 0; None without one.

    Only the range of x that both curves have is compared. A baseline without a curve is constant at its scores.
    """
    curve, baseline_curve = group.main_curve, baseline.main_curve
    if curve is None:
        return None
    if baseline_curve is not None:
        last = min(curve.x[-1], baseline_curve.x[-1])
        x = curve.x[(curve.x <= last) & (curve.x >= baseline_curve.x[0])]
        if not len(x):
            return None
        baseline_values = np.stack([np.interp(x, baseline_curve.x, run) for run in baseline_curve.values.T], axis=-1)
    else:
        x, baseline_values = curve.x, np.tile(baseline.scores, (len(curve.x), 1))
    values = curve.values[np.isin(curve.x, x)]
    difference = difference_interval(values, baseline_values, group.replication_units, baseline.replication_units)
    return find_start_above_zero(x, difference.low)


def find_start_above_zero(x: np.ndarray, low: np.ndarray) -> float | None:
    """Return the first of the coordinates `x` [n] from which on `low` [n] is above zero; None if its last value is not.

    >>> find_start_above_zero(np.array([1, 2, 3, 4]), np.array([0.5, -1.0, 0.2, 0.1]))
    3.0
    """
    violations = np.flatnonzero(~(low > 0))
    start = 0 if len(violations) == 0 else int(violations[-1]) + 1
    return float(x[start]) if start < len(x) else None


def _describe_comparisons(comparisons: Sequence[Comparison], score_name: str) -> list[str]:
    """Return a sentence for each baseline and verdict, with the groups and their differences from the baseline.

    The baseline of a planned pair is its second group.
    """
    sentences = []
    text_by_verdict = {
        "above": "Above",
        "below": "Below",
        "unclear": "Not shown to differ from",
        "untested": "Too few units to compare with",
    }
    for baseline in dict.fromkeys(comparison.baseline.display_name for comparison in comparisons):
        group_comparisons = [comparison for comparison in comparisons if comparison.baseline.display_name == baseline]
        fmt = _choose_difference_format(group_comparisons)
        for verdict, text in text_by_verdict.items():
            differences = ", ".join(
                f"{comparison.group.display_name} ({fmt.format_signed(float(comparison.difference.estimate))})"
                for comparison in group_comparisons
                if comparison.verdict == verdict
            )
            if differences:
                sentences.append(f"{text} {baseline} ({score_name}): {differences}.")
    return sentences


def _choose_difference_format(comparisons: Sequence[Comparison]) -> NumberFormat:
    return NumberFormat(np.array([float(comparison.difference.estimate) for comparison in comparisons] + [0.0]))


def _describe_figure(settings: StudySettings, traces: Sequence[GroupTrace]) -> str:
    """Return the caption of the main figure."""
    if any(trace.online_scores is not None for trace in traces):
        score = "recommendation"
    else:
        score = "result" if settings.tail_fraction is None else f"mean over its last {settings.tail_fraction:.0%}"
    dots_text = f"each run's {score}, as a dot, and their mean with its 95% interval."
    title = f"{settings.score_name}, {_describe_runs(traces)}. "
    if any(trace.anytime_curve is not None for trace in traces):
        return (
            f"{title}Left, value of what a run would recommend after only its first n measurements, with 95% bands; "
            f"right, {dots_text}"
        )
    if any(trace.curve is not None for trace in traces):
        return f"{title}Left, over {_describe_curves(settings)}; right, {dots_text}"
    return title + dots_text[:1].upper() + dots_text[1:]


def _describe_runs(traces: Sequence[GroupTrace]) -> str:
    counts = sorted({len(trace.scores) for trace in traces})
    runs_text = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}" if counts else "no"
    n_pretrainings = max((trace.n_pretrainings for trace in traces), default=0)
    pretrainings_text = f", which start from {n_pretrainings} pre-training runs" if n_pretrainings else ""
    return f"mean over {runs_text} runs per group{pretrainings_text}"


def _describe_curves(settings: StudySettings) -> str:
    smooth_text = f", each point the mean of {settings.smooth} values of a run" if settings.smooth > 1 else ""
    return f"{X_AXES[settings.x_axis][1]}{smooth_text}, with 95% bands"


def _build_tables(
    settings: StudySettings,
    traces: Sequence[GroupTrace],
    comparisons: Sequence[Comparison],
    references: Sequence[ReferenceLine],
) -> Iterable[ReportTable]:
    """Yield the tables of a study: scores first, tables that are only written to files last."""
    yield _build_scores_table(settings, traces, references)
    if settings.published:
        yield _build_published_table(settings)
    if (solution_table := build_solution_table(settings, traces, references, settings.score_name)) is not None:
        yield solution_table
    anytime_traces = [trace for trace in traces if trace.anytime_curve is not None]
    if comparisons:
        axis_title = X_AXES[MEASUREMENTS_COUNTER if anytime_traces else settings.x_axis][1]
        yield _build_comparisons_table(comparisons, axis_title)
    yield _build_curves_table("study_curves", {trace.display_name: trace.curve for trace in traces}, settings.x_axis)
    if anytime_traces:
        curves = {trace.display_name: trace.anytime_curve for trace in traces}
        yield _build_curves_table("study_anytime", curves, MEASUREMENTS_COUNTER)
        yield _build_recommendations_table(anytime_traces)


def _build_scores_table(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine]
) -> ReportTable:
    has_online = any(trace.online_scores is not None for trace in traces)
    fmt = NumberFormat(np.concatenate([trace.scores for trace in traces]) if traces else np.array([]))
    columns = ["group", "runs", *(["recommendation", "online performance"] if has_online else [settings.score_name])]
    header: list[object] = ["group", "runs", "pretrainings", "score", "low", "high"]
    csv_rows = [[*header, *(["online_performance", "online_low", "online_high"] if has_online else [])]]
    rows = []
    for trace in traces:
        runs = f"{len(trace.scores)}" + (f" ({trace.n_pretrainings} pre-trained)" if trace.n_pretrainings else "")
        bands = [trace.score, *([trace.online_score] if has_online else [])]
        rows.append([trace.display_name, runs, *(format_estimate(band, fmt) for band in bands)])
        cells = [cell for band in bands for cell in interval_to_cells(band)]
        csv_rows.append([trace.display_name, len(trace.scores), trace.n_pretrainings, *cells])
    for line in references:
        rows.append([line.label, EMPTY_CELL, fmt(line.value), *([EMPTY_CELL] if has_online else [])])
        csv_rows.append([line.label, None, None, line.value, *([None] * (len(csv_rows[0]) - 4))])
    if has_online:
        caption = f"{settings.score_name}: means over the runs of a group, with 95% intervals"
    else:
        share = settings.tail_fraction
        basis = "the runs' results" if share is None else f"the last {share:.0%} of each run"
        basis += f" (all of {', '.join(settings.levels)})" if settings.levels and share is not None else ""
        caption = f"{settings.score_name}: mean over {basis}, with 95% intervals"
    return ReportTable("study_scores", caption, csv_rows, columns, rows)


def _build_published_table(settings: StudySettings) -> ReportTable:
    """Return the table of published results, which were computed with other agents and budgets than the runs."""
    columns = ["group", "published"]
    sorted_results = sorted(settings.published.items(), key=lambda item: -item[1])
    rows = [[name, f"{score:g}"] for name, score in sorted_results]
    caption = f"Published results ({settings.score_name}), with other agents and budgets"
    notes = [settings.source] if settings.source else []
    return ReportTable("study_published", caption, [columns, *map(list, sorted_results)], columns, rows, notes=notes)


def _build_comparisons_table(comparisons: Sequence[Comparison], axis_title: str) -> ReportTable:
    fmt = _choose_difference_format(comparisons)
    has_onset = any(comparison.onset is not None for comparison in comparisons)
    columns = ["group", "against", "difference", "p", "adjusted p", "probability of a better run"]
    columns += [f"above from ({axis_title})"] if has_onset else []
    header: list[object] = ["group", "against", "difference", "low", "high"]
    header += ["probability", "probability_low", "probability_high", "since", "paired", "p", "p_adjusted"]
    csv_rows, rows = [header], []
    for comparison in comparisons:
        names = [comparison.group.display_name, comparison.baseline.display_name]
        sign = "+" if fmt.format_signed(float(comparison.difference.estimate)).startswith("+") else ""
        cells = [sign + format_estimate(comparison.difference, fmt)]
        cells += [format_p_value(p) for p in (comparison.p, comparison.p_adjusted)]
        cells += [format_estimate(comparison.probability, "{:.2f}".format)]
        cells += [EMPTY_CELL if comparison.onset is None else f"{comparison.onset:,.0f}"] if has_onset else []
        rows.append([*names, *cells])
        numbers = [*interval_to_cells(comparison.difference), *interval_to_cells(comparison.probability)]
        csv_rows.append([*names, *numbers, comparison.onset, comparison.is_paired, comparison.p, comparison.p_adjusted])
    is_any_paired = any(comparison.is_paired for comparison in comparisons)
    design_text = "paired by pre-training run" if is_any_paired else "of independent runs"
    caption = f"Planned comparisons, {design_text}: 95% intervals, p-values, and p-values adjusted by Holm's method"
    return ReportTable("study_comparisons", caption, csv_rows, columns, rows, n_text_columns=2)


def _build_curves_table(name: str, curves: Mapping[str, GroupCurve | None], x_axis: str) -> ReportTable:
    """Return a table of curves by display name of their groups, which is only written to a file."""
    csv_rows: list[list[object]] = [["group", x_axis, "mean", "low", "high"]]
    for group, curve in curves.items():
        csv_rows += [[group, *row] for row in curve.rows] if curve is not None else []
    return ReportTable(name, "Curves of a figure of the study", csv_rows)


def _build_recommendations_table(traces: Sequence[GroupTrace]) -> ReportTable:
    """Return a table of the objective of each run's recommendations, which is only written to a file."""
    csv_rows: list[list[object]] = [["group", "run", "seed", MEASUREMENTS_COUNTER, "objective"]]
    for trace in traces:
        assert trace.anytime_curve is not None
        for i, run in enumerate(trace.runs):
            points = zip(trace.anytime_curve.x, trace.anytime_curve.values[:, i], strict=True)
            csv_rows += [[trace.display_name, i, run.seed, *row] for row in points]
    return ReportTable("study_recommendations", "Recommendations of each run", csv_rows)
