"""Fixtures with reference results for the comparison of backends."""

import pytest
from backend_conformance import SLOW, SWEEP, MetricsByRun, compute_reference, load_metrics

from shared_folders import shared_folder


@pytest.fixture(scope="session")
def slow_reference(tmp_path_factory) -> MetricsByRun:
    options = (*SLOW, "seed=0,1")
    return load_metrics(
        shared_folder(tmp_path_factory, "slow_reference", lambda folder: compute_reference(folder, *options))
    )


@pytest.fixture(scope="session")
def sweep_reference(tmp_path_factory) -> MetricsByRun:
    return load_metrics(
        shared_folder(tmp_path_factory, "sweep_reference", lambda folder: compute_reference(folder, *SWEEP))
    )
