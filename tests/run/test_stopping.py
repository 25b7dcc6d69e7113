"""What a run does from a signal on: one message, a save, an end that nothing can put off."""

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
from stalling import STALLED_S, impatient

CONFIG = {"env": {"_target_": "toy"}, "seed": 0}


def signalled(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    return time.monotonic()


def folder_of(root):
    return next(root.glob("toys/*/s0"))


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "preempted"), (signal.SIGINT, "stopped")])
def test_the_way_to_a_safe_point_is_given_up_wherever_it_is(tmp_path, monkeypatch, number, state):
    impatient(monkeypatch)
    with pytest.raises(Stopped) as ended, Run.open(tmp_path, "toys", CONFIG) as run:
        run.checkpoint(7, {"x": 1})
        start = signalled(number)
        time.sleep(STALLED_S)
    assert time.monotonic() - start < STALLED_S / 2
    assert ended.value.exit_code == 128 + number
    status = read_status(folder_of(tmp_path))
    assert (status.state, status.error) == (state, ended.value.brief)
    assert "work since the checkpoint of iteration 7 is done again" in status.error
    assert read_owner(folder_of(tmp_path)) is None
    with Run.open(tmp_path, "toys", CONFIG) as again:
        assert (again.state, again.iteration, again.restored) == ("resumed", 7, {"x": 1})


def test_where_nothing_is_saved_yet_nothing_is_said_to_be(tmp_path, monkeypatch):
    impatient(monkeypatch)
    with pytest.raises(Stopped) as ended, Run.open(tmp_path, "toys", CONFIG):
        signalled()
        time.sleep(STALLED_S)
    assert "nothing was to be saved yet" in str(ended.value) and "everything is saved" not in str(ended.value)


def test_the_first_signal_is_answered_once_and_truly(tmp_path, capfd):
    with pytest.raises(Stopped), Run.open(tmp_path, "toys", CONFIG) as run:
        signalled()
        signalled()
        signalled(signal.SIGUSR1)
        run.safe_point(1, dict)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("SIG")]
    assert said == ["SIGTERM: saving and stopping, within 20 s; a second Ctrl-C stops at once"]


def test_a_library_that_takes_it_for_an_error_of_its_own_does_not_keep_it(tmp_path, monkeypatch):
    impatient(monkeypatch)

    def library():
        try:
            time.sleep(STALLED_S)
        except Exception:  # noqa: BLE001
            pytest.fail("taken for an error")
        except BaseException:  # noqa: BLE001
            return

    with pytest.raises(Stopped), Run.open(tmp_path, "toys", CONFIG):
        start = signalled()
        library()
        time.sleep(STALLED_S)
    assert time.monotonic() - start < STALLED_S / 2


def test_a_save_is_not_given_up(tmp_path, monkeypatch):
    impatient(monkeypatch)

    def slowly():
        for _ in range(30):
            time.sleep(0.05)
        return {"x": 2}

    with pytest.raises(Stopped, match="everything is saved"), Run.open(tmp_path, "toys", CONFIG) as run:
        save = run.checkpoints.save
        monkeypatch.setattr(run.checkpoints, "save", lambda iteration, state: save(iteration, state | slowly()))
        signalled()
        run.safe_point(3, dict)
    with Run.open(tmp_path, "toys", CONFIG) as again:
        assert (again.iteration, again.restored) == (3, {"x": 2})


def test_what_is_before_a_long_way_is_saved(tmp_path, monkeypatch):
    """So that nothing before it is lost if that way has to be given up; short ones are saved when it is time."""
    with Run.open(tmp_path, "toys", CONFIG, checkpoint_every_s=1e9) as run:
        monkeypatch.setattr("llmrl.run.run.LONG_S", 1.0, raising=False)
        time.sleep(1.2)  # what is built before the loop begins is no way between safe points
        with run.progress(5, "steps", "toy"):
            pass
        for iteration in (1, 2):
            run.safe_point(iteration, dict)
        assert not run.checkpoints.paths()
        time.sleep(1.2)
        run.safe_point(3, dict)
        assert [path.stem[-1] for path in run.checkpoints.paths()] == ["3"]
        run.safe_point(4, dict)
        assert len(run.checkpoints.paths()) == 1
        run._saving_took = 1.0
        time.sleep(1.2)
        run.safe_point(5, dict)
        assert len(run.checkpoints.paths()) == 1, "it would spend most of its time on saving"


def test_a_checkpoint_that_a_stop_would_have_to_wait_for_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("llmrl.run.run.PROMISED_S", 8.05)
    with Run.open(tmp_path, "toys", CONFIG) as run:
        save = run.checkpoints.save
        run.checkpoint(1, {})
        assert "took" not in caplog.text
        monkeypatch.setattr(run.checkpoints, "save", lambda *args: time.sleep(0.1) or save(*args))
        for iteration in (2, 3):
            run.checkpoint(iteration, {})
    assert caplog.text.count("a checkpoint took") == 1


def test_a_signal_is_meant_for_the_run_that_needs_a_run_too(capfd):
    with StopFlag("stopping") as outer:
        with StopFlag("stopping"):
            signalled()
        assert outer.requested
        assert capfd.readouterr().err.count("SIGTERM: stopping") == 1
        time.sleep(0.05)
        assert outer.name == "SIGTERM" and outer.waiting_s >= 0.05


def test_what_a_forked_worker_is_signalled_ends_no_run(tmp_path, monkeypatch):
    impatient(monkeypatch, scale=0.01)
    with Run.open(tmp_path, "toys", CONFIG) as run:
        if (pid := os.fork()) == 0:
            signalled()
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.5)
        assert not run.stop.requested
    assert read_status(folder_of(tmp_path)).state == "finished"


def test_a_second_interrupt_is_not_put_off(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "GIVE_UP_S", 1e4, raising=False)
    with pytest.raises(KeyboardInterrupt), Run.open(tmp_path, "toys", CONFIG):
        start = signalled(signal.SIGINT)
        signalled(signal.SIGINT)
        time.sleep(STALLED_S)
    assert time.monotonic() - start < STALLED_S / 2
    assert read_status(folder_of(tmp_path)).state == "stopped"


STUCK = """
import ctypes, json, os, signal, sys, threading
from pathlib import Path
from llmrl.run import signals
from llmrl.run.run import Run
signals.GIVE_UP_S, signals.GIVE_UP_AGAIN_S, signals.OVERDUE_S = 0.2, 0.3, 0.5
library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
with Run.open(Path(sys.argv[1]), "toys", json.loads(sys.argv[2])) as run:
    run.checkpoint(4, {})
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # for ever, and deaf to signals
"""


def test_a_library_that_no_signal_interrupts_is_ended_with_the_process(tmp_path):
    stuck = commands.run(
        [sys.executable, "-c", STUCK, str(tmp_path), json.dumps(CONFIG)], capture_output=True, text=True, timeout=60
    )
    assert stuck.returncode == 128 + signal.SIGTERM, stuck.stderr
    status = read_status(folder_of(tmp_path))
    assert status.state == "preempted" and "iteration 4" in status.error and status.error in stuck.stderr
    assert stuck.stderr.count("SIGTERM: saving and stopping") == 1
    assert read_owner(folder_of(tmp_path)) is None
    with Run.open(tmp_path, "toys", CONFIG) as again:
        assert again.iteration == 4
