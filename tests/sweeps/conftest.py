"""Results with which those of every backend are compared."""

import pytest
from backend_conformance import SLOW, SWEEP, Numbers, compute_reference


@pytest.fixture(scope="session")
def slow_reference(tmp_path_factory) -> Numbers:
    return compute_reference(tmp_path_factory.mktemp("slow_reference"), *SLOW, "seed=0,1")


@pytest.fixture(scope="session")
def sweep_reference(tmp_path_factory) -> Numbers:
    return compute_reference(tmp_path_factory.mktemp("sweep_reference"), *SWEEP)
