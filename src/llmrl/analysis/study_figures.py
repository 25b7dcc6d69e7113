"""The figure of a study: curves beside scores, or heat maps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.figures import REFERENCES, Drawing, new_figure, styled
from llmrl.analysis.group_comparison import GroupsCompared
from llmrl.analysis.group_styles import LineEnd, group_styles, label_line_ends, level_style, sparse_markers
from llmrl.analysis.group_traces import GroupCurve, GroupTrace
from llmrl.analysis.intervals import Band
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.scores import AXES
from llmrl.analysis.study_settings import StudyResult
from llmrl.analysis.study_tasks import TasksCompared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDEST = 13.0
"""Inches of maps beside each other."""
_DARK = "#333333"
_PANELS = 4
"""Tasks beside each other."""
_MOST_LABELED = 5
"""Settings whose lines have labels and colors."""
_A_ROW = 5
"""Entries of a legend beside each other."""


def drawings_of_study(study: StudyResult, name: str) -> list[Drawing]:
    """Draw the figures of a study: one, and a second one of online performance where the first is of recommendations.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if isinstance(study, Landscape):
        return [styled(name, study.caption, lambda: _adaptation(study) if study.rounds else _maps(study))]
    assert isinstance(study, GroupsCompared)
    drawings = [styled(name, study.caption, lambda: _groups(study, online=False))]
    if study.online_caption:
        drawings.append(styled(f"{name}_online", study.online_caption, lambda: _groups(study, online=True)))
    return drawings


def _maps(study: Landscape) -> Figure:
    from matplotlib.patches import Rectangle

    sheets = study.sheets()
    wide, high = max(3.4, 0.6 * len(sheets[0][1])), max(2.4, 0.5 * len(sheets[0][2]))
    across = min(len(sheets), max(1, int(_WIDEST / wide)))
    rows = -(-len(sheets) // across)
    figure = new_figure(1.4 + across * wide, 0.8 + rows * (high + 0.4))
    panels = figure.subplots(rows, across, squeeze=False, sharex=True, sharey=True)
    values = study.band.estimate
    least, most = float(values.min()), float(values.max())
    x_name, y_name = (study.settings.map or ["", ""])[:2]
    image: Any = None
    for panel, sheet in zip(panels.flat, sheets, strict=False):
        title, xs, ys, places = sheet
        shown = np.where(places >= 0, values[places], np.nan)
        image = panel.imshow(shown, cmap="cividis", vmin=least, vmax=most, aspect="auto", origin="lower")
        for (row, column), i in np.ndenumerate(places):
            if i < 0:
                continue
            dark = (values[i] - least) / ((most - least) or 1.0) < 0.5
            digits = 0 if most - least >= 20 else 1
            text = f"{round(float(values[i]), digits) + 0.0:.{digits}f}"  # no minus before a zero
            panel.text(column, row, text, ha="center", va="center", fontsize=9, color="white" if dark else "black")
            if i == study.best:
                panel.add_patch(
                    Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=3)
                )
        panel.set_xticks(range(len(xs)), [f"{x:g}" for x in xs], fontsize=9)
        panel.set_yticks(range(len(ys)), [f"{y:g}" for y in ys], fontsize=9)
        panel.set_title(title)
        panel.grid(visible=False)
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    for (row, column), panel in np.ndenumerate(panels):
        if row == rows - 1 or (row + 1) * across + column >= len(sheets):
            panel.set_xlabel(x_name)
            panel.tick_params(labelbottom=True)
        if column == 0:
            panel.set_ylabel(y_name)
    for panel in panels.flat[len(sheets) :]:
        panel.set_visible(False)
    figure.colorbar(
        image, ax=panels.ravel().tolist(), label=textwrap.fill(study.settings.unit or "objective", 30), shrink=0.9
    )
    return figure


def _adaptation(study: Landscape) -> Figure:
    """Draw the objective of each setting over adaptation rounds, in gray except for the best five, labeled."""
    figure = new_figure(8.0, 5.0)
    panel = figure.subplots()
    rounds = list(study.rounds)
    values = np.array([band.estimate for band in study.rounds.values()])  # [n_rounds, n]
    best = np.argsort(-values[-1])[:_MOST_LABELED]
    nothing = np.flatnonzero((study.vectors == 0).all(axis=1))[:1]
    names = {int(i): ", ".join(f"{x:g}" for x in study.vectors[i]) for i in (*best, *nothing)}
    styles = group_styles(list(names.values()), [names[int(i)] for i in nothing])
    ends = []
    for i, line in enumerate(values.T):
        if i not in names:
            panel.plot(rounds, line, color="#BBBBBB", linewidth=1, zorder=1)
            continue
        style = styles[names[i]]
        panel.plot(rounds, line, **style, zorder=2)
        ends.append(LineEnd(names[i], float(rounds[-1]), float(line[-1]), style["color"]))
    panel.set_xticks(rounds)
    panel.set_xlabel("adaptation rounds")
    panel.set_ylabel(textwrap.fill(study.settings.unit or "objective", 30))
    panel.set_title(", ".join(study.names), loc="right", fontsize=9)
    label_line_ends(panel, ends)
    return figure


@dataclass(frozen=True)
class _Columns:
    """What a figure of a study shows of one group: a curve on the left, and scores on the right."""

    trace: GroupTrace
    curve: GroupCurve | None
    scores: np.ndarray
    score: Band


def _columns(study: GroupsCompared, online: bool) -> list[_Columns]:
    """Return what a figure shows of each group, highest score first."""
    found = []
    for trace in study.traces:
        if not online:
            curve = trace.anytime if study.has_anytime else trace.curve
            found.append(_Columns(trace, curve, trace.scores, trace.score))
        elif trace.online_score is not None:
            found.append(_Columns(trace, trace.curve, trace.online, trace.online_score))
    return sorted(found, key=lambda each: -float(each.score.estimate))


def _groups(study: GroupsCompared, online: bool) -> Figure:
    columns = _columns(study, online)
    curves = [each for each in columns if each.curve is not None]
    width = 1.5 + 0.45 * len(columns)
    references = study.references if len(study.references) == len(REFERENCES) else ()  # else the table has them
    figure = new_figure((8.2 if curves else 0.6) + width, 5.6)
    if curves:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[6, width])
    else:
        left, right = None, figure.subplots()
    styles = group_styles([trace.name for trace in study.traces], study.settings.against)
    for k, each in enumerate(columns):
        _score(right, k, each, styles[each.trace.name])
    right.set_xticks(range(len(columns)), [each.trace.shown for each in columns], rotation=60, ha="right", fontsize=9)
    right.set_xlim(-0.6, len(columns) - 0.4)
    right.grid(axis="x", visible=False)
    unit = study.settings.unit or study.settings.metric or "result"
    (right if left is None else left).set_ylabel(unit)
    for line in references:
        for panel in (right, left) if left is not None else (right,):
            panel.axhline(line.value, label=line.label, **REFERENCES[line.line])
    if left is None:
        if references:
            figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=10)
        return figure
    ends = [LineEnd(line.label, None, line.value, _DARK) for line in references]
    for each in columns:
        style, level = styles[each.trace.name], float(each.score.estimate)
        if each.curve is None:
            left.axhline(level, label=f"{each.trace.shown} (level)", **level_style(style))
            ends.append(LineEnd(f"{each.trace.shown} (level)", None, level, style["color"]))
        else:
            _curve(left, each.trace.shown, each.curve, style)
            ends.append(
                LineEnd(
                    each.trace.shown, float(each.curve.places[-1]), float(each.curve.band.estimate[-1]), style["color"]
                )
            )
    if study.has_anytime and not online:
        left.set_xlabel(AXES["measurements"][1])
        _measurement_axis(left, [each.curve for each in curves if each.curve is not None])
    else:
        left.set_xlabel(AXES[study.settings.over][1])
        _engineering(left)
    if not label_line_ends(left, ends):
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=_A_ROW, fontsize=10)
    return figure


def _measurement_axis(panel: Axes, curves: Sequence[GroupCurve]) -> None:
    """Make the x axis logarithmic, with ticks at the numbers of measurements that were evaluated."""
    places = sorted({float(place) for curve in curves for place in curve.places})
    shown: list[float] = []
    for place in places:
        if not shown or place > 1.2 * shown[-1]:  # closer labels overlap
            shown.append(place)
    panel.set_xscale("log")
    panel.set_xticks(shown, [f"{place:g}" for place in shown])
    panel.minorticks_off()


def tasks_drawing(tasks: TasksCompared, name: str) -> Drawing:
    """Draw the groups of a study in each of its tasks, a panel a task.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    return styled(name, tasks.caption, lambda: _tasks(tasks))


def _tasks(tasks: TasksCompared) -> Figure:
    across = min(len(tasks.titles), _PANELS)
    rows = -(-len(tasks.titles) // across)
    figure = new_figure(3.4 * across, 0.7 + 2.7 * rows)
    panels = figure.subplots(rows, across, squeeze=False)
    styles = group_styles(tasks.names, tasks.settings.against)
    handles: dict[str, Any] = {}
    for panel, title, study in zip(panels.flat, tasks.titles, tasks.studies, strict=False):
        for trace in study.traces:
            level, style = float(trace.score.estimate), styles[trace.name]
            if trace.curve is None:
                handles[trace.name] = panel.axhline(level, label=trace.shown, **level_style(style))
                continue
            handles[trace.name] = _curve(panel, trace.shown, trace.curve, {**style, "markersize": 4})
            panel.plot([float(trace.curve.places[-1])], [level], marker="_", markersize=14, color=style["color"])
        panel.set_title(title, fontsize=11)
        panel.tick_params(labelsize=8)
        _engineering(panel)
    for k, panel in enumerate(panels.flat):
        if k >= len(tasks.titles):
            panel.set_visible(False)
        elif k + across >= len(tasks.titles):
            panel.set_xlabel(AXES[tasks.settings.over][1], fontsize=9)
    for row in panels:
        row[0].set_ylabel(textwrap.fill(tasks.settings.unit or tasks.settings.metric or "result", 30), fontsize=9)
    shown = [handles[name] for name in tasks.names if name in handles]
    figure.legend(handles=shown, loc="outside lower center", ncols=_A_ROW, fontsize=10)
    return figure


def _curve(panel: Axes, label: str, curve: GroupCurve, style: dict[str, Any]) -> Any:
    drawn = sparse_markers(style, len(curve.places))
    [handle] = panel.plot(curve.places, curve.band.estimate, label=label, **drawn)
    if np.isfinite(curve.band.low).all():
        panel.fill_between(curve.places, curve.band.low, curve.band.high, color=style["color"], alpha=0.1, lw=0)
    return handle


def _score(panel: Axes, k: int, each: _Columns, style: dict[str, Any]) -> None:
    spread = np.linspace(-0.14, 0.14, len(each.scores)) if len(each.scores) > 1 else np.zeros(1)
    color, marker = style["color"], style["marker"]
    panel.scatter(k + spread, each.scores, s=14, marker=marker, color=color, alpha=0.45, linewidths=0)
    if np.isfinite(each.score.low):
        ends = [float(each.score.low), float(each.score.high)]
        panel.plot([k, k], ends, color=color, linewidth=5, alpha=0.5, solid_capstyle="butt")
    panel.plot([k], [float(each.score.estimate)], marker="_", markersize=16, markeredgewidth=2.5, color=color)


def _engineering(panel: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
