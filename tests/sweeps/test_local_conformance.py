"""The tests of all backends with parallel processes on this machine."""

import os
import signal

import pytest
from backend_conformance import BackendConformance, Place


def lose_machine(rows, launcher):
    """End all processes of a sweep, as a power failure does."""
    launcher.kill()
    for row in rows:
        os.kill(row["pid"], signal.SIGKILL)


@pytest.mark.slow
class TestLocal(BackendConformance):
    @pytest.fixture
    def place(self):
        overrides = ("hardware=local", "hardware.rows=1")
        return Place(overrides, "killed by SIGKILL", ("stopped", 130), lose_machine, lambda: None)

    @pytest.mark.long
    def test_results_are_identical(self, place, sweep_reference, tmp_path):
        """The other tests compare numbers of resumed runs with the same reference backend."""
        super().test_results_are_identical(place, sweep_reference, tmp_path)
