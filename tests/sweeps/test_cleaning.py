"""`llmrl-sweep clean` removes the listed files and never follows links."""

from __future__ import annotations

import os
import shutil

import pytest

from llmrl.cli import sweep
from llmrl.run.ownership import get_machine_id, get_process_start
from llmrl.run.queued import LaunchRecord
from llmrl.run.status import Status

KINDS = ("--backups", "--checkpoints", "--launches", "--unfinished")


@pytest.fixture
def outside_folder(tmp_path):
    """Return a folder outside the output root with the layout of run folders, which must not change."""
    folder = tmp_path / "precious"
    for name in ("checkpoints", "backup_1", "launch", "s7/backup_1", "group/s8/backup_1"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("years of work")
    Status(state="failed", attempt=1, overrides=[]).write(folder / "s7")
    Status(state="failed", attempt=1, overrides=[]).write(folder / "group" / "s8")
    return folder


@pytest.fixture
def outputs(tmp_path):
    """Return an output root with a finished run and a failed one."""
    root = tmp_path / "outputs"
    for seed, state in ((0, "finished"), (1, "failed")):
        folder = root / "name" / "run" / f"s{seed}"
        for name in ("backup_1", "checkpoints"):
            (folder / name).mkdir(parents=True)
            (folder / name / "file").write_text("x")
        (folder / "summary.json").write_text("{}")
        Status(state=state, attempt=1, overrides=[]).write(folder)
    (root / ".sweeps" / "launch").mkdir(parents=True)
    (root / ".sweeps" / "launch" / "log").write_text("x")
    return root


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def clean(folder, *words):
    return sweep.clean(sweep.build_parser().parse_args(["clean", str(folder), *words]))


def test_clean_removes_files(outputs, capsys):
    assert clean(outputs, *KINDS) == 0
    assert " 4 items" in capsys.readouterr().out and (outputs / ".sweeps" / "launch").is_dir()
    assert clean(outputs, *KINDS, "--yes") == 0
    assert contents(outputs) == [
        *(".sweeps", "name", "name/run", "name/run/s0", "name/run/s0/status.json", "name/run/s0/summary.json"),
    ]


def place(outputs, relative_path):
    path = outputs / relative_path
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


LINKS = {
    "name/run/s0/checkpoints": "checkpoints",
    "name/run/s0/backup_1": "backup_1",
    "name/run/s0/backup_2": "",
    "name/run/s1": "s7",
    "name/run/s3": "s7",
    "name/other": "group",
    "elsewhere": "",
    ".sweeps": "",
    ".sweeps/launch": "launch",
    "name/.sweeps": "",
}


@pytest.mark.parametrize("relative_path", LINKS)
def test_link_targets_survive(relative_path, outputs, outside_folder, capsys):
    place(outputs, relative_path).symlink_to(outside_folder / LINKS[relative_path])
    initial = contents(outside_folder)
    assert clean(outputs, *KINDS, "--yes") == 0
    output = capsys.readouterr().out
    assert contents(outside_folder) == initial and (outputs / relative_path).is_symlink()
    assert relative_path == "elsewhere" or "not removed" in output, output


@pytest.mark.parametrize("relative_path", ["name/run/s1/link", "name/run/s0/backup_1/a/link", ".sweeps/launch/link"])
def test_links_are_unlinked(relative_path, outputs, outside_folder):
    path = outputs / relative_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside_folder)
    (path.parent / "to a file").symlink_to(outside_folder / "launch" / "file")
    initial = contents(outside_folder)
    assert clean(outputs, *KINDS, "--yes") == 0
    assert contents(outside_folder) == initial and not path.is_symlink()


def test_linked_run_folder_survives(outputs, outside_folder, capsys):
    link = place(outputs, "name/run/s1")
    link.symlink_to(outside_folder / "s7")
    initial = contents(outside_folder)
    clean(link, "--unfinished", "--yes")
    assert contents(outside_folder) == initial and "not removed" in capsys.readouterr().out


def test_output_root_may_be_link(outputs, tmp_path):
    (tmp_path / "link").symlink_to(outputs)
    assert clean(tmp_path / "link", "--unfinished", "--yes") == 0
    assert not (outputs / "name" / "run" / "s1").exists()


def test_link_race_is_safe(outputs, outside_folder):
    from llmrl.core.errors import RunFolderError
    from llmrl.sweeps.run_control import remove_path

    target = outputs / "name" / "run" / "s0" / "backup_1"
    place(outputs, "name/run").symlink_to(outside_folder / "group")
    initial = contents(outside_folder)
    for path in (target, outputs / "name" / "run" / "s8" / "backup_1", outputs / "name" / "run"):
        with pytest.raises(RunFolderError, match="not removed"):
            remove_path(outputs, path)
    assert contents(outside_folder) == initial


def test_link_targets_are_not_included_in_size(outputs, outside_folder, capsys):
    (outside_folder / "large").write_bytes(b"x" * 3_000_000)
    (outputs / ".sweeps" / "launch" / "link").symlink_to(outside_folder / "large")
    (outputs / ".sweeps" / "launch" / "all").symlink_to(outside_folder)
    clean(outputs, "--launches")
    assert "0.0 MB" in capsys.readouterr().out


def test_launch_folder_with_remaining_runs_survives(tmp_path):
    """Waiting runs refer to the launch folder and may have no log in it yet."""
    run, busy, completed = (tmp_path / name for name in ("name/run/s0", ".sweeps/busy", ".sweeps/over"))
    for folder in (run, busy, completed):
        folder.mkdir(parents=True)
    machine, pid = get_machine_id(), os.getpid()
    local_backend = "llmrl.sweeps.backends.here.Here"
    place = (local_backend, 0, "", machine, pid, get_process_start(pid), "here", str(busy))
    LaunchRecord(*place, log="", cluster="", user="", submitted=0.0, code="", overrides=[]).write(run)
    assert clean(tmp_path, "--launches", "--yes") == 0
    assert busy.is_dir() and not completed.exists()
