"""Discretization of vector observations into numbered states."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import find_run_folder, run
from llmrl.agents.search_agent import Bins, TabularAgent
from llmrl.core.errors import ConfigError
from llmrl.run.files import read_json_lines
from policies import POLE

RANGES = [[-1.2, 0.6, 10], [-0.07, 0.07, 20], [-5, 5, 3]]


@given(st.lists(st.floats(-10, 10), min_size=3, max_size=3))
def test_state_combines_bins(numbers):
    bins = Bins(POLE, RANGES)
    [state] = bins.compute_states(np.array([numbers]))
    places = np.unravel_index(state, [10, 20, 3])
    for x, place, (low, high, n) in zip(numbers, places, RANGES, strict=True):
        edges = np.linspace(low, high, n + 1)
        expected = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, n - 1)
        is_near_edge = np.abs(edges - x).min() < 1e-9
        assert place == expected or is_near_edge


def test_outliers_use_boundary_bins():
    bins = Bins(POLE, RANGES)
    low, high = bins.compute_states(np.array([[-np.inf] * 3, [np.inf] * 3]))
    assert (low, high) == (0, bins.n_states - 1) == (0, 599)


def test_text_describes_states():
    bin_text = Bins(POLE, RANGES).description
    assert "bin (s // 60) % 10 of 10, each 0.18 wide, from -1.2 to 0.6" in bin_text
    assert "bin (s // 3) % 20 of 20, each 0.007 wide" in bin_text and "bin s % 3 of 3" in bin_text
    assert bin_text in TabularAgent(POLE, bins=RANGES).controller.layout


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        (RANGES[:2], "2 ranges, but.*3"),
        ([[1, 1, 3], *RANGES[1:]], "low < high"),
        ([[0, 1, 2.5], *RANGES[1:]], "bins >= 1"),
        ([[0, 1], *RANGES[1:]], "must be"),
        ([[0, float("inf"), 2], *RANGES[1:]], "must be"),
        ([[0, 1, 100]] * 3, "1,000,000 states"),
    ],
)
def test_rejects_invalid_bins(ranges, reason):
    with pytest.raises(ConfigError, match=reason):
        Bins(POLE, ranges)


@pytest.mark.slow
def test_binned_table_is_searched(tmp_path):
    """Search MountainCar as published, with a search that moves towards its elite."""
    run(
        *("env=mountain_car", "agent=tabular", "agent.bins=[[-1.2,0.6,10],[-0.07,0.07,20]]", "principal=cem"),
        *("search.iterations=3", "search.episodes=2", "search.confirm_candidates=0", f"output_root={tmp_path}"),
    )
    proposals = read_json_lines(find_run_folder(tmp_path) / "proposals.jsonl")
    assert len(proposals[0]["vector"]) == 200 and set(proposals[0]["vector"]) <= {0, 1, 2}
