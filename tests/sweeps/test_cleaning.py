"""`llmrl-sweep clean` removes what it shows, and nothing behind a link."""

from __future__ import annotations

import os
import shutil

import pytest

from llmrl.cli import sweep
from llmrl.run.ownership import process_start, this_machine
from llmrl.run.queued import Queued
from llmrl.run.status import Status

KINDS = ("--backups", "--checkpoints", "--launches", "--unfinished")


@pytest.fixture
def precious(tmp_path):
    """A folder that is somebody's, laid out so that whoever follows a link finds what it looks for."""
    folder = tmp_path / "precious"
    for name in ("checkpoints", "backup_1", "launch", "s7/backup_1", "group/s8/backup_1"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").write_text("years of work")
    Status(state="failed", attempt=1, overrides=[]).write(folder / "s7")
    Status(state="failed", attempt=1, overrides=[]).write(folder / "group" / "s8")
    return folder


@pytest.fixture
def outputs(tmp_path):
    """An output root with a finished run and a failed one."""
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
    return sweep.clean(sweep.parser().parse_args(["clean", str(folder), *words]))


def test_it_removes_what_is_there(outputs, capsys):
    assert clean(outputs, *KINDS) == 0
    assert "would remove 4 items" in capsys.readouterr().out and (outputs / ".sweeps" / "launch").is_dir()
    assert clean(outputs, *KINDS, "--yes") == 0
    assert contents(outputs) == [
        *(".sweeps", "name", "name/run", "name/run/s0", "name/run/s0/status.json", "name/run/s0/summary.json"),
    ]


def place(outputs, where):
    path = outputs / where
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


@pytest.mark.parametrize("where", LINKS)
def test_it_leaves_alone_what_is_behind_a_link(where, outputs, precious, capsys):
    place(outputs, where).symlink_to(precious / LINKS[where])
    before = contents(precious)
    assert clean(outputs, *KINDS, "--yes") == 0
    said = capsys.readouterr().out
    assert contents(precious) == before and (outputs / where).is_symlink()
    assert where == "elsewhere" or "left alone" in said, said


@pytest.mark.parametrize("where", ["name/run/s1/link", "name/run/s0/backup_1/a/link", ".sweeps/launch/link"])
def test_links_inside_are_removed_themselves(where, outputs, precious):
    path = outputs / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(precious)
    (path.parent / "to a file").symlink_to(precious / "launch" / "file")
    before = contents(precious)
    assert clean(outputs, *KINDS, "--yes") == 0
    assert contents(precious) == before and not path.is_symlink()


def test_a_run_folder_that_is_a_link_is_left_alone(outputs, precious, capsys):
    link = place(outputs, "name/run/s1")
    link.symlink_to(precious / "s7")
    before = contents(precious)
    clean(link, "--unfinished", "--yes")
    assert contents(precious) == before and "left alone" in capsys.readouterr().out


def test_an_output_root_may_be_reached_by_a_link(outputs, tmp_path):
    (tmp_path / "link").symlink_to(outputs)
    assert clean(tmp_path / "link", "--unfinished", "--yes") == 0
    assert not (outputs / "name" / "run" / "s1").exists()


def test_what_is_swapped_for_a_link_meanwhile_leads_nowhere(outputs, precious):
    from llmrl.core.errors import RunFolderError
    from llmrl.sweeps.cleaning import remove

    target = outputs / "name" / "run" / "s0" / "backup_1"
    place(outputs, "name/run").symlink_to(precious / "group")
    before = contents(precious)
    for path in (target, outputs / "name" / "run" / "s8" / "backup_1", outputs / "name" / "run"):
        with pytest.raises(RunFolderError, match="left alone"):
            remove(outputs, path)
    assert contents(precious) == before


def test_what_a_link_leads_to_is_not_counted(outputs, precious, capsys):
    (precious / "large").write_bytes(b"x" * 3_000_000)
    (outputs / ".sweeps" / "launch" / "link").symlink_to(precious / "large")
    (outputs / ".sweeps" / "launch" / "all").symlink_to(precious)
    clean(outputs, "--launches")
    assert "0.0 MB" in capsys.readouterr().out


def test_the_folder_of_a_launch_that_has_runs_left_stays(tmp_path):
    """Whatever its backend writes there: a run that waits names the launch, and need not have a log yet."""
    run, busy, over = (tmp_path / name for name in ("name/run/s0", ".sweeps/busy", ".sweeps/over"))
    for folder in (run, busy, over):
        folder.mkdir(parents=True)
    machine, pid = this_machine(), os.getpid()
    here = "llmrl.sweeps.backends.here.Here"
    place = (here, 0, "", machine, pid, process_start(pid), "here", str(busy))
    Queued(*place, log="", cluster="", user="", submitted=0.0, code="", overrides=[]).write(run)
    assert clean(tmp_path, "--launches", "--yes") == 0
    assert busy.is_dir() and not over.exists()
