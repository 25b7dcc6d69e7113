"""Messages of a sweep about its runs while it waits for them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from llmrl.results.run_records import read_runs
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.status import RunProgress as Numbers
from llmrl.sweeps.watch import SweepWatch, find_latest_value, summarize_running_runs
from run_folders import write_run


@pytest.fixture
def running(tmp_path: Path):
    """Return records of five runs as if they ran: the later the seed, the longer it still takes."""
    for seed in range(5):
        overrides = ["env=toy", f"principal={'ucb' if seed % 2 else 'gp'}"]
        write_run(tmp_path, "toy", overrides, seed, [1.0, 10.0 + seed], cost=0.25)
    numbers = [Numbers(done=50 + 5 * seed, total=100, unit="steps", eta_s=60.0 * seed) for seed in range(5)]
    records = sorted(read_runs(tmp_path), key=lambda record: record.seed)
    return [replace(r, state="running", result=None, progress=n) for r, n in zip(records, numbers, strict=True)]


def test_summary_describes_slowest_run(running) -> None:
    assert summarize_running_runs(running) == "5 running, 60% done, 4:00 left, $1.25 spent"


def test_summary_omits_finished_runs(running) -> None:
    completed = [replace(record, state="finished", result=3.0) for record in running]
    assert summarize_running_runs(completed) == "" and find_latest_value(completed[0], {}) == 3.0
    assert summarize_running_runs([running[1], *completed]) == "1 running, 55% done, 1:00 left, $0.25 spent"


def test_lines_are_rate_limited(running, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    monkeypatch.setattr("llmrl.sweeps.watch.read_run", lambda folder: running[0])
    with caplog.at_level(logging.INFO), ProgressBar(5, "runs", "sweep", draws_bar=False) as progress:
        rare = SweepWatch(progress)
        monkeypatch.setattr("llmrl.sweeps.watch._LOG_INTERVAL_S", 0.0)
        frequent = SweepWatch(progress)
        for _ in range(3):
            rare.update_if_due([running[0].folder])
        assert not [line for line in caplog.messages if "running" in line]
        frequent.update_if_due([tmp_path / "not begun"])
        frequent.update_if_due([])
        assert not [line for line in caplog.messages if "running" in line]
        frequent.update_if_due([running[0].folder])
        [line] = [line for line in caplog.messages if "running" in line]
        assert line.startswith("sweep 0/5 runs (0.0%); 1 running, 50% done")
