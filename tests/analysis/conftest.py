"""Fixture with a sweep that contains runs in all states."""

from __future__ import annotations

from pathlib import Path

import pytest

from run_folders import SCRIPTED, write_calls, write_run


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write runs of two games, each with a complete, an uneven, a single-run, a scripted and an unfinished group."""
    root = tmp_path_factory.mktemp("outputs")
    for game, scale in (("cleanup", 10.0), ("harvest", 100.0)):
        for seed in range(6):
            write_run(root, game, ["principal=ucb", "design.steps=3"], seed, [0.0, scale, scale + seed])
        write_run(root, game, ["principal=fixed", "design.steps=3"], 0, [0.0, 1.0, 2.0])
        scripted_options = ["principal=llm", "llm=scripted", "design.steps=3"]
        for seed in range(3):
            error = ValueError("the reply <b> is 100% {wrong} & a_b\nreally") if seed == 2 else None
            folder = write_run(root, game, scripted_options, seed, [1.0, 2.0, scale + 2 * seed], error, SCRIPTED)
            write_calls(folder, SCRIPTED, [0.0, 0.0] if game == "cleanup" else [0.0, None])
        write_run(root, game, ["principal=random", "design.steps=3"], 1, [1.0], RuntimeError("no luck"))
    return root
