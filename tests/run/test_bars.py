"""Terminal output of runs: bars with the objective and the last proposal, and below a text on the runs of a sweep."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from llmrl.results.run_records import read_runs
from llmrl.run.bars import TerminalBar
from llmrl.run.progress_bar import ProgressBar, shorten_proposal
from llmrl.run.status import RunProgress as Numbers
from llmrl.run.status import Status, read_status
from llmrl.sweeps.watch import summarize_running_runs
from run_folders import write_run


def render(bars: TerminalBar, width: int = 110) -> str:
    """Return the bars as text."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    for part in bars.get_renderables():
        console.print(part)
    return console.export_text()


@pytest.fixture
def running(tmp_path: Path):
    """Three runs as if they ran, of two principals, one with a language model that costs something."""
    for seed, name in enumerate(("gp", "gp", "llm")):
        write_run(
            tmp_path, "toy", ["env=toy", f"principal={name}"], seed, [1.0, 2.0], cost=0.25 if name == "llm" else 0
        )
    numbers = [Numbers(10 * k, 100, "steps", 2.0, 60.0 * k, 7.5 + k, f"clean: {k}, eat: 0.5") for k in range(3)]
    records = sorted(read_runs(tmp_path), key=lambda record: record.seed)
    return [replace(r, state="running", result=None, progress=n) for r, n in zip(records, numbers, strict=True)]


def test_run_bar_shows_objective_with_proposal(monkeypatch):
    monkeypatch.setattr("llmrl.run.bars.to_drawing_stream", lambda stream: io.StringIO())
    with ProgressBar(100, "steps", "design", draws_bar=True) as progress:
        progress.update(40)
        progress.show_result(-3.25, "eat: 2.3, clean: 3")
        assert progress._bar is not None
        text = render(progress._bar)
        assert "design" in text and "40/100" in text and "objective -3.25 with eat: 2.3, clean: 3" in text
        progress.show_result(17.0)
        assert "return 17" in render(progress._bar) and "with" not in render(progress._bar)


def test_markup_is_shown_as_text(monkeypatch):
    monkeypatch.setattr("llmrl.run.bars.to_drawing_stream", lambda stream: io.StringIO())
    with ProgressBar(2, "steps", "design", draws_bar=True) as progress:
        progress.show_result(1.0, "[red]x\x1b[2J")
        assert progress._bar is not None
        progress.show_activity("[bold]y\x1b]0;z")
        text = render(progress._bar)
    assert "[red]x" in text and "[bold]y" in text and "\x1b" not in text


def test_line_replaces_bar_in_pipe(caplog):
    with caplog.at_level(logging.INFO), ProgressBar(10, "steps", "design", draws_bar=False) as progress:
        progress.show_result(0.5, "a: 1")
        assert str(progress).startswith("design 0/10 steps (0.0%)") and str(progress).endswith(
            "; objective 0.5 with a: 1"
        )
        progress.show_activity("3 running")
        assert caplog.messages[-1].endswith("; 3 running")


def test_status_contains_progress(tmp_path):
    status = Status()
    with ProgressBar(
        10, "steps", "design", on_report=lambda n: setattr(status, "progress", n), draws_bar=False
    ) as progress:
        progress.show_result(2.0, "a: 1")
    status.write(tmp_path)
    stored_status = read_status(tmp_path)
    assert stored_status is not None and (stored_status.progress.value, stored_status.progress.proposed) == (
        2.0,
        "a: 1",
    )


def test_long_vectors_are_truncated():
    assert shorten_proposal("x" * 500, 80) == "x" * 79 + "…" and shorten_proposal("short") == "short"


def test_sweep_line_has_last_proposal(running):
    assert (
        summarize_running_runs(running)
        == "3 running, 10% done, 2:00 left, $0.25 spent; objective 9.5 with clean: 2, eat: 0.5"
    )


def test_notebook_shows_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr("llmrl.run.progress_bar.NOTEBOOK_INTERVAL_S", 0.0)
    with ProgressBar(10, "steps", "design", draws_bar=False) as progress:
        progress.update(5)
        progress.print_line("a line")
    output = capsys.readouterr().out
    assert output.startswith("\rdesign 5/10 steps (50.0%)") and "\ra line" in output and output.endswith("\n")
