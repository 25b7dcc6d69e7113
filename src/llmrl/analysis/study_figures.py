"""The figure of a study: curves beside scores, or heat maps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.figures import (
    COLOURS,
    DASHES,
    REFERENCES,
    Drawing,
    new_figure,
    styled,
)
from llmrl.analysis.group_comparison import GroupsCompared, GroupTrace
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.scores import AXES
from llmrl.analysis.study_settings import StudyResult, StudySettings
from llmrl.analysis.study_tasks import TasksCompared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDEST = 13.0
"""Inches of maps beside each other."""
_GREY = "#888888"
_PANELS = 4
"""Tasks beside each other."""
_A_ROW = 5
"""Entries of a legend beside each other."""


def drawing_of(study: StudyResult, name: str) -> Drawing:
    """Draw a study's figure.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if isinstance(study, Landscape):
        return styled(name, study.caption, lambda: _maps(study))
    assert isinstance(study, GroupsCompared)
    return styled(name, study.caption, lambda: _groups(study))


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


def _groups(study: GroupsCompared) -> Figure:
    curves = [trace for trace in study.traces if trace.band is not None]
    width = 1.5 + 0.62 * len(study.traces)
    references = study.references if len(study.references) == len(REFERENCES) else ()  # else the table has them
    figure = new_figure((7.5 if curves else 0.6) + width, 5.6)
    if curves:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[7, width])
    else:
        left, right = None, figure.subplots()
    styles = _styles([trace.name for trace in study.traces], study.settings)
    handles: list[Any] = []
    if left is not None:
        for trace in sorted(curves, key=lambda trace: -float(trace.score.estimate)):
            handles.append(_curve(left, trace, styles[trace.name]))
        left.set_xlabel(AXES[study.settings.over][1])
        left.set_ylabel(study.settings.unit or study.settings.metric or "result")
        _engineering(left)
    for k, trace in enumerate(study.traces):
        _score(right, k, trace, styles[trace.name])
        if left is not None and trace.band is None:
            level = float(trace.score.estimate)
            style = {**styles[trace.name], "linewidth": 1.5}
            handles.append(left.axhline(level, label=f"{trace.shown} (level)", **style))
    for k, trace in enumerate(study.traces):
        if trace.name in study.settings.published:
            own = study.settings.published[trace.name]
            right.plot([k], [own], marker="D", markersize=6, color="white", markeredgecolor="black", linestyle="")
    for line in references:
        own = right if left is None else left
        handles.append(own.axhline(line.value, label=line.label, **REFERENCES[line.line]))
        if left is not None:
            right.axhline(line.value, **REFERENCES[line.line])
    if study.settings.published:
        handles.append(
            right.plot([], [], marker="D", color="white", markeredgecolor="black", linestyle="", label="published")[0]
        )
    right.set_xticks(
        range(len(study.traces)), [trace.shown for trace in study.traces], rotation=60, ha="right", fontsize=9
    )
    right.set_xlim(-0.6, len(study.traces) - 0.4)
    right.grid(axis="x", visible=False)
    if left is None:
        right.set_ylabel(study.settings.unit or study.settings.metric or "result")
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=_A_ROW if curves else 2, fontsize=10)
    return figure


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
    styles = _styles(tasks.names, tasks.settings)
    handles: dict[str, Any] = {}
    for panel, title, study in zip(panels.flat, tasks.titles, tasks.studies, strict=False):
        for trace in study.traces:
            level = float(trace.score.estimate)
            if trace.band is None:
                handles[trace.name] = panel.axhline(level, label=trace.shown, **styles[trace.name])
                continue
            handles[trace.name] = _curve(panel, trace, styles[trace.name])
            panel.plot([float(trace.places[-1])], [level], marker="_", markersize=14, color=styles[trace.name]["color"])
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


def _styles(names: Sequence[str], settings: StudySettings) -> dict[str, dict[str, Any]]:
    """A colour and a dash by name, which do not depend on who is ahead."""
    names = sorted(names)
    greys = [name for name in names if name in settings.against]
    coloured = [name for name in names if name not in greys]
    styles = {
        name: {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k // len(COLOURS) % len(DASHES)], "linewidth": 2}
        for k, name in enumerate(coloured)
    }
    return styles | {
        name: {"color": _GREY, "linestyle": DASHES[k % len(DASHES)], "linewidth": 2.5} for k, name in enumerate(greys)
    }


def _curve(panel: Axes, trace: GroupTrace, style: dict[str, Any]) -> Any:
    assert trace.band is not None
    [handle] = panel.plot(trace.places, trace.band.estimate, label=trace.shown, **style)
    if np.isfinite(trace.band.low).all():
        panel.fill_between(trace.places, trace.band.low, trace.band.high, color=style["color"], alpha=0.1, lw=0)
    return handle


def _score(panel: Axes, k: int, trace: GroupTrace, style: dict[str, Any]) -> None:
    spread = np.linspace(-0.14, 0.14, len(trace.scores)) if len(trace.scores) > 1 else np.zeros(1)
    panel.scatter(k + spread, trace.scores, s=12, color=style["color"], alpha=0.45, linewidths=0)
    if np.isfinite(trace.score.low):
        ends = [float(trace.score.low), float(trace.score.high)]
        panel.plot([k, k], ends, color=style["color"], linewidth=5, alpha=0.5, solid_capstyle="butt")
    level = [float(trace.score.estimate)]
    panel.plot([k], level, marker="_", markersize=16, markeredgewidth=2.5, color=style["color"])


def _engineering(panel: Axes) -> None:
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
