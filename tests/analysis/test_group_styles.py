"""Styles of groups in figures, and positions of the labels at the ends of lines."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from llmrl.analysis.figures import choose_group_styles, label_line_ends, spread_positions


def test_twelve_groups_differ_in_grayscale() -> None:
    names = [f"g{i:02}" for i in range(12)]
    styles = choose_group_styles(names, baselines=["g03", "g07"])
    assert len({style["marker"] for style in styles.values()}) == 12
    assert len({str(style["linestyle"]) for style in styles.values()}) == 12
    assert styles["g03"]["color"] == styles["g07"]["color"] != styles["g00"]["color"]
    assert styles == choose_group_styles(names[::-1], baselines=["g03", "g07"])


@given(st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=12), st.floats(0.001, 1 / 12))
def test_labels_preserve_order(targets: list[float], gap: float) -> None:
    positions = np.array(targets)
    spread = spread_positions(positions, gap)
    assert (np.diff(np.sort(spread)) >= gap - 1e-9).all() and spread.min() >= 0 and spread.max() <= 1 + 1e-9
    order = np.argsort(positions, kind="stable")
    assert (np.diff(spread[order]) > 0).all()


def test_labels_avoid_overlap() -> None:
    np.testing.assert_allclose(spread_positions(np.array([0.9, 0.1, 0.5]), 0.05), [0.9, 0.1, 0.5])
    np.testing.assert_allclose(spread_positions(np.array([0.5, 0.5]), 0.1), [0.45, 0.55])


def test_omits_excess_labels() -> None:
    panel = Figure(figsize=(4, 2)).subplots()
    for i in range(30):
        panel.plot([0, 1], [0, i], label=str(i))
    assert not label_line_ends(panel) and not panel.texts


def test_labels_point_to_ends_of_lines() -> None:
    panel = Figure(figsize=(4, 2)).subplots()
    panel.set_xscale("log")
    panel.plot([1, 10], [5, 2], label="curve", color="red")
    panel.plot([1, 100], [0, 10])
    panel.axhline(4, label="level")
    panel.set(xlim=(1, 100), ylim=(0, 10))
    assert label_line_ends(panel)
    curve, level = panel.texts
    assert (curve.get_text(), level.get_text()) == ("curve", "level")
    np.testing.assert_allclose([curve.xy, level.xy], [(0.5, 0.2), (1.0, 0.4)], atol=1e-9)
    assert curve.arrow_patch.get_edgecolor()[:3] == (1.0, 0.0, 0.0)
