"""Comparison of the groups of a study: curves, scores, and the comparisons that its settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from llmrl.analysis.curves import on_common_grid
from llmrl.analysis.groups import Group, footnotes
from llmrl.analysis.intervals import Band, difference_interval, improvement, is_paired, mean_interval
from llmrl.analysis.multiple_comparisons import SIGNIFICANCE, holm, p_value
from llmrl.analysis.reference_lines import OBJECTIVE, ReferenceLine
from llmrl.analysis.replication import pretrainings_of, units_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.scores import AXES, DEFAULT_CURVES, Series, series
from llmrl.analysis.statistics import Interval
from llmrl.analysis.study_settings import StudyResult, StudySettings
from llmrl.analysis.table_format import NOTHING, NumberFormat, ReportTable, with_interval


@dataclass(frozen=True)
class GroupTrace:
    """The scores and the curve of one group of a study.

    Attributes:
        name: short name of the group.
        shown: the name, with a dagger if a scripted stand-in replaced a language model.
        group: the group.
        scores, score: scores of its runs, [n_runs], and their mean with its interval.
        units: label of the top-level unit of each run.
        pretrainings: number of different pre-training runs that its runs start from.
        places, values: x coordinates [n_places] and values [n_places, n_runs] of its curve; empty if it has none.
        band: mean curve with its interval, [n_places]; None without a curve.
    """

    name: str
    shown: str
    group: Group
    scores: np.ndarray
    score: Band
    units: Sequence[object]
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
        p: p-value of equal means (`multiple_comparisons.p_value`); NaN if a group has too few top-level units.
        p_adjusted: p-value after Holm's correction for the comparisons of its family; NaN as `p`.
        since: x coordinate from which the difference of the curves stays above 0 with its interval; None: it does not.
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
        """Whether both groups start from the same pre-training runs, within which their runs were compared."""
        return is_paired(self.one.units, self.other.units)

    @property
    def verdict(self) -> str:
        """`above` or `below` if the adjusted p-value is below `SIGNIFICANCE`, `unclear` if it is not, and `untested` if
        there are too few top-level units."""
        if np.isnan(self.p_adjusted):
            return "untested"
        if self.p_adjusted >= SIGNIFICANCE:
            return "unclear"
        return "above" if float(self.difference.estimate) > 0 else "below"


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
    width: int | None = None,
) -> GroupsCompared:
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
    found = [_trace(settings, names[group.label], group, runs, width) for group, runs in finished if runs]
    traces = sorted((trace for trace in found if trace is not None), key=lambda trace: -float(trace.score.estimate))
    against = [
        (one, other)
        for name in settings.against
        for other in traces
        if other.name == name
        for one in traces
        if one.name not in settings.against[: settings.against.index(name) + 1]
    ]
    by_name = {trace.name: trace for trace in traces}
    pairs = [(by_name[one], by_name[other]) for one, other in settings.pairs if one in by_name and other in by_name]
    comparisons = [*_compared(against), *_compared(pairs)]
    untested = [" and ".join(pair) for pair in settings.pairs if not by_name.keys() >= set(pair)]
    unit = settings.unit or settings.metric or "result"
    shown = tuple(references) if settings.metric in (None, OBJECTIVE) else ()
    axis = AXES[settings.over][1]
    tables = [_scores(settings, traces, shown, unit), _curves(traces, settings.over)]
    tables += [_comparisons(comparisons, axis)] if comparisons else []
    notes = [f"Not compared, because one has no finished run: {'; '.join(untested)}."] if untested else []
    sentences = (*_sentences(comparisons, unit), *notes, *footnotes(trace.group for trace in traces))
    caption = _caption(settings, traces, shown, unit, axis)
    return GroupsCompared(settings, sentences, tuple(tables), caption, tuple(traces), tuple(comparisons), shown)


def _trace(
    settings: StudySettings,
    name: str,
    group: Group,
    runs: Sequence[RunRecord],
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
    units = units_of(runs)
    score = mean_interval(scores, units)
    shown = group.shown.replace(group.label, name)
    trace = GroupTrace(name, shown, group, scores, score, units, pretrainings_of(runs))
    if curves is None or name in settings.lines:
        return trace
    common = on_common_grid([(places, _smoothed(values, settings.smooth)) for places, values in curves])
    if common is None:
        return trace
    places, values = common
    return replace(trace, places=places, values=values, band=mean_interval(values, units))


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


def _compared(family: Sequence[tuple[GroupTrace, GroupTrace]]) -> list[Comparison]:
    """Compare pairs of groups; p-values are adjusted for the number of pairs."""
    p = [p_value(one.scores, other.scores, one.units, other.units) for one, other in family]
    return [
        Comparison(
            one,
            other,
            difference_interval(one.scores, other.scores, one.units, other.units),
            improvement([one.scores], [other.scores], [one.units], [other.units]),
            own,
            adjusted,
            _since(one, other),
        )
        for (one, other), own, adjusted in zip(family, p, holm(p), strict=True)
    ]


def _since(one: GroupTrace, other: GroupTrace) -> float | None:
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
    return stays_above(places, difference_interval(ours, theirs, one.units, other.units).low)


def stays_above(places: np.ndarray, low: np.ndarray) -> float | None:
    """Return the first of `places` [n] from which on `low` [n] is above zero up to the end; None if it is not there at
    the end.

    >>> stays_above(np.array([1, 2, 3, 4]), np.array([0.5, -1.0, 0.2, 0.1]))
    3.0
    """
    below = np.flatnonzero(~(low > 0))
    first = 0 if len(below) == 0 else int(below[-1]) + 1
    return float(places[first]) if first < len(places) else None


def _sentences(comparisons: Sequence[Comparison], unit: str) -> list[str]:
    """Return sentences on which groups are above or below others, and by how much, one for each verdict."""
    said = []
    words = {
        "above": "Above",
        "below": "Below",
        "unclear": "No difference shown from",
        "untested": "Too few units to compare with",
    }
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


def _interval(band: Band | Interval, form: Callable[[float], str]) -> str:
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
    caption = f"{unit}: mean over {judged}, with 95% intervals"
    return ReportTable("study_scores", caption, data, columns, rows, notes=[settings.source] if settings.source else [])


def _comparisons(comparisons: Sequence[Comparison], axis: str) -> ReportTable:
    form = NumberFormat(np.array([float(each.difference.estimate) for each in comparisons] + [0.0]))
    columns = ["group", "against", "difference", "p", "adjusted p", "probability of a better run"]
    known = any(each.since is not None for each in comparisons)
    columns += [f"above from ({axis})"] if known else []
    header = ["group", "against", "difference", "low", "high", "probability", "probability_low", "probability_high"]
    data: list[list[object]] = [[*header, "since", "paired", "p", "p_adjusted"]]
    rows = []
    for each in comparisons:
        since = NOTHING if each.since is None else f"{each.since:,.0f}"
        cells = [_signed(each.difference, form), _p(each.p), _p(each.p_adjusted)]
        cells += [_interval(each.probability, "{:.2f}".format)]
        cells += [since] if known else []
        rows.append([each.one.shown, each.other.shown, *cells])
        numbers = [float(x) for x in (each.difference.estimate, each.difference.low, each.difference.high)]
        numbers += [float(x) for x in (each.probability.estimate, each.probability.low, each.probability.high)]
        data.append([each.one.name, each.other.name, *numbers, each.since, each.paired, each.p, each.p_adjusted])
    how = "paired by pre-training run" if any(each.paired for each in comparisons) else "of independent runs"
    caption = f"Planned comparisons, {how}: 95% intervals, p-values, and p-values adjusted by Holm's method"
    return ReportTable("study_comparisons", caption, data, columns, rows, texts=2)


def _p(p: float) -> str:
    """Return a p-value as text; `-` if there is none."""
    return NOTHING if np.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}"[1:] if p < 1 else "1"


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
        over = "pre-training runs" if pretrained else "runs"
        parts += [f"Left, over {longest:,.0f} {axis}{smooth}, with 95% bands over {over}; right, {dots}"]
    else:
        parts.append(dots[:1].upper() + dots[1:])
    if references:
        parts.append("Level lines were measured before the runs")
    if settings.published:
        parts.append("Diamonds are published values, of other agents and budgets")
    return ". ".join(parts) + "."
