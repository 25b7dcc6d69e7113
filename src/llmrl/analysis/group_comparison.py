"""Comparison of the groups of a study: curves, scores, and the comparisons that its settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llmrl.analysis.bootstrap import Band
from llmrl.analysis.crossed_bootstrap import Factors, difference, improvement, mean_band, paired, stays_above
from llmrl.analysis.curves import on_common_grid
from llmrl.analysis.groups import Group, footnotes
from llmrl.analysis.reference_lines import OBJECTIVE, ReferenceLine
from llmrl.analysis.resampling_levels import pretrainings_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.scores import AXES, DEFAULT_CURVES, Series, series
from llmrl.analysis.study_settings import StudyResult, StudySettings
from llmrl.analysis.table_format import NOTHING, NumberFormat, ReportTable, with_interval

_CURVE_RESAMPLES = 2_000


@dataclass(frozen=True)
class GroupTrace:
    """The scores and the curve of one group of a study.

    Attributes:
        name: short name of the group.
        shown: the name, with a dagger if a scripted stand-in replaced a language model.
        group: the group.
        scores, score: scores of its runs, [n_runs], and their mean with its interval.
        factors: factors that its runs share.
        pretrainings: number of different pre-training runs that its runs start from.
        places, values: x coordinates [n_places] and values [n_places, n_runs] of its curve; empty if it has none.
        band: mean curve with its interval, [n_places]; None without a curve.
    """

    name: str
    shown: str
    group: Group
    scores: np.ndarray
    score: Band
    factors: Factors
    pretrainings: int
    places: np.ndarray = field(default_factory=lambda: np.array([]))
    values: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))
    band: Band | None = None


@dataclass(frozen=True)
class Comparison:
    """The comparison of one group with another.

    Attributes:
        difference: difference of their mean scores, `one` minus `other`.
        probability: probability that a run of `one` beats a run of `other`.
        since: x coordinate from which the difference of the curves stays above 0 with its interval; None: it does not.
    """

    one: GroupTrace
    other: GroupTrace
    difference: Band
    probability: Band
    since: float | None

    @property
    def paired(self) -> bool:
        """Whether both groups start from the same pre-training runs, within which their runs were compared."""
        return paired(self.one.factors, self.other.factors)

    @property
    def verdict(self) -> str:
        """`above`, `below`, or `unclear` if the interval of the difference includes 0, or is unknown."""
        if float(self.difference.low) > 0:
            return "above"
        return "below" if float(self.difference.high) < 0 else "unclear"


@dataclass(frozen=True)
class GroupsCompared(StudyResult):
    """The result of a comparison of groups.

    Attributes:
        traces: its groups, highest score first.
        comparisons: comparisons that the settings ask for.
        references: levels that were measured before the runs.
    """

    traces: tuple[GroupTrace, ...]
    comparisons: tuple[Comparison, ...]
    references: tuple[ReferenceLine, ...]


def groups_compared(
    settings: StudySettings,
    names: Mapping[str, str],
    finished: Sequence[tuple[Group, Sequence[RunRecord]]],
    references: Sequence[ReferenceLine],
    resamples: int,
    seed: int,
    width: int | None = None,
) -> GroupsCompared:
    """Compare the groups of a study.

    Args:
        settings: settings of the study.
        names: short names of the groups, by label.
        finished: each group with its finished runs.
        references: levels that were measured before the runs.
        resamples, seed: number of bootstrap resamples, and root of their random numbers.
        width: bin width of metrics of training episodes, frames.

    Raises:
        RunFolderError: a metric of a run cannot be read.
    """
    found = [
        _trace(settings, names[group.label], group, runs, resamples, seed, width) for group, runs in finished if runs
    ]
    traces = sorted((trace for trace in found if trace is not None), key=lambda trace: -float(trace.score.estimate))
    comparisons = [
        _compared(one, other, resamples, seed)
        for name in settings.against
        for other in traces
        if other.name == name
        for one in traces
        if one.name not in settings.against[: settings.against.index(name) + 1]
    ]
    unit = settings.unit or settings.metric or "result"
    shown = tuple(references) if settings.metric in (None, OBJECTIVE) else ()
    axis = AXES[settings.over][1]
    tables = [_scores(settings, traces, shown, unit), _curves(traces, settings.over)]
    tables += [_comparisons(comparisons, axis)] if comparisons else []
    sentences = (*_sentences(comparisons, unit), *footnotes(trace.group for trace in traces))
    caption = _caption(settings, traces, shown, unit, axis)
    return GroupsCompared(settings, sentences, tuple(tables), caption, tuple(traces), tuple(comparisons), shown)


def _trace(
    settings: StudySettings,
    name: str,
    group: Group,
    runs: Sequence[RunRecord],
    resamples: int,
    seed: int,
    width: int | None,
) -> GroupTrace | None:
    curves = _series_of(settings, runs, width)
    if curves is not None and settings.last_fraction is not None:
        # The score of a level, which does not change, is the mean of all its values.
        share = 1.0 if name in settings.lines else settings.last_fraction
        tails = [values[-max(1, round(share * len(values))) :] for _, values in curves]
        scores = np.array([tail.mean() for tail in tails])
    else:
        results = [run.result for run in runs if run.result is not None and np.isfinite(run.result)]
        if len(results) < len(runs):
            return None
        scores = np.array(results)
    factors = Factors.of(runs)
    score = mean_band(scores, factors, resamples=resamples, seed=seed)
    shown = group.shown.replace(group.label, name)
    trace = GroupTrace(name, shown, group, scores, score, factors, pretrainings_of(runs))
    if curves is None or name in settings.lines:
        return trace
    common = on_common_grid([(places, _smoothed(values, settings.smooth)) for places, values in curves])
    if common is None:
        return trace
    places, values = common
    few = min(resamples, _CURVE_RESAMPLES)
    band = mean_band(values, factors, resamples=few, seed=seed)
    return replace(trace, places=places, values=values, band=band)


def _series_of(settings: StudySettings, runs: Sequence[RunRecord], width: int | None) -> list[Series] | None:
    """Return the metric of every run; None if a run has none, such as one of agents that only play."""
    for metric in [settings.metric] if settings.metric else DEFAULT_CURVES:
        found = [series(run.folder, metric, settings.over, width) for run in runs]
        if all(len(places) for places, _ in found):
            return found
    return None


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """Return a trailing moving average over `width` values, or fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def _compared(one: GroupTrace, other: GroupTrace, resamples: int, seed: int) -> Comparison:
    scores = (one.scores, other.scores, one.factors, other.factors)
    apart = difference(*scores, resamples=resamples, seed=seed)
    probability = improvement(*scores, resamples=resamples, seed=seed)
    return Comparison(one, other, apart, probability, _since(one, other, resamples, seed))


def _since(one: GroupTrace, other: GroupTrace, resamples: int, seed: int) -> float | None:
    """Return from where on a curve stays above the other, or its level, to the end of the shorter one; else None."""
    if not len(one.places):
        return None
    if len(other.places):
        last = min(one.places[-1], other.places[-1])
        places = one.places[(one.places <= last) & (one.places >= other.places[0])]
        if not len(places):
            return None
        theirs = np.stack([np.interp(places, other.places, run) for run in other.values.T], axis=-1)
    else:
        places, theirs = one.places, np.tile(other.scores, (len(one.places), 1))
    ours = one.values[np.isin(one.places, places)]
    few = min(resamples, _CURVE_RESAMPLES)
    apart = difference(ours, theirs, one.factors, other.factors, resamples=few, seed=seed)
    return stays_above(places, apart.low)


def _sentences(comparisons: Sequence[Comparison], unit: str) -> list[str]:
    """Return sentences on which groups are above or below others, and by how much, one for each verdict."""
    said = []
    words = {"above": "Above", "below": "Below", "unclear": "Not told apart from"}
    for other in dict.fromkeys(each.other.name for each in comparisons):
        own = [each for each in comparisons if each.other.name == other]
        form = NumberFormat(np.array([float(each.difference.estimate) for each in own] + [0.0]))
        for verdict, word in words.items():
            told = ", ".join(_told(each, form) for each in own if each.verdict == verdict)
            if told:
                said.append(f"{word} {other} ({unit}): {told}.")
    return said


def _told(each: Comparison, form: NumberFormat) -> str:
    difference = float(each.difference.estimate)
    return f"{each.one.shown} ({'+' if difference > 0 else ''}{form(difference)})"


def _signed(band: Band, form: NumberFormat) -> str:
    sign = "+" if float(band.estimate) > 0 else ""
    return sign + _interval(band, form)


def _interval(band: Band, form: Callable[[float], str]) -> str:
    return with_interval(float(band.estimate), float(band.low), float(band.high), form)


def _scores(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], unit: str
) -> ReportTable:
    form = NumberFormat(np.concatenate([trace.scores for trace in traces]) if traces else np.array([]))
    published = bool(settings.published)
    columns = ["group", "runs", unit, *(["published"] if published else [])]
    data: list[list[object]] = [["group", "runs", "pretrainings", "score", "low", "high", "published"]]
    rows = []
    for trace in traces:
        there = settings.published.get(trace.name)
        runs = f"{len(trace.scores)}" + (f" ({trace.pretrainings} pre-trained)" if trace.pretrainings else "")
        rows.append([trace.shown, runs, _interval(trace.score, form)])
        rows[-1] += [NOTHING if there is None else f"{there:g}"] if published else []
        numbers = [float(x) for x in (trace.score.estimate, trace.score.low, trace.score.high)]
        data.append([trace.name, len(trace.scores), trace.pretrainings, *numbers, there])
    for line in references:
        rows.append([line.label, NOTHING, form(line.value), *([NOTHING] if published else [])])
        data.append([line.label, None, None, line.value, None, None, None])
    share = settings.last_fraction
    judged = "the runs' results" if share is None else f"the last {share:.0%} of each run"
    judged += f" (all of {', '.join(settings.lines)})" if settings.lines and share is not None else ""
    caption = f"{unit}: mean over {judged}, with 95% bootstrap intervals"
    return ReportTable("study_scores", caption, data, columns, rows, notes=[settings.source] if settings.source else [])


def _comparisons(comparisons: Sequence[Comparison], axis: str) -> ReportTable:
    form = NumberFormat(np.array([float(each.difference.estimate) for each in comparisons] + [0.0]))
    columns = ["group", "against", "difference", "probability of a better run"]
    known = any(each.since is not None for each in comparisons)
    columns += [f"above from ({axis})"] if known else []
    data: list[list[object]] = [
        ["group", "against", "difference", "low", "high", "probability", "p_low", "p_high", "since", "paired"]
    ]
    rows = []
    for each in comparisons:
        since = NOTHING if each.since is None else f"{each.since:,.0f}"
        cells = [_signed(each.difference, form), _interval(each.probability, "{:.2f}".format)]
        cells += [since] if known else []
        rows.append([each.one.shown, each.other.shown, *cells])
        numbers = [float(x) for x in (each.difference.estimate, each.difference.low, each.difference.high)]
        numbers += [float(x) for x in (each.probability.estimate, each.probability.low, each.probability.high)]
        data.append([each.one.name, each.other.name, *numbers, each.since, each.paired])
    how = "paired by pre-training run" if any(each.paired for each in comparisons) else "of independent runs"
    caption = f"The comparisons that were planned, {how}: 95% intervals, not corrected for their number"
    return ReportTable("study_comparisons", caption, data, columns, rows, texts=2)


def _curves(traces: Sequence[GroupTrace], over: str) -> ReportTable:
    """Return the table of the curves, which is written as a file only."""
    data: list[list[object]] = [["group", over, "mean", "low", "high"]]
    for trace in traces:
        if trace.band is not None:
            points = zip(trace.places, trace.band.estimate, trace.band.low, trace.band.high, strict=True)
            data += [[trace.name, *point] for point in points]
    return ReportTable("study_curves", "The curves of the study's figure", data)


def _caption(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], unit: str, axis: str
) -> str:
    curves = [trace for trace in traces if len(trace.places)]
    counts = sorted({len(trace.scores) for trace in traces})
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}" if counts else "no"
    pretrained = max((trace.pretrainings for trace in traces), default=0)
    parts = [f"{unit}, mean over {runs} runs a group" + (f" on {pretrained} pre-training runs" if pretrained else "")]
    judged = "result" if settings.last_fraction is None else f"mean of the last {settings.last_fraction:.0%}"
    dots = f"each run's {judged}, as a dot, and their mean with its 95% interval"
    if curves:
        longest = max(float(trace.places[-1]) for trace in curves)
        smooth = f", each point the mean of {settings.smooth} values of a run" if settings.smooth > 1 else ""
        over = "pre-training runs and seeds" if pretrained else "runs"
        parts += [f"Left, over {longest:,.0f} {axis}{smooth}, with 95% bands over {over}; right, {dots}"]
    else:
        parts.append(dots[:1].upper() + dots[1:])
    if references:
        parts.append("Level lines were measured before the runs")
    if settings.published:
        parts.append("Diamonds are published values, of other agents and budgets")
    return ". ".join(parts) + "."
