"""Copies of the user's modules in a run folder."""

import threading
from concurrent.futures import ThreadPoolExecutor

from llmrl.run.source_copies import save_sources

N_WRITERS = 6


def test_concurrent_writers(tmp_path):
    files = {f"package/module_{i}.py": b"content %d" % i for i in range(20)}
    barrier = threading.Barrier(N_WRITERS)

    def write(_):
        barrier.wait()
        save_sources(tmp_path, files)

    with ThreadPoolExecutor(N_WRITERS) as pool:
        list(pool.map(write, range(N_WRITERS)))  # raises what a writer raises
    assert {path.name for path in tmp_path.iterdir()} == {"sources"}
    copies = {str(path.relative_to(tmp_path / "sources")): path.read_bytes() for path in tmp_path.rglob("*.py")}
    assert copies == files
