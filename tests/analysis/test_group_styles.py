"""Styles of groups in figures."""

from __future__ import annotations

from llmrl.analysis.group_styles import group_styles


def test_twelve_groups_differ_in_grayscale() -> None:
    names = [f"g{i:02}" for i in range(12)]
    styles = group_styles(names, baselines=["g03", "g07"])
    assert len({style["marker"] for style in styles.values()}) == 12
    assert len({str(style["linestyle"]) for style in styles.values()}) == 12
    assert styles["g03"]["color"] == styles["g07"]["color"] != styles["g00"]["color"]
    assert styles == group_styles(names[::-1], baselines=["g03", "g07"])
