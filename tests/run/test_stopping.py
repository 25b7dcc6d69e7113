"""Behavior of a run after a signal: a single message, a checkpoint and a limited time until its end."""

import json
import os
import signal
import sys
import time

import pytest

import commands
from llmrl.run import signals
from llmrl.run.ownership import read_owner
from llmrl.run.run import Run
from llmrl.run.signals import StopFlag, Stopped
from llmrl.run.status import read_status
from stalling import TOTAL_STALL_S, shorten_stop_timeouts

CONFIG = {"env": {"_target_": "toy"}, "seed": 0}


def send_signal(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    return time.monotonic()


def only_folder(root):
    return next(root.glob("toys/*/s0"))


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "stopped")])
def test_safe_point_wait_is_limited(tmp_path, monkeypatch, number, state):
    shorten_stop_timeouts(monkeypatch)
    with pytest.raises(Stopped) as stop, Run.open(tmp_path, "toys", CONFIG) as run:
        run.checkpoint(7, {"x": 1})
        start = send_signal(number)
        time.sleep(TOTAL_STALL_S)
    assert time.monotonic() - start < TOTAL_STALL_S / 2
    assert stop.value.exit_code == 128 + number
    status = read_status(only_folder(tmp_path))
    assert (status.state, status.error) == (state, stop.value.reason)
    assert "iteration 7" in status.error
    assert read_owner(only_folder(tmp_path)) is None
    with Run.open(tmp_path, "toys", CONFIG) as resumed_run:
        assert (resumed_run.state, resumed_run.iteration, resumed_run.restored_state) == ("resumed", 7, {"x": 1})


def test_unsaved_run_reports_no_save(tmp_path, monkeypatch):
    shorten_stop_timeouts(monkeypatch)
    with pytest.raises(Stopped) as stop, Run.open(tmp_path, "toys", CONFIG):
        send_signal()
        time.sleep(TOTAL_STALL_S)
    assert "no checkpoint" in str(stop.value) and "is saved" not in str(stop.value)


def test_first_signal_prints_single_message(tmp_path, capfd):
    with pytest.raises(Stopped), Run.open(tmp_path, "toys", CONFIG) as run:
        send_signal()
        send_signal()
        send_signal(signal.SIGUSR1)
        run.safe_point(1, dict)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("SIG")]
    assert len(lines) == 1 and lines[0].startswith("SIGTERM:") and "within 20 s" in lines[0]


def test_library_cannot_swallow_stop(tmp_path, monkeypatch):
    shorten_stop_timeouts(monkeypatch)

    def library():
        try:
            time.sleep(TOTAL_STALL_S)
        except Exception:  # noqa: BLE001
            pytest.fail("taken for an error")
        except BaseException:  # noqa: BLE001
            return

    with pytest.raises(Stopped), Run.open(tmp_path, "toys", CONFIG):
        start = send_signal()
        library()
        time.sleep(TOTAL_STALL_S)
    assert time.monotonic() - start < TOTAL_STALL_S / 2


def test_save_is_not_interrupted(tmp_path, monkeypatch):
    shorten_stop_timeouts(monkeypatch)

    def slowly():
        for _ in range(30):
            time.sleep(0.05)
        return {"x": 2}

    with pytest.raises(Stopped, match="is saved"), Run.open(tmp_path, "toys", CONFIG) as run:
        save = run.checkpoints.save
        monkeypatch.setattr(run.checkpoints, "save", lambda iteration, state: save(iteration, state | slowly()))
        send_signal()
        run.safe_point(3, dict)
    with Run.open(tmp_path, "toys", CONFIG) as resumed_run:
        assert (resumed_run.iteration, resumed_run.restored_state) == (3, {"x": 2})


def test_state_is_saved_ahead_of_long_step(tmp_path, monkeypatch):
    """The checkpoint preserves earlier work if the long step is discarded; short steps are saved at regular times."""
    with Run.open(tmp_path, "toys", {**CONFIG, "checkpoint_seconds": 1e9}) as run:
        monkeypatch.setattr("llmrl.run.checkpoints.LONG_INTERVAL_S", 1.0)
        time.sleep(1.2)  # what is built before the loop begins is no way between safe points
        with run.progress(5, "steps", "toy"):
            pass
        for iteration in (1, 2):
            run.safe_point(iteration, dict)
        assert not run.checkpoints.list_paths()
        time.sleep(1.2)
        run.safe_point(3, dict)
        assert [path.stem[-1] for path in run.checkpoints.list_paths()] == ["3"]
        run.safe_point(4, dict)
        assert len(run.checkpoints.list_paths()) == 1
        run.checkpoint_timer.last_duration = 1.0
        time.sleep(1.2)
        run.safe_point(5, dict)
        assert len(run.checkpoints.list_paths()) == 1, "it would spend most of its time on saving"


def test_stop_reports_awaited_checkpoint(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("llmrl.run.checkpoints.MAX_STOP_S", 8.05)
    with Run.open(tmp_path, "toys", CONFIG) as run:
        save = run.checkpoints.save
        run.checkpoint(1, {})
        assert "took" not in caplog.text
        monkeypatch.setattr(run.checkpoints, "save", lambda *args: time.sleep(0.1) or save(*args))
        for iteration in (2, 3):
            run.checkpoint(iteration, {})
    assert caplog.text.count("a checkpoint took") == 1


def test_signal_covers_nested_run(capfd):
    with StopFlag("stopping") as outer:
        with StopFlag("stopping"):
            send_signal()
        assert outer.requested
        assert capfd.readouterr().err.count("SIGTERM: stopping") == 1
        time.sleep(0.05)
        assert outer.signal == signal.SIGTERM and outer.seconds_since_signal >= 0.05


def test_forked_worker_signal_keeps_run(tmp_path, monkeypatch):
    shorten_stop_timeouts(monkeypatch, scale=0.01)
    with Run.open(tmp_path, "toys", CONFIG) as run:
        if (pid := os.fork()) == 0:
            send_signal()
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.5)
        assert not run.stop_flag.requested
    assert read_status(only_folder(tmp_path)).state == "finished"


def test_second_interrupt_is_immediate(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "DISCARD_WORK_S", 1e4, raising=False)
    with pytest.raises(KeyboardInterrupt), Run.open(tmp_path, "toys", CONFIG):
        start = send_signal(signal.SIGINT)
        send_signal(signal.SIGINT)
        time.sleep(TOTAL_STALL_S)
    assert time.monotonic() - start < TOTAL_STALL_S / 2
    assert read_status(only_folder(tmp_path)).state == "stopped"


STUCK = """
import ctypes, json, os, signal, sys, threading
from pathlib import Path
from llmrl.run import signals
from llmrl.run.run import Run
signals.DISCARD_WORK_S, signals.SECOND_DISCARD_S, signals.FORCED_EXIT_S = 0.2, 0.3, 0.5
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with Run.open(Path(sys.argv[1]), "toys", json.loads(sys.argv[2])) as run:
    run.checkpoint(4, {})
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # for ever, and deaf to signals
"""


def test_uninterruptible_library_ends_with_process(tmp_path):
    stuck = commands.run(
        [sys.executable, "-c", STUCK, str(tmp_path), json.dumps(CONFIG)], capture_output=True, text=True, timeout=60
    )
    assert stuck.returncode == 128 + signal.SIGTERM, stuck.stderr
    status = read_status(only_folder(tmp_path))
    assert status.state == "preempted" and "iteration 4" in status.error and status.error in stuck.stderr
    assert stuck.stderr.count("SIGTERM: ") == 1
    assert read_owner(only_folder(tmp_path)) is None
    with Run.open(tmp_path, "toys", CONFIG) as resumed_run:
        assert resumed_run.iteration == 4
