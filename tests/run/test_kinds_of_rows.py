"""Kinds of rows in metrics of complete runs, and their counters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import find_run_folder, run
from llmrl.analysis.scores import read_series
from llmrl.run.metrics import MetricTable, read_metric_tables
from llmrl.run.sinks.tensorboard import get_tag

ROOM = ("env=escape_room", "env.n_envs=8")
LEARN = ("principal=none", "learn.env_steps=320", "learn.evaluation_interval=4", "learn.evaluate_episodes=8")
DESIGN = ("principal=random", "design.steps=3", "design.candidates=2", "design.adapt_rounds=2")
SEARCH = ("env=cartpole", "agent=linear", "principal=random", "search.iterations=4", "search.candidates=2",
          "search.episodes=2", "search.evaluation_interval=2", "search.evaluate_episodes=3")  # fmt: skip
PLAY = ("agent=random", "play.episodes=12")


def columns(table: MetricTable, *names: str) -> list[list[float]]:
    return [table.columns[name].tolist() for name in names]


@pytest.fixture(scope="module")
def complete_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of small runs by loop."""
    root = tmp_path_factory.mktemp("runs")
    commands = {"learn": (*ROOM, *LEARN), "design": (*ROOM, *DESIGN, "design.validate_episodes=4"), "search": SEARCH}
    commands["play"] = (*ROOM, *PLAY)
    for name, overrides in commands.items():
        run(*overrides, f"output_root={root / name}")
    return {name: find_run_folder(root / name) for name in commands}


@pytest.fixture(scope="module")
def tables(complete_folders: dict[str, Path]) -> dict[str, dict[str, MetricTable]]:
    return {name: dict(read_metric_tables(folder / "metrics.jsonl")) for name, folder in complete_folders.items()}


@pytest.mark.slow
def test_learn_rows_use_environment_steps(tables: dict[str, dict[str, MetricTable]]) -> None:
    table = tables["learn"]
    assert {kind: table.x for kind, table in table.items()} == {"update": "env_steps", "evaluation": "env_steps"}
    updates = len(table["update"].columns["updates"])
    assert columns(table["update"], "updates", "env_steps") == [
        list(range(1, updates + 1)),
        [320 // updates * k for k in range(1, updates + 1)],
    ]
    # The evaluation at the end is not made twice.
    assert columns(table["evaluation"], "updates") == [[*range(4, updates, 4), updates]]
    assert not [name for name in table["update"].columns if name.startswith(("evaluation/", "welfare/"))]
    assert not [name for name in table["evaluation"].columns if name.startswith("loss/")]


def test_design_rows_use_counters(tables: dict[str, dict[str, MetricTable]]) -> None:
    table = tables["design"]
    assert {kind: table.x for kind, table in table.items()} == {
        "adaptation": "rounds",
        "proposal": "proposals",
        "recommendation": "measurements",
    }
    assert columns(table["adaptation"], "rounds", "principal_steps") == [[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]]
    assert columns(table["proposal"], "proposals", "principal_steps") == [[2, 4, 6], [1, 2, 3]]
    assert "validation/return" in table["proposal"].columns and "train/return" in table["adaptation"].columns


def test_search_rows(tables: dict[str, dict[str, MetricTable]]) -> None:
    table = tables["search"]
    assert columns(table["proposal"], "proposals", "iterations", "episodes") == [
        [2, 4, 6, 8],
        [1, 2, 3, 4],
        [4, 8, 12, 16],
    ]
    assert columns(table["evaluation"], "proposals", "iterations") == [[4, 8], [2, 4]]


def test_playing_has_episodes(tables: dict[str, dict[str, MetricTable]]) -> None:
    assert columns(tables["play"]["episode"], "episodes") == [[8, 12]]


def test_tensorboard_tags_use_row_steps(
    complete_folders: dict[str, Path], tables: dict[str, dict[str, MetricTable]]
) -> None:
    for name, folder in complete_folders.items():
        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        accumulator.Reload()
        for table in tables[name].values():
            metrics = [metric for metric in list(table.columns) if "/" in metric and not metric.startswith("time/")]
            tags = {metric: tag for metric in metrics if (tag := get_tag(table.kind, metric)) is not None}
            assert tags
            for metric, tag in tags.items():
                if tag == "welfare/spending":
                    continue  # under the game's own name
                places = table.columns[table.x][table.columns[metric] == table.columns[metric]]
                assert [event.step for event in accumulator.Scalars(tag)] == places.tolist(), (name, metric)


def test_report_curves_use_counters(complete_folders: dict[str, Path]) -> None:
    assert read_series(complete_folders["design"], "principal/objective", "proposals")[0].tolist() == [2, 4, 6]
    assert read_series(complete_folders["learn"], "evaluation/return", "updates")[0].tolist()[:1] == [4]
    assert read_series(complete_folders["learn"], "evaluation/return", "proposals")[0].tolist() == []
