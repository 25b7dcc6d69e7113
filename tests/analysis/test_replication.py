"""Runs that share pre-trained weights, societies or replies: their group, its intervals, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import compose, only_run_folder, run
from llmrl.analysis.aggregate import summarize
from llmrl.analysis.groups import tasks_of
from llmrl.analysis.report import GroupNumbers
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.runs import read_run, read_runs
from llmrl.analysis.suite_groups import together
from llmrl.cli.sweep_report import main
from llmrl.run.shared_factors import shared_of
from run_folders import write_run

SETTINGS = ReportSettings()


def numbers(folder: Path) -> GroupNumbers:
    [section] = summarize(folder, SETTINGS).sections
    [found] = section.numbers
    return found


def begun(root: Path, pretraining: int, seed: int, result: float) -> None:
    """A run that begins with the weights of a seed of `pre`."""
    weights = f"agent.init_from=outputs/pre/defaults-1/s{pretraining}"
    shared = {"pre-training": [f"pre/defaults-1/s{pretraining}"]}
    write_run(root, "harvest", ["principal=ucb", weights], seed, [result], shared=shared)


def test_seeds_of_one_pretraining_say_what_they_cannot_tell(tmp_path: Path) -> None:
    for seed in range(6):
        begun(tmp_path, 0, seed, 40.0 + seed)
    found = numbers(tmp_path)
    assert found.remark == "1 pre-training run: no interval below 5" and np.isnan(found.estimates["mean"].low)
    assert found.units == "1 pre-training run, 6 runs"
    main([str(tmp_path), "--no-figures"])
    summary = (tmp_path / "report" / "summary.md").read_text()
    assert "1 pre-training run, 6 runs" in summary and "1 pre-training run: no interval below 5" in summary


def test_seeds_of_a_pretraining_are_a_level_of_one_group(tmp_path: Path) -> None:
    """Five pre-training runs far apart, three seeds each close together: 15 runs are not 15 independent ones."""
    levels = (30.0, 45.0, 60.0, 40.0, 50.0)
    for pretraining, level in enumerate(levels):
        for seed in range(3):
            begun(tmp_path / "shared", pretraining, seed, level + seed)
            write_run(tmp_path / "alone", "harvest", ["principal=ucb"], 3 * pretraining + seed, [level + seed])
    shared, alone = numbers(tmp_path / "shared"), numbers(tmp_path / "alone")
    assert shared.group.label == "all runs" and len(shared.pooled) == shared.expected == 15
    assert shared.units == "5 pre-training runs, 15 runs"
    assert shared.remark == alone.remark == ""
    widths = [float(each.estimates["mean"].high - each.estimates["mean"].low) for each in (shared, alone)]
    assert widths[0] > 1.4 * widths[1]
    # Each pre-training run counts as one number, its mean.
    assert shared.standard_error == pytest.approx(np.std(levels, ddof=1) / 5**0.5)


def test_other_pretrainings_and_unknown_differences_stay_apart(tmp_path: Path) -> None:
    begun(tmp_path, 0, 0, 1.0)
    other = ["principal=ucb", "agent.init_from=outputs/pre/other-2/s0"]
    write_run(tmp_path, "harvest", other, 0, [1.0], shared={"pre-training": ["pre/other-2/s0"]})
    [task] = tasks_of(read_runs(tmp_path), tmp_path)
    assert [group.label for group in task.groups] == [
        "init_from=defaults-1",
        "init_from=other-2",
    ]
    # The same weights and the same words, but another config: something that was not typed differs.
    status = next((tmp_path / "harvest").glob("*other-2*/s0/status.json"))
    content = json.loads(status.read_text())
    content["overrides"] = ["principal=ucb", "agent.init_from=outputs/pre/defaults-1/s0"]
    content["shared"] = {"pre-training": ["pre/defaults-1/s0"]}
    status.write_text(json.dumps(content))
    [task] = tasks_of(read_runs(tmp_path), tmp_path)
    assert len(task.groups) == 2


def test_shared_societies_and_replies_are_told(tmp_path: Path) -> None:
    for seed in range(5):
        shared = {"society": [str(seed), str(seed + 1)], "replies": ["all seeds"]}
        write_run(tmp_path, "cleanup", ["principal=llm"], seed, [float(seed)], shared=shared)
    assert numbers(tmp_path).remark == (
        "seeds share a model's replies: how replies differ is not in the interval; "
        "seeds share societies: interval too narrow"
    )


def test_episodes_are_counted_but_the_interval_is_over_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        inside = (10 * rng.normal(size=(2, 3))).tolist()
        write_run(tmp_path / "inside", "game", ["principal=ucb"], seed, inside=inside)
        write_run(tmp_path / "alone", "game", ["principal=ucb"], seed, [float(np.mean(inside))])
    inside, alone = numbers(tmp_path / "inside"), numbers(tmp_path / "alone")
    assert inside.units == "5 runs, 10 societies, 30 episodes" and alone.units == "5 runs"
    bands = [each.estimates["mean"] for each in (inside, alone)]
    assert float(bands[0].low) == pytest.approx(float(bands[1].low)) and np.isfinite(bands[0].low)


def test_a_summary_that_is_not_of_this_result_is_not_believed(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "game", ["principal=ucb"], 0, inside=[[1.0, 2.0]])
    write_run(tmp_path, "game", ["principal=ucb"], 1, inside=[[3.0, 2.0]])
    assert numbers(tmp_path).units == "2 runs, 4 episodes"
    (folder / "summary.json").write_text('{"result_episodes": [[7.0]]}')
    assert numbers(tmp_path).units == "2 runs, 2 episodes"
    (folder / "summary.json").write_text("{}")
    assert numbers(tmp_path).units == "2 runs, 2 episodes"


ROOM = ("env=escape_room", "env.n_envs=8", "design.adapt_rounds=1", "design.steps=6", "design.evaluations=4")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (*ROOM, "principal=random", "design.replicates=2", "design.candidates=2", "design.validate_episodes=4"),
        ("env=escape_room", "env.n_envs=4", "learn.env_steps=100", "learn.evaluate_episodes=6"),
        ("env=escape_room", "agent=random", "play.episodes=5"),
        ("env=cartpole", "agent=linear", "principal=random", "search.iterations=2", "search.evaluate_episodes=7"),
    ],
)
def test_the_result_of_a_run_is_the_mean_of_the_episodes_it_names(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    result = run(*overrides, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    inside = json.loads((folder / "summary.json").read_text())["result_episodes"]
    assert np.mean([np.mean(society) for society in inside]) == pytest.approx(result)
    # Four evaluations of two societies in each of three contexts.
    assert len(inside) == (24 if "design.replicates=2" in overrides else 1)
    assert read_run(folder).shared == ({"society": ["0", "0/1"]} if len(inside) == 24 else {})


def test_runs_record_what_they_share() -> None:
    weights = "agent.init_from='outputs/pre/defaults-1/s2'"
    config = compose("env=harvest", "principal=llm", weights, "llm.cache_across_seeds=true", "seed=3")
    assert shared_of(config, asks=True) == {"pre-training": ["pre/defaults-1/s2"], "replies": ["all seeds"]}
    assert shared_of(config, asks=False) == {"pre-training": ["pre/defaults-1/s2"]}
    config = compose(
        "env=escape_room", "principal=ucb", "design.replicates=3", "design.society_seeds=consecutive", "seed=3"
    )
    assert shared_of(config, asks=False) == {"society": ["3", "4", "5"]}
    assert shared_of(compose("env=escape_room", "design.replicates=3"), asks=False) == {}
    replay = compose("principal=llm", "env=escape_room", "llm=replay", "llm.calls='outputs/a/b/s0'")
    assert shared_of(replay, asks=True) == {"replies": ["a/b/s0"]}
    assert shared_of(replay | {"llm": {**replay["llm"], "calls": "outputs/a/b"}}, asks=True) == {}


def test_runs_of_one_pretraining_have_no_interval_in_a_suite(tmp_path: Path) -> None:
    results: dict[str, list] = {"shared": [], "alone": []}
    for seed in range(6):
        for name, found in results.items():
            shared = {"pre-training": ["pre/defaults-1/s0"]} if name == "shared" else {}
            folder = write_run(tmp_path, name, ["agent=llm_ppo"], seed, shared=shared)
            player = {"success": 0.1 * seed, "low": 0.4, "high": 0.6, "episodes": 10, "kinds": {}, "lacking": []}
            test = {"env": "x", "players": {"student": player}, "refused": {}}
            found.append({"runs": [str(folder)], "checkpoint": 1, "llm": "", "players": ["student"], "tests": [test]})
    rows = {
        name: together(found, {"student": list(range(6))})["tests"][0]["players"]["student"]
        for name, found in results.items()
    }
    assert rows["shared"]["low"] is None and rows["shared"]["success"] == pytest.approx(0.25)
    assert rows["alone"]["low"] < 0.25 < rows["alone"]["high"]
