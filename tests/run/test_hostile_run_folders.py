"""Untrusted run folders: links are not followed, and unverified results do not count as finished."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from llmrl.core.errors import LlmrlError, RunFolderError
from llmrl.llms.call_log import CallLog
from llmrl.results.run_records import read_run
from llmrl.run.artifacts import read_config
from llmrl.run.files import read_json_lines
from llmrl.run.log_file import LogFile
from llmrl.run.metrics import MetricLog, read_metrics
from llmrl.run.queued import LaunchRecord, read_launch_record
from llmrl.run.run import Run
from llmrl.run.tensorboard_file import EventFile
from llmrl.run.training_episodes import TrainingEpisodes, read_training_episodes

CONFIG = {"env": "toy"}
FILES = ("metrics.jsonl", "training_episodes.tsv", "run.log", "llm_calls.jsonl", ".events.tmp")
QUEUED = json.dumps(asdict(LaunchRecord("", 0, "", "m", 1, "1", "h", "s", "", "", "", 0.0, "", []))).encode()
FOLDERS = ("checkpoints", "episodes", "trajectories", "sources", "loggers", "llm_images", "backup.partial")


def open_run(root: Path, **options: bool) -> Run:
    return Run.open(root, "toys", {**CONFIG, "checkpoint_seconds": 0.0, **options})


def interrupted(root: Path) -> Path:
    """Return the folder of a run that stopped after its first checkpoint."""
    with contextlib.suppress(KeyboardInterrupt), open_run(root) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        run.checkpoint(1, {"i": 1})
        raise KeyboardInterrupt
    return run.folder


def contents(folder: Path) -> dict[str, str | None]:
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_text() if path.is_file() else None for path in paths}


@pytest.fixture
def outside_folder(tmp_path: Path) -> Path:
    """Return a folder outside the run folder with files that a run would remove, move or overwrite."""
    folder = tmp_path / "precious"
    for name in ("file", "checkpoint_000000009.pt", ".checkpoint_1.tmp", "7.npz", "3/frames/000000.png", "wandb/file"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work\n")
    return folder


@pytest.mark.parametrize("rerun", [False, True], ids=["resume", "rerun"])
@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_resume_ignores_link_targets(tmp_path: Path, outside_folder: Path, name: str, rerun: bool) -> None:
    folder = interrupted(tmp_path / "outputs")
    path = folder / name
    if path.exists():
        path.rename(tmp_path / "moved")
    if name in FILES:
        shutil.rmtree(folder / "checkpoints")  # such a file is emptied, where one of a checkpoint is compared with it
    path.symlink_to(outside_folder if name in FOLDERS else outside_folder / "file")
    initial = contents(outside_folder)
    with contextlib.suppress(LlmrlError), open_run(tmp_path / "outputs", rerun=rerun) as run:
        EventFile(run.folder, 0.0).close()
        TrainingEpisodes(run.folder, 1, None, []).close()
        run.checkpoint(2, {"i": 2})
        run.result = 1.0
    assert contents(outside_folder) == initial
    assert rerun or path.is_symlink()


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_resume_raises_on_link(tmp_path: Path, outside_folder: Path, name: str) -> None:
    folder = interrupted(tmp_path / "outputs")
    if (folder / name).exists():
        (folder / name).rename(tmp_path / "moved")
    (folder / name).symlink_to(outside_folder)
    with pytest.raises(RunFolderError) as error:
        open_run(tmp_path / "outputs", rerun=name == "backup.partial")
    assert name in str(error.value)


WRITERS: dict[str, Callable[[Path], object]] = {
    "metrics.jsonl": MetricLog,
    "training_episodes.tsv": lambda folder: TrainingEpisodes(folder, 1, None, []),
    "run.log": LogFile,
    "llm_calls.jsonl": lambda folder: CallLog(folder / "llm_calls.jsonl"),
    ".events.tmp": lambda folder: EventFile(folder, 0.0),
}
READERS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "metrics.jsonl": (b'{"kind": "update"}\n', lambda folder: read_metrics(folder / "metrics.jsonl")),
    "training_episodes.tsv": (b'# {"games": 1, "horizon": 1}\ngame\tstart\tlength\n', read_training_episodes),
    "episodes.jsonl": (b"{}\n", lambda folder: read_json_lines(folder / "episodes.jsonl")),
    "config.yaml": (b"env: {}\n", lambda folder: read_config(folder, ())),
    "queued.json": (QUEUED, read_launch_record),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writers_reject_links(tmp_path: Path, outside_folder: Path, name: str) -> None:
    """Links created after the check of the run folder are not followed."""
    (tmp_path / name).symlink_to(outside_folder / "file")
    with pytest.raises(RunFolderError):
        WRITERS[name](tmp_path)
    assert (outside_folder / "file").read_text() == "years of work\n"


@pytest.mark.parametrize("name", READERS)
def test_readers_reject_links(tmp_path: Path, name: str) -> None:
    content, read = READERS[name]
    (tmp_path / "outside").write_bytes(content)
    (tmp_path / name).symlink_to("outside")
    with pytest.raises(RunFolderError):
        read(tmp_path)


@pytest.mark.parametrize("level", ["run", "seed"])
def test_linked_run_folder_raises(tmp_path: Path, outside_folder: Path, level: str) -> None:
    folder = interrupted(tmp_path / "outputs")
    (outside_folder / "s0").mkdir()
    path = folder if level == "seed" else folder.parent
    path.rename(tmp_path / "moved")
    path.symlink_to(outside_folder / "s0" if level == "seed" else outside_folder)
    initial = contents(outside_folder)
    for rerun in (False, True):
        with pytest.raises(RunFolderError):
            open_run(tmp_path / "outputs", rerun=rerun)
    assert contents(outside_folder) == initial


def test_checkpoint_link_is_not_loaded(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "outputs")
    [checkpoint] = (folder / "checkpoints").iterdir()
    checkpoint.rename(tmp_path / "outside.pt")
    checkpoint.symlink_to(tmp_path / "outside.pt")
    with pytest.raises(LlmrlError):
        open_run(tmp_path / "outputs")


def test_links_in_backups_are_ignored(tmp_path: Path, outside_folder: Path) -> None:
    folder = interrupted(tmp_path / "outputs")
    for place in ("backup_1", "loggers/wandb"):
        (folder / place).mkdir(parents=True)
        (folder / place / "latest").symlink_to(outside_folder)
    with open_run(tmp_path / "outputs") as run:
        assert run.state == "resumed"


def test_unverified_run_is_not_finished(tmp_path: Path) -> None:
    folder = interrupted(tmp_path / "outputs")
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "finished", "result": 99.0}))
    assert read_run(folder).state == "unreadable"
    with pytest.raises(RunFolderError):
        open_run(tmp_path / "outputs")
    (folder / "status.json").unlink()
    with open_run(tmp_path / "outputs") as run:
        assert run.state == "resumed"
        run.result = 2.0
    assert read_run(folder).state == "finished"
    with open_run(tmp_path / "outputs") as run:
        assert run.finished and run.result == 2.0
