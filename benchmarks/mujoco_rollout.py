"""MuJoCo tasks: Gymnasium's environments in two processes, beside `mujoco.rollout` in two threads.

    python benchmarks/mujoco_rollout.py [--rounds 5]

20 games under a linear policy. In the processes each game is stepped by itself. `mujoco.rollout` steps all games at
once in threads of C++, but the policy must see the state in between, so it is called once a step, with the warm start
that equality to Gymnasium needs; observations, rewards and ends would come on top. Also printed: how much of a step of
Gymnasium's environment is `mj_step`. Needs the extra `mujoco`.
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
    """Return seconds of `games` games of `steps` steps, one after the other."""
    env: Any = gymnasium.make(name, disable_env_checker=True)
    size = env.observation_space.shape[0], env.action_space.shape[0]
    weights = np.random.default_rng(0).normal(0, 0.1, size)
    start = time.perf_counter()
    for seed in range(games):
        observation, _ = env.reset(seed=seed)
        for _ in range(steps):
            observation, *_ = env.step((observation @ weights).astype(np.float32))
    return time.perf_counter() - start


def time_half_of_games(arguments: tuple[str, int]) -> float:
    return time_gymnasium(arguments[0], GAMES // 2, arguments[1])


def time_rollout(name: str, steps: int, threads: int) -> float:
    """Return seconds of 20 games of `steps` steps by `mujoco.rollout`."""
    import mujoco
    from mujoco import rollout

    env: Any = gymnasium.make(name).unwrapped
    model, full = env.model, mujoco.mjtState.mjSTATE_FULLPHYSICS
    state = np.zeros((GAMES, mujoco.mj_stateSize(model, full)))
    for seed in range(GAMES):
        env.reset(seed=seed)
        mujoco.mj_getState(model, env.data, state[seed], full)
    weights = np.random.default_rng(0).normal(0, 0.1, (state.shape[1], model.nu))
    data, warm = [mujoco.MjData(model) for _ in range(threads)], np.zeros((GAMES, model.nv))
    start = time.perf_counter()
    with rollout.Rollout(nthread=threads) as roll:
        for _ in range(steps):
            control = np.repeat(np.clip(state @ weights, -1, 1)[:, None], env.frame_skip, axis=1)
            states, _ = roll.rollout(model, data, state, control, initial_warmstart=warm)
            state = states[:, -1]
    return time.perf_counter() - start


def mj_step_share(name: str) -> float:
    """Return the share of a step that is MuJoCo's own."""
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
    print(f"{'seconds':21}{'2 processes':>12}{'2 threads':>12}{'ratio':>8}   mj_step of a step")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for name, steps in SETTINGS:
            pool.map(time_half_of_games, [(name, 10)] * 2)
            rows = [
                (max(pool.map(time_half_of_games, [(name, steps)] * 2)), time_rollout(name, steps, 2))
                for _ in range(rounds)
            ]
            processes, threads = np.median(rows, axis=0)
            ratio = np.median([b / a for a, b in rows])
            print(f"{name:21}{processes:12.2f}{threads:12.2f}{ratio:8.2f}{mj_step_share(name):11.0%}", flush=True)


if __name__ == "__main__":
    main()
