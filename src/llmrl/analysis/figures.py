"""Styles and elements of figures, which are drawn without a display; equal data give byte-equal files.

Up to twelve groups differ in line style and marker, so that readers can distinguish them without color.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.curves import GroupCurve
from llmrl.core.errors import ConfigError
from llmrl.results.principal_scores import ReferenceLine
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
_RC_PARAMS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib, so that figures are equal on all machines
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
class RenderedFigure:
    """A figure as the contents of its files.

    Attributes:
        name: name of its files without the extension.
        caption: description of the figure.
        png, svg: content of the files.
    """

    name: str
    caption: str
    png: bytes
    svg: bytes


def check_matplotlib() -> None:
    """Raise ConfigError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ConfigError("figures need matplotlib: pip install 'llmrl[plots]', or use --no-figures")


def render_figure(name: str, caption: str, draw: Callable[[], Figure]) -> RenderedFigure:
    """Render the figure that the function `draw` returns, in the common style.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    check_matplotlib()
    import matplotlib

    content_by_format = {}
    with matplotlib.rc_context(_RC_PARAMS):
        figure = draw()
        for file_format, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            stream = io.BytesIO()
            figure.savefig(stream, format=file_format, metadata=metadata)
            # The second format reuses the layout of the first one, which saves a third of the time.
            figure.set_layout_engine("none")
            content_by_format[file_format] = stream.getvalue()
    return RenderedFigure(name, caption, content_by_format["png"], content_by_format["svg"])


def draw_reference_line(ax: Axes, line: ReferenceLine) -> None:
    """Draw a reference line across the axes."""
    ax.axhline(line.value, label=line.label, **_REFERENCE_STYLES[line.key])


def draw_curve(ax: Axes, curve: GroupCurve, label: str, style: dict[str, Any]) -> Any:
    """Draw a curve with its band; return the artist for a legend."""
    [handle] = ax.plot(curve.x, curve.band.estimate, label=label, **style)
    if np.isfinite(curve.band.low).all():
        ax.fill_between(curve.x, curve.band.low, curve.band.high, color=style["color"], alpha=0.12, lw=0)
    return handle


def draw_scores(ax: Axes, x: float, scores: np.ndarray, band: Band, style: dict[str, Any]) -> None:
    """Draw the scores of a group [n_runs] as dots around `x`, and their mean with its interval at `x`."""
    offsets = np.linspace(-0.14, 0.14, len(scores)) if len(scores) > 1 else np.zeros(1)
    color = style["color"]
    ax.scatter(x + offsets, scores, s=14, marker=style["marker"], color=color, alpha=0.45, linewidths=0)
    if np.isfinite(band.low):
        ax.plot([x, x], [band.low, band.high], color=color, linewidth=5, alpha=0.5, solid_capstyle="butt")
    ax.plot([x], [band.estimate], marker="_", markersize=16, markeredgewidth=2.5, color=color)


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure; `width` and `height` are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def use_unit_prefixes(ax: Axes) -> None:
    """Format the numbers of the x axis with SI prefixes: 20k."""
    from matplotlib.ticker import EngFormatter

    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def label_groups(ax: Axes, names: Collection[str]) -> None:
    """Label the ticks 0, 1, 2, ... of the x axis with names of groups."""
    labels = [textwrap.fill(name, _LABEL_WIDTH) for name in names]
    ax.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=9)
    ax.set_xlim(-0.6, len(labels) - 0.4)
    ax.grid(axis="x", visible=False)


def add_legend(figure: Figure, ax: Axes, n_columns: int = 2) -> None:
    """Draw the legend of a panel below the axes."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        texts = [textwrap.fill(label, _LABEL_WIDTH) for label in labels]
        figure.legend(handles, texts, loc="outside lower center", ncols=n_columns, fontsize=10)


COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's palette without yellow: distinguishable for color-blind readers, and visible on white."""
GRAY = "#777777"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "p", "d")
LINE_STYLES: tuple[Any, ...] = (
    "solid",
    (0, (6, 2)),
    (0, (1.2, 1.2)),
    (0, (6, 2, 1.2, 2)),
    (0, (3, 1.5)),
    (0, (10, 3)),
    (0, (6, 2, 1.2, 2, 1.2, 2)),
    (0, (3, 1.5, 1.2, 1.5)),
    (0, (1.2, 3)),
    (0, (10, 2, 3, 2)),
    (0, (3, 3)),
    (0, (10, 2, 1.2, 2, 1.2, 2, 1.2, 2)),
)
_LINE_LABEL_FONT_SIZE = 9.5
_LINE_LABEL_HEIGHT = 1.3
"""Height of a label at the end of a line, relative to its font size."""


def choose_group_styles(names: Sequence[str], baselines: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the style of each group by name, as keyword arguments of `Axes.plot`.

    Args:
        names: names of the groups, in any order.
        baselines: names of the groups that are drawn in gray.
    """
    styles = {}
    # Baselines come first: all of them are gray, and the first line styles and markers are the easiest to distinguish.
    for k, name in enumerate(sorted(names, key=lambda name: (name not in baselines, name))):
        is_baseline = name in baselines
        styles[name] = {
            "color": GRAY if is_baseline else COLORS[k % len(COLORS)],
            "linestyle": LINE_STYLES[k % len(LINE_STYLES)],
            "marker": MARKERS[k % len(MARKERS)],
            "markevery": 0.08,  # distance of markers, in shares of the diagonal of the axes
            "linewidth": 1.8,
            "markersize": 5.5,
        }
    return styles


def make_level_style(style: dict[str, Any]) -> dict[str, Any]:
    """Return the style of a group for a horizontal line, without markers."""
    return {**style, "marker": "", "linewidth": 1.5}


def label_line_ends(ax: Axes) -> bool:
    """Write the labels of the lines in `ax` to the right of the axes, near the ends of the lines, without overlap.

    This fixes the limits of the axes, so all lines must have been drawn before.

    Returns:
        Whether there is space for all labels; if not, nothing is drawn.
    """
    ax.set_xlim(ax.get_xlim())
    ax.set_ylim(ax.get_ylim())
    figure = ax.get_figure(root=True)
    assert figure is not None
    height = 72 * figure.get_size_inches()[1] * 0.8  # approximate height of the axes in constrained layout, points
    gap = _LINE_LABEL_FONT_SIZE * _LINE_LABEL_HEIGHT / height
    lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]  # as in legends
    if gap * len(lines) > 1:
        return False
    points = [line.get_transform().transform(np.asarray(line.get_xydata())[-1]) for line in lines]
    ends = ax.transAxes.inverted().transform(np.reshape(points, (-1, 2)))  # [n_lines, 2], in axes coordinates
    for line, end, label_y in zip(lines, ends, spread_positions(ends[:, 1], gap), strict=True):
        ax.annotate(
            str(line.get_label()),
            xy=end,
            xycoords="axes fraction",
            xytext=(1.045, label_y),
            textcoords="axes fraction",
            fontsize=_LINE_LABEL_FONT_SIZE,
            color="#222222",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": line.get_color(),
                "linewidth": 0.8,
                "alpha": 0.6,
                "relpos": (0.0, 0.5),  # the left end of the text
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )
    return True


def spread_positions(positions: np.ndarray, gap: float) -> np.ndarray:
    """Return the positions in [0, 1] that are closest to target positions (least squares), with a minimum distance.

    Args:
        positions: target positions in [0, 1], [n], whose order is preserved.
        gap: minimum distance, at most 1 / n.
    """
    from scipy.optimize import isotonic_regression  # lazy: importing it takes longer than most commands

    order = np.argsort(positions, kind="stable")
    offsets = gap * np.arange(len(positions))
    # Sorted positions p_i = q_i + i * gap have the minimum distance if and only if q is nondecreasing.
    fitted = isotonic_regression(positions[order] - offsets).x
    label_positions = np.empty(len(positions))
    label_positions[order] = np.clip(fitted, 0.0, 1.0 - gap * max(len(positions) - 1, 0)) + offsets
    return label_positions
