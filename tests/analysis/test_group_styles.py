"""Styles of groups in figures, and positions of the labels at the ends of lines."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from llmrl.analysis.group_styles import LineEnd, group_styles, label_line_ends, sparse_markers, spread_positions


def test_twelve_groups_differ_in_grayscale() -> None:
    names = [f"g{i:02}" for i in range(12)]
    styles = group_styles(names, baselines=["g03", "g07"])
    assert len({style["marker"] for style in styles.values()}) == 12
    assert len({str(style["linestyle"]) for style in styles.values()}) == 12
    assert styles["g03"]["color"] == styles["g07"]["color"] != styles["g00"]["color"]
    assert styles == group_styles(names[::-1], baselines=["g03", "g07"])


def test_long_lines_have_few_markers() -> None:
    style = group_styles(["a"])["a"]
    assert "markevery" not in sparse_markers(style, 8) and 100 / sparse_markers(style, 100)["markevery"] <= 13


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
    panel.plot([0, 1], [0, 1])
    ends = [LineEnd(str(i), 1.0, i / 30, "black") for i in range(30)]
    assert not label_line_ends(panel, ends) and not panel.texts
    assert label_line_ends(panel, ends[:3]) and [text.get_text() for text in panel.texts] == ["0", "1", "2"]
