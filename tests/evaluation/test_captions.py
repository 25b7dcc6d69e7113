"""Panels next to the picture: one column per agent, with a mark for omitted text."""

import numpy as np

from llmrl.core.frames import fitting
from llmrl.evaluation.videos import COLUMN, MAX_AGENTS, Thought, draw_thoughts

ACTIONS = ("stay", "left", "right", "down", "up")


def thought(lines):
    bars = {name: np.full(5, 0.2) for name in ("policy", "teacher")}
    return Thought("agent", bars, 3, lines)


def inked(panel, agent):
    """Return the pixel rows of an agent's column that contain ink."""
    return np.flatnonzero((panel[:, agent * COLUMN : (agent + 1) * COLUMN] != 255).any((1, 2)))


def test_all_agents_fit():
    """Use texts as long as those of a debate; the last line of each agent is above the lower edge."""
    lines = ["A sentence of some length about what the agent sees and what the others mean to do. " * 3]
    lines += [f"0.{k} go to <landmark {k}>, stay away from <agent {k}>" for k in range(5)]
    height = 336
    panel = draw_thoughts([thought(lines)] * MAX_AGENTS, ACTIONS, height)
    assert panel.shape == (height, COLUMN * MAX_AGENTS, 3) and panel.shape[1] % 2 == 0
    columns = [inked(panel, agent) for agent in range(MAX_AGENTS)]
    assert all((column == columns[0]).all() for column in columns), "they think alike"
    assert columns[0].max() < height - 1
    shorter = inked(draw_thoughts([thought(lines[:-1])], ACTIONS, height), 0)
    assert shorter.max() < columns[0].max(), "the last line is drawn"
    assert len(fitting([[line] for line in lines], 20)) == len(lines)


def test_actions_give_way_to_texts():
    short, long_image = (draw_thoughts([thought(["x"] * n)], ACTIONS, 160) for n in (1, 8))
    # The bars of a policy are drawn in its color.
    bars = [(panel[:, 110] == (31, 119, 180)).all(1).any() for panel in (short, long_image)]
    assert bars == [True, True]
    count = [
        int(np.diff((panel[:, 112] == (31, 119, 180)).all(1).astype(int)).clip(0).sum())
        for panel in (short, long_image)
    ]
    assert count == [5, 2]


def test_counts_overflow():
    texts = [["a"], ["b", "   b"], ["c"], ["d"]]
    assert fitting(texts, 5) == ["a", "b", "   b", "c", "d"]
    assert fitting(texts, 4) == ["a", "b", "   b", "(2 more)"]
    assert fitting(texts, 1) == ["(4 more)"]
