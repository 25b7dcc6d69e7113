"""Failed writes raise a clear error, leave no partial file and preserve existing files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from full_disk import limit_file_size
from llmrl.core.atomic_files import DISK_FULL_ERRNOS, atomic_write, describe_write_error
from llmrl.core.errors import CheckpointError, LlmrlError, RunFolderError
from llmrl.core.frames import save_video
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import Call, CallLog
from llmrl.run.checkpoints import CheckpointStore
from llmrl.run.files import LineFile, write_atomic
from llmrl.run.metrics import MetricLog
from llmrl.run.ownership import Ownership
from llmrl.run.run import Run
from llmrl.run.status import read_status
from llmrl.run.trajectories import Trajectories, TrajectoryFiles
from llmrl.teachers.offline_planner import save_plan_table

ROOM = 200
LONG = "x" * 10_000
NOISE = list(np.random.default_rng(0).integers(0, 255, (4, 64, 64, 3), dtype=np.uint8))


def trajectories() -> Trajectories:
    n = 2000
    numbers = np.random.default_rng(0).normal(size=n).astype(np.float32)
    steps = np.arange(n, dtype=np.int64)
    flags = np.zeros(n, dtype=bool)
    texts = np.array(["a"] * n, dtype=object)
    return Trajectories(
        [], [], steps - steps - 1, steps, numbers, numbers, numbers, numbers, flags, flags, steps, steps, steps,
        steps, numbers, texts, texts,
    )  # fmt: skip


def keep_reply(folder: Path) -> None:
    Cache(folder).put("ab" * 32, {}, ChatRequest(({"role": "user", "content": LONG},)), ChatReply("yes"))


WRITERS: dict[str, Callable[[Path], object]] = {
    "a small file": lambda folder: write_atomic(folder / "note.txt", LONG),
    "a checkpoint": lambda folder: CheckpointStore(folder).save(1, {"weights": torch.zeros(5000)}),
    "trajectories": lambda folder: TrajectoryFiles(folder).write(trajectories()),
    "a kept reply": keep_reply,
    "a plan table": lambda folder: save_plan_table(folder / "plans.json", "d", LONG, {}),
    "a video": lambda folder: save_video(NOISE, folder, "video", 4.0),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_partial_file_remains(tmp_path: Path, writer: str) -> None:
    with limit_file_size(ROOM), pytest.raises(LlmrlError) as error:
        WRITERS[writer](tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "a partial file is left"
    assert str(tmp_path) in str(error.value)
    if writer != "a video":  # whose encoder is another process with its own messages
        assert all(part in str(error.value) for part in ("too large", " MB ", "`llmrl-sweep clean`", "=<folder>"))


def test_existing_files_survive(tmp_path: Path) -> None:
    write_atomic(tmp_path / "note.txt", "old")
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, {"weights": torch.ones(3)})
    with limit_file_size(ROOM):
        with pytest.raises(RunFolderError):
            write_atomic(tmp_path / "note.txt", LONG)
        with pytest.raises(CheckpointError):
            store.save(2, {"weights": torch.zeros(5000)})
    assert (tmp_path / "note.txt").read_text() == "old"
    newest = store.load_newest()
    assert newest is not None and newest[0] == 1


@pytest.mark.parametrize("number", DISK_FULL_ERRNOS)
def test_disk_full_errors_have_single_message(tmp_path: Path, number: int) -> None:
    message = describe_write_error(tmp_path / "a" / "b.json", OSError(number, os.strerror(number)))
    assert all(part in message for part in (os.strerror(number), " MB ", f" {tmp_path}", "output_root=<folder>"))
    assert ("quota" in message) == (number == errno.EDQUOT)
    assert describe_write_error(tmp_path, PermissionError(errno.EACCES, "Permission denied")) == "Permission denied"


@pytest.mark.parametrize(("inodes", "free", "exhausted"), [(1000, 0, True), (1000, 1, False), (0, 0, False)])
def test_inode_exhaustion_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: int, free: int, exhausted: bool
) -> None:
    """The disk has 52 MB free; file systems without a limit on inodes report 0 of 0."""
    statistics = os.statvfs_result((4096, 4096, 99999, 12695, 12695, inodes, free, free, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: statistics)
    message = describe_write_error(tmp_path / "a", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert ("inodes" in message) == exhausted and (" MB " in message) != exhausted
    assert "inodes" not in describe_write_error(tmp_path / "a", OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))


def test_full_disk_errors_in_logs(tmp_path: Path) -> None:
    lines = LineFile(tmp_path / "lines.jsonl")
    call_log = CallLog(tmp_path / "calls.jsonl")
    from llmrl.llms.budget import Budget

    with limit_file_size(ROOM):
        with pytest.raises(RunFolderError, match=r"lines\.jsonl"):
            lines.write([LONG])
        with pytest.raises(RunFolderError, match=r"calls\.jsonl: .*too large.* MB "):
            call_log.record_call(Call(ChatRequest(()), "k", "m"), {}, ChatReply(LONG), Budget())
        lines.close()


def test_full_disk_errors_in_curves(tmp_path: Path) -> None:
    metrics = MetricLog(tmp_path)
    with limit_file_size(ROOM), pytest.raises(RunFolderError, match=r"metrics\.jsonl: .*too large"):
        for step in range(100):
            metrics.log("update", "updates", {"loss": 0.5}, updates=step)
    metrics.close()


def test_unwritable_owner_file_is_skipped(tmp_path: Path) -> None:
    with limit_file_size(10), pytest.raises(RunFolderError, match=f"{tmp_path}: .*too large"):
        Ownership(tmp_path)
    assert not list(tmp_path.iterdir()), "an empty owner.json would hold up the next process"


def test_run_resumes_after_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config: dict[str, Any] = {"env": "toy"}
    with (
        pytest.raises(CheckpointError),
        Run.open(tmp_path, "toys", {**config, "checkpoint_seconds": 0.0}, [], 0) as run,
    ):
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        run.safe_point(1, lambda: {"weights": torch.zeros(3)})
        with (
            pytest.raises(CheckpointError, match=r"checkpoint_000000002\.pt: .*too large"),
            limit_file_size(20_000),
        ):
            run.safe_point(2, lambda: {"weights": torch.zeros(50_000)})
        assert not list(run.folder.rglob("*.tmp"))
        with limit_file_size(20_000), pytest.raises(RunFolderError):
            run.metrics.log("update", "updates", {"loss": 1.0}, updates=2)
            write_atomic(run.folder / "large", "x" * 30_000)
        raise CheckpointError("no room")
    status = read_status(run.folder)
    assert status is not None and status.state == "failed"
    with Run.open(tmp_path, "toys", config, [], 0) as resumed_run:
        assert resumed_run.iteration == 1
    assert "Traceback" not in capsys.readouterr().err


def test_exception_keeps_original_file(tmp_path: Path) -> None:
    path = tmp_path / "whole.txt"
    with atomic_write(path) as file:
        file.write(b"whole")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"whole" and list(tmp_path.iterdir()) == [path]
