"""Conformance tests with parallel processes on this machine."""

import os
import signal

import pytest
from backend_conformance import BackendConformance, BackendSetup


def lose_machine(rows, launcher):
    """Kill all processes of a sweep like a power failure."""
    launcher.kill()
    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)


@pytest.mark.slow
class TestLocal(BackendConformance):
    @pytest.fixture
    def backend_setup(self):
        overrides = ("hardware=local", "hardware.rows=1")
        return BackendSetup(overrides, "killed by SIGKILL", ("stopped", 130), lose_machine, lambda: None)

    @pytest.mark.long
    def test_results_are_identical(self, backend_setup, sweep_reference, tmp_path):
        """Other backends are compared with the same reference."""
        super().test_results_are_identical(backend_setup, sweep_reference, tmp_path)
