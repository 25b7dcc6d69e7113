"""What the rows of whole runs are about, and where they are placed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import only_run_folder, run
from llmrl.analysis.scores import series
from llmrl.run.metrics import MetricTable, metric_tables
from llmrl.run.sinks.tensorboard_tags import tag_of

ROOM = ("env=escape_room", "env.n_envs=8")
LEARN = ("principal=none", "learn.env_steps=320", "learn.evaluate_every=4", "learn.evaluate_episodes=8")
DESIGN = ("principal=random", "design.steps=3", "design.candidates=2", "design.adapt_rounds=2")
SEARCH = ("env=cartpole", "agent=linear", "principal=random", "search.iterations=4", "search.candidates=2",
          "search.episodes=2", "search.evaluate_every=2", "search.evaluate_episodes=3")  # fmt: skip
PLAY = ("agent=random", "play.episodes=12")


def columns(table: MetricTable, *names: str) -> list[list[float]]:
    return [table.columns[name].tolist() for name in names]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small run of each loop."""
    root = tmp_path_factory.mktemp("runs")
    wanted = {"learn": (*ROOM, *LEARN), "design": (*ROOM, *DESIGN, "design.validate_episodes=4"), "search": SEARCH}
    wanted["play"] = (*ROOM, *PLAY)
    for name, overrides in wanted.items():
        run(*overrides, f"output_root={root / name}")
    return {name: only_run_folder(root / name) for name in wanted}


@pytest.fixture(scope="module")
def tables(finished: dict[str, Path]) -> dict[str, dict[str, MetricTable]]:
    return {name: dict(metric_tables(folder / "metrics.jsonl")) for name, folder in finished.items()}


@pytest.mark.slow
def test_learning_has_updates_and_evaluations_at_environment_steps(tables: dict[str, dict[str, MetricTable]]) -> None:
    found = tables["learn"]
    assert {kind: table.x for kind, table in found.items()} == {"update": "env_steps", "evaluation": "env_steps"}
    updates = len(found["update"].columns["updates"])
    assert columns(found["update"], "updates", "env_steps") == [
        list(range(1, updates + 1)),
        [320 // updates * k for k in range(1, updates + 1)],
    ]
    # The evaluation at the end is not made twice.
    assert columns(found["evaluation"], "updates") == [[*range(4, updates, 4), updates]]
    assert not [name for name in found["update"].columns if name.startswith(("evaluation/", "welfare/"))]
    assert not [name for name in found["evaluation"].columns if name.startswith("loss/")]


def test_designing_has_rounds_and_proposals_at_counters_of_their_own(tables: dict[str, dict[str, MetricTable]]) -> None:
    found = tables["design"]
    assert {kind: table.x for kind, table in found.items()} == {
        "adaptation": "rounds",
        "proposal": "proposals",
        "recommendation": "measurements",
    }
    assert columns(found["adaptation"], "rounds", "principal_steps") == [[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 2, 2]]
    assert columns(found["proposal"], "proposals", "principal_steps") == [[2, 4, 6], [1, 2, 3]]
    assert "validation/return" in found["proposal"].columns and "train/return" in found["adaptation"].columns


def test_searching_has_proposals_and_evaluations(tables: dict[str, dict[str, MetricTable]]) -> None:
    found = tables["search"]
    assert columns(found["proposal"], "proposals", "iterations", "episodes") == [
        [2, 4, 6, 8],
        [1, 2, 3, 4],
        [4, 8, 12, 16],
    ]
    assert columns(found["evaluation"], "proposals", "iterations") == [[4, 8], [2, 4]]


def test_playing_has_episodes(tables: dict[str, dict[str, MetricTable]]) -> None:
    assert columns(tables["play"]["episode"], "episodes") == [[8, 12]]


def test_tensorboard_places_each_tag_where_its_rows_are(
    finished: dict[str, Path], tables: dict[str, dict[str, MetricTable]]
) -> None:
    for name, folder in finished.items():
        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        accumulator.Reload()
        for table in tables[name].values():
            told = [metric for metric in list(table.columns) if "/" in metric and not metric.startswith("time/")]
            tags = {metric: tag for metric in told if (tag := tag_of(table.kind, metric)) is not None}
            assert tags
            for metric, tag in tags.items():
                if tag == "welfare/spending":
                    continue  # under the game's own name
                places = table.columns[table.x][table.columns[metric] == table.columns[metric]]
                assert [event.step for event in accumulator.Scalars(tag)] == places.tolist(), (name, metric)


def test_curves_of_a_report_are_placed_at_counters(finished: dict[str, Path]) -> None:
    assert series(finished["design"], "principal/objective", "proposals")[0].tolist() == [2, 4, 6]
    assert series(finished["learn"], "evaluation/return", "updates")[0].tolist()[:1] == [4]
    assert series(finished["learn"], "evaluation/return", "proposals")[0].tolist() == []
