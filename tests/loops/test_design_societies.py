"""Several societies under one proposal: each has draws of its own; in a test mode those of the run of another seed."""

import json

import numpy as np
import pytest
import torch

from experiments import comparable_metrics, only_run_folder, run
from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.escape_room import EscapeRoom
from llmrl.run.artifacts import saved_state
from some import some

SHORT = ("env=escape_room", "design.steps=2", "design.adapt_rounds=6")


def design(folder, *overrides):
    run(*SHORT, *overrides, f"output_root={folder}")
    path = only_run_folder(folder)
    return path, json.loads((path / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("share", some(["false"], ["true", "false"]))
def test_societies_are_the_runs_of_the_seeds_that_follow(tmp_path, share):
    """The escape room of the presets; its context is pinned, as each run draws its own for the proposals of a step."""
    shared = (
        "principal=fixed",
        "principal.values=[3,1,0,2,0]",
        "env.fixed_context=0",
        f"agent.share_parameters={share}",
    )
    several = ("design.replicates=3", "design.society_seeds=consecutive", "env.n_envs=96")
    folder, together = design(tmp_path / "all", *shared, *several, "seed=1")
    agents = saved_state(folder)[1]["agents"]
    assert len(agents) == 3
    for society in range(3):
        path, alone = design(tmp_path / str(society), *shared, f"seed={1 + society}")
        for row, own in zip(together["history"], alone["history"], strict=True):
            assert row["societies"][society] == pytest.approx(own["objective"], abs=1e-6)
        [agent] = saved_state(path)[1]["agents"]
        for name, x in agent["policy"].items():
            torch.testing.assert_close(agents[society]["policy"][name], x, rtol=1e-3, atol=1e-4)
    for row in together["history"]:
        assert len(set(row["societies"])) == 3, "societies differ"
        assert row["objective"] == pytest.approx(np.mean(row["societies"]))
        assert row["standard_error"] == pytest.approx(standard_error_of_mean(np.array(row["societies"])))


@pytest.mark.slow
def test_no_two_societies_of_a_sweep_are_alike(tmp_path):
    """Three seeds of three societies are nine societies: none starts from the weights of another or fares like it."""
    weights, fared = [], []
    for seed in range(3):
        folder, summary = design(
            tmp_path / str(seed), "principal=fixed", "principal.values=[3,1,0,2,0]", "env.fixed_context=0",
            "design.replicates=3", "env.n_envs=96", "design.steps=1", f"seed={seed}", "agent.share_parameters=true",
        )  # fmt: skip
        agents = saved_state(folder)[1]["agents"]
        weights += [torch.cat([x.flatten() for x in agent["policy"].values()]) for agent in agents]
        fared += summary["history"][0]["societies"]
    assert len(set(fared)) == len(fared) == 9
    for i, one in enumerate(weights):
        assert all(not torch.allclose(one, other, atol=1e-3) for other in weights[:i])


@pytest.mark.slow
def test_the_first_society_is_the_run_without_others(tmp_path):
    shared = ("principal=fixed", "principal.values=[3,1,0,2,0]", "env.fixed_context=0", "seed=4")
    _, several = design(tmp_path / "several", *shared, "design.replicates=2", "env.n_envs=64")
    _, alone = design(tmp_path / "alone", *shared)
    for row, own in zip(several["history"], alone["history"], strict=True):
        assert row["societies"][0] == pytest.approx(own["objective"], abs=1e-6)
        assert row["societies"][1] != row["societies"][0]


def test_proposals_are_compared_on_the_same_societies(tmp_path):
    """Proposals without a difference fare equally, society by society; the mean over proposals is logged."""
    folder, summary = design(
        tmp_path, "principal=listed", "principal.vectors=[[3,1,0,2,0],[3,1,0,2,1e-12]]",
        "design.candidates=2", "design.replicates=2",
        "env.n_envs=16", "design.validate_episodes=8", "agent.keep_optimizer=true",
    )  # fmt: skip
    rows = comparable_metrics(folder, "proposal")
    for row, (first, second) in zip(rows, np.array(summary["history"]).reshape(2, 2), strict=True):
        assert first["societies"] == second["societies"] and len(set(first["societies"])) == 2
        assert row["principal/objective_society_0"] == first["societies"][0]
        assert row["principal/objective_society_1"] == first["societies"][1]
    assert len(saved_state(folder)[1]["agents"]) == 4
    assert summary["env_steps"] - summary["evaluation_env_steps"] == 2 * (6 + 2) * 5 * 16


@pytest.mark.slow
def test_evaluate_plays_the_first_society_of_the_best_proposal(tmp_path):
    from llmrl.cli.evaluate import evaluate, parser

    folder, summary = design(
        tmp_path, "principal=random", "design.candidates=3", "design.replicates=2", "env.n_envs=12"
    )  # fmt: skip
    best = max((row for row in summary["history"] if row["step"] == 2), key=lambda row: row["objective"])
    found = evaluate(parser().parse_args([str(folder), "--episodes", "12"]))
    assert found["society"] == 2 * best["candidate"]
    assert found["mechanism"] == pytest.approx(best["mechanism"])


def test_games_of_several_seeds_are_those_of_each_alone():
    env, rng = EscapeRoom(Seeds(0), n_envs=12), np.random.default_rng(0)
    seeds = [5, 6, 5]
    alone = [EscapeRoom(Seeds(9), n_envs=4) for _ in seeds]
    for turn in range(3):
        # The second time games go on in part, the third all begin anew from where the streams stand.
        mask = rng.random(12) < 0.5 if turn == 1 else None
        seen = env.reset(mask, seeds if turn == 0 else None)["vector"]
        for i, (each, seed) in enumerate(zip(alone, seeds, strict=True)):
            own = slice(4 * i, 4 * i + 4)
            expected = each.reset(None if mask is None else mask[own], seed if turn == 0 else None)
            assert (seen[own] == expected["vector"]).all()
    other = EscapeRoom(Seeds(3), n_envs=12)
    other.reset(seed=1)
    other.load_state_dict(env.state_dict())
    assert (other.reset()["vector"] == env.reset()["vector"]).all()
    assert (env.reset(seed=5)["vector"] == other.reset(seed=[5])["vector"]).all()
    with pytest.raises(ConfigError, match="12 games cannot be divided into 5 equal groups"):
        env.reset(seed=[1, 2, 3, 4, 5])


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"16 games cannot be divided into 6 equal groups: .*env.n_envs.* e.g. 18"):
        design(tmp_path, "principal=random", "design.candidates=2", "design.replicates=3", "env.n_envs=16")
    with pytest.raises(ConfigError, match=r"design.replicates=2: .*principal=metagrad.* set design.replicates=1"):
        design(tmp_path, "principal=metagrad", "agent=pg", "design.replicates=2", "env.n_envs=16")
    with pytest.raises(ConfigError, match=r"design\.replicates=0"):
        design(tmp_path, "principal=random", "design.replicates=0")
