"""Figures of a study: curves with scores, or heat maps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.figures import REFERENCES, Drawing, new_figure, styled
from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.group_styles import LineEnd, group_styles, label_line_ends, level_style, sparse_markers
from llmrl.analysis.group_traces import GroupCurve, GroupTrace
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.scores import AXES
from llmrl.analysis.study_tasks import TaskComparison
from llmrl.results.study_settings import StudyResult
from llmrl.statistics.intervals import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_WIDTH = 13.0
"""Maximum width of maps side by side, inches."""
_DARK = "#333333"
_PANELS = 4
"""Maximum number of tasks side by side."""
_MAX_LABELED = 5
"""Number of settings whose lines have labels and colors."""
_LEGEND_COLUMNS = 5
"""Number of columns of a legend."""


def drawings_of_study(study: StudyResult, name: str) -> list[Drawing]:
    """Return the figures of a study: the main one, and one of online performance if that shows recommendations.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if isinstance(study, Landscape):
        return [styled(name, study.caption, lambda: _adaptation(study) if study.rounds else _maps(study))]
    assert isinstance(study, GroupComparison)
    drawings = [styled(name, study.caption, lambda: _groups(study, online=False))]
    if study.online_caption:
        drawings.append(styled(f"{name}_online", study.online_caption, lambda: _groups(study, online=True)))
    return drawings


def _maps(study: Landscape) -> Figure:
    from matplotlib.patches import Rectangle

    sheets = study.sheets()
    width, height = max(3.4, 0.6 * len(sheets[0][1])), max(2.4, 0.5 * len(sheets[0][2]))
    n_columns = min(len(sheets), max(1, int(_MAX_WIDTH / width)))
    rows = -(-len(sheets) // n_columns)
    figure = new_figure(1.4 + n_columns * width, 0.8 + rows * (height + 0.4))
    panels = figure.subplots(rows, n_columns, squeeze=False, sharex=True, sharey=True)
    values = study.band.estimate
    minimum, maximum = float(values.min()), float(values.max())
    x_name, y_name = (study.settings.map or ["", ""])[:2]
    image: Any = None
    for panel, sheet in zip(panels.flat, sheets, strict=False):
        title, xs, ys, places = sheet
        grid = np.where(places >= 0, values[places], np.nan)
        image = panel.imshow(grid, cmap="cividis", vmin=minimum, vmax=maximum, aspect="auto", origin="lower")
        for (row, column), i in np.ndenumerate(places):
            if i < 0:
                continue
            is_dark = (values[i] - minimum) / ((maximum - minimum) or 1.0) < 0.5
            digits = 0 if maximum - minimum >= 20 else 1
            text = f"{round(float(values[i]), digits) + 0.0:.{digits}f}"  # no negative zero
            panel.text(column, row, text, ha="center", va="center", fontsize=9, color="white" if is_dark else "black")
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
        if row == rows - 1 or (row + 1) * n_columns + column >= len(sheets):
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
    """Draw the objective of each setting over adaptation rounds: the best five labeled, the others in gray."""
    figure = new_figure(8.0, 5.0)
    panel = figure.subplots()
    rounds = list(study.rounds)
    values = np.array([band.estimate for band in study.rounds.values()])  # [n_rounds, n]
    best = np.argsort(-values[-1])[:_MAX_LABELED]
    zero_settings = np.flatnonzero((study.vectors == 0).all(axis=1))[:1]
    names = {int(i): ", ".join(f"{x:g}" for x in study.vectors[i]) for i in (*best, *zero_settings)}
    styles = group_styles(list(names.values()), [names[int(i)] for i in zero_settings])
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
    """The data of one group in a figure of a study: a curve on the left, and scores on the right."""

    trace: GroupTrace
    curve: GroupCurve | None
    scores: np.ndarray
    score: Band


def _columns(study: GroupComparison, online: bool) -> list[_Columns]:
    """Return the data of each group in a figure, highest score first."""
    columns = []
    for trace in study.traces:
        if not online:
            curve = trace.anytime if study.has_anytime else trace.curve
            columns.append(_Columns(trace, curve, trace.scores, trace.score))
        elif trace.online_score is not None:
            columns.append(_Columns(trace, trace.curve, trace.online, trace.online_score))
    return sorted(columns, key=lambda column: -float(column.score.estimate))


def _groups(study: GroupComparison, online: bool) -> Figure:
    columns = _columns(study, online)
    curves = [column for column in columns if column.curve is not None]
    width = 1.5 + 0.45 * len(columns)
    references = (
        study.references if len(study.references) == len(REFERENCES) else ()
    )  # several sets are only in the table
    figure = new_figure((8.2 if curves else 0.6) + width, 5.6)
    if curves:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[6, width])
    else:
        left, right = None, figure.subplots()
    styles = group_styles([trace.name for trace in study.traces], study.settings.baselines)
    for k, column in enumerate(columns):
        _score(right, k, column, styles[column.trace.name])
    right.set_xticks(
        range(len(columns)), [column.trace.shown for column in columns], rotation=60, ha="right", fontsize=9
    )
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
    for column in columns:
        style, level = styles[column.trace.name], float(column.score.estimate)
        if column.curve is None:
            left.axhline(level, label=f"{column.trace.shown} (level)", **level_style(style))
            ends.append(LineEnd(f"{column.trace.shown} (level)", None, level, style["color"]))
        else:
            _curve(left, column.trace.shown, column.curve, style)
            ends.append(
                LineEnd(
                    column.trace.shown,
                    float(column.curve.places[-1]),
                    float(column.curve.band.estimate[-1]),
                    style["color"],
                )
            )
    if study.has_anytime and not online:
        left.set_xlabel(AXES["measurements"][1])
        _measurement_axis(left, [column.curve for column in curves if column.curve is not None])
    else:
        left.set_xlabel(AXES[study.settings.x_axis][1])
        _engineering(left)
    if not label_line_ends(left, ends):
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize=10)
    return figure


def _measurement_axis(panel: Axes, curves: Sequence[GroupCurve]) -> None:
    """Make the x axis logarithmic, with ticks at the numbers of measurements that were evaluated."""
    places = sorted({float(place) for curve in curves for place in curve.places})
    ticks: list[float] = []
    for place in places:
        if not ticks or place > 1.2 * ticks[-1]:  # closer labels overlap
            ticks.append(place)
    panel.set_xscale("log")
    panel.set_xticks(ticks, [f"{place:g}" for place in ticks])
    panel.minorticks_off()


def tasks_drawing(tasks: TaskComparison, name: str) -> Drawing:
    """Return the figure of the groups of a study in each of its tasks, with a panel for each task.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    return styled(name, tasks.caption, lambda: _tasks(tasks))


def _tasks(tasks: TaskComparison) -> Figure:
    n_columns = min(len(tasks.titles), _PANELS)
    rows = -(-len(tasks.titles) // n_columns)
    figure = new_figure(3.4 * n_columns, 0.7 + 2.7 * rows)
    panels = figure.subplots(rows, n_columns, squeeze=False)
    styles = group_styles(tasks.names, tasks.settings.baselines)
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
        elif k + n_columns >= len(tasks.titles):
            panel.set_xlabel(AXES[tasks.settings.x_axis][1], fontsize=9)
    for row in panels:
        row[0].set_ylabel(textwrap.fill(tasks.settings.unit or tasks.settings.metric or "result", 30), fontsize=9)
    legend_handles = [handles[name] for name in tasks.names if name in handles]
    figure.legend(handles=legend_handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize=10)
    return figure


def _curve(panel: Axes, label: str, curve: GroupCurve, style: dict[str, Any]) -> Any:
    line_style = sparse_markers(style, len(curve.places))
    [handle] = panel.plot(curve.places, curve.band.estimate, label=label, **line_style)
    if np.isfinite(curve.band.low).all():
        panel.fill_between(curve.places, curve.band.low, curve.band.high, color=style["color"], alpha=0.1, lw=0)
    return handle


def _score(panel: Axes, k: int, column: _Columns, style: dict[str, Any]) -> None:
    offsets = np.linspace(-0.14, 0.14, len(column.scores)) if len(column.scores) > 1 else np.zeros(1)
    color, marker = style["color"], style["marker"]
    panel.scatter(k + offsets, column.scores, s=14, marker=marker, color=color, alpha=0.45, linewidths=0)
    if np.isfinite(column.score.low):
        ends = [float(column.score.low), float(column.score.high)]
        panel.plot([k, k], ends, color=color, linewidth=5, alpha=0.5, solid_capstyle="butt")
    panel.plot([k], [float(column.score.estimate)], marker="_", markersize=16, markeredgewidth=2.5, color=color)


def _engineering(panel: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
