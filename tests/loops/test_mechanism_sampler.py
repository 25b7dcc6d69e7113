"""Mechanisms that are imposed while agents learn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.escape_room import EscapeRoom
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.mechanism_sampler import Box, MechanismSampler, Phase

LOW, HIGH = [0.0] * 5, [5.0] * 5
MIXED = [Box(LOW, [1.0] * 5, weight=3), Box([2.0] * 5, [3.0] * 5, equal=True)]


def vectors(n_envs=4, episodes=40, seeds=0, wanted=None):
    """What each game is governed by in each of its episodes, [n_envs, episodes, 5]."""
    env = EscapeRoom(Seeds(0), n_envs=n_envs)
    imposed = MechanismSampler(env, wanted or [Phase([Box(HIGH, HIGH)], 2), Phase(MIXED)], Seeds(seeds))
    seen = np.zeros((n_envs, episodes, 5))
    for episode in range(episodes):
        imposed.begin(np.ones(n_envs, dtype=bool))
        seen[:, episode] = imposed.values
    return seen


def test_vectors_are_drawn_from_the_mixture_of_their_phase():
    seen = vectors(20)
    assert (seen[:, :2] == 5).all()
    later = seen[:, 2:].reshape(-1, 5)
    flat = (later == later[:, :1]).all(1)
    assert flat.mean() == pytest.approx(0.25, abs=0.06)
    assert (later[flat] >= 2).all() and (later[flat] <= 3).all()
    assert (later[~flat] >= 0).all() and (later[~flat] <= 1).all() and later[~flat].std() > 0.2
    assert len(np.unique(later, axis=0)) == len(later)


def test_a_vector_depends_on_its_game_and_episode_alone():
    assert (vectors(2, 10) == vectors(4, 30)[:2, :10]).all()
    assert not (vectors(2, 10, seeds=1)[:, 2:] == vectors(2, 10)[:, 2:]).any()
    env = EscapeRoom(Seeds(0), n_envs=2)
    imposed = MechanismSampler(env, [Phase(MIXED)], Seeds(0))
    imposed.begin(np.array([True, True]))
    first = imposed.values.copy()
    imposed.begin(np.array([False, True]))
    assert (imposed.values[0] == first[0]).all() and (imposed.values[1] != first[1]).any()


def test_one_vector_for_all_episodes():
    assert (vectors(wanted=[1.0, 0.0, 2.0, 0.0, 5.0]) == [1, 0, 2, 0, 5]).all()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([9.0] * 5, r"outside \[0, 5\]"),
        ([Phase([Box(HIGH, LOW)])], "low=.* is above high="),
        ([Phase(MIXED), Phase(MIXED)], "every phase but the last needs its episodes"),
        ([], "there must be one"),
        ([1.0], "takes 5 numbers"),
    ],
)
def test_what_cannot_be_is_refused(wanted, message):
    with pytest.raises(ConfigError, match=message):
        MechanismSampler(EscapeRoom(Seeds(0), n_envs=1), wanted, Seeds(0))


ROOM = (
    *("env=escape_room", "env.n_envs=4", "env.show_mechanism=true"),
    *("learn.rollout_steps=5", "learn.evaluate_episodes=4", "learn.evaluate_every=3"),
)
CURRICULUM = (
    "learn.mechanism=[{episodes:2,mixture:[{low:[5,5,5,5,5],high:[5,5,5,5,5]}]},"
    "{mixture:[{low:[0,0,0,0,0],high:[5,5,5,5,5]}]}]"
)


def test_agents_learn_under_what_is_imposed(tmp_path):
    """The agents see the values that their game is governed by, and are paid them."""
    run(*ROOM, "learn.mechanism=[5,0,0,0,0]", "learn.env_steps=100", f"output_root={tmp_path / 'a'}")
    run(*ROOM, "learn.mechanism=[0,0,0,0,0]", "learn.env_steps=100", f"output_root={tmp_path / 'b'}")
    run(*ROOM, "learn.env_steps=100", f"output_root={tmp_path / 'c'}")
    paid, unpaid, alone = (comparable_metrics(only_run_folder(tmp_path / name)) for name in "abc")
    assert unpaid == alone and paid != alone
    parts = build_parts(compose(*ROOM, CURRICULUM), None)
    loop = build_loop(compose(*ROOM, CURRICULUM), parts)
    loop.collector.reset(0)
    rollout = loop.collector.collect(5, Seeds(0).torch("actions"))
    assert (rollout.observation["mechanism"] == 5).all()
    for _ in range(2):
        rollout = loop.collector.collect(5, Seeds(0).torch("actions"))
    shown = rollout.observation["mechanism"]
    assert (shown == shown[0]).all() and len(np.unique(shown[0, :, 0].numpy(), axis=0)) == 4
    parts.close()


@pytest.mark.slow
def test_a_stopped_run_goes_on_under_the_same_vectors(tmp_path):
    whole = (*ROOM, CURRICULUM, "learn.env_steps=240", "checkpoint_seconds=0")
    run(*whole, f"output_root={tmp_path / 'whole'}")
    folder = only_run_folder(tmp_path / "whole")
    expected = comparable_metrics(folder)
    # As a run that was killed after its second-newest checkpoint left it.
    checkpoints = sorted((folder / "checkpoints").glob("*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    checkpoints[-1].unlink()
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "preempted"}))
    run(*whole, f"output_root={tmp_path / 'whole'}")
    assert comparable_metrics(folder) == expected
