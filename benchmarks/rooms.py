"""Steps a second of the batched rooms and of the same tasks on MiniGrid in Gymnasium's SyncVectorEnv.

Random actions, observations and new episodes included, in turn in one run and on one core; the median of five rounds.
MiniGrid's DoorKey gives its 7 x 7 view on both sides, SimpleDoorKey the map of all cells seen. Targets for the batched
rooms: 60 000 with the view, 100 000 with the map.
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
BATCHED_STEPS, SYNC_STEPS = 400, 12  # steps a round


def make_batched_timer(env: RoomsEnv) -> Callable[[], float]:
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def speed() -> float:
        actions = rng.integers(7, size=(BATCHED_STEPS, GAMES, 1))
        start = time.perf_counter()
        for action in actions:
            step = env.step(action)
            if (ended := step.terminated | step.truncated).any():
                env.reset(ended)
        return BATCHED_STEPS * GAMES / (time.perf_counter() - start)

    return speed


def make_sync_timer(make: Callable[[], gymnasium.Env]) -> Callable[[], float]:
    envs = gymnasium.vector.SyncVectorEnv([make] * GAMES)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)

    def speed() -> float:
        actions = rng.integers(7, size=(SYNC_STEPS, GAMES))
        start = time.perf_counter()
        for action in actions:
            envs.step(action)
        return SYNC_STEPS * GAMES / (time.perf_counter() - start)

    return speed


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
        a, b = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:20}  batched {a:9,.0f}   SyncVectorEnv {b:7,.0f}   ratio {a / b:6.0f}")


if __name__ == "__main__":
    main()
