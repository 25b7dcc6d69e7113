"""Folders that are filled once per session."""

import threading
import time

import pytest

from shared_folders import shared_folder


@pytest.fixture
def factory(tmp_path):
    """Return a factory of temporary folders below this test's."""

    class Factory:
        def getbasetemp(self):
            return tmp_path / "worker"

    Factory().getbasetemp().mkdir()
    return Factory()


@pytest.mark.parametrize("worker", [None, "gw0"])
def test_folder_content_is_shared(factory, tmp_path, monkeypatch, worker):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    fills, folders = [], []

    def fill(folder):
        fills.append(folder)
        time.sleep(0.05)
        (folder / "a").write_text("b")

    def use():
        folder = shared_folder(factory, "some", fill)
        folders.append((folder, (folder / "a").read_text()))

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    root = tmp_path if worker else tmp_path / "worker"
    assert fills == [root / "shared" / "some"]
    assert folders == [(fills[0], "b")] * 3


def test_failed_fill_is_repeated(factory):
    def fail(folder):
        (folder / "partial").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        shared_folder(factory, "some", fail)
    folder = shared_folder(factory, "some", lambda folder: (folder / "complete").touch())
    assert [path.name for path in folder.iterdir()] == ["complete"]
