"""Runs that share pretrained weights, societies or replies: groups, intervals and messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import compose, find_run_folder, run
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import GroupSummary, ReportSettings
from llmrl.cli.sweep_report import main
from llmrl.results.groups import group_into_tasks
from llmrl.results.run_records import read_run, read_runs
from llmrl.run.shared_factors import list_shared_factors
from run_folders import write_run

SETTINGS = ReportSettings()


def numbers(folder: Path) -> GroupSummary:
    [section] = compute_report(folder, SETTINGS).sections
    [found] = section.summaries
    return found


def write_pretrained_run(root: Path, pretraining: int, seed: int, result: float) -> None:
    """Write a run that begins with the weights of a seed of `pre`."""
    weights = f"agent.init_from=outputs/pre/defaults-1/s{pretraining}"
    shared = {"pre-training": [f"pre/defaults-1/s{pretraining}"]}
    write_run(root, "harvest", ["principal=ucb", weights], seed, [result], shared=shared)


def test_seeds_of_single_pretraining_warn(tmp_path: Path) -> None:
    for seed in range(6):
        write_pretrained_run(tmp_path, 0, seed, 40.0 + seed)
    found = numbers(tmp_path)
    assert found.remark.startswith("1 pre-training run:") and np.isnan(found.estimates["mean"].low)
    main([str(tmp_path), "--no-figures"])
    assert found.remark in (tmp_path / "report" / "summary.md").read_text()


def test_pretraining_seeds_form_level(tmp_path: Path) -> None:
    """Use five different pretraining runs with three similar seeds each: 15 runs are not independent."""
    levels = (30.0, 45.0, 60.0, 40.0, 50.0)
    for pretraining, level in enumerate(levels):
        for seed in range(3):
            write_pretrained_run(tmp_path / "shared", pretraining, seed, level + seed)
            write_run(tmp_path / "alone", "harvest", ["principal=ucb"], 3 * pretraining + seed, [level + seed])
    shared, independent = numbers(tmp_path / "shared"), numbers(tmp_path / "alone")
    assert shared.group.label == "all runs" and len(shared.scores) == shared.group.n_expected_runs == 15
    assert shared.remark == independent.remark == ""
    widths = [
        float(numbers_of_group.estimates["mean"].high - numbers_of_group.estimates["mean"].low)
        for numbers_of_group in (shared, independent)
    ]
    assert widths[0] > 1.4 * widths[1]
    # Each pretraining run counts as one number, its mean.
    assert shared.standard_error == pytest.approx(np.std(levels, ddof=1) / 5**0.5)


def test_unknown_differences_separate_groups(tmp_path: Path) -> None:
    write_pretrained_run(tmp_path, 0, 0, 1.0)
    other_overrides = ["principal=ucb", "agent.init_from=outputs/pre/other-2/s0"]
    write_run(tmp_path, "harvest", other_overrides, 0, [1.0], shared={"pre-training": ["pre/other-2/s0"]})
    [task] = group_into_tasks(read_runs(tmp_path), tmp_path)
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
    [task] = group_into_tasks(read_runs(tmp_path), tmp_path)
    assert len(task.groups) == 2


def test_reports_shared_parts(tmp_path: Path) -> None:
    for seed in range(5):
        shared = {"society": [str(seed), str(seed + 1)], "replies": ["all seeds"]}
        write_run(tmp_path, "cleanup", ["principal=llm"], seed, [float(seed)], shared=shared)
    assert re.search("model's replies.*; .*societies", numbers(tmp_path).remark)


def test_interval_is_over_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        within_runs = (10 * rng.normal(size=(2, 3))).tolist()
        write_run(tmp_path / "inside", "game", ["principal=ucb"], seed, inside=within_runs)
        write_run(tmp_path / "alone", "game", ["principal=ucb"], seed, [float(np.mean(within_runs))])
    within_runs, independent = numbers(tmp_path / "inside"), numbers(tmp_path / "alone")
    bands = [numbers_of_group.estimates["mean"] for numbers_of_group in (within_runs, independent)]
    assert float(bands[0].low) == pytest.approx(float(bands[1].low)) and np.isfinite(bands[0].low)


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
def test_run_score_averages_listed_episodes(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    result = run(*overrides, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    episode_returns = json.loads((folder / "summary.json").read_text())["result_episodes"]
    assert np.mean([np.mean(society) for society in episode_returns]) == pytest.approx(result)
    # Four evaluations of two societies in each of three contexts.
    assert len(episode_returns) == (24 if "design.replicates=2" in overrides else 1)
    assert read_run(folder).shared_factors == ({"society": ["0", "0/1"]} if len(episode_returns) == 24 else {})


def test_runs_record_shared_parts() -> None:
    weights = "agent.init_from='outputs/pre/defaults-1/s2'"
    config = compose("env=harvest", "principal=llm", weights, "llm.share_cache=true", "seed=3")
    assert list_shared_factors(config, uses_llm=True) == {
        "pre-training": ["pre/defaults-1/s2"],
        "replies": ["all seeds"],
    }
    assert list_shared_factors(config, uses_llm=False) == {"pre-training": ["pre/defaults-1/s2"]}
    config = compose("env=escape_room", "principal=ucb", "design.replicates=3", "seed=3")
    assert list_shared_factors(config, uses_llm=False) == {"society": ["3", "3/1", "3/2"]}
    assert list_shared_factors(compose("env=escape_room", "design.replicates=3"), uses_llm=False) == {}
    replay = compose("principal=llm", "env=escape_room", "llm=replay", "llm.calls='outputs/a/b/s0'")
    assert list_shared_factors(replay, uses_llm=True) == {"replies": ["a/b/s0"]}
    assert list_shared_factors(replay | {"llm": {**replay["llm"], "calls": "outputs/a/b"}}, uses_llm=True) == {}
