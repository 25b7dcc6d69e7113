"""Mechanisms sampled during the training of agents."""

from __future__ import annotations

import json

import numpy as np
import pytest

from environments import make_env
from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.learn import Box, MechanismSampler, Phase

LOW, HIGH = [0.0] * 5, [5.0] * 5
MIXTURE = [Box(LOW, [1.0] * 5, weight=3), Box([2.0] * 5, [3.0] * 5, equal=True)]


def vectors(n_envs=4, episodes=40, seeds=0, phases=None):
    """Return the mechanism of each game in each of its episodes, [n_envs, episodes, 5]."""
    env = make_env("escape_room", n_envs=n_envs)
    sampler = MechanismSampler(env, phases or [Phase([Box(HIGH, HIGH)], 2), Phase(MIXTURE)], Seeds(seeds))
    vectors = np.zeros((n_envs, episodes, 5))
    for episode in range(episodes):
        sampler.impose_vectors(np.ones(n_envs, dtype=bool))
        vectors[:, episode] = sampler.values
    return vectors


def test_vectors_follow_phase_mixture():
    vectors_ = vectors(20)
    assert (vectors_[:, :2] == 5).all()
    second_phase = vectors_[:, 2:].reshape(-1, 5)
    flat = (second_phase == second_phase[:, :1]).all(1)
    assert flat.mean() == pytest.approx(0.25, abs=0.06)
    assert (second_phase[flat] >= 2).all() and (second_phase[flat] <= 3).all()
    assert (second_phase[~flat] >= 0).all() and (second_phase[~flat] <= 1).all() and second_phase[~flat].std() > 0.2
    assert len(np.unique(second_phase, axis=0)) == len(second_phase)


def test_vector_depends_only_on_game_episode():
    assert (vectors(2, 10) == vectors(4, 30)[:2, :10]).all()
    assert not (vectors(2, 10, seeds=1)[:, 2:] == vectors(2, 10)[:, 2:]).any()
    env = make_env("escape_room", n_envs=2)
    sampler = MechanismSampler(env, [Phase(MIXTURE)], Seeds(0))
    sampler.impose_vectors(np.array([True, True]))
    first = sampler.values.copy()
    sampler.impose_vectors(np.array([False, True]))
    assert (sampler.values[0] == first[0]).all() and (sampler.values[1] != first[1]).any()


def test_constant_vector():
    assert (vectors(phases=[1.0, 0.0, 2.0, 0.0, 5.0]) == [1, 0, 2, 0, 5]).all()


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ([9.0] * 5, r"outside \[0, 5\]"),
        ([Phase([Box(HIGH, LOW)])], "low=.* exceeds high="),
        ([Phase(MIXTURE), Phase(MIXTURE)], "learn.mechanism .*`episodes`"),
        ([], "learn.mechanism .*phase"),
        ([1.0], " 5 numbers"),
    ],
)
def test_invalid_settings(phases, message):
    with pytest.raises(ConfigError, match=message):
        MechanismSampler(make_env("escape_room", n_envs=1), phases, Seeds(0))


ROOM = (
    *("env=escape_room", "env.n_envs=4", "env.show_mechanism=true"),
    *("learn.rollout_steps=5", "learn.evaluate_episodes=4", "learn.evaluation_interval=3"),
)
CURRICULUM = (
    "learn.mechanism=[{episodes:2,mixture:[{low:[5,5,5,5,5],high:[5,5,5,5,5]}]},"
    "{mixture:[{low:[0,0,0,0,0],high:[5,5,5,5,5]}]}]"
)


def test_agents_learn_with_fixed_mechanism(tmp_path):
    """Agents observe the mechanism of their game and receive its payments."""
    run(*ROOM, "learn.mechanism=[5,0,0,0,0]", "learn.env_steps=100", f"output_root={tmp_path / 'a'}")
    run(*ROOM, "learn.mechanism=[0,0,0,0,0]", "learn.env_steps=100", f"output_root={tmp_path / 'b'}")
    run(*ROOM, "learn.env_steps=100", f"output_root={tmp_path / 'c'}")
    subsidized, unpaid, no_mechanism = (load_comparable_metrics(find_run_folder(tmp_path / name)) for name in "abc")
    assert unpaid == no_mechanism and subsidized != no_mechanism
    parts = build_parts(compose(*ROOM, CURRICULUM), None)
    loop = build_loop(compose(*ROOM, CURRICULUM), parts)
    loop.collector.reset(0)
    rollout = loop.collector.collect(5, Seeds(0).torch("actions"))
    assert (rollout.observation["mechanism"] == 5).all()
    for _ in range(2):
        rollout = loop.collector.collect(5, Seeds(0).torch("actions"))
    mechanism = rollout.observation["mechanism"]
    assert (mechanism == mechanism[0]).all() and len(np.unique(mechanism[0, :, 0].numpy(), axis=0)) == 4
    parts.close()


@pytest.mark.slow
def test_stop_keeps_vectors(tmp_path):
    full_run = (*ROOM, CURRICULUM, "learn.env_steps=240", "checkpoint_seconds=0")
    run(*full_run, f"output_root={tmp_path / 'whole'}")
    folder = find_run_folder(tmp_path / "whole")
    reference = load_comparable_metrics(folder)
    # As a run that was killed after its second-newest checkpoint left it.
    checkpoints = sorted((folder / "checkpoints").glob("*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    checkpoints[-1].unlink()
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "preempted"}))
    run(*full_run, f"output_root={tmp_path / 'whole'}")
    assert load_comparable_metrics(folder) == reference
