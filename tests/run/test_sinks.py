"""Events that sinks receive, isolation of their failures, and limits on the time that a run waits for them."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmrl.core.errors import ConfigError
from llmrl.experiment.resources import RunResources
from llmrl.run import sink_fan_out as fan_out
from llmrl.run.config_hash import config_hash
from llmrl.run.folder import format_run_label
from llmrl.run.metrics import FILE_NAME, MetricLog, read_metrics
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.sink import Ending, Opening, Row, Sink, flatten_config

CONFIG: dict[str, Any] = {"env": "toy", "agent": {"lr": 0.1}}
KEY = "sk-abcdefghij0123456789ABCDEFGHIJ"


class RecordingSink(Sink):
    """Sink that records all calls."""

    def __init__(self, background: bool = True) -> None:
        self.background = background
        self.events: list[Any] = []
        self.numbers: list[int] = []

    def open(self, opening: Opening) -> None:
        self.events.append(opening)

    def rows(self, rows: Sequence[Row]) -> None:
        assert rows
        self.events += rows
        self.numbers += [row.number for row in rows]

    def text(self, row: Row, tag: str, markdown: str) -> None:
        self.events.append((row.number, tag, markdown))

    def picture(self, row: Row, tag: str, path: Path) -> None:
        self.events.append((row.number, tag, path))

    def close(self, ending: Ending) -> None:
        self.events.append(ending)


class FailingSink(RecordingSink):
    """Sink that fails once at each of the given rows."""

    def __init__(self, *numbers: int, background: bool = True) -> None:
        super().__init__(background)
        self.fails_at = set(numbers)

    def rows(self, rows: Sequence[Row]) -> None:
        if wrong := self.fails_at & {row.number for row in rows}:
            self.fails_at -= wrong
            raise OSError(f"the server is down, key {KEY}")
        super().rows(rows)


class BlockingSink(RecordingSink):
    """Sink that blocks at its first rows or when it is closed."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at, self.answer, self.abandoned = at, threading.Event(), False

    def abandon(self) -> None:
        self.abandoned = True

    def rows(self, rows: Sequence[Row]) -> None:
        if self.at == "rows":
            self.answer.wait()
        super().rows(rows)

    def close(self, ending: Ending) -> None:
        if self.at == "close":
            self.answer.wait()
        super().close(ending)


def record(metrics: MetricLog, numbers: range) -> None:
    for number in numbers:
        scalars = {"loss": 0.5 * number, "nothing": float("nan")}
        metrics.log("update", "env_steps", scalars, env_steps=10 * number, updates=number)


@pytest.fixture
def notes() -> RecordingSink:
    return RecordingSink(background=False)


def test_sink_receives_all_events(tmp_path: Path, notes: RecordingSink) -> None:
    with Run.open(tmp_path, "toys", CONFIG, ["env=toy", "agent.lr=0.1"], 3, make_sinks=lambda: {"notes": notes}) as run:
        record(run.metrics, range(1))
        run.metrics.attach_text("reply", lambda line: f"at {line['env_steps']}")
        run.metrics.attach_pictures("video", lambda line: [tmp_path / "a.gif"] if line["updates"] else [])
        record(run.metrics, range(1, 2))
        run.result, run.summary = 2.5, {"worst": 0.5, "best": {"a": 1.0}, "episodes": 3}
    opening, first, text, second, second_text, video, ending = notes.events
    assert (opening.folder, opening.root, opening.name, opening.n_kept_rows) == (run.folder, tmp_path, "toys", 0)
    assert opening.label == "/".join(run.folder.parts[-2:]) and opening.label.endswith("/s3")
    assert opening.config == CONFIG and opening.hyperparameters == {"env": "toy", "agent.lr": 0.1, "seed": 3}
    assert (first.number, first.kind, first.x, first.x_value) == (0, "update", "env_steps", 0)
    assert second.counters == {"env_steps": 10, "updates": 1} and second.x_value == 10
    assert second.metrics.keys() == {"loss", "nothing"} and second.metrics["loss"] == 0.5
    assert second.metrics["nothing"] != second.metrics["nothing"]
    assert text == (0, "reply", "at 0") and second_text == (1, "reply", "at 10")
    assert video == (1, "video", tmp_path / "a.gif")
    assert (ending.state, ending.x_value, ending.error) == ("finished", 10, "") and ending.succeeded
    assert ending.final_metrics == {"Final/result": 2.5, "Final/worst": 0.5}
    assert ending.summary == {"result": 2.5, "worst": 0.5, "best": {"a": 1.0}, "episodes": 3}


@pytest.mark.parametrize("background", [False, True])
def test_resume_repeats_rows_to_sink(tmp_path: Path, background: bool) -> None:
    sinks = [RecordingSink(background), RecordingSink(background)]
    metrics = MetricLog(tmp_path, None, {"notes": sinks[0]})
    record(metrics, range(3))
    position = metrics.position()
    record(metrics, range(3, 5))  # cut when it is resumed
    metrics = MetricLog(tmp_path, position, {"notes": sinks[1]})
    metrics.attach_text("reply", lambda line: "yes")
    record(metrics, range(3, 6))
    metrics.close()
    metrics.wait_for_sinks()
    opening = sinks[1].events[0]
    assert opening.n_kept_rows == 3 and opening.started == sinks[1].events[1].unix_time
    assert sinks[1].numbers == [0, 1, 2, 3, 4, 5]
    assert [event[0] for event in sinks[1].events if isinstance(event, tuple)] == [0, 1, 2, 3, 4, 5]


def test_end_state_reaches_sink(tmp_path: Path, notes: RecordingSink) -> None:
    with pytest.raises(ZeroDivisionError), Run.open(tmp_path, "toys", CONFIG, make_sinks=lambda: {"notes": notes}):
        raise ZeroDivisionError("no division")
    assert (notes.events[-1].state, notes.events[-1].error) == ("failed", "ZeroDivisionError: no division")
    assert notes.events[-1].final_metrics == {} and not notes.events[-1].succeeded
    with pytest.raises(Stopped), Run.open(tmp_path, "toys", CONFIG, make_sinks=lambda: {"notes": notes}) as run:
        os.kill(os.getpid(), signal.SIGTERM)
        run.safe_point(1, dict)
    assert notes.events[-1].state == "preempted"


@pytest.mark.parametrize("background", [False, True])
def test_sink_failure_is_isolated(tmp_path: Path, caplog: pytest.LogCaptureFixture, background: bool) -> None:
    broken, notes = FailingSink(1, 2, 3, background=background), RecordingSink(background)
    sinks = {"broken": broken, "notes": notes}
    with caplog.at_level(logging.WARNING), Run.open(tmp_path, "toys", CONFIG, make_sinks=lambda: sinks) as run:
        for number in range(4):
            record(run.metrics, range(number, number + 1))
            wait_for(lambda n=number: len(notes.numbers) == n + 1 and broken.numbers == [0])
        run.result = 1.0
    assert Run.open(tmp_path, "toys", CONFIG).finished
    assert notes.numbers == [0, 1, 2, 3] and isinstance(notes.events[-1], Ending)
    assert len(read_metrics(run.folder / FILE_NAME)) == 4
    warnings = [record.getMessage() for record in caplog.records if "loggers.broken" in record.getMessage()]
    assert len(warnings) == 2, "once when it fails, once at the end"
    assert "server is down" in warnings[0]
    assert "3 of 4 rows" in warnings[1] and "metrics.jsonl" in warnings[1]
    assert KEY not in caplog.text and "<redacted>" in warnings[0]


@pytest.mark.slow
def test_slow_sink_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fan_out, "MAX_QUEUED_CALLS", 10)
    monkeypatch.setattr(fan_out, "FINISH_TIMEOUT_S", 1.0)
    stuck = BlockingSink("rows")
    metrics = MetricLog(tmp_path, None, {"stuck": stuck})
    record(metrics, range(50))
    stuck.at = ""
    stuck.answer.set()
    record(metrics, range(50, 51))
    wait_for(lambda: "more than 10 rows" in caplog.text)
    metrics.close()
    metrics.wait_for_sinks()
    assert re.search(r"\d of 51 rows", caplog.text) and len(read_metrics(tmp_path / FILE_NAME)) == 51


@pytest.mark.parametrize("at", ["rows", "close"])
def test_stop_does_not_wait_for_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    monkeypatch.setattr(fan_out, "STOP_TIMEOUT_S", 0.2)
    stuck = BlockingSink(at)
    with pytest.raises(Stopped), Run.open(tmp_path, "toys", CONFIG, make_sinks=lambda: {"stuck": stuck}) as run:
        record(run.metrics, range(2))
        os.kill(os.getpid(), signal.SIGTERM)
        start_time = time.monotonic()
        run.safe_point(2, dict)
    assert time.monotonic() - start_time < fan_out.FINISH_TIMEOUT_S / 2
    assert "loggers.stuck" in caplog.text and "in time" in caplog.text
    assert ("2 of 2 rows" in caplog.text) == (at == "rows")
    assert not isinstance((stuck.events or [None])[-1], Ending) and stuck.abandoned
    stuck.answer.set()


def test_finished_run_flushes_sinks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stuck = BlockingSink("close")
    with Run.open(tmp_path, "toys", CONFIG, make_sinks=lambda: {"stuck": stuck}) as run:
        record(run.metrics, range(2))
        threading.Timer(0.3, stuck.answer.set).start()
    assert isinstance(stuck.events[-1], Ending) and "loggers.stuck" not in caplog.text and not stuck.abandoned


def test_sinks_receive_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "correct-horse-battery")
    notes = RecordingSink(background=False)
    config = {"a": {"b": f"uses {KEY}", "correct-horse-battery": 1}}
    opening = Opening(tmp_path, tmp_path, "n", "l", config, {"x": "correct-horse-battery"})
    metrics = MetricLog(tmp_path, None, {"notes": notes}, opening)
    metrics.attach_text("reply", lambda line: f"Bearer {KEY}")
    metrics.log("update", "updates", {"loss/correct-horse-battery": 1.0, "fine": 2.0}, updates=1)
    metrics.close("failed", {"found": f"key {KEY}"}, error=f"no access with {KEY}")
    events = repr(notes.events)
    assert KEY not in events and "correct-horse-battery" not in events
    assert notes.events[1].metrics == {"loss/<redacted>": 1.0, "fine": 2.0}


def test_sinks_are_not_hashed(tmp_path: Path, notes: RecordingSink) -> None:
    with_sink = {**CONFIG, "loggers": {"notes": {"_target_": "my.RecordingSink"}}}
    assert config_hash(with_sink) == config_hash(CONFIG)
    overrides = ["loggers=[tensorboard,wandb]", "+loggers.mine._target_=my.Sink", "loggers.wandb.mode=offline"]
    assert format_run_label(overrides) == format_run_label([])
    with pytest.raises(ZeroDivisionError), Run.open(tmp_path, "toys", CONFIG) as first:
        record(first.metrics, range(2))
        first.checkpoint(2, {})
        raise ZeroDivisionError
    with Run.open(tmp_path, "toys", with_sink, overrides, make_sinks=lambda: {"notes": notes}) as run:
        assert run.folder == first.folder and run.state == "resumed"
        record(run.metrics, range(2, 3))
    assert notes.numbers == [0, 1, 2]


def test_invalid_sinks_keep_finished_run(tmp_path: Path) -> None:
    def missing() -> dict[str, Sink]:
        raise ConfigError("not installed")

    with Run.open(tmp_path, "toys", CONFIG) as run:
        record(run.metrics, range(2))
    assert Run.open(tmp_path, "toys", CONFIG, make_sinks=missing).finished, "nobody asks for them"
    with pytest.raises(ConfigError):
        Run.open(tmp_path, "toys", {**CONFIG, "rerun": True}, make_sinks=missing)
    assert Run.open(tmp_path, "toys", CONFIG).finished and not list(run.folder.glob("backup*"))


def test_run_id_changes_on_rerun(tmp_path: Path) -> None:
    ids = []
    for rerun in (False, False, True):
        notes = RecordingSink(background=False)
        with (
            pytest.raises(ZeroDivisionError),
            Run.open(tmp_path, "t", {**CONFIG, "rerun": rerun}, make_sinks=lambda sink=notes: {"n": sink}) as run,
        ):
            ids.append(notes.events[0].get_run_id())
            run.checkpoint(1, {})
            raise ZeroDivisionError
    assert ids[0] == ids[1] != ids[2] and len(ids[0]) == 16


def test_parallel_sinks_share_run_id(tmp_path: Path) -> None:
    opening, ids = Opening(tmp_path, tmp_path, "n", "l"), []
    threads = [threading.Thread(target=lambda: ids.append(opening.get_run_id())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 16 and len(set(ids)) == 1


def test_invalid_sinks() -> None:
    config: dict[str, Any] = {"trusted_modules": ["test_sinks"], "loggers": {}}
    assert RunResources(config).sinks == {} == RunResources({**config, "loggers": None}).sinks
    loggers = {"mine": {"_target_": "test_sinks.RecordingSink", "background": False}, "none": {"_target_": None}}
    assert isinstance(RunResources({**config, "loggers": loggers}).sinks["mine"], RecordingSink)
    for node, complaint in [
        ({"_target_": "test_sinks.Key"}, "no such name"),
        ({"_target_": "test_sinks.NoSink"}, "is not a sink"),
        ({"_target_": "test_sinks.RecordingSink", "color": 1}, "'color'"),
        ("wandb", "must name the class"),
        ({"_target_": "llmrl.run.tensorboard_file.EventFile"}, "outside the trusted modules"),
        ({"_target_": "llmrl.run.sinks.wandb.WandB", "finish_timeout": 0.0}, "finish_timeout"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            _ = RunResources({**config, "loggers": {"mine": node}}).sinks


class NoSink:
    """Class without the methods of a sink."""


@pytest.mark.parametrize(("option", "library"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_missing_library_suggests_installation(monkeypatch: pytest.MonkeyPatch, option: str, library: str) -> None:
    from importlib import util

    from llmrl.core.option_files import load_options

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == library else find(name, *rest))
    with pytest.raises(ConfigError, match=rf"loggers={option}.*{library}.*'llmrl\[loggers\]'"):
        _ = RunResources({"trusted_modules": [], "loggers": load_options("loggers")[option]}).sinks


def test_flat_config() -> None:
    assert flatten_config({"a": {"b": {}, "c": [1, {"d": 2}]}, "e": {"f": {"g": None}}}) == {
        "a.c": [1, {"d": 2}],
        "e.f.g": None,
    }


def wait_for(true: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)
