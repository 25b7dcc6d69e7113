"""Figures of a report, drawn without a display; equal numbers give equal files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.curves import Curve, Line
from llmrl.analysis.group_styles import MARKERS, group_styles, sparse_markers
from llmrl.analysis.once import shown_estimates
from llmrl.analysis.report import ESTIMATES, MAX_GROUPS_SHOWN, GroupNumbers, Report, Section
from llmrl.analysis.report_tables import online_performance, slug, slugs
from llmrl.analysis.scores import AXES
from llmrl.core.errors import ConfigError
from llmrl.results.reference_lines import LINES, OBJECTIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AXIS_LABEL_WIDTH, _LEGEND_WIDTH = 40, 80  # characters of a line of a label at the axes, and in the legend
_LINE = 0.23  # height of a line, inches
REFERENCES: dict[str, dict[str, Any]] = {
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


def drawings_of(section: Section, report: Report, excluded: Collection[str] = ()) -> list[Drawing]:
    """Return the figures of one section; none if no run of it has finished.

    Args:
        section: section of `report`.
        report: report of the section.
        excluded: kinds of figures to leave out (`once.redundant_parts`).

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_installed()
    import matplotlib

    name = slugs(report)[report.sections.index(section)]
    result = "recommendation" if online_performance(section, report.settings) else "result"
    unit = "normalized score" if section.over_tasks else report.settings.rule.metric or result
    with matplotlib.rc_context(_STYLE):
        figures = _figures(section, unit, report, excluded)
        return [_saved(f"{name}_{slug(kind)}", caption, figure) for kind, caption, figure in figures]


def styled(name: str, caption: str, figure: Callable[[], Figure]) -> Drawing:
    """Draw the figure that `figure` makes, in the common style.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_installed()
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        return _saved(name, caption, figure())


def _figures(
    section: Section, unit: str, report: Report, excluded: Collection[str]
) -> Iterator[tuple[str, str, Figure]]:
    indices = section.shown
    if not indices:
        return
    # A single run has nothing to be compared with, and the table has its number.
    has_several_runs = sum(len(numbers.pooled) for numbers in section.compared) > 1
    dots = "" if section.over_tasks else " Dots are runs."
    if has_several_runs and "scores" not in excluded:
        caption = f"{_capital(unit)} of each group: estimates with 95% intervals.{dots}"
        yield "scores", caption, _scores(section, unit, shown_estimates(section, report.settings))
    if len(indices) > 1 and "improvement" not in excluded:
        caption = "Probability that a run of the row's group beats one of the column's, with 95% interval."
        yield "improvement", caption, _improvement(section, indices)
    caption = f"Performance profiles: share of runs whose {unit} is above each threshold, with pointwise 95% bands."
    if has_several_runs and "profile" not in excluded:
        yield "profile", caption, _profile(section, indices, unit)
    for curve in section.curves:
        if f"curve_{curve.metric}" in excluded:
            continue
        caption = (
            f"{curve.metric} over {AXES[curve.over][1]}: mean over the runs of a group with pointwise 95% bands, only "
            "where all of its runs have values."
        )
        if curve.metric == OBJECTIVE and online_performance(section, report.settings):
            caption += " It is the objective of the proposals (online performance), not of the recommendations."
        if section.references and curve.metric == OBJECTIVE:
            are_drawn = len(section.references) == len(LINES)
            caption += " Level lines were measured before the runs." if are_drawn else " Level lines are in the table."
        yield f"curve_{curve.metric}", caption, _curve(curve, indices, section)


def _styles(section: Section) -> dict[str, dict[str, Any]]:
    """Return the line style of each group by label, the same in all figures of a section."""
    labels = [numbers.group.label for numbers in section.numbers]
    if len(labels) > len(MARKERS):
        labels = [section.compared[i].group.label for i in section.shown]
    return group_styles(labels)


def _scores(section: Section, unit: str, estimates: Sequence[str]) -> Figure:
    """Draw estimates side by side, a row for each group; rows of groups without a finished run are empty."""
    labels_shown, styles = {section.compared[i].group.label for i in section.shown}, _styles(section)
    empty = [n.group.label for n in section.numbers if not n.scores]
    labels_shown.update(empty[:MAX_GROUPS_SHOWN])
    rows = [n for n in section.numbers if n.group.label in labels_shown]
    notes = (
        [f"{len(empty) - MAX_GROUPS_SHOWN} more groups have no finished run."] if len(empty) > MAX_GROUPS_SHOWN else []
    )
    labels = [_wrapped(n.group.shown, _AXIS_LABEL_WIDTH) for n in rows]
    height = max(0.5, *(0.2 + _LINE * (1 + label.count("\n")) for label in labels))
    figure = new_figure(5 + 2 * len(estimates), 1.6 + height * len(rows))
    panels = figure.subplots(1, len(estimates), sharey=True, squeeze=False)[0]
    for panel, key in zip(panels, estimates, strict=True):
        for y, n in enumerate(rows):
            if n.scores:
                _whisker(panel, n, key, y, styles[n.group.label], dots=key == estimates[0] and not section.over_tasks)
        panel.set_title(ESTIMATES[key])
        panel.set_xlabel(f"mean shortfall below {section.target:.4g}" if key == "gap" else unit)
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
        panel.locator_params(axis="x", nbins=4)
        panel.margins(x=0.08)
    for y, n in enumerate(rows):
        if not n.scores:
            place = panels[0].get_yaxis_transform()
            panels[0].text(
                0.5, y, "no finished run", transform=place, ha="center", va="center", color="#666666", fontsize=9
            )
    panels[0].set_yticks(range(len(rows)), labels)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    _foot(figure, [], [*section.not_shown, *notes])
    return figure


def _whisker(panel: Axes, numbers: GroupNumbers, key: str, y: int, style: dict[str, Any], dots: bool) -> None:
    band, color = numbers.estimates[key], style["color"]
    if dots:
        panel.scatter(numbers.pooled, np.full(len(numbers.pooled), y), s=14, color="#888888", alpha=0.6, linewidths=0)
    if np.isfinite(band.low):
        panel.plot([band.low, band.high], [y, y], color=color, linewidth=5, alpha=0.45, solid_capstyle="butt")
    panel.plot([band.estimate], [y], marker="|", markersize=14, markeredgewidth=2.5, color=color)


def _improvement(section: Section, indices: Sequence[int]) -> Figure:
    band, groups = section.improvement, [section.compared[i].group for i in indices]
    labels = [f"{_wrapped(group.shown, _AXIS_LABEL_WIDTH)}  ({k + 1})" for k, group in enumerate(groups)]
    height = max(0.7, *(_LINE * (1 + label.count("\n")) for label in labels))
    figure = new_figure(5 + 0.95 * len(indices), 1.7 + height * len(indices))
    panel = figure.subplots()
    probabilities = band.estimate[np.ix_(indices, indices)].copy()
    np.fill_diagonal(probabilities, np.nan)
    image = panel.imshow(probabilities, cmap="PuOr", vmin=0, vmax=1, aspect="auto")
    panel.grid(visible=False)
    for r, i in enumerate(indices):
        for c, j in enumerate(indices):
            if i != j:
                has_interval = np.isfinite(band.low[i, j])
                interval = f"{band.low[i, j]:.2f}–{band.high[i, j]:.2f}" if has_interval else "no interval"  # noqa: RUF001
                red, green, blue, _ = image.to_rgba(probabilities[r, c])
                color = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "black"
                panel.text(
                    c, r - 0.13, f"{probabilities[r, c]:.2f}", ha="center", va="center", color=color, fontsize=11
                )
                panel.text(c, r + 0.2, interval, ha="center", va="center", color=color, fontsize=8)
    panel.set_yticks(range(len(indices)), labels)
    panel.set_xticks(range(len(indices)), [f"({k + 1})" for k in range(len(indices))])
    panel.tick_params(length=0)
    panel.set_xlabel("over")
    panel.spines[:].set_visible(False)
    figure.colorbar(image, ax=panel, label="P(row > column)", shrink=0.9)
    _foot(figure, [], section.not_shown)
    return figure


def _profile(section: Section, indices: Sequence[int], unit: str) -> Figure:
    figure = new_figure(8, 4 + _LINE * _lines((section.compared[i].group.shown for i in indices), _LEGEND_WIDTH))
    panel = figure.subplots()
    handles, styles = [], _styles(section)
    for i in indices:
        band, group = section.profiles[i], section.compared[i].group
        style = sparse_markers(styles[group.label], len(section.thresholds))
        handles += panel.plot(section.thresholds, band.estimate, drawstyle="steps-post", label=group.shown, **style)
        if np.isfinite(band.low).all():
            color = style["color"]
            panel.fill_between(section.thresholds, band.low, band.high, step="post", color=color, alpha=0.15, lw=0)
    panel.set_xlabel(f"threshold ({unit})")
    panel.set_ylabel("share of runs above it")
    panel.set_ylim(-0.02, 1.02)
    _foot(figure, handles, section.not_shown)
    return figure


def _curve(curve: Curve, indices: Sequence[int], section: Section) -> Figure:
    from matplotlib.ticker import EngFormatter

    figure = new_figure(8, 4 + _LINE * _lines((section.compared[i].group.shown for i in indices), _LEGEND_WIDTH))
    panel = figure.subplots()
    handles, styles = [], _styles(section)
    lines = {line.label: line for line in curve.lines}
    for i in indices:
        group = section.compared[i].group
        if group.label in lines:
            handles.append(_draw_line(panel, lines[group.label], group.shown, styles[group.label]))
    lines_of = section.references if curve.metric == OBJECTIVE else ()
    if len(lines_of) == len(LINES):  # several sets are only in the table
        for line in lines_of:
            handles.append(panel.axhline(line.value, label=line.label, **REFERENCES[line.line]))
    panel.set_xlabel(AXES[curve.over][1])
    panel.set_ylabel(curve.metric)
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    _foot(figure, handles, section.not_shown)
    return figure


def _draw_line(panel: Axes, line: Line, label: str, style: dict[str, Any]) -> Any:
    label += f" ({line.runs} {'run' if line.runs == 1 else 'runs'})"
    [handle] = panel.plot(line.places, line.band.estimate, label=label, **sparse_markers(style, len(line.places)))
    if np.isfinite(line.band.low).all():
        panel.fill_between(line.places, line.band.low, line.band.high, color=style["color"], alpha=0.15, lw=0)
    return handle


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; `width` and `height` are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _foot(figure: Figure, handles: list[Any], notes: Sequence[str]) -> None:
    """Draw the legend and notes below the axes."""
    from matplotlib.lines import Line2D

    empty = [Line2D([], [], alpha=0) for _ in notes]
    wrapped = [_wrapped(handle.get_label(), _LEGEND_WIDTH) for handle in handles]
    if handles or notes:
        columns = 2 if handles and not notes and max(map(len, wrapped)) < 38 else 1
        texts = [*wrapped, *(textwrap.fill(note, 90) for note in notes)]
        figure.legend([*handles, *empty], texts, loc="outside lower center", ncols=columns, fontsize=10)


def _lines(labels: Iterable[str], width: int) -> int:
    return sum(1 + _wrapped(label, width).count("\n") for label in labels)


def _wrapped(label: str, width: int) -> str:
    """Return a long label on several lines, broken between overrides where possible."""
    lines: list[str] = []
    for part in label.split(", "):
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines += textwrap.wrap(part, width) or [""]
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text if "/" in text else text[:1].upper() + text[1:]


def _saved(name: str, caption: str, figure: Figure) -> Drawing:
    files = {}
    for form, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        stream = io.BytesIO()
        figure.savefig(stream, format=form, metadata=metadata)
        # Keep the layout of the first format for the second, which saves a third of the time.
        figure.set_layout_engine("none")
        files[form] = stream.getvalue()
    return Drawing(name, caption, files["png"], files["svg"])
