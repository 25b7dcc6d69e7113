"""What a sweep says of its runs while it waits for them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from llmrl.analysis.runs import read_runs
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.status import RunProgress as Numbers
from llmrl.sweeps.watch import SweepWatch, newest_value, summary
from run_folders import write_run


@pytest.fixture
def running(tmp_path: Path):
    """Records of five runs as if they ran: the later the seed, the longer it still takes."""
    for seed in range(5):
        typed = ["env=toy", f"principal={'ucb' if seed % 2 else 'gp'}"]
        write_run(tmp_path, "toy", typed, seed, [1.0, 10.0 + seed], cost=0.25)
    numbers = [Numbers(done=50 + 5 * seed, total=100, unit="steps", eta_s=60.0 * seed) for seed in range(5)]
    found = sorted(read_runs(tmp_path), key=lambda record: record.seed)
    return [replace(r, state="running", result=None, progress=n) for r, n in zip(found, numbers, strict=True)]


def test_it_names_those_that_take_longest_with_value_time_and_money(running) -> None:
    text = summary(running)
    assert text.startswith("5 running, 60% done: principal=gp seed 4 70% at 14, 4:00 left; principal=ucb seed 3 65%")
    assert "env=toy" not in text  # all have it
    assert text.endswith(" and 3 more; $1.25 spent")


def test_what_has_ended_is_not_told(running) -> None:
    ended = [replace(record, state="finished", result=3.0) for record in running]
    assert summary(ended) == "" and newest_value(ended[0], {}) == 3.0
    assert summary([running[1], *ended]).startswith("1 running, 55% done: env=toy, principal=ucb seed 1")


def test_lines_come_now_and_then(running, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch) -> None:
    monkeypatch.setattr("llmrl.sweeps.watch.read_run", lambda folder: running[0])
    with caplog.at_level(logging.INFO), ProgressBar(5, "runs", "sweep", terminal=False) as progress:
        rare, often = SweepWatch(progress), SweepWatch(progress, every_s=1e-9)
        for _ in range(3):
            rare.look([running[0].folder])
        assert not [line for line in caplog.messages if "running" in line]
        often.look([tmp_path / "not begun"])
        often.look([])
        assert not [line for line in caplog.messages if "running" in line]
        often.look([running[0].folder])
        [told] = [line for line in caplog.messages if "running" in line]
        assert told.startswith("sweep 0/5 runs (0.0%); 1 running, 50% done")
