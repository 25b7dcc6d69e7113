"""Figures of a report: scores, curves, proposals over time, and the main figures of studies."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.curves import MetricCurves
from llmrl.analysis.figures import (
    GRAY,
    MARKERS,
    RenderedFigure,
    add_legend,
    choose_group_styles,
    draw_curve,
    draw_reference_line,
    draw_scores,
    label_groups,
    label_line_ends,
    make_figure,
    make_level_style,
    render_figure,
    use_unit_prefixes,
)
from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.landscape import Landscape
from llmrl.analysis.regret import RegretMatrix
from llmrl.analysis.report import MAX_GROUPS_IN_FIGURE, Report, Section
from llmrl.analysis.report_tables import TaskComparison, compute_online_performance, to_slug
from llmrl.analysis.scores import X_AXES
from llmrl.analysis.story.proposed import GroupProposals, compute_mean_score, find_shared_parameters
from llmrl.results.principal_scores import MEASUREMENTS_COUNTER, OBJECTIVE_METRIC, REFERENCE_TITLES, ReferenceLine
from llmrl.results.study_settings import StudyResult
from llmrl.statistics.intervals import Band

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_WIDTH = 13.0
"""Maximum width of a row of heat maps, inches."""
_MAX_COLUMNS = 4
"""Maximum number of task panels in a row."""
_N_LABELED_SETTINGS = 5
"""Number of settings with the highest final objective, whose lines get labels and colors."""
_LEGEND_COLUMNS = 5


def draw_study(study: StudyResult, name: str) -> list[RenderedFigure]:
    """Return the main figure of a study and, if it shows recommendations, a figure of online performance.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if isinstance(study, Landscape):
        if (regret := study.regret) is not None:
            return [render_figure(name, regret.table.caption + ".", lambda: _draw_regret(regret))]
        if (kinds := study.player_kinds) is not None:
            return [render_figure(name, study.caption, lambda: _draw_changes_by_kind(study, kinds.change_by_kind))]
        draw = _draw_adaptation if study.band_by_n_rounds else _draw_heat_maps
        return [render_figure(name, study.caption, lambda: draw(study))]
    if isinstance(study, TaskComparison):
        return [render_figure(name, study.caption, lambda: _draw_tasks(study))]
    assert isinstance(study, GroupComparison)
    figures = [render_figure(name, study.caption, lambda: _draw_groups(study, online=False))]
    if study.online_caption:
        figures.append(render_figure(f"{name}_online", study.online_caption, lambda: _draw_groups(study, online=True)))
    return figures


def _draw_heat_maps(study: Landscape) -> Figure:
    """Draw the mean objective of each setting as heat maps over two parameters, one for each value of a third one."""
    from matplotlib.patches import Rectangle

    heat_maps = study.build_heat_maps()
    width, height = max(3.4, 0.6 * len(heat_maps[0][1])), max(2.4, 0.5 * len(heat_maps[0][2]))
    n_columns = min(len(heat_maps), max(1, int(_MAX_WIDTH / width)))
    n_rows = -(-len(heat_maps) // n_columns)
    figure = make_figure(1.4 + n_columns * width, 0.8 + n_rows * (height + 0.4))
    axes = figure.subplots(n_rows, n_columns, squeeze=False, sharex=True, sharey=True)
    values = study.band.estimate
    minimum, maximum = float(values.min()), float(values.max())
    x_name, y_name = (study.settings.map or ["", ""])[:2]
    image: Any = None
    for ax, (title, xs, ys, indices) in zip(axes.flat, heat_maps, strict=False):
        grid = np.where(indices >= 0, values[indices], np.nan)
        image = ax.imshow(grid, cmap="cividis", vmin=minimum, vmax=maximum, aspect="auto", origin="lower")
        for (row, column), i in np.ndenumerate(indices):
            if i < 0:
                continue
            is_dark = (values[i] - minimum) / ((maximum - minimum) or 1.0) < 0.5
            digits = 0 if maximum - minimum >= 20 else 1
            text = f"{round(float(values[i]), digits) + 0.0:.{digits}f}"  # + 0.0 changes -0.0 to 0.0
            ax.text(column, row, text, ha="center", va="center", fontsize=9, color="white" if is_dark else "black")
            if i == study.best_index:
                ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=3))
        ax.set_xticks(range(len(xs)), [f"{x:g}" for x in xs], fontsize=9)
        ax.set_yticks(range(len(ys)), [f"{y:g}" for y in ys], fontsize=9)
        ax.set_title(title)
        ax.grid(visible=False)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    for (row, column), ax in np.ndenumerate(axes):
        if row == n_rows - 1 or (row + 1) * n_columns + column >= len(heat_maps):
            ax.set_xlabel(x_name)
            ax.tick_params(labelbottom=True)
        if column == 0:
            ax.set_ylabel(y_name)
    for ax in axes.flat[len(heat_maps) :]:
        ax.set_visible(False)
    figure.colorbar(
        image, ax=axes.ravel().tolist(), label=textwrap.fill(study.settings.unit or "objective", 30), shrink=0.9
    )
    return figure


def _draw_regret(regret: RegretMatrix) -> Figure:
    """Draw the matrix of regret: settings in rows, groups in columns."""
    values = np.array([band.estimate for band in regret.bands]).T
    figure = make_figure(3.0 + 1.1 * values.shape[1], 1.2 + 0.3 * len(values))
    ax = figure.subplots()
    maximum = max(float(np.nanmax(np.abs(values))), 1e-9)
    image = ax.imshow(values, cmap="RdBu_r", vmin=-maximum, vmax=maximum, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if abs(value) > 0.6 * maximum else "black"
            text = f"{round(float(value), 1) + 0.0:.1f}"  # + 0.0 changes -0.0 to 0.0
            ax.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    ax.set_xticks(range(len(regret.group_names)), regret.group_names, fontsize=8)
    ax.set_yticks(range(len(regret.row_labels)), regret.row_labels, fontsize=9)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    figure.colorbar(image, ax=ax, label=textwrap.fill(f"regret, {regret.unit}", 30))
    return figure


def _draw_adaptation(study: Landscape) -> Figure:
    """Draw the objective of each setting over adaptation rounds, with labels for the best settings and for zero."""
    figure = make_figure(8.0, 5.0)
    ax = figure.subplots()
    rounds = list(study.band_by_n_rounds)
    values = np.array([band.estimate for band in study.band_by_n_rounds.values()])  # [n_rounds, n_settings]
    best_settings = np.argsort(-values[-1])[:_N_LABELED_SETTINGS]
    zero_settings = np.flatnonzero((study.vectors == 0).all(axis=1))[:1]
    names = {int(i): ", ".join(f"{x:g}" for x in study.vectors[i]) for i in (*best_settings, *zero_settings)}
    styles = choose_group_styles(list(names.values()), [names[int(i)] for i in zero_settings])
    for i, line in enumerate(values.T):
        if i not in names:
            ax.plot(rounds, line, color="#BBBBBB", linewidth=1, zorder=1)
            continue
        ax.plot(rounds, line, label=names[i], **styles[names[i]], zorder=2)
    ax.set_xticks(rounds)
    ax.set_xlabel("adaptation rounds")
    ax.set_ylabel(textwrap.fill(study.settings.unit or "objective", 30))
    ax.set_title(", ".join(study.names), loc="right", fontsize=9)
    label_line_ends(ax)
    return figure


def _draw_changes_by_kind(study: Landscape, change_by_kind: Mapping[str, Band]) -> Figure:
    """Draw the change of the return of each kind of players under each setting, highest objective first."""
    figure = make_figure(8.0, 1.6 + 0.4 * len(study.vectors))
    ax = figure.subplots()
    order = np.argsort(study.band.estimate)
    styles = choose_group_styles(list(change_by_kind))
    for offset, (kind, change) in zip(
        np.linspace(0.15, -0.15, len(change_by_kind)), change_by_kind.items(), strict=True
    ):
        x = change.estimate[order]
        # Bars have the length 0 if there are too few runs for an interval.
        errors = np.nan_to_num([x - change.low[order], change.high[order] - x])
        style = {**styles[kind], "linestyle": "none", "markevery": None}
        ax.errorbar(x, np.arange(len(order)) + offset, xerr=errors, label=kind, **style)
    ax.axvline(0, color=GRAY, linewidth=1, zorder=0)
    ax.set_yticks(range(len(order)), [", ".join(f"{x:g}" for x in study.vectors[i]) for i in order])
    ax.set_ylabel(", ".join(study.names))
    ax.set_xlabel("change of the return of a player")
    add_legend(figure, ax)
    return figure


def _draw_groups(study: GroupComparison, online: bool) -> Figure:
    """Draw a study's groups: curves, if any, on the left; on the right scores, or with `online` online performance."""
    traces = [trace for trace in study.traces if not online or trace.online_score is not None]
    if online:
        traces.sort(key=lambda trace: -float(trace.online_score.estimate) if trace.online_score is not None else 0.0)
    is_anytime = study.has_anytime_curves and not online
    curves = {trace.name: trace.anytime_curve if is_anytime else trace.curve for trace in traces}
    has_curves = any(curve is not None for curve in curves.values())
    width = 1.5 + 0.45 * len(traces)
    figure = make_figure((8.2 if has_curves else 0.6) + width, 5.6)
    axes = figure.subplots(
        1, 2 if has_curves else 1, sharey=True, squeeze=False, width_ratios=[6, width] if has_curves else [1]
    )[0]
    left, right = axes[0], axes[-1]
    styles = choose_group_styles([trace.name for trace in study.traces], study.settings.baselines)
    for x, trace in enumerate(traces):
        scores, band = (trace.online_scores, trace.online_score) if online else (trace.scores, trace.score)
        assert scores is not None and band is not None
        draw_scores(right, x, scores, band, styles[trace.name])
        curve = curves[trace.name]
        if curve is not None:
            draw_curve(left, curve, trace.display_name, styles[trace.name])
        elif has_curves:
            style, label = make_level_style(styles[trace.name]), f"{trace.display_name} (level)"
            left.axhline(float(band.estimate), label=label, **style)
    for line in select_drawable_lines(study.references):
        for ax in axes:
            draw_reference_line(ax, line)
    label_groups(right, [trace.display_name for trace in traces])
    left.set_ylabel(study.settings.score_name)
    if has_curves:
        left.set_xlabel(X_AXES[MEASUREMENTS_COUNTER if is_anytime else study.settings.x_axis][1])
        if is_anytime:
            left.set_xscale("log")
            left.xaxis.set_major_formatter("{x:g}")
        else:
            use_unit_prefixes(left)
    if not (has_curves and label_line_ends(left)):
        add_legend(figure, left, _LEGEND_COLUMNS)
    return figure


def _draw_tasks(tasks: TaskComparison) -> Figure:
    """Draw the curves or levels of a study's groups, with a panel for each task."""
    n_columns = min(len(tasks.titles), _MAX_COLUMNS)
    n_rows = -(-len(tasks.titles) // n_columns)
    figure = make_figure(3.4 * n_columns, 0.7 + 2.7 * n_rows)
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    styles = choose_group_styles(tasks.group_names, tasks.settings.baselines)
    handles: dict[str, Any] = {}
    for ax, title, study in zip(axes.flat, tasks.titles, tasks.studies, strict=False):
        for trace in study.traces:
            level, style = float(trace.score.estimate), styles[trace.name]
            if trace.curve is None:
                handles[trace.name] = ax.axhline(level, label=trace.display_name, **make_level_style(style))
                continue
            handles[trace.name] = draw_curve(ax, trace.curve, trace.display_name, {**style, "markersize": 4})
            ax.plot([float(trace.curve.x[-1])], [level], marker="_", markersize=14, color=style["color"])
        ax.set_title(title, fontsize=11)
        ax.tick_params(labelsize=8)
        use_unit_prefixes(ax)
    for i, ax in enumerate(axes.flat):
        if i >= len(tasks.titles):
            ax.set_visible(False)
        elif i + n_columns >= len(tasks.titles):  # the lowest panel of its column
            ax.set_xlabel(X_AXES[tasks.settings.x_axis][1], fontsize=9)
    for row in axes:
        row[0].set_ylabel(textwrap.fill(tasks.settings.score_name, 30), fontsize=9)
    legend_handles = [handles[name] for name in tasks.group_names if name in handles]
    figure.legend(handles=legend_handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize=10)
    return figure


def draw_section(section: Section, report: Report, name: str) -> list[RenderedFigure]:
    """Return the figures of the scores and curves of a section; none if it has no finished runs.

    Args:
        section: section of `report`.
        report: report that contains the section.
        name: text with which the names of the section's figures begin.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if not section.figure_indices:
        return []
    online = compute_online_performance(section, report.settings)
    unit = report.settings.rule.metric or ("recommendation" if online else "result")
    labels = [section.scored_groups[i].group.label for i in section.figure_indices]
    # Groups have the same styles in all figures, so styles are assigned to all groups if there are enough markers.
    styles = choose_group_styles(
        [summary.group.label for summary in section.summaries] if len(section.summaries) <= len(MARKERS) else labels
    )
    caption = f"Mean {unit} of each group with its 95% interval. Dots are runs."
    figures = [render_figure(f"{name}_scores", caption, lambda: _draw_scores(section, unit, styles))]
    for curve in section.curves:
        caption = (
            f"{curve.metric} over {X_AXES[curve.x_axis][1]}: mean over the runs of a group with pointwise 95% bands, "
            "only where all of its runs have values."
        )
        lines = select_drawable_lines(section.references) if curve.metric == OBJECTIVE_METRIC else ()
        if curve.metric == OBJECTIVE_METRIC and online:
            caption += " It is the objective of the proposals (online performance), not of the recommendations."
        caption += " Horizontal lines were measured before the runs." if lines else ""
        draw = functools.partial(_draw_curve, section, curve, styles, lines)
        figures.append(render_figure(f"{name}_curve_{to_slug(curve.metric)}", caption, draw))
    return figures


def select_drawable_lines(lines: Collection[ReferenceLine]) -> Collection[ReferenceLine]:
    """Return the reference lines to draw: none if groups have different lines, which only the table contains."""
    return lines if len(lines) == len(REFERENCE_TITLES) else ()


def _draw_scores(section: Section, unit: str, styles: dict[str, dict[str, Any]]) -> Figure:
    groups = [section.scored_groups[i] for i in section.figure_indices]
    figure = make_figure(2.5 + 0.6 * len(groups), 5.6)
    ax = figure.subplots()
    for x, summary in enumerate(groups):
        draw_scores(ax, x, summary.scores, summary.estimates["mean"], styles[summary.group.label])
    label_groups(ax, [summary.group.display_name for summary in groups])
    ax.set_ylabel(unit)
    return figure


def _draw_curve(
    section: Section, curve: MetricCurves, styles: dict[str, dict[str, Any]], references: Collection[ReferenceLine]
) -> Figure:
    figure = make_figure(8, 4 + 0.15 * len(section.figure_indices))
    ax = figure.subplots()
    for group in (section.scored_groups[i].group for i in section.figure_indices):
        if group.label in curve.curve_by_group:
            n_runs = curve.curve_by_group[group.label].values.shape[1]
            label = f"{group.display_name} ({n_runs} {'run' if n_runs == 1 else 'runs'})"
            draw_curve(ax, curve.curve_by_group[group.label], label, styles[group.label])
    for line in references:
        draw_reference_line(ax, line)
    ax.set_xlabel(X_AXES[curve.x_axis][1])
    ax.set_ylabel(curve.metric)
    use_unit_prefixes(ax)
    add_legend(figure, ax)
    return figure


_COLOR_MAP = "cividis"
_COLOR_QUANTILE = 0.05
"""Quantile of the objectives that gets the darkest color; one minus it gets the lightest one. Without these limits,
outliers would reduce the contrast of the other dots."""


def draw_proposals(groups: Sequence[GroupProposals], name: str, unit: str = "objective") -> list[RenderedFigure]:
    """Return the figure of the parameters of each proposal, in the color of its objective.

    There is none if the groups have different parameters or many, such as those of policies.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    best_groups = sorted(groups, key=compute_mean_score, reverse=True)[:MAX_GROUPS_IN_FIGURE]
    if not (names := find_shared_parameters(groups)):
        return []
    omission_note = (
        f" The {MAX_GROUPS_IN_FIGURE} groups with the highest score, of {len(groups)}."
        if len(groups) > MAX_GROUPS_IN_FIGURE
        else ""
    )
    caption = f"Proposals over time: a dot is a proposal of a run, its color is the measured {unit}.{omission_note}"
    return [render_figure(name, caption, lambda: _draw_proposals(best_groups, names, unit))]


def _draw_proposals(groups: Sequence[GroupProposals], names: Sequence[str], unit: str) -> Figure:
    objectives = np.array([proposal.objective for group in groups for _, proposal in group.numbered_proposals])
    low, high = np.quantile(objectives, [_COLOR_QUANTILE, 1 - _COLOR_QUANTILE])
    figure = make_figure(1.9 + 2.4 * len(names), 0.9 + 0.85 * len(groups))
    axes = figure.subplots(len(groups), len(names), squeeze=False, sharex=True, sharey="col")
    image: Any = None
    for row, group in enumerate(groups):
        numbers = np.array([number for number, _ in group.numbered_proposals])
        objectives_of_group = np.array([proposal.objective for _, proposal in group.numbered_proposals])
        order = np.argsort(objectives_of_group)  # dots with the highest objectives are drawn last, on top
        for column, parameter in enumerate(names):
            ax = axes[row, column]
            values = np.array([proposal.parameters[parameter] for _, proposal in group.numbered_proposals])
            image = ax.scatter(
                numbers[order],
                values[order],
                c=objectives_of_group[order],
                s=9,
                cmap=_COLOR_MAP,
                vmin=low,
                vmax=high,
                linewidths=0,
                rasterized=True,
            )
            ax.tick_params(labelsize=8)
            ax.margins(y=0.12)
        axes[row, 0].set_ylabel(group.name, rotation=0, ha="right", va="center", fontsize=10)
    for column, parameter in enumerate(names):
        axes[0, column].set_title(parameter, fontsize=11)
        axes[-1, column].set_xlabel("proposal", fontsize=9)
    figure.colorbar(image, ax=axes.ravel().tolist(), label=unit, shrink=min(1.0, 3.0 / len(groups)), extend="both")
    return figure
