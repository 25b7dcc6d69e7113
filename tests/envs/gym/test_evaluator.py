"""Evaluation of controllers, compared with a plain loop; worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import commands
from environments import make_env
from llmrl.agents.search_agent import TabularAgent
from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.episode_scores import SuccessCriterion
from llmrl.envs.gym.evaluator import EpisodeRules, GymEvaluator
from shipped import build_search_agent
from some import mark_long_except
from worker_policies import (
    ExitingController,
    FailingController,
    PixelController,
    TorchFreeController,
    WeightedController,
)


def linear(name: str, **kwargs):
    return build_search_agent("linear", make_env("gymnasium", id=name, n_envs=1).spec, **kwargs).controller


def plainly(env_factory: EnvFactory, controller, vector: np.ndarray, seed: int) -> tuple[float, int]:
    """Play one episode in a loop of Gymnasium alone."""
    env = gymnasium.make(env_factory.id, max_episode_steps=env_factory.horizon, **env_factory.kwargs)
    observation, _ = env.reset(seed=seed)
    total, steps, done = 0.0, 0, False
    while not done:
        policy_input = (
            np.int64([observation])
            if controller.channel == "state"
            else np.float32(observation)[None].astype(np.float64)
        )
        action = controller.act(policy_input, vector[None])[0]
        if isinstance(env.action_space, gymnasium.spaces.Box):
            action = np.clip(action, env.action_space.low, env.action_space.high).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, steps, done = total + float(reward), steps + 1, terminated or truncated
    env.close()
    return total, steps


@pytest.mark.parametrize(
    ("name", "engine", "workers"),
    [
        ("CartPole-v1", "batched", 1),
        ("CartPole-v1", "stock", 1),
        ("CartPole-v1", "stock", 3),
        ("MountainCarContinuous-v0", "batched", 1),
        ("MountainCarContinuous-v0", "stock", 2),
        ("Acrobot-v1", "stock", 2),
        ("FrozenLake-v1", "batched", 1),
        ("FrozenLake-v1", "stock", 1),
        ("llmrl/Nim-v0", "batched", 1),
        ("llmrl/Pong-v0", "batched", 1),
    ],
)
def test_matches_plain_loop(name, engine, workers):
    env_factory = EnvFactory(name, {}, 60, engine)
    spec = make_env("gymnasium", id=name, n_envs=1).spec
    controller = (TabularAgent(spec) if "state" in spec.observation else build_search_agent("linear", spec)).controller
    space, rng = controller.space, np.random.default_rng(0)
    vectors = space.round_values(rng.uniform(space.low, space.high, (3, space.dim)))
    seeds = np.array([3, 1, 4, 1])
    with GymEvaluator(EpisodeRules(env_factory), workers) as evaluator:
        for _ in range(2):
            evaluation = evaluator.evaluate(controller, vectors, seeds)
            assert evaluation.successes is None
            for i, vector in enumerate(vectors):
                for j, seed in enumerate(seeds.tolist()):
                    assert (evaluation.returns[i, j], evaluation.lengths[i, j]) == plainly(
                        env_factory, controller, vector, seed
                    )


def test_one_hot_policy_uses_lookup():
    controller = linear("FrozenLake-v1")
    vectors = np.random.default_rng(0).uniform(-6, 6, (4, controller.space.dim))
    seeds = np.arange(6)
    results = []
    for engine in ("stock", "batched"):
        with GymEvaluator(EpisodeRules(EnvFactory("FrozenLake-v1", engine=engine)), workers=1) as evaluator:
            results.append(evaluator.evaluate(controller, vectors, seeds))
    assert np.array_equal(results[0].returns, results[1].returns)
    assert np.array_equal(results[0].lengths, results[1].lengths)


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        (SuccessCriterion("return", 1.0), True),
        (SuccessCriterion("reward", 1.0), True),
        (SuccessCriterion("terminated"), None),
    ],
)
@pytest.mark.parametrize("engine", ["stock", "batched"])
def test_successes(criterion, expected, engine):
    """Use the lake, where the goal gives a return of 1 and a hole terminates as well."""
    env_factory = EnvFactory("FrozenLake-v1", {}, 12, engine)
    controller = TabularAgent(make_env("gymnasium", id="FrozenLake-v1", n_envs=1).spec).controller
    vector = np.array([[0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0]], dtype=np.float64)
    with GymEvaluator(EpisodeRules(env_factory, success=criterion), workers=1) as evaluator:
        evaluation = evaluator.evaluate(controller, vector, np.arange(60))
    assert evaluation.successes is not None
    if expected:
        assert np.array_equal(evaluation.successes, evaluation.returns == 1.0)
        assert 0 < evaluation.successes.sum() < 60
    else:
        assert np.array_equal(
            evaluation.successes, (evaluation.lengths < 12) | (evaluation.returns == 1.0) | evaluation.successes
        )
        assert evaluation.successes.sum() > (evaluation.returns == 1.0).sum()
        assert not evaluation.successes.all()


def test_actions_are_clipped_by_default():
    """Use mountain car, where a step costs 0.1 a^2: 0.1 for an action clipped to 1, and 2.5 for 5."""
    costs = []
    for clip in (True, False):
        for engine in ("stock", "batched"):
            env_factory = EnvFactory("MountainCarContinuous-v0", {}, 10, engine)
            controller = linear("MountainCarContinuous-v0", clip_actions=False)
            with GymEvaluator(EpisodeRules(env_factory, clip_actions=clip), workers=1) as evaluator:
                costs.append(evaluator.evaluate(controller, np.array([[0.0, 0.0, 5.0]]), np.arange(2)).returns)
    assert np.allclose(costs[0], -1.0)
    assert np.array_equal(costs[0], costs[1])
    assert np.allclose(costs[2], -25.0)
    assert np.array_equal(costs[2], costs[3])


def test_rejects_endless_episode():
    with pytest.raises(ConfigError, match=r"CliffWalking-v1.*env\.horizon"):
        GymEvaluator(EpisodeRules(EnvFactory("CliffWalking-v1")), workers=1)


def test_rejects_policy_with_hidden_inputs():
    for workers in (1, 2):
        evaluator = GymEvaluator(EpisodeRules(EnvFactory("CartPole-v1")), workers)
        with evaluator, pytest.raises(ConfigError, match="CartPole-v1"):
            evaluator.evaluate(PixelController(1), np.zeros((1, 1)), np.arange(4))


# Worker processes

PENDULUM = EpisodeRules(EnvFactory("Pendulum-v1"))


def children() -> set[int]:
    """Return the worker processes of this process."""
    child_ids = set()
    for entry in Path("/proc").iterdir():
        try:
            is_child = entry.name.isdigit() and f"PPid:\t{os.getpid()}\n" in (entry / "status").read_text()
            if is_child and b"llmrl.envs.gym.evaluator" in (entry / "cmdline").read_bytes():
                child_ids.add(int(entry.name))
        except OSError:
            continue
    return child_ids


def test_workers_do_not_import_torch():
    with GymEvaluator(PENDULUM, workers=2) as evaluator:
        done = evaluator.evaluate(TorchFreeController(1), np.array([[0.1]]), np.arange(4))
        assert len(children()) == 2
    assert (done.lengths == 200).all()
    assert not children()


def test_workers_continue_after_rejection():
    with GymEvaluator(PENDULUM, workers=2) as evaluator:
        first = evaluator.evaluate(WeightedController(1), np.array([[0.1]]), np.arange(4)).returns
        with pytest.raises(EngineError, match="such number"):
            evaluator.evaluate(FailingController(1), np.array([[0.1]]), np.arange(4))
        assert not children()
        assert np.array_equal(evaluator.evaluate(WeightedController(1), np.array([[0.1]]), np.arange(4)).returns, first)


def test_worker_crash_stops_evaluation():
    with GymEvaluator(PENDULUM, workers=2) as evaluator:
        with pytest.raises(EngineError, match=r"Pendulum-v1.*7"):
            evaluator.evaluate(ExitingController(1), np.array([[0.1]]), np.arange(4))
        assert not children()


def test_script_policy_is_not_picklable():
    local = type("Local", (WeightedController,), {"__module__": "__main__"})
    with GymEvaluator(PENDULUM, workers=2) as evaluator, pytest.raises(ConfigError, match="workers=1"):
        evaluator.evaluate(local(1), np.array([[0.1]]), np.arange(4))


SCRIPT = """
import sys
import numpy as np
sys.path.insert(0, {tests!r})
from worker_policies import SlowController, WeightedController
from llmrl.envs.gym.evaluator import EpisodeRules, GymEvaluator
from llmrl.envs.gym.env_factory import EnvFactory
evaluator = GymEvaluator(EpisodeRules(EnvFactory("Pendulum-v1")), workers=2)
evaluator.evaluate(WeightedController(1), np.zeros((1, 1)), np.arange(2))
print("ready", *[worker.process.pid for worker in evaluator._pool._workers], flush=True)
evaluator.evaluate(SlowController(1), np.zeros((1, 1)), np.arange(20))
"""


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number", mark_long_except([signal.SIGKILL], [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
def test_killed_evaluation_leaves_no_workers(number):
    script = SCRIPT.format(tests=str(Path(__file__).parents[2] / "support"))
    with commands.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        word, *pids = process.stdout.readline().split()
        assert word == "ready"
        assert len(pids) == 2
        time.sleep(0.3)
        assert all(alive(int(pid)) for pid in pids)
        process.send_signal(number)
        process.wait(60)
    deadline = time.monotonic() + 20
    while any(alive(int(pid)) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(int(pid)) for pid in pids)
