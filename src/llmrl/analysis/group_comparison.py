"""Comparison of the groups of a study: curves, scores, and the comparisons that its settings ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.curves import on_common_grid
from llmrl.analysis.group_traces import GroupCurve, GroupTrace
from llmrl.analysis.scores import AXES, DEFAULT_CURVES, Series, series
from llmrl.analysis.study_captions import figure_caption, online_figure_caption
from llmrl.analysis.study_tables import curves_table, published_table, recommendations_table, time_tables
from llmrl.results.groups import Group, scripted_notes
from llmrl.results.principal_scores import (
    ANYTIME,
    ANYTIME_ERROR,
    MEASUREMENTS,
    ONLINE,
    RECOMMENDATION,
    principal_scores,
    score_notes,
)
from llmrl.results.reference_lines import OBJECTIVE, ReferenceLine
from llmrl.results.replication import pretrainings_of, units_of
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import StudyResult, StudySettings
from llmrl.results.table_format import NOTHING, NumberFormat, ReportTable, with_interval
from llmrl.statistics.estimators import Interval
from llmrl.statistics.intervals import Band, difference_interval, improvement, is_paired, mean_interval
from llmrl.statistics.multiple_comparisons import SIGNIFICANCE, holm, p_value


@dataclass(frozen=True)
class Comparison:
    """The comparison of one group with another.

    Attributes:
        one, other: the groups.
        difference: difference of their mean scores, `one` minus `other`.
        probability: probability that a run of `one` beats a run of `other`.
        p: p-value of equal means (`multiple_comparisons.p_value`); NaN if a group has too few top-level units.
        p_adjusted: p-value after Holm's correction for the comparisons of its family; NaN as `p`.
        since: x coordinate from which the difference of the curves (`GroupTrace.main_curve`) stays above 0 with its
            interval; None: it does not.
    """

    one: GroupTrace
    other: GroupTrace
    difference: Band
    probability: Interval
    p: float
    p_adjusted: float
    since: float | None

    @property
    def paired(self) -> bool:
        """True if both groups start from the same pre-training runs, within which their runs were compared."""
        return is_paired(self.one.units, self.other.units)

    @property
    def verdict(self) -> str:
        """Verdict of the test: `above`, `below`, `unclear` or `untested`.

        `above` and `below` need an adjusted p-value below `SIGNIFICANCE`; `untested` means too few top-level units.
        """
        if np.isnan(self.p_adjusted):
            return "untested"
        if self.p_adjusted >= SIGNIFICANCE:
            return "unclear"
        return "above" if float(self.difference.estimate) > 0 else "below"


@dataclass(frozen=True)
class GroupComparison(StudyResult):
    """The result of a comparison of groups.

    Attributes:
        traces: its groups, highest score first.
        comparisons: comparisons that the settings ask for.
        references: levels that were measured before the runs.
        online_caption: caption of the figure of online performance; empty if there is none.
    """

    traces: tuple[GroupTrace, ...]
    comparisons: tuple[Comparison, ...]
    references: tuple[ReferenceLine, ...]
    online_caption: str = ""

    @property
    def has_anytime(self) -> bool:
        """True if the main figure shows curves of recommendations."""
        return any(trace.anytime is not None for trace in self.traces)


def compare_groups(
    settings: StudySettings,
    names: Mapping[str, str],
    finished: Sequence[tuple[Group, Sequence[RunRecord]]],
    references: Sequence[ReferenceLine],
    width: int | None = None,
) -> GroupComparison:
    """Compare the groups of a study.

    Args:
        settings: settings of the study.
        names: short names of the groups, by label.
        finished: each group with its finished runs.
        references: levels that were measured before the runs.
        width: bin width of metrics of training episodes, frames.

    Raises:
        RunFolderError: a metric of a run cannot be read.
    """
    candidates = [_trace(settings, names[group.label], group, runs, width) for group, runs in finished if runs]
    traces = _comparable(
        sorted((trace for trace in candidates if trace is not None), key=lambda trace: -float(trace.score.estimate))
    )
    reference_pairs = [
        (one, other)
        for name in settings.baselines
        for other in traces
        if other.name == name
        for one in traces
        if one.name not in settings.baselines[: settings.baselines.index(name) + 1]
    ]
    by_name = {trace.name: trace for trace in traces}
    planned_pairs = [
        (by_name[one], by_name[other]) for one, other in settings.pairs if one in by_name and other in by_name
    ]
    comparisons = [*_compare(reference_pairs), *_compare(planned_pairs)]
    missing_pairs = [" and ".join(pair) for pair in settings.pairs if not by_name.keys() >= set(pair)]
    unit = settings.unit or settings.metric or "result"
    shown_references = tuple(references) if settings.metric in (None, OBJECTIVE) else ()
    anytime = any(trace.anytime is not None for trace in traces)
    axis = AXES[MEASUREMENTS if anytime else settings.x_axis][1]
    tables = [_scores(settings, traces, shown_references, unit)]
    tables += [published_table(settings, unit)] if settings.published else []
    tables += time_tables(settings, traces, shown_references, unit)
    tables += [_comparisons(comparisons, axis)] if comparisons else []
    tables += [curves_table("study_curves", {trace.shown: trace.curve for trace in traces}, settings.x_axis)]
    if anytime:
        tables += [curves_table("study_anytime", {trace.shown: trace.anytime for trace in traces}, MEASUREMENTS)]
        tables += [recommendations_table(traces)]
    recommended = {trace.shown: float(trace.score.estimate) for trace in traces if trace.online_score is not None}
    online = {trace.shown: float(trace.online_score.estimate) for trace in traces if trace.online_score is not None}
    sentences = (
        *_sentences(comparisons, unit),
        *([f"Not compared, because one has no finished run: {'; '.join(missing_pairs)}."] if missing_pairs else []),
        *score_notes(recommended, online),
        *scripted_notes(trace.group for trace in traces),
    )
    caption = figure_caption(settings, traces, bool(shown_references), unit)
    online_caption = online_figure_caption(settings, traces, unit) if anytime and online else ""
    return GroupComparison(
        settings, sentences, tuple(tables), caption, tuple(traces), tuple(comparisons), shown_references, online_caption
    )


def _trace(
    settings: StudySettings,
    name: str,
    group: Group,
    runs: Sequence[RunRecord],
    width: int | None,
) -> GroupTrace | None:
    curves = _read_series(settings, runs, width)
    if curves is not None and settings.tail_fraction is not None:
        # The score of a level, which is constant, is the mean of all its values.
        share = 1.0 if name in settings.levels else settings.tail_fraction
        tails = [values[-max(1, round(share * len(values))) :] for _, values in curves]
        scores = np.array([tail.mean() for tail in tails])
    else:
        results = [run.result for run in runs if run.result is not None and np.isfinite(run.result)]
        if len(results) < len(runs):
            return None
        scores = np.array(results)
    units, seeds = units_of(runs), [run.seed for run in runs]
    score = mean_interval(scores, units)
    trace = GroupTrace(name, group.display_name(name), group, scores, score, units, seeds, pretrainings_of(runs))
    recommendations = principal_scores(runs, RECOMMENDATION) if settings.tail_fraction is None else None
    online = None if recommendations is None else principal_scores(runs, ONLINE)
    if online is not None:
        trace = replace(trace, online=online, online_score=mean_interval(online, units))
    if name in settings.levels:
        return trace
    if curves is not None:
        smoothed = [(places, _smoothed(values, settings.smooth)) for places, values in curves]
        trace = replace(trace, curve=_group_curve(smoothed, units))
    if online is None:
        return trace
    anytime = [series(run.folder, ANYTIME, MEASUREMENTS) for run in runs]
    if any(len(places) < 2 for places, _ in anytime):
        return trace
    errors = [series(run.folder, ANYTIME_ERROR, MEASUREMENTS)[1] for run in runs]
    error = max((float(values.max()) for values in errors if len(values)), default=math.nan)
    return replace(trace, anytime=_group_curve(anytime, units), evaluation_error=error)


def _group_curve(curves: Sequence[Series], units: Sequence[object]) -> GroupCurve | None:
    """Return the curve of a group; None if no x coordinate is common to all of its runs."""
    common = on_common_grid(curves)
    if common is None:
        return None
    places, values = common
    return GroupCurve(places, values, mean_interval(values, units))


def _comparable(traces: Sequence[GroupTrace]) -> list[GroupTrace]:
    """Return traces that have curves of recommendations only if all groups with a curve have one."""
    if all(trace.anytime is not None for trace in traces if trace.curve is not None):
        return list(traces)
    return [replace(trace, anytime=None) for trace in traces]


def _read_series(settings: StudySettings, runs: Sequence[RunRecord], width: int | None) -> list[Series] | None:
    """Return the metric of every run; None if a run has none, such as one of agents that only play."""
    for metric in [settings.metric] if settings.metric else DEFAULT_CURVES:
        curves = [series(run.folder, metric, settings.x_axis, width) for run in runs]
        if all(len(places) for places, _ in curves):
            return curves
    return None


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """Return a trailing moving average over `width` values, or fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def _compare(family: Sequence[tuple[GroupTrace, GroupTrace]]) -> list[Comparison]:
    """Compare pairs of groups; p-values are adjusted for the number of pairs."""
    p = [p_value(one.scores, other.scores, one.units, other.units) for one, other in family]
    return [
        Comparison(
            one,
            other,
            difference_interval(one.scores, other.scores, one.units, other.units),
            improvement([one.scores], [other.scores], [one.units], [other.units]),
            p_raw,
            adjusted,
            _since(one, other),
        )
        for (one, other), p_raw, adjusted in zip(family, p, holm(p), strict=True)
    ]


def _since(one: GroupTrace, other: GroupTrace) -> float | None:
    """Return the place after which a curve stays above the other curve or level; None if it does not.

    Only the range of both curves counts.
    """
    curve, other_curve = one.main_curve, other.main_curve
    if curve is None:
        return None
    if other_curve is not None:
        last = min(curve.places[-1], other_curve.places[-1])
        places = curve.places[(curve.places <= last) & (curve.places >= other_curve.places[0])]
        if not len(places):
            return None
        levels = np.stack([np.interp(places, other_curve.places, run) for run in other_curve.values.T], axis=-1)
    else:
        places, levels = curve.places, np.tile(other.scores, (len(curve.places), 1))
    values = curve.values[np.isin(curve.places, places)]
    difference = difference_interval(values, levels, one.units, other.units)
    return stays_above(places, difference.low)


def stays_above(places: np.ndarray, low: np.ndarray) -> float | None:
    """Return the first of `places` [n] after which `low` [n] is always above zero; None if its end is not.

    >>> stays_above(np.array([1, 2, 3, 4]), np.array([0.5, -1.0, 0.2, 0.1]))
    3.0
    """
    violations = np.flatnonzero(~(low > 0))
    start = 0 if len(violations) == 0 else int(violations[-1]) + 1
    return float(places[start]) if start < len(places) else None


def _sentences(comparisons: Sequence[Comparison], unit: str) -> list[str]:
    """Return sentences with the groups above or below others and the differences, one for each verdict."""
    sentences = []
    words = {
        "above": "Above",
        "below": "Below",
        "unclear": "No difference shown from",
        "untested": "Too few units to compare with",
    }
    for other in dict.fromkeys(comparison.other.shown for comparison in comparisons):
        group_comparisons = [comparison for comparison in comparisons if comparison.other.shown == other]
        form = NumberFormat(
            np.array([float(comparison.difference.estimate) for comparison in group_comparisons] + [0.0])
        )
        for verdict, word in words.items():
            differences = ", ".join(
                _difference_text(comparison, form) for comparison in group_comparisons if comparison.verdict == verdict
            )
            if differences:
                sentences.append(f"{word} {other} ({unit}): {differences}.")
    return sentences


def _difference_text(comparison: Comparison, form: NumberFormat) -> str:
    return f"{comparison.one.shown} ({form.signed(float(comparison.difference.estimate))})"


def _signed(band: Band, form: NumberFormat) -> str:
    difference, low, high = float(band.estimate), float(band.low), float(band.high)
    return form.signed(difference) + with_interval(difference, low, high, form).removeprefix(form(difference))


def _interval(band: Band | Interval, form: Callable[[float], str]) -> str:
    return with_interval(float(band.estimate), float(band.low), float(band.high), form)


def _scores(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], unit: str
) -> ReportTable:
    online = any(trace.online_score is not None for trace in traces)
    form = NumberFormat(np.concatenate([trace.scores for trace in traces]) if traces else np.array([]))
    columns = ["group", "runs", *(["recommendation", "online performance"] if online else [unit])]
    data: list[list[object]] = [["group", "runs", "pretrainings", "score", "low", "high"]]
    data[0] += ["online_performance", "online_low", "online_high"] if online else []
    rows = []
    for trace in traces:
        runs = f"{len(trace.scores)}" + (f" ({trace.pretrainings} pre-trained)" if trace.pretrainings else "")
        bands = [trace.score, *([trace.online_score] if online else [])]
        rows.append([trace.shown, runs, *(NOTHING if band is None else _interval(band, form) for band in bands)])
        data.append([trace.shown, len(trace.scores), trace.pretrainings])
        for band in bands:
            data[-1] += [None] * 3 if band is None else [float(x) for x in (band.estimate, band.low, band.high)]
    for line in references:
        rows.append([line.label, NOTHING, form(line.value), *([NOTHING] if online else [])])
        data.append([line.label, None, None, line.value, *([None] * (len(data[0]) - 4))])
    if online:
        caption = f"{unit}: means over the runs of a group, with 95% intervals"
    else:
        share = settings.tail_fraction
        basis = "the runs' results" if share is None else f"the last {share:.0%} of each run"
        basis += f" (all of {', '.join(settings.levels)})" if settings.levels and share is not None else ""
        caption = f"{unit}: mean over {basis}, with 95% intervals"
    return ReportTable("study_scores", caption, data, columns, rows)


def _comparisons(comparisons: Sequence[Comparison], axis: str) -> ReportTable:
    form = NumberFormat(np.array([float(comparison.difference.estimate) for comparison in comparisons] + [0.0]))
    columns = ["group", "against", "difference", "p", "adjusted p", "probability of a better run"]
    has_onset = any(comparison.since is not None for comparison in comparisons)
    columns += [f"above from ({axis})"] if has_onset else []
    header = ["group", "against", "difference", "low", "high", "probability", "probability_low", "probability_high"]
    data: list[list[object]] = [[*header, "since", "paired", "p", "p_adjusted"]]
    rows = []
    for comparison in comparisons:
        since = NOTHING if comparison.since is None else f"{comparison.since:,.0f}"
        cells = [_signed(comparison.difference, form), _p(comparison.p), _p(comparison.p_adjusted)]
        cells += [_interval(comparison.probability, "{:.2f}".format)]
        cells += [since] if has_onset else []
        rows.append([comparison.one.shown, comparison.other.shown, *cells])
        numbers = [
            float(x) for x in (comparison.difference.estimate, comparison.difference.low, comparison.difference.high)
        ]
        numbers += [
            float(x) for x in (comparison.probability.estimate, comparison.probability.low, comparison.probability.high)
        ]
        data.append(
            [
                comparison.one.shown,
                comparison.other.shown,
                *numbers,
                comparison.since,
                comparison.paired,
                comparison.p,
                comparison.p_adjusted,
            ]
        )
    design = (
        "paired by pre-training run" if any(comparison.paired for comparison in comparisons) else "of independent runs"
    )
    caption = f"Planned comparisons, {design}: 95% intervals, p-values, and p-values adjusted by Holm's method"
    return ReportTable("study_comparisons", caption, data, columns, rows, texts=2)


def _p(p: float) -> str:
    """Return a p-value as text; `-` if there is none."""
    return NOTHING if np.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
