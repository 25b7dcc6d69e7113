"""Life cycle of a run: finished, failed, stopped, killed, resumed and repeated."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import commands
from llmrl.core.errors import CheckpointError, RunFolderError
from llmrl.core.secrets import redact, redact_arguments
from llmrl.core.seeding import Seeds
from llmrl.run.checkpoints import CheckpointStore
from llmrl.run.metrics import read_metrics
from llmrl.run.ownership import read_owner
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.run import Run
from llmrl.run.signals import StopFlag, Stopped
from llmrl.run.status import Status, read_status
from some import mark_long_except

CONFIG = {"env": {"_target_": "toy"}, "seed": 0}


class Toy:
    """Loop whose state consists of weights, an optimizer and a random number generator."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Seeds(seed).numpy("toy")
        self.layer = torch.nn.Linear(3, 1)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.constant_(self.layer.bias, 0.0)
        self.adam = torch.optim.Adam(self.layer.parameters(), lr=0.1)

    def iterate(self) -> float:
        x = torch.from_numpy(self.rng.normal(size=(8, 3)).astype(np.float32))
        loss = ((self.layer(x) - x.sum(1, keepdim=True)) ** 2).mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        rng = self.rng.bit_generator.state
        return {"rng": rng, "layer": self.layer.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.layer.load_state_dict(state["layer"])
        self.adam.load_state_dict(state["adam"])


def train(root: Path, total: int = 30, *, hook: Any = None, interval: float = 0.0, **options: Any) -> Run:
    toy = Toy()
    with Run.open(root, "toys", {**CONFIG, "checkpoint_seconds": interval, **options}, ["env=toy", "seed=0"], 0) as run:
        if run.finished:
            return run
        if run.restored_state is not None:
            toy.load_state_dict(run.restored_state)
        with run.progress(total, "iterations", "train", done=run.iteration) as progress:
            for iteration in range(run.iteration, total):
                run.metrics.log(
                    "update", "updates", {"loss": toy.iterate()}, updates=iteration, env_steps=8 * iteration
                )
                progress.update(iteration + 1)
                if hook is not None:
                    hook(run, iteration)
                run.safe_point(iteration + 1, toy.state_dict)
        run.result = toy.iterate()
        run.summary = {"best": np.float32(0.5), "history": [{"objective": float("nan")}]}
    return run


def read_state(folder: Path) -> tuple[int, dict[str, Any]]:
    newest = CheckpointStore(folder / "checkpoints").load_newest()
    assert newest is not None
    return newest


def numbers(run: Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if "time/" not in k} for m in read_metrics(run.folder / "metrics.jsonl")]


def test_finished_run_folder(tmp_path: Path) -> None:
    def name_the_model(run: Run, iteration: int) -> None:
        run.status.llm = "scripted rule (not a language model)"

    run = train(tmp_path, hook=name_the_model, interval=60)
    assert run.folder.parent.parent == tmp_path / "toys"
    assert {p.name for p in run.folder.iterdir() if "tfevents" not in p.name and not p.name.startswith("code-")} == {
        "config.yaml",
        "metrics.jsonl",
        "provenance.json",
        "run.log",
        "status.json",
        "summary.json",
    }
    status = read_status(run.folder)
    assert status is not None
    assert (status.state, status.attempt, status.error, status.result) == ("finished", 1, "", run.result)
    assert status.llm == "scripted rule (not a language model)"
    assert (status.progress.done, status.progress.total, status.progress.unit) == (30, 30, "iterations")
    assert "finished" in (run.folder / "run.log").read_text()
    assert json.loads((run.folder / "summary.json").read_text()) == {"best": 0.5, "history": [{"objective": None}]}
    assert (run.folder / "config.yaml").read_text() == "env:\n  _target_: toy\nseed: 0\ncheckpoint_seconds: 60\n"
    (attempt,) = json.loads((run.folder / "provenance.json").read_text())["attempts"]
    assert attempt["packages"]["numpy"] == np.__version__
    assert attempt["attempt"] == 1
    assert attempt["cpu_count"] >= 1


def test_finished_run_is_skipped(tmp_path: Path) -> None:
    first = train(tmp_path)
    mtimes = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second_run = train(tmp_path)
    assert second_run.finished
    assert second_run.result == first.result
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == mtimes


def test_rerun_keeps_backup(tmp_path: Path) -> None:
    first = train(tmp_path)
    old = (first.folder / "metrics.jsonl").read_bytes()
    second = train(tmp_path, rerun=True)
    assert second.state == "new"
    assert second.status.attempt == 2
    assert numbers(second) == numbers(first)
    backup = first.folder / "backup_1"
    assert (backup / "metrics.jsonl").read_bytes() == old
    assert {"status.json", "checkpoints", "run.log", "config.yaml"} <= {p.name for p in backup.iterdir()}
    assert not list(backup.glob("*tfevents*"))  # TensorBoard shows one run, not two
    train(tmp_path, rerun=True)
    assert (first.folder / "backup_2").is_dir()


def test_rerun_completes_interrupted_backup(tmp_path: Path) -> None:
    first = train(tmp_path)
    partial = first.folder / "backup.partial"
    partial.mkdir()
    (first.folder / "checkpoints").rename(partial / "checkpoints")
    second = train(tmp_path)
    assert second.state == "new"
    assert (first.folder / "backup_1" / "checkpoints").is_dir()
    assert (first.folder / "backup_1" / "metrics.jsonl").exists()
    assert not partial.exists()


def test_failure_is_resumable(tmp_path: Path) -> None:
    reference = train(tmp_path / "whole")

    def explode(run: Run, iteration: int) -> None:
        if iteration == 12:
            raise RuntimeError("the engine died\nof something")

    with pytest.raises(RuntimeError, match="engine"):
        train(tmp_path, hook=explode)
    folder = next((tmp_path / "toys").glob("*/s0"))
    status = read_status(folder)
    assert status is not None
    assert (status.state, status.error) == ("failed", "RuntimeError: the engine died")
    assert "in explode" in (folder / "traceback.txt").read_text()
    assert "in explode" in (folder / "run.log").read_text()
    assert read_owner(folder) is None
    run = train(tmp_path)
    assert (run.state, run.iteration, run.status.attempt) == ("resumed", 12, 2)
    assert numbers(run) == numbers(reference)
    assert torch.equal(read_state(run.folder)[1]["layer"]["weight"], read_state(reference.folder)[1]["layer"]["weight"])
    assert not (folder / "traceback.txt").exists()


@pytest.mark.parametrize(
    ("number", "state"),
    [(signal.SIGINT, "stopped"), (signal.SIGTERM, "preempted"), (signal.SIGUSR2, "preempted")],
)
def test_signal_stops_at_safe_point(tmp_path: Path, number: signal.Signals, state: str) -> None:
    def send(run: Run, iteration: int) -> None:
        if iteration == 5:
            signal.raise_signal(number)

    handler = signal.getsignal(number)
    with pytest.raises(Stopped, match=str(tmp_path)) as stop:
        train(tmp_path, hook=send, interval=1e9)
    assert stop.value.exit_code == 128 + number
    assert signal.getsignal(number) is handler
    folder = next((tmp_path / "toys").glob("*/s0"))
    status = read_status(folder)
    assert status is not None
    assert status.state == state
    run = train(tmp_path)
    assert run.iteration == 6
    assert numbers(run) == numbers(train(tmp_path / "whole"))


def test_second_interrupt_stops_immediately() -> None:
    with StopFlag() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        assert stop.signal == signal.SIGINT
        saved = False
        with pytest.raises(KeyboardInterrupt), stop.saving():
            signal.raise_signal(signal.SIGINT)
            saved = True
        assert saved
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_forked_worker_delegates_signals() -> None:
    with StopFlag() as stop:
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGINT)
            os._exit(1 if stop.requested else 0)
        assert os.waitpid(pid, 0)[1] == 0
        assert not stop.requested


def _train_slowly(root: Path) -> None:
    logging.disable(logging.CRITICAL)
    train(root, total=150, hook=lambda run, iteration: time.sleep(0.003))


@pytest.mark.parametrize("seed", mark_long_except([0], [0, 1]))
def test_random_kills_resume_bit_exactly(tmp_path: Path, seed: int) -> None:
    reference = train(tmp_path / "whole", total=150)
    rng = random.Random(seed)
    kills = 0
    while True:
        process = multiprocessing.get_context("fork").Process(target=_train_slowly, args=(tmp_path / "broken",))
        process.start()
        # No kill after the tenth, so that a slow machine gets to the end.
        process.join(rng.uniform(0.0, 0.4) if kills < 10 else None)
        if not process.is_alive():
            break
        process.kill()
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills >= 2
    broken = train(tmp_path / "broken", total=150)
    assert broken.finished
    assert broken.result == reference.result
    assert numbers(broken) == numbers(reference)
    assert read_state(broken.folder)[0] == 150
    files = [sorted((run.folder / "checkpoints").iterdir()) for run in (reference, broken)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert not list(broken.folder.rglob("*.tmp"))


def test_surplus_checkpoint_is_removed(tmp_path: Path) -> None:
    folder = train(tmp_path, total=20).folder / "checkpoints"
    *_, last = sorted(folder.iterdir())
    (folder / "checkpoint_000000001.pt").write_bytes(last.read_bytes())
    store = CheckpointStore(folder)
    store.clean()
    assert [path.name for path in store.list_paths()] == ["checkpoint_000000019.pt", "checkpoint_000000020.pt"]


def test_corrupt_checkpoint_uses_predecessor(tmp_path: Path) -> None:
    def stop(run: Run, iteration: int) -> None:
        if iteration == 9:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train(tmp_path, hook=stop)
    folder = next((tmp_path / "toys").glob("*/s0"))
    newest = sorted((folder / "checkpoints").glob("*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-50])
    run = train(tmp_path)
    assert run.iteration == 8
    assert numbers(run) == numbers(train(tmp_path / "whole"))


def test_all_corrupt_checkpoints_raise(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(tmp_path, hook=lambda run, iteration: (_ for _ in ()).throw(RuntimeError()) if iteration == 9 else None)
    folder = next((tmp_path / "toys").glob("*/s0"))
    metrics = (folder / "metrics.jsonl").read_bytes()
    for path in (folder / "checkpoints").glob("*.pt"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="rerun=true"):
        train(tmp_path)
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    assert read_owner(folder) is None
    assert read_status(folder).state == "failed"  # type: ignore[union-attr]
    assert train(tmp_path, rerun=True).status.state == "finished"


def test_resume_false_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path, hook=lambda run, iteration: signal.raise_signal(signal.SIGTERM))
    run = train(tmp_path, resume=False)
    assert run.state == "new"
    assert (run.folder / "backup_1").is_dir()


def test_concurrent_process_raises(tmp_path: Path) -> None:
    with Run.open(tmp_path, "toys", CONFIG) as run:
        arguments = f"Path({str(tmp_path)!r}), 'toys', {CONFIG}"
        script = f"from pathlib import Path; from llmrl.run.run import Run; Run.open({arguments})"
        done = commands.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"process {os.getpid()}" in done.stderr
        assert not (run.folder / "traceback.txt").exists()
        run.checkpoint(1, {"x": 1})
    assert read_status(run.folder).state == "finished"  # type: ignore[union-attr]


def test_run_with_stolen_folder_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="taken over"), Run.open(tmp_path, "toys", CONFIG) as run:
        (run.folder / "owner.json").unlink()
        status = (run.folder / "status.json").read_bytes()
        run.checkpoint(1, {})
    assert (run.folder / "status.json").read_bytes() == status
    assert not (run.folder / "traceback.txt").exists()
    assert not (run.folder / "checkpoints").exists()


def test_unsaved_summary_fails_run(tmp_path: Path) -> None:
    with pytest.raises(TypeError), Run.open(tmp_path, "toys", CONFIG) as run:
        run.summary = {"x": object()}
    assert read_status(run.folder).state == "failed"  # type: ignore[union-attr]


def test_unwritable_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="output_root"):
        train(tmp_path / "file" / "outputs")


def test_imports_stay_light() -> None:
    script = "import sys, llmrl.run.run, llmrl.envs.escape_room, llmrl.statistics.estimators; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "tensorboard", "omegaconf", "rich", "matplotlib"} & set(modules)


def test_status_round_trip(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    Status(state="failed", error="x", result=float("nan")).write(tmp_path)
    status = read_status(tmp_path)
    assert status is not None
    assert (status.state, status.error, status.result) == ("failed", "x", None)
    text = (tmp_path / "status.json").read_text()
    (tmp_path / "status.json").write_text(text.replace('"failed"', '"flying"'))
    with pytest.raises(RunFolderError, match="flying"):
        read_status(tmp_path)
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"status\.json"):
        read_status(tmp_path)


def test_progress_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("REPORT_INTERVAL_S", "LOG_INTERVAL_S", "FIRST_LOG_S"):
        monkeypatch.setattr(f"llmrl.run.progress_bar.{name}", 0.0)
    reports: list[float] = []
    with (
        caplog.at_level(logging.INFO),
        ProgressBar(
            1000,
            "steps",
            "train",
            100,
            lambda n: reports.append(n.done),
            draws_bar=False,
        ) as progress,
    ):
        progress.update(100)
        assert progress.progress.steps_per_second is None
        time.sleep(0.01)
        progress.update(400)
    speed = progress.progress.steps_per_second
    assert speed is not None
    assert progress.progress.eta_s == pytest.approx(600 / speed)
    assert reports == [100, 400, 400]
    assert "train 400/1000 steps (40.0%)" in caplog.text


def test_the_first_line_comes_early(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    monkeypatch.setattr("llmrl.run.progress_bar.time.monotonic", lambda: now)
    times = []
    with caplog.at_level(logging.INFO), ProgressBar(1000, "steps", "learn", draws_bar=False) as progress:
        for now in map(float, range(1, 140)):
            lines = len(caplog.records)
            progress.update(now)
            times += [now] * (len(caplog.records) - lines)
    assert times == [10.0, 70.0, 130.0]


def test_warmup_steps_are_excluded_from_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("llmrl.run.progress_bar.time.monotonic", lambda: now)
    with ProgressBar(1000, "steps", "learn", draws_bar=False) as progress:
        now = 50.0
        progress.update(1)
        assert progress.progress.eta_s is None
        now = 51.0
        progress.update(101)
        assert progress.progress.steps_per_second == pytest.approx(100)
        assert progress.progress.eta_s == pytest.approx(8.99)


def test_progress_bar_on_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(10, "steps", "train", draws_bar=True) as progress:
        progress.update(10)
    assert "10/10" in capsys.readouterr().err


SECRET = "sk-" + "a1B2c3D4e5F6g7H8"


@pytest.mark.parametrize(
    "text",
    [
        f"llm.api_key={SECRET}",
        f"export OPENAI_API_KEY={SECRET}",
        f'"password": "{SECRET}"',
        f"a line with {SECRET} in it",
    ],
)
def test_secrets_are_redacted(text: str) -> None:
    assert SECRET not in redact(text)
    assert "<redacted>" in redact(text)


def test_redaction_leaves_the_rest() -> None:
    harmless = ["llmrl-train", "llm.max_tokens=100", "tokenizer=gpt2", "env=escape_room", "principal=ucb,llm"]
    assert redact_arguments(harmless) == harmless
    assert redact_arguments(["x", "--api-key", "abc", "--n", "3"]) == ["x", "--api-key", "<redacted>", "--n", "3"]


def test_environment_whitelist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("SLURM_JOB_ID", "123")
    monkeypatch.setattr(sys, "argv", ["llmrl-train", f"llm.api_key={SECRET}"])
    run = train(tmp_path, total=2)
    text = (run.folder / "provenance.json").read_text()
    assert SECRET not in text
    assert json.loads(text)["attempts"][0]["environment"]["SLURM_JOB_ID"] == "123"
    assert run.status.job_id == "123"
