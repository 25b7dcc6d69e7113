"""Several runs in threads of one process, each with the outputs, end and resume of a separate run."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from experiments import compose, load_comparable_metrics
from fake_openai_server import FakeOpenAIServer
from llmrl.core.privacy import restrict_file_permissions
from llmrl.envs.escape_room import EscapeRoom
from llmrl.experiment.batched_runs import _run_threads, compute_batch, compute_process_key
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_job import compute_job
from llmrl.experiment.sweep_jobs import build_job
from llmrl.loops.batched_executor import BatchedExecutor
from llmrl.principals import scripted_mechanism
from llmrl.principals.nonadaptive import RandomPrincipal
from llmrl.run import signals
from llmrl.run.artifacts import load_saved_state
from llmrl.run.log_file import LogFile
from llmrl.run.ownership import read_owner
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.signals import StopFlag
from llmrl.run.status import read_status
from llmrl.sweeps.jobs import record_launch
from llmrl.sweeps.payload import ProcessPayload, RunExit, RunPayload
from stalling import TOTAL_STALL_S, StallingMethod, shorten_stop_timeouts

TINY = (
    "env=escape_room",
    "agent=pg",
    "design.adapt_rounds=2",
    "design.validate_episodes=4",
    "env.n_envs=4",
    "design.evaluations=0",
    "design.confirm_steps=0",
    "hardware.threads=1",
)
THREE = (("principal=ucb", "seed=0"), ("principal=random", "seed=0"), ("principal=random", "seed=1"))


def build_payloads(root: Path, rows: Sequence[Sequence[str]] = THREE, *overrides: str) -> list[RunPayload]:
    """Return the input of a job's process for each of these runs, started by a launcher."""
    outcomes = []
    for row in rows:
        row_overrides = [*TINY, *row, *overrides]
        job = build_job(Experiment(compose(*row_overrides, f"output_root={root}"), row_overrides), row_overrides)
        record_launch(job, root)
        outcomes.append(RunPayload(compute_job, job.config, row_overrides, job.folder, {}, "one shape"))
    return outcomes


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_saved_state(folder)[1]["agents"][0]["policy"]


def results(folder: Path) -> tuple[list[dict], dict]:
    return load_comparable_metrics(folder), json.loads((folder / "summary.json").read_text())


def assert_runs_equal(rows: Sequence[RunPayload], single_rows: Sequence[RunPayload]) -> None:
    for row, single in zip(rows, single_rows, strict=True):
        assert results(row.folder) == results(single.folder)
        mine, single_weights = weights(row.folder), weights(single.folder)
        assert mine.keys() == single_weights.keys() and all(
            torch.equal(mine[name], single_weights[name]) for name in mine
        )


def assert_resources_released(rows: Sequence[RunPayload]) -> None:
    assert not [thread.name for thread in threading.enumerate() if thread.name in ("s0", "s1")]
    assert all(read_owner(payload.folder) is None for payload in rows)


ROOM = ("env=escape_room", "principal=none", "env.n_envs=3", "learn.env_steps=60", "learn.evaluation_interval=1")
DOOR = (
    "env=simple_doorkey",
    "agent=ppo",
    "env.n_envs=2",
    "env.horizon=8",
    "learn.env_steps=48",
    "learn.rollout_steps=8",
)
CARTS = ("env=cartpole", "agent=linear", "search.iterations=2", "search.episodes=2", "search.evaluate_episodes=2")
CARTS += ("env.horizon=20", "hardware.cores=1")


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(
            [(*ROOM, "seed=0"), (*ROOM, "seed=1", "agent.memory=4"), (*DOOR, "learn.evaluate_episodes=2")],
            marks=pytest.mark.long,
        ),
        [(*CARTS, "principal=cem"), (*CARTS, "principal=llm", "llm=scripted"), (*CARTS, "principal=random", "seed=1")],
    ],
    ids=["learn", "search"],
)
def test_independent_runs_match_single_runs(tmp_path, runs):
    """Use any agents and environments: nothing is computed as one batch."""

    def start_rows(root: Path) -> list[RunPayload]:
        outcomes = []
        for row in runs:
            row_overrides = [*row, "hardware.threads=1"]
            job = build_job(Experiment(compose(*row_overrides, f"output_root={root}"), row_overrides), row_overrides)
            record_launch(job, root)
            outcomes.append(RunPayload(compute_job, job.config, row_overrides, job.folder, {}, job.batch_key))
        return outcomes

    single, rows = start_rows(tmp_path / "alone"), start_rows(tmp_path / "rows")
    assert len({payload.batch_key for payload in rows}) == 1 and rows[0].batch_key is not None
    assert ProcessPayload(rows, compute_batch)() == [RunExit(payload.folder, 0) for payload in rows]
    assert_resources_released(rows)
    assert [ProcessPayload([payload], compute_batch)() for payload in single] == [
        [RunExit(payload.folder, 0)] for payload in single
    ]
    for row, single_row in zip(rows, single, strict=True):
        assert results(row.folder) == results(single_row.folder)
        lines = (row.folder / "run.log").read_text()
        assert not [other_row for other_row in rows if other_row is not row and str(other_row.folder) in lines]


def test_batched_runs_match_single_runs(tmp_path, capsys):
    options = ("design.evaluations=1", "design.steps=2", "design.references=1")
    single, rows = (
        build_payloads(tmp_path / "alone", THREE, *options),
        build_payloads(tmp_path / "rows", THREE, *options),
    )
    assert ProcessPayload(rows, compute_batch)() == [RunExit(payload.folder, 0) for payload in rows]
    assert_resources_released(rows)
    references = tmp_path / "rows" / "escape_room_references"
    shutil.copytree(references, tmp_path / "alone" / references.name)
    assert [ProcessPayload([payload], compute_batch)() for payload in single] == [
        [RunExit(payload.folder, 0)] for payload in single
    ]
    assert_runs_equal(rows, single)
    reference_runs = sorted(references.glob("*/s0"))
    assert len(reference_runs) == 2 and all(read_status(folder).attempt == 1 for folder in reference_runs)
    for payload in rows:
        lines = (payload.folder / "run.log").read_text().splitlines()
        assert sum("llmrl.run.run: run " in line and str(payload.folder) in line for line in lines) == 2
        assert not [
            line for line in lines for other_row in rows if other_row is not payload and str(other_row.folder) in line
        ]
    assert logging.getLogger("llmrl").level == logging.NOTSET
    # A table for each, none in the middle of another.
    assert capsys.readouterr().out.count("evaluation env steps") == 2 * len(rows)


@pytest.mark.long
def test_late_replies_keep_metrics(tmp_path):
    """Combine two rows with a slow server, one with a script, and a bandit."""
    late = random.Random(0)

    def reply(messages):
        time.sleep(late.choice([0.0, 0.05, 0.3]))
        return scripted_mechanism.reply(messages)

    with FakeOpenAIServer(reply) as server:
        hosted_options = (
            "principal=llm",
            "llm=openai_compatible",
            f"llm.base_url={server.url}",
            "llm.model=fake-model",
        )
        four = [
            (*hosted_options, "seed=0"),
            (*hosted_options, "seed=1"),
            ("principal=llm", "llm=scripted", "seed=0"),
            THREE[0],
        ]
        rows, single = (
            build_payloads(
                tmp_path / name,
                four,
                "design.evaluations=1",
                "design.steps=4",
                f"llm.cache_dir={tmp_path}/{name}-replies",
            )
            for name in ("rows", "alone")
        )
        assert [end.exit_code for end in compute_batch(rows)] == [0] * 4
        assert [ProcessPayload([payload], compute_batch)()[0].exit_code for payload in single] == [0] * 4
    assert_runs_equal(rows, single)


def test_failed_run_keeps_batch_running(tmp_path, monkeypatch, capsys):
    tell = RandomPrincipal.tell

    def failing(self, outcomes):
        if threading.current_thread().name == "s1":
            raise RuntimeError("told too much")
        return tell(self, outcomes)

    monkeypatch.setattr(RandomPrincipal, "tell", failing)
    poor = ("principal=llm", "llm=scripted", "llm.budget.calls=1", f"llm.cache_dir={tmp_path}/cache")
    rows = build_payloads(tmp_path, [THREE[1], THREE[2], poor], "design.evaluations=1", "design.steps=3")
    completed, failed, usage = compute_batch(rows)
    assert (completed.exit_code, failed.exit_code, usage.exit_code) == (0, 1, 3)
    assert failed.error == "RuntimeError: told too much" and "llm.budget.calls=1" in usage.error
    states = [read_status(payload.folder) for payload in rows]
    assert [status.state for status in states] == ["finished", "failed", "budget_exhausted"]
    assert "told too much" in (rows[1].folder / "traceback.txt").read_text()
    assert "told too much" not in (rows[0].folder / "run.log").read_text()
    assert f"{rows[1].folder.parent.name}/s1): RuntimeError: told too much" in capsys.readouterr().err
    assert_resources_released(rows)


def test_signal_stops_all_resumable_runs(tmp_path, monkeypatch):
    options = ("design.evaluations=1", "design.steps=4", "checkpoint_seconds=1e6")
    tell, signaled = RandomPrincipal.tell, []

    def send_signal(self, outcomes):
        if threading.current_thread().name == "s1" and not signaled:
            signaled.append(os.kill(os.getpid(), signal.SIGTERM))
        return tell(self, outcomes)

    rows, single = (
        build_payloads(tmp_path / "rows", THREE, *options),
        build_payloads(tmp_path / "alone", THREE, *options),
    )
    monkeypatch.setattr(RandomPrincipal, "tell", send_signal)
    ends = compute_batch(rows)
    assert signaled and [end.exit_code for end in ends] == [128 + signal.SIGTERM] * 3
    for payload in rows:
        status = read_status(payload.folder)
        assert status.state == "preempted" and "SIGTERM" in status.error and "saved" in status.error
    assert_resources_released(rows)
    assert [end.exit_code for end in compute_batch(rows)] == [0, 0, 0]
    assert [read_status(payload.folder).attempt for payload in rows] == [2, 2, 2]
    assert [end.exit_code for payload in single for end in compute_batch([payload])] == [0, 0, 0]
    assert_runs_equal(rows, single)


@pytest.mark.parametrize(
    ("number", "state"), [(signal.SIGTERM, "preempted"), pytest.param(signal.SIGINT, "stopped", marks=pytest.mark.long)]
)
def test_slow_work_is_abandoned_for_batch(tmp_path, monkeypatch, number, state):
    """Stop after a grace period for SIGTERM, and at once after a second Ctrl-C."""
    shorten_stop_timeouts(monkeypatch, 0.05 if number == signal.SIGTERM else 1e3)
    stall = StallingMethod(monkeypatch, EscapeRoom, "step", at=60, whole=True, number=number)
    rows = build_payloads(tmp_path, THREE, "design.evaluations=1", "design.steps=4", "checkpoint_seconds=0")
    if number == signal.SIGINT:
        handle = StopFlag._handle_signal

        def twice(self, *news):
            handle(self, *news)
            if self.seconds_since_signal < 0.1:
                threading.Timer(0.3, os.kill, (os.getpid(), number)).start()

        monkeypatch.setattr(StopFlag, "_handle_signal", twice)
    ends = compute_batch(rows)
    assert time.monotonic() - stall.signaled < TOTAL_STALL_S / 2
    assert [end.exit_code for end in ends] == [128 + number] * 3
    for payload in rows:
        status = read_status(payload.folder)
        assert status.state == state
        assert number == signal.SIGINT or "checkpoint of iteration" in status.error
    assert_resources_released(rows)


def test_signals_do_not_end_wait_for_threads():
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    def work():
        for _ in range(2):
            time.sleep(0.3)  # the main thread is waiting by then
            os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.3)
        results.append("complete")
        connection.close()

    results, executor = [], BatchedExecutor()
    connection = executor.connect()
    previous_handler = signal.signal(signal.SIGUSR1, interrupt)
    try:
        _run_threads(executor, [threading.Thread(target=work)])
    finally:
        signal.signal(signal.SIGUSR1, previous_handler)
    assert results == ["complete"]


def test_uninterruptible_thread_ends_with_process(monkeypatch):
    for name, seconds in (("DISCARD_WORK_S", 0.1), ("SECOND_DISCARD_S", 0.2), ("FORCED_EXIT_S", 0.3)):
        monkeypatch.setattr(signals, name, seconds)
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        leader = StopFlag(make_interrupt=KeyboardInterrupt)

        def stuck():
            leader.lead_calling_thread()
            with StopFlag(on_forced_exit=lambda: os.write(writes, b"recorded") and None):
                time.sleep(TOTAL_STALL_S)

        with leader:
            threading.Thread(target=stuck).start()
            os.kill(os.getpid(), signal.SIGTERM)
            while True:
                try:
                    time.sleep(TOTAL_STALL_S)
                except KeyboardInterrupt:
                    continue
    _, status = os.waitpid(pid, 0)
    os.close(writes)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    with os.fdopen(reads, "rb") as stderr_file:
        assert stderr_file.read() == b"recorded"


def test_progress_in_threads_is_in_run_logs(tmp_path, caplog):
    """Progress of runs that share a process, also if the main thread counts their steps."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()

    def play(name, counts):
        file = LogFile(tmp_path / name)
        with ProgressBar(10, "steps", "design", draws_bar=True) as progress:
            counts[name] = progress
            progress.update(5)
        file.close()

    counts = {}
    for name in ("a", "b"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(play, name, counts))
        thread.start()
        thread.join()
        assert not counts[name].has_bar
    for name in ("a", "b"):
        assert (tmp_path / name / "run.log").read_text().count("design 5/10 steps (50.0%)") == 1
    assert not caplog.records


def test_process_settings_must_agree():
    tiny = compose(*TINY, "principal=ucb")
    assert compute_process_key(tiny) == compute_process_key(
        compose(*TINY, "principal=random", "seed=3", "design.steps=9")
    )
    for override in ("hardware.threads=2", "private=false", "output_root=elsewhere"):
        assert compute_process_key(tiny) != compute_process_key(compose(*TINY, "principal=ucb", override))


@pytest.fixture(autouse=True)
def _prepare_process():
    environment = dict(os.environ)
    restrict_file_permissions()
    yield
    os.environ.clear()
    os.environ.update(environment)
