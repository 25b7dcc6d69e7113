"""Colors, line styles and markers of groups in figures, and labels at the ends of their curves.

Twelve groups differ in line style and marker, so that they can be distinguished without color.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_FONT_SIZE = 9.5
_LABEL_HEIGHT = 1.3
"""Height of a label relative to its font size."""


def group_styles(names: Sequence[str], baselines: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the style of each group by name, for `Axes.plot`; it does not depend on the scores.

    Args:
        names: names of the groups.
        baselines: names of the groups that are gray.
    """
    styles = {}
    # Baselines have the same color, so they get the styles that differ most.
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


def level_style(style: dict[str, Any]) -> dict[str, Any]:
    """Return a style for a horizontal line, which has no markers."""
    return {**style, "marker": "", "linewidth": 1.5}


def label_line_ends(panel: Axes) -> bool:
    """Write the labels of the lines in `panel` to the right of it, each next to the end of its line, without overlap.

    Call it last: it fixes the limits of the axes.

    Returns:
        Whether there is space for all labels; if not, nothing is drawn.
    """
    panel.set_xlim(panel.get_xlim())
    panel.set_ylim(panel.get_ylim())
    figure = panel.get_figure(root=True)
    assert figure is not None
    height = 72 * figure.get_size_inches()[1] * 0.8  # points; constrained layout leaves about this much
    gap = _FONT_SIZE * _LABEL_HEIGHT / height
    lines = [line for line in panel.get_lines() if not str(line.get_label()).startswith("_")]  # those of a legend
    if gap * len(lines) > 1:
        return False
    points = [line.get_transform().transform(np.asarray(line.get_xydata())[-1]) for line in lines]
    ends = panel.transAxes.inverted().transform(np.reshape(points, (-1, 2)))  # in shares of the axes
    for line, end, place in zip(lines, ends, spread_positions(ends[:, 1], gap), strict=True):
        panel.annotate(
            str(line.get_label()),
            xy=end,
            xycoords="axes fraction",
            xytext=(1.045, place),
            textcoords="axes fraction",
            fontsize=_FONT_SIZE,
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
    """Return the closest positions (least squares) in [0, 1] with a minimum distance, in the same order.

    Args:
        positions: target positions, [n].
        gap: minimum distance, at most 1 / n.
    """
    order = np.argsort(positions, kind="stable")
    offsets = gap * np.arange(len(positions))
    # With p_i = q_i + i * gap, the distances hold if q is nondecreasing: an isotonic regression by adjacent pooling.
    blocks: list[tuple[float, int]] = []
    for value in positions[order] - offsets:
        mean, size = float(value), 1
        while blocks and blocks[-1][0] > mean:
            before, n = blocks.pop()
            mean, size = (before * n + mean * size) / (n + size), n + size
        blocks.append((mean, size))
    fitted = np.concatenate([np.full(size, mean) for mean, size in blocks]) if blocks else np.array([])
    spread = np.empty(len(positions))
    spread[order] = np.clip(fitted, 0.0, 1.0 - gap * max(len(positions) - 1, 0)) + offsets
    return spread
