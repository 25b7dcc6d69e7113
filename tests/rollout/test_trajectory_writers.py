"""Trajectory files: what was played is in them, also after a kill, and damaged ones are named."""

import numpy as np
import pytest
import torch

from errands import KINDS, THINGS, Errands, Reader
from experiments import compose, only_run_folder, run_experiment
from llmrl.core.errors import RunFolderError
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy
from llmrl.rollout.trajectory_writers import PlayedEpisodes, RolloutWriter, TrajectoryWriter, kept_text
from llmrl.run.signals import Stopped
from llmrl.run.trajectories import files, read


def config(root, *overrides, learns=True, n_envs=3):
    composed = compose("agent=random", "trusted_modules=[errands]", "checkpoint_seconds=0", *overrides)
    composed["env"] = {"_target_": "errands.Errands", "n_envs": n_envs}
    composed["agent"] = {"_target_": "errands.ReaderAgent", "skill": 1.0, "learns": learns}
    return {**composed, "output_root": str(root), "name": "errands"}


def check_rows(found):
    """What is in a row agrees with the game's rules."""
    for row in range(len(found)):
        mission, action = found.mission[row], found.action_names[found.action[row]]
        told = "nothing yet" if found.kind[row] == "wait" and found.step[row] == 0 else mission
        assert found.text(row) == f"Goal: {told}. Seen: {found.step[row]} steps. Done: "
        right = mission == action.replace("take", "take the")
        assert found.terminated[row] == right and found.base_reward[row] == right
        assert found.reward[row] == 20 * right and found.value[row] == 0.5
        assert found.truncated[row] == (not right and found.step[row] == 4)
        known = [float(f"take the {thing}" in found.text(row)) for thing in THINGS]
        if found.log_prob[row] == pytest.approx(-np.log(3)):
            assert not any(known)


def test_played_episodes_are_whole_and_agree_with_the_game(tmp_path):
    env = Errands(Seeds(0))
    reader = Reader(env.spec, 1.0)
    played = PlayedEpisodes(env.spec, chunk=7)
    played.open(tmp_path)
    writer = TrajectoryWriter(env, kept_text(env.spec, reader), played)
    episodes = evaluate_policy(Collector(env, reader, "cpu", observers=[writer]), 10, Seeds(1), exactly=True)
    writer.close()
    found = read(tmp_path)
    assert len(files(tmp_path)) > 1  # in pieces
    check_rows(found)
    assert set(found.kind) == set(KINDS) and list(dict.fromkeys(found.episode)) == list(range(10))
    for number in range(10):
        own = found.rows(found.episode == number)
        assert own.step.tolist() == list(range(len(own)))
        assert own.terminated[-1] | own.truncated[-1]
        assert (own.success == own.base_reward.sum()).all() and len(set(own.game)) == 1
    assert sorted(e.length for e in episodes) == sorted(np.bincount(found.episode).tolist())
    assert len(found.prompts) == len(set(found.prompts)) <= 3 * 5 + 1


def test_recording_changes_nothing_that_is_played():
    env, twin = Errands(Seeds(0)), Errands(Seeds(0))
    alone = evaluate_policy(Collector(env, Reader(env.spec, 1.0), "cpu"), 8, Seeds(1))

    writer = TrajectoryWriter(twin, "prompt")  # which comes to no file
    collector = Collector(twin, Reader(twin.spec, 1.0), "cpu", observers=[writer])
    beside = evaluate_policy(collector, 8, Seeds(1))
    assert [e.length for e in alone] == [e.length for e in beside]
    assert [e.returns.tolist() for e in alone] == [e.returns.tolist() for e in beside]


def test_texts_are_asked_for_even_if_the_player_reads_none():
    class Blind(Reader):
        def act(self, observation, state=None, generator=None, greedy=False):
            assert list(observation) == ["vector"]
            act = super().act({"prompt": np.full(observation["vector"].shape[:2], "?", dtype=object)}, None, generator)
            act.log_prob = act.value = None
            return act

    env = Errands(Seeds(0))
    policy = Blind(env.spec, 1.0)
    policy.channels = ("vector",)
    writer = TrajectoryWriter(env, kept_text(env.spec, policy))
    collector = Collector(env, policy, "cpu")
    assert env.provided == {"vector"}
    with collector.observed(writer):
        assert env.provided == {"vector", "prompt"}


@pytest.mark.slow
def test_a_killed_and_resumed_run_keeps_the_same_steps(tmp_path, monkeypatch):
    """A stop in the middle of a wave; the files of the whole run are equal."""
    from llmrl.rollout import trajectory_writers
    from llmrl.run.run import Run

    monkeypatch.setattr(trajectory_writers.PlayedEpisodes.__init__, "__defaults__", (9,))
    options = ["play.episodes=8", "play.trajectories=true"]
    run_experiment(config(tmp_path / "whole", *options, learns=False), [])
    safe_point, calls = Run.safe_point, []

    def stopping(self, iteration, state):
        calls.append(iteration)
        safe_point(self, iteration, state)
        if len(calls) in (4, 11):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "safe_point", stopping)
        for _ in range(2):
            with pytest.raises((KeyboardInterrupt, Stopped)):
                run_experiment(config(tmp_path / "cut", *options, learns=False), [])
    run_experiment(config(tmp_path / "cut", *options, learns=False), [])
    whole, cut = (files(only_run_folder(tmp_path / name)) for name in ("whole", "cut"))
    assert [f.name for f in whole] == [f.name for f in cut] and len(whole) > 1
    assert [f.read_bytes() for f in whole] == [f.read_bytes() for f in cut]
    found = read(only_run_folder(tmp_path / "cut"))
    check_rows(found)
    assert list(dict.fromkeys(found.episode)) == list(range(8))


def test_every_second_rollout_of_a_learner_is_kept(tmp_path):
    options = ["learn.env_steps=60", "learn.rollout_steps=4", "learn.trajectories_every=2", "learn.evaluate_every=2"]
    run_experiment(config(tmp_path, *options), [])
    folder = only_run_folder(tmp_path)
    assert [f.name for f in files(folder)] == ["2.npz", "4.npz"]
    found = read(folder)
    assert len(found) == 2 * 4 * 3
    check_rows(found)
    assert found.log_prob.max() <= 0 and not np.isnan(found.log_prob).any()
    # The second evaluation starts new episodes, so none of file 2 goes on in file 4.
    assert not set(read(folder / "trajectories" / "2.npz").episode) & set(
        read(folder / "trajectories" / "4.npz").episode
    )


def test_episodes_of_rollouts_are_numbered_across_files(tmp_path):
    env = Errands(Seeds(0), n_envs=5)
    collector = Collector(env, Reader(env.spec, 0.1), "cpu")
    collector.reset(3)
    recorder = RolloutWriter(env, 1)
    recorder.open(tmp_path, 0)
    ends = []
    for i in range(4):
        with collector.observed(recorder):
            rollout = collector.collect(3, torch.Generator().manual_seed(i))
        ends += [(e.game, e.length, e.summaries["success"]) for e in rollout.episodes]
        if i == 1:  # as a resumed run would
            state = recorder.state_dict()
            recorder = RolloutWriter(env, 1)
            recorder.open(tmp_path, 2, state)
    found = read(tmp_path)
    check_rows(found)
    over = found.terminated | found.truncated
    assert over.sum() == len(ends)
    told = [
        (int(g), int(s) + 1, float(x))
        for g, s, x in zip(found.game[over], found.step[over], found.success[over], strict=True)
    ]
    assert told == ends
    for number in np.unique(found.episode):
        own = found.rows(found.episode == number)
        order = np.argsort(own.step)
        assert own.step[order].tolist() == list(range(len(own))) and len(set(own.mission)) == 1
        # Known in all rows, or, of an episode that is not over, in none.
        assert np.isnan(own.success).all() != (own.terminated | own.truncated).any()


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(RunFolderError, match="has no trajectories"):
        read(tmp_path)
    env = Errands(Seeds(0))
    played = PlayedEpisodes(env.spec)
    played.open(tmp_path)
    writer = TrajectoryWriter(env, "prompt", played)
    evaluate_policy(Collector(env, Reader(env.spec, 1.0), "cpu", observers=[writer]), 4, Seeds(1))
    state = played.state_dict()
    writer.close()
    path = tmp_path / "trajectories" / "0.npz"
    content = path.read_bytes()
    for damaged in (content[:100], b"", b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=r"0\.npz cannot be read"):
            read(path)
    np.savez(path, format=np.array(1), prompt=np.zeros(3))
    with pytest.raises(RunFolderError, match=r"0\.npz is no file of trajectories: it has no array 'prompts'"):
        read(path)
    np.savez(path, prompt=np.array([{}], dtype=object))
    with pytest.raises(RunFolderError, match=r"0\.npz cannot be read"):
        read(path)
    # What was written after the checkpoint goes; what was there before must be there.
    PlayedEpisodes(env.spec).open(tmp_path, state)
    assert not path.exists()
    state["files"]["written"] = [0]
    with pytest.raises(RunFolderError, match="is gone"):
        PlayedEpisodes(env.spec).open(tmp_path, state)
