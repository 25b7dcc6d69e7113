"""Steps per second of the vectorized rooms, compared with MiniGrid in Gymnasium's SyncVectorEnv.

Actions are random; times include observations and resets. Measurements alternate on one core; medians of five rounds
are printed. Observations are the 7 x 7 view of the agent in DoorKey, and the map of all visited cells in SimpleDoorKey.
Targets for the vectorized rooms: 60,000 steps per second with the view, 100,000 with the map.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import minigrid  # noqa: F401  # registers DoorKey
import numpy as np

from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.tasks import DoorKey, SimpleDoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from minigrid_rooms import RoomEnv

GAMES = 64
BATCHED_STEPS, SYNC_STEPS = 400, 12  # steps per round


def make_batched_timer(env: RoomsEnv) -> Callable[[], float]:
    """Return a function that measures steps per second of the vectorized rooms."""
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def measure_rate() -> float:
        actions = rng.integers(7, size=(BATCHED_STEPS, GAMES, 1))
        start = time.perf_counter()
        for action in actions:
            step = env.step(action)
            if (done := step.terminated | step.truncated).any():
                env.reset(done)
        return BATCHED_STEPS * GAMES / (time.perf_counter() - start)

    return measure_rate


def make_sync_timer(make: Callable[[], gymnasium.Env]) -> Callable[[], float]:
    """Return a function that measures steps per second of SyncVectorEnv."""
    envs = gymnasium.vector.SyncVectorEnv([make] * GAMES)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def measure_rate() -> float:
        actions = rng.integers(7, size=(SYNC_STEPS, GAMES))
        start = time.perf_counter()
        for action in actions:
            envs.step(action)
        return SYNC_STEPS * GAMES / (time.perf_counter() - start)

    return measure_rate


def main() -> None:
    door_key = RoomsEnv(Seeds(0), DoorKey(8), GAMES, 7, None, ["view", "direction"])
    simple = RoomsEnv(Seeds(0), SimpleDoorKey(), GAMES, 3, 150, ["grid"])
    pairs = {
        "DoorKey-8x8, view 7": (
            make_batched_timer(door_key),
            make_sync_timer(lambda: gymnasium.make("MiniGrid-DoorKey-8x8-v0")),
        ),
        "SimpleDoorKey, map": (make_batched_timer(simple), make_sync_timer(lambda: RoomEnv(SimpleDoorKey()))),
    }
    print(f"{GAMES} games, steps/s")
    for name, (measure_batched, measure_sync) in pairs.items():
        measure_batched(), measure_sync()  # warm up
        rounds = [(measure_batched(), measure_sync()) for _ in range(5)]
        batched_rate, sync_rate = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = batched_rate / sync_rate
        print(f"{name:20}  batched {batched_rate:9,.0f}   SyncVectorEnv {sync_rate:7,.0f}   ratio {ratio:6.0f}")


if __name__ == "__main__":
    main()
