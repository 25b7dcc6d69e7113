"""Times until a recommendation reaches a level, with censored runs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmrl.analysis.group_traces import compute_kaplan_meier_median, find_solution_times


def test_first_crossing_or_censoring() -> None:
    values = np.array([[0.0, 5.0, 0.0], [9.0, 5.0, 0.0], [3.0, 9.0, 8.9]])
    times, reached = find_solution_times(np.array([1.0, 5.0, 20.0]), values, 9.0)
    assert times.tolist() == [5, 20, 20] and reached.tolist() == [True, True, False]
    assert compute_kaplan_meier_median(times, reached) == 20


def test_median_needs_half_of_runs() -> None:
    values = np.array([[0.0] * 4 + [2.0], [0.0] * 3 + [2.0, 2.0]])
    assert compute_kaplan_meier_median(*find_solution_times(np.array([1.0, 80.0]), values, 1.0)) is None


def test_short_run_leaves_risk_set() -> None:
    # Freireich-style: 3 of 4 at risk survive time 2, one is censored at 3, then 1 of 2 at 4: 3/4 * 1/2.
    times, reached = np.array([2.0, 3.0, 4.0, 9.0]), np.array([True, False, True, False])
    assert compute_kaplan_meier_median(times, reached) == 4
    assert compute_kaplan_meier_median(times, np.zeros(4, dtype=bool)) is None


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=20))
def test_equal_budgets_give_sample_median(samples: list[tuple[int, bool]]) -> None:
    reached = np.array([is_solved for _, is_solved in samples])
    times = np.array([time if is_solved else 20 for time, is_solved in samples], dtype=float)
    ordered = np.sort(np.where(reached, times, np.inf))
    expected = ordered[(len(ordered) + 1) // 2 - 1]
    assert compute_kaplan_meier_median(times, reached) == (None if np.isinf(expected) else expected)
