"""Colors, line styles and markers of groups in figures.

Twelve groups differ in line style and marker, so that they can be distinguished without color.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
