"""Speed of the Melting Pot environment of llmrl, compared with the engine as dm-meltingpot configures it.

    python benchmarks/melting_pot.py [--substrate cleanup harvest] [--steps 1000] [--rounds 5]

In each round, the following play an episode with random actions: (a) the engine in this process, as dm-meltingpot
builds it, with all observations of all players, rebuilt for each episode; (b) a game of llmrl without its worker
process; (c) the environment of llmrl with one game; (d) with two games. All players observe RGB images. Prints medians
over rounds: steps per second without and with the start of the episode, and the duration of the start. The environment
of llmrl waits before each episode, as it would during the update of a learner, while workers prepare the next game;
`immediate start` is a start without this delay.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np

from llmrl.core.seeding import Seeds
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.melting_pot.worker import Game, MemoryLayout
from llmrl.envs.substrate import install
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, SubstrateName

PAUSE_SECONDS = 1.0


class Official:
    """Engine with the configuration of dm-meltingpot."""

    def __init__(self, substrate: SubstrateName) -> None:
        self._dmlab2d, self._module = install.import_substrate(SUBSTRATES[substrate].module_name)
        definition = dict(self._module.build(("default",) * 7, None))
        definition["levelName"] = f"{definition['levelDirectory']}/{definition['levelName']}"
        definition["levelDirectory"] = str(install.find_package_parent())
        flat = importlib.import_module("dmlab2d.settings_helper").flatten_args(definition)
        self._settings = {key.replace("$", "."): str(value) for key, value in flat.items()}
        self._root = importlib.import_module("dmlab2d.runfiles_helper").find()
        self._env: Any = None
        self.timestep: Any = None

    def reset(self) -> None:
        lab = self._dmlab2d.Lab2d(self._root, {**self._settings, "env_seed": "1"})
        self._env = self._dmlab2d.Environment(lab, lab.observation_names(), seed=1)
        self.timestep = self._env.reset()

    def step(self, action: np.ndarray) -> None:
        moves = self._module.ACTION_SET
        self.timestep = self._env.step(
            {f"{p}.{k}": v for p, a in enumerate(action[0], start=1) for k, v in moves[a].items()}
        )


class SingleGame:
    """Game of the llmrl environment, without its worker process."""

    def __init__(self, substrate: SubstrateName) -> None:
        self._layout = MemoryLayout(substrate, "upstream", 1, 7, ("pixels",), False)
        self._arrays = self._layout.map_arrays(bytearray(self._layout.nbytes))

    def reset(self) -> None:
        self._game = Game(self._layout)
        self._game.start(1)
        self._game.observe(self._arrays, 0)

    def step(self, action: np.ndarray) -> None:
        self._game.step(action[0])
        self._game.observe(self._arrays, 0)


def time_episode(env: Official | SingleGame | MeltingPotEnv, actions: np.ndarray) -> tuple[float, float]:
    """Play an episode, and return the durations of its start and of its steps, seconds.

    Args:
        env: environment.
        actions: actions of all steps, [T, n_envs, n_agents].
    """
    start = time.perf_counter()
    env.reset()
    first_step = time.perf_counter()
    for action in actions:
        env.step(action)
    return first_step - start, time.perf_counter() - first_step


def compare(substrate: SubstrateName, steps: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    envs = {n: MeltingPotEnv(SubstrateSettings(substrate, n, horizon=steps), Seeds(n)) for n in (1, 2)}
    players: dict[str, tuple[int, Official | SingleGame | MeltingPotEnv]] = {
        "official": (1, Official(substrate)),
        "llmrl, no worker": (1, SingleGame(substrate)),
    }
    players |= {f"llmrl, {n} game{'s' * (n > 1)}": (n, env) for n, env in envs.items()}
    measurements: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    immediate_seconds = []
    for env in envs.values():
        env.reset()
    for _ in range(rounds):
        for name, (n, env) in players.items():
            actions = rng.integers(0, len(SUBSTRATES[substrate].upstream_actions), (steps, n, 7))
            if isinstance(env, MeltingPotEnv):
                env.reset()
                immediate_seconds.append(time_episode(env, actions[:0])[0])  # no game is prepared yet
                for action in actions:
                    env.step(action)
                time.sleep(PAUSE_SECONDS)
            start_seconds, step_seconds = time_episode(env, actions)
            total_seconds = start_seconds + step_seconds
            measurements[name].append((n * steps / step_seconds, n * steps / total_seconds, start_seconds))
    for env in envs.values():
        env.close()

    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in measurements.items()
    }
    reference = medians["official"]
    print(f"{substrate:18}  env steps/s          with starts          start, s")
    for name, (rate, total_rate, start_seconds) in medians.items():
        rate_cell = f"{rate:7.0f} ({rate / reference[0]:4.2f}x)"
        total_cell = f"{total_rate:7.0f} ({total_rate / reference[1]:4.2f}x)"
        print(f"  {name:16}  {rate_cell}     {total_cell}     {start_seconds:.3f}")
    print(f"  one to two games: {medians['llmrl, 2 games'][0] / medians['llmrl, 1 game'][0]:.2f}x", end="; ")
    print(f"immediate start: {statistics.median(immediate_seconds):.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", nargs="+", default=["cleanup", "harvest"], choices=list(SUBSTRATES))
    parser.add_argument("--steps", type=int, default=1000, help="steps per episode, below 1099")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for substrate in arguments.substrate:
        compare(substrate, arguments.steps, arguments.rounds)
