"""Access to files of a folder without following links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from llmrl.core.atomic_files import atomic_write
from llmrl.core.folder_files import create_folder, find_symlink, open_file, open_folder, read_bytes


@pytest.mark.parametrize("mode", ["rb", "r", "ab", "a+b", "wb", "r+b"])
@pytest.mark.parametrize("place", ["file", "folder/file"])
def test_links_are_rejected_at_any_level(tmp_path: Path, mode: str, place: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("data")
    root = tmp_path / "root"
    root.mkdir()
    top = place.split("/")[0]
    (root / top).symlink_to(tmp_path / "outside" / top.replace("folder", ""))
    with pytest.raises(OSError) as error:
        open_file(root / place, mode, root)
    assert error.value.errno == errno.ELOOP
    assert (tmp_path / "outside" / "file").read_text() == "data"


def test_root_path_may_contain_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    with open_file(tmp_path / "root" / "file", "a") as file:
        file.write("é\n")
    assert read_bytes(tmp_path / "real" / "file") == "é\n".encode()


def test_rejects_path_outside_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "file").write_text("data")
    with pytest.raises(OSError):
        open_file(tmp_path / "root" / ".." / "file", root=tmp_path / "root")
    with pytest.raises(ValueError):
        open_file(tmp_path / "file", root=tmp_path / "root")


@pytest.mark.parametrize("mode", ["rb", "ab"])
def test_pipe_is_rejected_immediately(tmp_path: Path, mode: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError):
        open_file(tmp_path / "pipe", mode)


def test_folders_are_created_below_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    create_folder(root / "a" / "b", root)
    assert (root / "a" / "b").is_dir()
    (root / "link").symlink_to(outside)
    with pytest.raises(OSError):
        create_folder(root / "link" / "b", root)
    with pytest.raises(OSError), open_folder(root, ("link",)):
        pass
    assert not list(outside.iterdir())


def test_replacement_stays_below_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(OSError), atomic_write(root / "link" / "file", root) as file:
        file.write(b"data")
    assert not list(outside.iterdir())
    (outside / "file").write_text("data")
    (root / "file").symlink_to(outside / "file")
    with atomic_write(root / "file") as file:
        file.write(b"new")
    assert (outside / "file").read_text() == "data" and (root / "file").read_text() == "new"
    assert not (root / "file").is_symlink()


def test_links_are_detected_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "sinks" / "x").mkdir(parents=True)
    (tmp_path / "sinks" / "x" / "link").symlink_to("nowhere")
    assert find_symlink(tmp_path, ("sinks/*",)) is None
    assert find_symlink(tmp_path) == tmp_path / "sinks" / "x" / "link"
    (tmp_path / "a" / "b" / "link").symlink_to(tmp_path)
    assert find_symlink(tmp_path, ("sinks/*",)) == tmp_path / "a" / "b" / "link"
