"""Figures of a report, drawn without a display; equal numbers give equal files."""

from __future__ import annotations

import functools
import io
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.curves import Curve, GroupCurve
from llmrl.analysis.group_styles import MARKERS, group_styles
from llmrl.analysis.report import Report, Section
from llmrl.analysis.report_tables import online_performance, slug
from llmrl.analysis.scores import AXES
from llmrl.core.errors import ConfigError
from llmrl.results.reference_lines import LINES, OBJECTIVE, ReferenceLine
from llmrl.statistics.intervals import Band

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABEL_WIDTH = 40
"""Maximum number of characters of a line of a label."""
_REFERENCE_STYLES: dict[str, dict[str, Any]] = {
    "untrained": {"color": "#888888", "linestyle": "dotted", "linewidth": 2},
    "no_mechanism": {"color": "#333333", "linestyle": "solid", "linewidth": 1},
    "scan_best": {"color": "#333333", "linestyle": "dashdot", "linewidth": 1.5},
}
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a label is literal
    "svg.hashsalt": "llmrl",
    "savefig.dpi": 150,
}


@dataclass(frozen=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: name of its files.
        caption: description of the figure.
        png, svg: content of the files.
    """

    name: str
    caption: str
    png: bytes
    svg: bytes


def check_installed() -> None:
    """Raise ConfigError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install 'llmrl[plots]', or use --no-figures") from error


def styled(name: str, caption: str, figure: Callable[[], Figure]) -> Drawing:
    """Draw the figure that `figure` makes, in the common style.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_installed()
    import matplotlib

    files = {}
    with matplotlib.rc_context(_STYLE):
        drawn_figure = figure()
        for form, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            stream = io.BytesIO()
            drawn_figure.savefig(stream, format=form, metadata=metadata)
            # Keep the layout of the first format for the second, which saves a third of the time.
            drawn_figure.set_layout_engine("none")
            files[form] = stream.getvalue()
    return Drawing(name, caption, files["png"], files["svg"])


def drawings_of(section: Section, report: Report, name: str) -> list[Drawing]:
    """Return the figures of one section, scores and curves; none if no run of it has finished.

    Args:
        section: section of `report`.
        report: report of the section.
        name: start of the names of the section's files.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    if not section.shown:
        return []
    online = online_performance(section, report.settings)
    unit = report.settings.rule.metric or ("recommendation" if online else "result")
    labels = [section.compared[i].group.label for i in section.shown]
    # Styles are the same in all figures of a section, and those of all its groups if there are enough.
    styles = group_styles([n.group.label for n in section.numbers] if len(section.numbers) <= len(MARKERS) else labels)
    caption = f"Mean {unit} of each group with its 95% interval. Dots are runs."
    drawings = [styled(f"{name}_scores", caption, lambda: _scores(section, unit, styles))]
    for curve in section.curves:
        caption = (
            f"{curve.metric} over {AXES[curve.over][1]}: mean over the runs of a group with pointwise 95% bands, only "
            "where all of its runs have values."
        )
        lines = complete_references(section.references) if curve.metric == OBJECTIVE else ()
        if curve.metric == OBJECTIVE and online:
            caption += " It is the objective of the proposals (online performance), not of the recommendations."
        caption += " Level lines were measured before the runs." if lines else ""
        draw = functools.partial(_curve, section, curve, styles, lines)
        drawings.append(styled(f"{name}_curve_{slug(curve.metric)}", caption, draw))
    return drawings


def complete_references(lines: Collection[ReferenceLine]) -> Collection[ReferenceLine]:
    """Return the reference lines to draw; none if groups have different ones, which only the table shows."""
    return lines if len(lines) == len(LINES) else ()


def draw_reference(panel: Axes, line: ReferenceLine) -> None:
    """Draw a reference line across the axes."""
    panel.axhline(line.value, label=line.label, **_REFERENCE_STYLES[line.line])


def draw_curve(panel: Axes, curve: GroupCurve, label: str, style: dict[str, Any]) -> Any:
    """Draw a curve with its band; return the artist for a legend."""
    [handle] = panel.plot(curve.places, curve.band.estimate, label=label, **style)
    if np.isfinite(curve.band.low).all():
        panel.fill_between(curve.places, curve.band.low, curve.band.high, color=style["color"], alpha=0.12, lw=0)
    return handle


def draw_scores(panel: Axes, x: float, scores: np.ndarray, band: Band, style: dict[str, Any]) -> None:
    """Draw the scores of a group at `x` as dots, and their mean with its interval."""
    offsets = np.linspace(-0.14, 0.14, len(scores)) if len(scores) > 1 else np.zeros(1)
    color = style["color"]
    panel.scatter(x + offsets, scores, s=14, marker=style["marker"], color=color, alpha=0.45, linewidths=0)
    if np.isfinite(band.low):
        panel.plot([x, x], [band.low, band.high], color=color, linewidth=5, alpha=0.5, solid_capstyle="butt")
    panel.plot([x], [band.estimate], marker="_", markersize=16, markeredgewidth=2.5, color=color)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; `width` and `height` are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def use_prefixes(panel: Axes) -> None:
    """Label the x axis with the prefixes of units: 20k."""
    from matplotlib.ticker import EngFormatter

    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def set_groups(panel: Axes, names: Collection[str]) -> None:
    """Label places 0, 1, 2, ... of the x axis with names of groups."""
    labels = [textwrap.fill(name, _LABEL_WIDTH) for name in names]
    panel.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=9)
    panel.set_xlim(-0.6, len(labels) - 0.4)
    panel.grid(axis="x", visible=False)


def add_legend(figure: Figure, panel: Axes, columns: int = 2) -> None:
    """Draw the legend of a panel below the axes."""
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        texts = [textwrap.fill(label, _LABEL_WIDTH) for label in labels]
        figure.legend(handles, texts, loc="outside lower center", ncols=columns, fontsize=10)


def _scores(section: Section, unit: str, styles: dict[str, dict[str, Any]]) -> Figure:
    groups = [section.compared[i] for i in section.shown]
    figure = new_figure(2.5 + 0.6 * len(groups), 5.6)
    panel = figure.subplots()
    for x, n in enumerate(groups):
        draw_scores(panel, x, n.scores, n.estimates["mean"], styles[n.group.label])
    set_groups(panel, [n.group.shown for n in groups])
    panel.set_ylabel(unit)
    return figure


def _curve(
    section: Section, curve: Curve, styles: dict[str, dict[str, Any]], references: Collection[ReferenceLine]
) -> Figure:
    figure = new_figure(8, 4 + 0.15 * len(section.shown))
    panel = figure.subplots()
    for group in (section.compared[i].group for i in section.shown):
        if group.label in curve.lines:
            n_runs = curve.lines[group.label].values.shape[1]
            label = f"{group.shown} ({n_runs} {'run' if n_runs == 1 else 'runs'})"
            draw_curve(panel, curve.lines[group.label], label, styles[group.label])
    for line in references:
        draw_reference(panel, line)
    panel.set_xlabel(AXES[curve.over][1])
    panel.set_ylabel(curve.metric)
    use_prefixes(panel)
    add_legend(figure, panel)
    return figure
