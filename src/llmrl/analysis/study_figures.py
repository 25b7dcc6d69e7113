"""Figures of a study: curves with scores, or heat maps."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.figures import (
    Drawing,
    add_legend,
    complete_references,
    draw_curve,
    draw_reference,
    draw_scores,
    new_figure,
    set_groups,
    styled,
    use_prefixes,
)
from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.group_styles import group_styles, label_line_ends, level_style
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.scores import AXES
from llmrl.analysis.study_tasks import TaskComparison
from llmrl.results.principal_scores import MEASUREMENTS
from llmrl.results.study_settings import StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_WIDTH = 13.0
"""Maximum width of maps side by side, inches."""
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
    for i, line in enumerate(values.T):
        if i not in names:
            panel.plot(rounds, line, color="#BBBBBB", linewidth=1, zorder=1)
            continue
        panel.plot(rounds, line, label=names[i], **styles[names[i]], zorder=2)
    panel.set_xticks(rounds)
    panel.set_xlabel("adaptation rounds")
    panel.set_ylabel(textwrap.fill(study.settings.unit or "objective", 30))
    panel.set_title(", ".join(study.names), loc="right", fontsize=9)
    label_line_ends(panel)
    return figure


def _groups(study: GroupComparison, online: bool) -> Figure:
    """Draw the groups of a study, best first: their curves on the left, if there are any, and scores on the right."""
    traces = [trace for trace in study.traces if not online or trace.online_score is not None]
    if online:
        traces.sort(key=lambda trace: -float(trace.online_score.estimate) if trace.online_score is not None else 0.0)
    is_anytime = study.has_anytime and not online
    curves = {trace.name: trace.anytime if is_anytime else trace.curve for trace in traces}
    has_curves = any(curve is not None for curve in curves.values())
    width = 1.5 + 0.45 * len(traces)
    figure = new_figure((8.2 if has_curves else 0.6) + width, 5.6)
    panels = figure.subplots(
        1, 2 if has_curves else 1, sharey=True, squeeze=False, width_ratios=[6, width] if has_curves else [1]
    )[0]
    left, right = panels[0], panels[-1]
    styles = group_styles([trace.name for trace in study.traces], study.settings.baselines)
    for x, trace in enumerate(traces):
        scores, band = (trace.online, trace.online_score) if online else (trace.scores, trace.score)
        assert scores is not None and band is not None
        draw_scores(right, x, scores, band, styles[trace.name])
        curve = curves[trace.name]
        if curve is not None:
            draw_curve(left, curve, trace.shown, styles[trace.name])
        elif has_curves:
            left.axhline(float(band.estimate), label=f"{trace.shown} (level)", **level_style(styles[trace.name]))
    for line in complete_references(study.references):
        for panel in panels:
            draw_reference(panel, line)
    set_groups(right, [trace.shown for trace in traces])
    left.set_ylabel(study.settings.score_name)
    if has_curves:
        left.set_xlabel(AXES[MEASUREMENTS if is_anytime else study.settings.x_axis][1])
        if is_anytime:
            left.set_xscale("log")
            left.xaxis.set_major_formatter("{x:g}")
        else:
            use_prefixes(left)
    if not (has_curves and label_line_ends(left)):
        add_legend(figure, left, _LEGEND_COLUMNS)
    return figure


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
            handles[trace.name] = draw_curve(panel, trace.curve, trace.shown, {**style, "markersize": 4})
            panel.plot([float(trace.curve.places[-1])], [level], marker="_", markersize=14, color=style["color"])
        panel.set_title(title, fontsize=11)
        panel.tick_params(labelsize=8)
        use_prefixes(panel)
    for k, panel in enumerate(panels.flat):
        if k >= len(tasks.titles):
            panel.set_visible(False)
        elif k + n_columns >= len(tasks.titles):
            panel.set_xlabel(AXES[tasks.settings.x_axis][1], fontsize=9)
    for row in panels:
        row[0].set_ylabel(textwrap.fill(tasks.settings.score_name, 30), fontsize=9)
    legend_handles = [handles[name] for name in tasks.names if name in handles]
    figure.legend(handles=legend_handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize=10)
    return figure
