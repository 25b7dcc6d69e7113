"""Copies of the user's modules in a run folder."""

import threading

from llmrl.run.source_copies import save_sources


def test_processes_may_write_at_the_same_time(tmp_path):
    files = {f"package/module_{i}.py": b"content %d" % i for i in range(20)}
    barrier, errors = threading.Barrier(6), []

    def write():
        barrier.wait()
        try:
            save_sources(tmp_path, files)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert {path.name for path in tmp_path.iterdir()} == {"sources"}
    copies = {str(path.relative_to(tmp_path / "sources")): path.read_bytes() for path in tmp_path.rglob("*.py")}
    assert copies == files
