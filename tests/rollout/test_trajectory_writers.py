"""Trajectory files: contents, resuming after kills, and errors for damaged files."""

import numpy as np
import pytest

from errands import KINDS, OBJECTS, Errands, Reader
from experiments import compose, find_run_folder, run_experiment
from llmrl.core.errors import RunFolderError
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.trajectory_writers import EpisodeQueue, TrajectoryWriter, choose_text_channel
from llmrl.run.signals import Stopped
from llmrl.run.trajectories import find_trajectory_files, read_trajectories


def config(root, *overrides, learns=True, n_envs=3):
    config = compose("agent=random", "trusted_modules=[errands]", "checkpoint_seconds=0", *overrides)
    config["env"] = {"_target_": "errands.Errands", "n_envs": n_envs}
    config["agent"] = {"_target_": "errands.ReaderAgent", "skill": 1.0, "learns": learns}
    return {**config, "output_root": str(root), "name": "errands"}


def check_rows(steps):
    """Assert that rows agree with the rules of the game."""
    for row in range(len(steps)):
        mission, action = steps.mission[row], steps.action_names[steps.action[row]]
        mission_text = "nothing yet" if steps.kind[row] == "wait" and steps.step[row] == 0 else mission
        assert steps.text(row) == f"Goal: {mission_text}. Seen: {steps.step[row]} steps. Done: "
        right = mission == action.replace("take", "take the")
        assert steps.terminated[row] == right and steps.base_reward[row] == right
        assert steps.reward[row] == 20 * right and steps.value[row] == 0.5
        assert steps.truncated[row] == (not right and steps.step[row] == 4)
        probabilities = [float(f"take the {target}" in steps.text(row)) for target in OBJECTS]
        if steps.log_prob[row] == pytest.approx(-np.log(3)):
            assert not any(probabilities)


def test_trajectories_match_game(tmp_path):
    env = Errands(Seeds(0))
    reader = Reader(env.spec, 1.0)
    recorder = EpisodeQueue(env.spec, chunk_rows=7)
    recorder.open(tmp_path)
    writer = TrajectoryWriter(env, choose_text_channel(env.spec, reader), recorder)
    episodes = evaluate_policy(Collector(env, reader, "cpu", observers=[writer]), 10, Seeds(1), exactly=True)
    writer.close()
    steps = read_trajectories(tmp_path)
    assert len(find_trajectory_files(tmp_path)) > 1  # in pieces
    check_rows(steps)
    assert set(steps.kind) == set(KINDS) and list(dict.fromkeys(steps.episode)) == list(range(10))
    for number in range(10):
        rows = steps.select(steps.episode == number)
        assert rows.step.tolist() == list(range(len(rows)))
        assert rows.terminated[-1] | rows.truncated[-1]
        assert (rows.success == rows.base_reward.sum()).all() and len(set(rows.game)) == 1
    assert sorted(e.length for e in episodes) == sorted(np.bincount(steps.episode).tolist())
    assert len(steps.prompts) == len(set(steps.prompts)) <= 3 * 5 + 1


def test_recording_changes_no_action():
    env, twin = Errands(Seeds(0)), Errands(Seeds(0))
    plain = evaluate_policy(Collector(env, Reader(env.spec, 1.0), "cpu"), 8, Seeds(1))

    writer = TrajectoryWriter(twin, "prompt")  # which comes to no file
    collector = Collector(twin, Reader(twin.spec, 1.0), "cpu", observers=[writer])
    observing = evaluate_policy(collector, 8, Seeds(1))
    assert [e.length for e in plain] == [e.length for e in observing]
    assert [e.returns.tolist() for e in plain] == [e.returns.tolist() for e in observing]


def test_texts_are_requested_for_recording():
    class Blind(Reader):
        def act(self, observation, state=None, generator=None, greedy=False):
            assert list(observation) == ["vector"]
            act = super().act({"prompt": np.full(observation["vector"].shape[:2], "?", dtype=object)}, None, generator)
            act.log_prob = act.value = None
            return act

    env = Errands(Seeds(0))
    policy = Blind(env.spec, 1.0)
    policy.channels = ("vector",)
    writer = TrajectoryWriter(env, choose_text_channel(env.spec, policy))
    collector = Collector(env, policy, "cpu")
    assert env.provided == {"vector"}
    with collector.add_observers(writer):
        assert env.provided == {"vector", "prompt"}


@pytest.mark.slow
def test_sigkill_resumes_with_equal_steps(tmp_path, monkeypatch):
    """The run is stopped within a wave; its files equal those of an uninterrupted run."""
    from llmrl.rollout import trajectory_writers
    from llmrl.run.run import Run

    monkeypatch.setattr(trajectory_writers.EpisodeQueue.__init__, "__defaults__", (9,))
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
    reference, interrupted = (find_trajectory_files(find_run_folder(tmp_path / name)) for name in ("whole", "cut"))
    assert [f.name for f in reference] == [f.name for f in interrupted] and len(reference) > 1
    assert [f.read_bytes() for f in reference] == [f.read_bytes() for f in interrupted]
    steps = read_trajectories(find_run_folder(tmp_path / "cut"))
    check_rows(steps)
    assert list(dict.fromkeys(steps.episode)) == list(range(8))


def test_damaged_files_are_reported(tmp_path):
    with pytest.raises(RunFolderError, match="trajectories"):
        read_trajectories(tmp_path)
    env = Errands(Seeds(0))
    recorder = EpisodeQueue(env.spec)
    recorder.open(tmp_path)
    writer = TrajectoryWriter(env, "prompt", recorder)
    evaluate_policy(Collector(env, Reader(env.spec, 1.0), "cpu", observers=[writer]), 4, Seeds(1))
    state = recorder.state_dict()
    writer.close()
    path = tmp_path / "trajectories" / "0.npz"
    content = path.read_bytes()
    for corrupt in (content[:100], b"", b"no archive"):
        path.write_bytes(corrupt)
        with pytest.raises(RunFolderError, match=r"0\.npz"):
            read_trajectories(path)
    np.savez(path, format=np.array(1), prompt=np.zeros(3))
    with pytest.raises(RunFolderError, match=r"0.*'prompts'"):
        read_trajectories(path)
    np.savez(path, prompt=np.array([{}], dtype=object))
    with pytest.raises(RunFolderError, match=r"0\.npz"):
        read_trajectories(path)
    # What was written after the checkpoint goes; what was there before must be there.
    EpisodeQueue(env.spec).open(tmp_path, state)
    assert not path.exists()
    state["files"]["written"] = [0]
    with pytest.raises(RunFolderError, match=r"0\.npz"):
        EpisodeQueue(env.spec).open(tmp_path, state)
