"""Simulation time of MuJoCo tasks: Gymnasium in two processes, compared with `mujoco.rollout` in two threads.

    python benchmarks/mujoco_rollout.py [--rounds 5]

Each method plays 20 games with a linear policy. The processes step each game separately. `mujoco.rollout` steps all
games in C++ threads. Because the policy needs the state before each action, it is called once per step, with the warm
start that results equal to Gymnasium require. Its times exclude observations, rewards and ends of episodes. The last
column is the share of `mj_step` in the duration of a Gymnasium step. Needs the extra `mujoco`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np

GAMES = 20
SETTINGS = (("InvertedPendulum-v5", 500), ("Swimmer-v5", 500), ("Hopper-v5", 200), ("Walker2d-v5", 200))


def time_gymnasium(name: str, games: int, steps: int) -> float:
    """Return the duration, seconds, of `games` games of `steps` steps in Gymnasium, played sequentially."""
    env: Any = gymnasium.make(name, disable_env_checker=True)
    size = env.observation_space.shape[0], env.action_space.shape[0]
    weights = np.random.default_rng(0).normal(0, 0.1, size)
    start = time.perf_counter()
    for seed in range(games):
        observation, _ = env.reset(seed=seed)
        for _ in range(steps):
            observation, *_ = env.step((observation @ weights).astype(np.float32))
    return time.perf_counter() - start


def time_process_games(task: tuple[str, int]) -> float:
    """Return the duration, seconds, of the games of one of two processes; `task` is (name, steps)."""
    name, steps = task
    return time_gymnasium(name, GAMES // 2, steps)


def time_rollout(name: str, steps: int, threads: int) -> float:
    """Return the duration, seconds, of `GAMES` games of `steps` steps with `mujoco.rollout`."""
    import mujoco
    from mujoco import rollout

    env: Any = gymnasium.make(name).unwrapped
    model, full = env.model, mujoco.mjtState.mjSTATE_FULLPHYSICS
    state = np.zeros((GAMES, mujoco.mj_stateSize(model, full)))
    for seed in range(GAMES):
        env.reset(seed=seed)
        mujoco.mj_getState(model, env.data, state[seed], full)
    weights = np.random.default_rng(0).normal(0, 0.1, (state.shape[1], model.nu))
    data, warmstart = [mujoco.MjData(model) for _ in range(threads)], np.zeros((GAMES, model.nv))
    start = time.perf_counter()
    with rollout.Rollout(nthread=threads) as simulator:
        for _ in range(steps):
            control = np.repeat(np.clip(state @ weights, -1, 1)[:, None], env.frame_skip, axis=1)
            states, _ = simulator.rollout(model, data, state, control, initial_warmstart=warmstart)
            state = states[:, -1]
    return time.perf_counter() - start


def measure_mj_step_share(name: str) -> float:
    """Return the duration of `mj_step` divided by that of a step in Gymnasium."""
    import mujoco

    env: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    action = np.zeros(env.action_space.shape, dtype=np.float32)
    seconds = [0.0, 0.0]
    for _ in range(20):
        for part, step in enumerate(
            (lambda: env.step(action), lambda: mujoco.mj_step(env.model, env.data, env.frame_skip))
        ):
            start = time.perf_counter()
            for _ in range(100):
                step()
            seconds[part] += time.perf_counter() - start
    return seconds[1] / seconds[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'seconds':21}{'2 processes':>12}{'2 threads':>12}{'ratio':>8}   mj_step / step")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for name, steps in SETTINGS:
            pool.map(time_process_games, [(name, 10)] * 2)
            rows = [
                (max(pool.map(time_process_games, [(name, steps)] * 2)), time_rollout(name, steps, 2))
                for _ in range(rounds)
            ]
            processes, threads = np.median(rows, axis=0)
            ratio = np.median([thread_seconds / process_seconds for process_seconds, thread_seconds in rows])
            share = measure_mj_step_share(name)
            print(f"{name:21}{processes:12.2f}{threads:12.2f}{ratio:8.2f}{share:11.0%}", flush=True)


if __name__ == "__main__":
    main()
