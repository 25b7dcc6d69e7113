"""Detection of files removed or changed during a run, and durability of the status after a power failure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import find_run_folder, run
from llmrl.core.errors import RunFolderError
from llmrl.run.files import LineFile
from llmrl.run.run import Run
from llmrl.run.status import Status, read_status


def removed(path: Path) -> None:
    path.unlink()


def move_file(path: Path) -> None:
    path.rename(path.with_name("elsewhere.jsonl"))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def copy_file(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def added_to(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


MODIFICATIONS = [removed, move_file, emptied, truncate, copy_file, added_to]


@pytest.mark.slow
@pytest.mark.parametrize("modify", MODIFICATIONS)
@pytest.mark.parametrize("late", [True, False], ids=["at the end", "at a safe point"])
def test_missing_metrics_fail_run(tmp_path: Path, modify: Callable[[Path], None], late: bool) -> None:
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl.*rerun=true"), Run.open(tmp_path, "toys", {}) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        run.safe_point(1, dict)
        modify(run.folder / "metrics.jsonl")
        if not late:
            run.safe_point(2, dict)
            pytest.fail("the run went on")
        run.result = 1.0
    status = read_status(run.folder)
    assert status is not None and status.state == "failed" and "metrics.jsonl" in status.error
    with Run.open(tmp_path, "toys", {"rerun": True}) as second_run:
        second_run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        second_run.safe_point(1, dict)
    status = read_status(run.folder)
    assert status is not None and status.state == "finished"


def test_untouched_file_is_trusted(tmp_path: Path) -> None:
    lines, positions = LineFile(tmp_path / "lines"), []
    for i in range(3):
        lines.write([str(i), "é" * i])
        positions.append(lines.position())
        assert positions[-1]["lines"] == 2 * (i + 1)
    lines.write(["lost"])
    lines.close()
    reopened = LineFile(tmp_path / "lines", positions[1])
    reopened.check()
    assert reopened.position() == positions[1]
    reopened.write(["x"])
    assert reopened.position()["lines"] == 5
    assert (tmp_path / "lines").read_text() == "0\n\n1\né\nx\n"


@settings(max_examples=50)
@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])), min_size=1),
    appended=st.lists(st.just("later")),
    data=st.data(),
)
def test_change_preceding_checkpoint_raises(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], appended: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("changed") / "lines"
    file = LineFile(path)
    for line in lines:
        file.write([line])
    position = file.position()
    file.write(appended)
    file.close()
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    changed = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    path.write_bytes(changed)
    if at < len(content) - len("later\n") * len(appended):
        with pytest.raises(RunFolderError):
            LineFile(path, position)
        assert path.read_bytes() == changed
    else:
        reopened = LineFile(path, position)
        assert reopened.position() == position
        reopened.close()
        assert path.read_bytes() == "".join(f"{line}\n" for line in lines).encode()


RECORDS = {
    "metrics.jsonl": ("env=escape_room", "env.n_envs=8", "learn.env_steps=800"),
    "training_episodes.tsv": ("env=escape_room", "env.n_envs=8", "learn.env_steps=800"),
    "proposals.jsonl": ("env=maze", "agent=tabular", "principal=random", "search.iterations=3"),
    "episodes.jsonl": ("env=nim", "env.n_envs=2", "agent=random", "play.episodes=4"),
}


@pytest.mark.parametrize("record", RECORDS)
def test_resume_rejects_changed_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str) -> None:
    def fail(run: Run) -> None:
        raise RuntimeError("before the end")

    overrides = (*RECORDS[record], f"output_root={tmp_path}", "checkpoint_seconds=0")
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_finish", fail)
        with pytest.raises(RuntimeError, match="the end"):
            run(*overrides)
    path = find_run_folder(tmp_path) / record
    content = path.read_bytes()
    digit = re.search(rb"\d", content)
    assert digit is not None
    path.write_bytes(content.replace(digit[0], b"%d" % (9 - int(digit[0])), 1))
    with pytest.raises(RunFolderError, match=re.escape(record)):
        run(*overrides)
    path.write_bytes(content)
    assert run(*overrides) is not None


def test_missing_run_folder_is_reported(tmp_path: Path) -> None:
    import shutil

    with pytest.raises(RunFolderError, match="removed"), Run.open(tmp_path, "toys", {}) as run:
        shutil.rmtree(run.folder)
        run.checkpoint(1, {})


def test_status_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is synced before the rename, and the rename before the run is reported as finished."""
    sync_calls: list[tuple[str, bool]] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        sync_calls.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, (tmp_path / "status.json").exists()))

    monkeypatch.setattr(os, "fsync", spy)
    Status("finished").write(tmp_path)
    assert [name.startswith(".status.json") for name, _ in sync_calls] == [True, False]
    assert sync_calls[1] == (tmp_path.name, True) and not sync_calls[0][1]


def test_metrics_are_synced_prior_to_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        fsync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "metrics.jsonl":
            status = read_status(folder)
            states.append("" if status is None else status.state)

    with Run.open(tmp_path, "toys", {}) as run:
        folder = run.folder
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        monkeypatch.setattr(os, "fsync", spy)
    assert states == ["running"]
