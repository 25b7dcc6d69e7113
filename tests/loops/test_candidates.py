"""Parallel evaluation of several proposals per step, with the results of separate runs."""

import json

import numpy as np
import pytest
import torch

from environments import make_env
from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.agents.random_agent import RandomPolicy
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy, split_rollout
from llmrl.core.errors import ConfigError
from llmrl.rollout.collector import Collector

ROOM = ("env=escape_room", "agent.share_parameters=false", "design.adapt_rounds=2", "design.validate_episodes=8")


def design(folder, *overrides):
    run(*ROOM, *overrides, f"output_root={folder}")
    run_folder = find_run_folder(folder)
    return run_folder, json.loads((run_folder / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["ppo", "random"])
def test_candidate_matches_single_run(tmp_path, agent):
    """Initial weights, contexts, action noise and minibatches do not depend on the other proposals."""
    room = [x for x in ROOM if agent == "ppo" or not x.startswith("agent.")]
    shared = (*room, f"agent={agent}", "design.evaluations=1", "design.steps=2")
    run(*shared, "principal=random", "design.candidates=3", "env.n_envs=12",
        f"output_root={tmp_path / 'together'}")  # fmt: skip
    batched = json.loads((find_run_folder(tmp_path / "together") / "summary.json").read_text())
    assert batched["proposals"] == 6 and batched["principal_steps"] == 2
    for candidate in range(3):
        [row] = [r for r in batched["history"] if r["step"] == 1 and r["candidate"] == candidate]
        values = list(row["mechanism"].values())
        run(*shared, "principal=fixed", f"principal.values={values}", "env.n_envs=4",
            f"output_root={tmp_path / str(candidate)}")  # fmt: skip
        single = json.loads((find_run_folder(tmp_path / str(candidate)) / "summary.json").read_text())["history"][0]
        assert (single["objective"], single["context"]) == (row["objective"], row["context"])
        assert single["standard_error"] == row["standard_error"]


NEARLY = "principal.vectors=[[3,1,0,2,0],[3,1,0,2,1e-12]]"
"""Two vectors that agents cannot tell apart: different, so that the second is no repetition."""


def test_identical_candidates_have_equal_returns(tmp_path):
    _, summary = design(
        tmp_path,
        "principal=listed",
        NEARLY,
        "design.evaluations=1",
        "design.steps=2",
        "design.candidates=4",
        "env.n_envs=16",
    )
    objectives = np.array([row["objective"] for row in summary["history"]]).reshape(2, 4)
    assert (objectives[:, 0] == objectives[:, 1]).all() and (objectives[:, 2] == objectives[:, 3]).all()
    assert (objectives[:, 0] != objectives[:, 2]).all()


def test_candidate_metrics(tmp_path):
    folder, summary = design(
        tmp_path, "principal=random", "design.evaluations=1", "design.steps=2", "design.candidates=2", "env.n_envs=8"
    )
    rows = load_comparable_metrics(folder, "proposal")
    for row, group in zip(rows, np.array_split(summary["history"], 2), strict=True):
        values = [outcome["objective"] for outcome in group]
        best = group[int(np.argmax(values))]
        assert row["principal/objective"] == pytest.approx(np.mean(values))
        assert row["principal/best_of_step"] == max(values)
        assert row["principal/door"] == pytest.approx(best["mechanism"]["door"])
    assert [(row["x"], row["proposals"]) for row in rows] == [("proposals", 2), ("proposals", 4)]
    assert summary["online_performance"] == pytest.approx(np.mean([outcome["objective"] for outcome in group]))


def test_game_groups_share_draws():
    env = make_env("escape_room", n_envs=6, n_agents=4)
    env.share_random_numbers(3)
    policy = PartitionedPolicy([RandomPolicy(make_env("escape_room", n_envs=2, n_agents=4).spec) for _ in range(3)], 2)
    collector = Collector(env, policy, "cpu")
    collector.reset(0)
    rollout = collector.collect(10, torch.Generator().manual_seed(0), learn=False, keep_reward_jacobian=True)
    first, *remaining = split_rollout(rollout, 3)
    for group in remaining:
        assert torch.equal(first.action, group.action) and torch.equal(first.base_reward, group.base_reward)
        assert torch.equal(first.reward_jacobian, group.reward_jacobian)
        assert (first.info["door_open"] == group.info["door_open"]).all()
        assert [e.base_returns.tolist() for e in first.episodes] == [e.base_returns.tolist() for e in group.episodes]
    assert not torch.equal(first.action[:, 0], first.action[:, 1]), "games of one group differ"
    assert sum(len(part.episodes) for part in (first, *remaining)) == len(rollout.episodes)


def test_exposure_is_reward_derivative():
    env = make_env("escape_room", n_envs=3)
    values = np.array([1.0, 2.0, 3.0, 4.0, 0.5])
    env.set_mechanism(values)
    env.reset()
    step = env.step(np.random.default_rng(0).integers(5, size=(3, 5)))
    assert np.allclose(step.reward, step.base_reward + step.reward_jacobian @ values)


def test_indivisible_games_raise(tmp_path):
    with pytest.raises(ConfigError, match=r"16.*5.*env.n_envs.*15"):
        design(tmp_path, "principal=random", "design.candidates=5", "env.n_envs=16")


def test_societies_start_equal_despite_reset_options(tmp_path):
    _, summary = design(
        tmp_path, "principal=listed", NEARLY, "design.evaluations=1", "design.steps=3", "design.candidates=2",
        "env.n_envs=8", "agent.keep_optimizer=true",
    )  # fmt: skip
    objectives = np.array([row["objective"] for row in summary["history"]]).reshape(3, 2)
    assert (objectives[:, 0] == objectives[:, 1]).all()


def test_diverging_societies_raise(tmp_path):
    with pytest.raises(ConfigError, match="reset_agents=false"):
        design(tmp_path, "principal=random", "design.candidates=2", "env.n_envs=8", "design.reset_agents=false")


@pytest.mark.slow
def test_evaluate_plays_best_society_from_last_step(tmp_path):
    from llmrl.cli.evaluate import build_parser, evaluate

    folder, summary = design(
        tmp_path, "principal=random", "design.evaluations=1", "design.steps=3", "design.candidates=4", "env.n_envs=16"
    )
    last = [row for row in summary["history"] if row["step"] == 3]
    best = max(last, key=lambda row: row["objective"])
    evaluation = evaluate(build_parser().parse_args([str(folder), "--episodes", "16"]))
    assert (evaluation["society"], evaluation["context"]) == (best["candidate"], best["context"])
    assert evaluation["mechanism"] == pytest.approx(best["mechanism"])
    ever = evaluate(build_parser().parse_args([str(folder), "--episodes", "16", "--mechanism", "best"]))
    assert ever["mechanism"] == pytest.approx(summary["recommendations"][0]["mechanism"])
    assert ever["context"] == summary["recommendations"][0]["context"]


def test_agent_objectives_in_learn_mode(tmp_path):
    shared = ("env=escape_room", "learn.env_steps=80", "learn.evaluate_episodes=16", "design.objective=minimum")
    run(*shared, f"output_root={tmp_path}")
    summary = json.loads((find_run_folder(tmp_path) / "summary.json").read_text())
    assert summary["evaluation/objective"] == pytest.approx(summary["welfare/minimum"])
