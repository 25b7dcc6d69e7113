"""Normalization of returns between random play and the best known player."""

import json

import numpy as np
import pytest

from experiments import compose, find_run_folder, run
from llmrl.api.environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.envs.gym.episode_scores import ReturnScale

SCALED = [name for name, fields in load_options("env").items() if fields.get("progress")]


@pytest.mark.parametrize("name", SCALED)
def test_scale_belongs_to_default_game(name):
    env = make_env(name)
    assert env.spec.metrics["progress"] == "last" and next(iter(env.spec.metrics)) == "success"
    env.close()
    longer = make_env(name, horizon=37)
    assert "progress" not in longer.spec.metrics
    longer.close()


MAXIMA = {
    name: load_options("env")[name]["progress"]["best"]
    for name in SCALED
    if load_options("env")[name]["progress"].get("is_maximum")
}


@pytest.mark.parametrize("name", MAXIMA)
def test_searches_receive_maximum_return(name):
    env, longer = make_env(name), make_env(name, horizon=37)
    assert env.spec.max_return == MAXIMA[name] and longer.spec.max_return is None
    env.close()
    longer.close()


def test_best_reference_return_is_not_maximum():
    assert {"cartpole", "cliff_walking", "inverted_pendulum", "nim", "pong"} == set(MAXIMA)
    assert make_env("frozen_lake").spec.max_return is None


def test_different_map_has_no_scale():
    assert "progress" not in make_env("frozen_lake", **{"kwargs.is_slippery": False}).spec.metrics


def test_episode_score_follows_return(tmp_path):
    run("env=cliff_walking", "agent=random", "play.episodes=4", "env.n_envs=2", f"output_root={tmp_path}")
    results = json.loads((find_run_folder(tmp_path) / "results.json").read_text())
    scale = compose("env=cliff_walking")["env"]["progress"]
    returns = np.array(results["per_episode"]["return"])
    expected = (returns - scale["random"]) / (scale["best"] - scale["random"])
    assert results["per_episode"]["progress"] == pytest.approx(expected, rel=1e-6)
    assert results["table"]["progress"]["mean"] == pytest.approx(expected.mean(), rel=1e-6)


def test_scale_ends():
    scale = ReturnScale(random=-10.0, best=30.0)
    assert scale.score(np.array([-10.0, 30.0, 50.0, -20.0])).tolist() == [0.0, 1.0, 1.5, -0.25]
    assert scale.applies_to(None, {}) and not scale.applies_to(10, {}) and not scale.applies_to(None, {"g": 1})
    with pytest.raises(ConfigError, match="be above"):
        ReturnScale(random=1.0, best=1.0)
