"""Several societies per proposal, with different random numbers; in a test mode with those of runs of other seeds."""

import json

import numpy as np
import pytest
import torch

from environments import make_env
from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.run.artifacts import load_saved_state
from llmrl.statistics.estimators import standard_error_of_mean
from some import mark_long_except

SHORT = ("env=escape_room", "design.evaluations=1", "design.steps=2", "design.adapt_rounds=3")


def design(folder, *overrides):
    run(*SHORT, *overrides, f"output_root={folder}")
    path = find_run_folder(folder)
    return path, json.loads((path / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("share", mark_long_except(["false"], ["true", "false"]))
def test_societies_match_runs_with_their_seeds(tmp_path, monkeypatch, share):
    """The escape room of the presets; its context is pinned, as each run draws its own for the proposals of a step.

    Society s gets the seed tree of the run whose seed is s higher.
    """
    monkeypatch.setattr(Seeds, "replicates", lambda node, n: [Seeds(node.seed + i, node._path) for i in range(n)])
    shared = (
        "principal=fixed",
        "principal.values=[3,1,0,2,0]",
        "env.fixed_context=0",
        f"agent.share_parameters={share}",
    )
    society_options = ("design.replicates=3", "env.n_envs=96")
    folder, joint = design(tmp_path / "all", *shared, *society_options, "seed=1")
    agents = load_saved_state(folder)[1]["agents"]
    assert len(agents) == 3
    for society in range(3):
        path, single = design(tmp_path / str(society), *shared, f"seed={1 + society}")
        for row, outcome in zip(joint["history"], single["history"], strict=True):
            assert row["societies"][society] == pytest.approx(outcome["objective"], abs=1e-6)
        [agent] = load_saved_state(path)[1]["agents"]
        for name, x in agent["policy"].items():
            torch.testing.assert_close(agents[society]["policy"][name], x, rtol=1e-3, atol=1e-4)
    for row in joint["history"]:
        assert len(set(row["societies"])) == 3, "societies differ"
        assert row["objective"] == pytest.approx(np.mean(row["societies"]))
        assert row["standard_error"] == pytest.approx(standard_error_of_mean(np.array(row["societies"])))


@pytest.mark.long
@pytest.mark.slow
def test_sweep_societies_are_distinct(tmp_path):
    """The nine societies of three seeds have different initial weights and different results."""
    weights, objectives = [], []
    for seed in range(3):
        folder, summary = design(
            tmp_path / str(seed), "principal=fixed", "principal.values=[3,1,0,2,0]", "env.fixed_context=0",
            "design.replicates=3", "env.n_envs=96", "design.steps=1", f"seed={seed}", "agent.share_parameters=true",
        )  # fmt: skip
        agents = load_saved_state(folder)[1]["agents"]
        weights += [torch.cat([x.flatten() for x in agent["policy"].values()]) for agent in agents]
        objectives += summary["history"][0]["societies"]
    assert len(set(objectives)) == len(objectives) == 9
    for i, weight in enumerate(weights):
        assert all(not torch.allclose(weight, earlier, atol=1e-3) for earlier in weights[:i])


@pytest.mark.long
@pytest.mark.slow
def test_first_society_matches_single_run(tmp_path):
    shared = ("principal=fixed", "principal.values=[3,1,0,2,0]", "env.fixed_context=0", "seed=4")
    _, multiple = design(tmp_path / "several", *shared, "design.replicates=2", "env.n_envs=64")
    _, single = design(tmp_path / "alone", *shared)
    for row, outcome in zip(multiple["history"], single["history"], strict=True):
        assert row["societies"][0] == pytest.approx(outcome["objective"], abs=1e-6)
        assert row["societies"][1] != row["societies"][0]


def test_proposals_share_societies(tmp_path):
    """Equal proposals have equal results in each society; the mean over proposals is logged."""
    folder, summary = design(
        tmp_path, "principal=listed", "principal.vectors=[[3,1,0,2,0],[3,1,0,2,1e-12]]",
        "design.candidates=2", "design.replicates=2",
        "env.n_envs=16", "design.validate_episodes=8", "agent.keep_optimizer=true",
    )  # fmt: skip
    rows = load_comparable_metrics(folder, "proposal")
    for row, (first, second) in zip(rows, np.array(summary["history"]).reshape(2, 2), strict=True):
        assert first["societies"] == second["societies"] and len(set(first["societies"])) == 2
        assert row["principal/objective_society_0"] == first["societies"][0]
        assert row["principal/objective_society_1"] == first["societies"][1]
    assert len(load_saved_state(folder)[1]["agents"]) == 4
    assert summary["env_steps"] - summary["evaluation_env_steps"] == 2 * (3 + 2) * 5 * 16


@pytest.mark.slow
def test_evaluate_plays_first_society_with_best_proposal(tmp_path):
    from llmrl.cli.evaluate import build_parser, evaluate

    folder, summary = design(
        tmp_path, "principal=random", "design.candidates=3", "design.replicates=2", "env.n_envs=12"
    )  # fmt: skip
    best = max((row for row in summary["history"] if row["step"] == 2), key=lambda row: row["objective"])
    evaluation = evaluate(build_parser().parse_args([str(folder), "--episodes", "12"]))
    assert evaluation["society"] == 2 * best["candidate"]
    assert evaluation["mechanism"] == pytest.approx(best["mechanism"])


def test_multi_seed_games_match_single_seed_games():
    env, rng = make_env("escape_room", n_envs=12), np.random.default_rng(0)
    seeds = [5, 6, 5]
    single_envs = [make_env("escape_room", Seeds(9), n_envs=4) for _ in seeds]
    for turn in range(3):
        # The second time games go on in part, the third all begin anew from where the streams stand.
        mask = rng.random(12) < 0.5 if turn == 1 else None
        observation = env.reset(mask, seeds if turn == 0 else None)["vector"]
        for i, (single_env, seed) in enumerate(zip(single_envs, seeds, strict=True)):
            games = slice(4 * i, 4 * i + 4)
            reference = single_env.reset(None if mask is None else mask[games], seed if turn == 0 else None)
            assert (observation[games] == reference["vector"]).all()
    second_env = make_env("escape_room", Seeds(3), n_envs=12)
    second_env.reset(seed=1)
    second_env.load_state_dict(env.state_dict())
    assert (second_env.reset()["vector"] == env.reset()["vector"]).all()
    assert (env.reset(seed=5)["vector"] == second_env.reset(seed=[5])["vector"]).all()
    with pytest.raises(ConfigError, match=r"12 games.*5 "):
        env.reset(seed=[1, 2, 3, 4, 5])


def test_invalid_settings(tmp_path):
    with pytest.raises(ConfigError, match=r"16.*6.*env.n_envs.*18"):
        design(tmp_path, "principal=random", "design.candidates=2", "design.replicates=3", "env.n_envs=16")
    with pytest.raises(ConfigError, match=r"design.replicates=2: .*principal=metagrad.*design.replicates=1"):
        design(tmp_path, "principal=metagrad", "agent=pg", "design.replicates=2", "env.n_envs=16")
    with pytest.raises(ConfigError, match=r"design\.replicates=0"):
        design(tmp_path, "principal=random", "design.replicates=0")
