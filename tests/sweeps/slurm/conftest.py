"""Fixtures of tests that need a SLURM cluster."""

import pytest

from cluster import Cluster, NoClusterError, cluster


@pytest.fixture(scope="session")
def slurm_cluster() -> Cluster:
    """Return the one-node cluster of this machine; tests are skipped where there can be none."""
    try:
        return cluster()
    except NoClusterError as reason:
        pytest.skip(str(reason))
