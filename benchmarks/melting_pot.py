"""Speed of Melting Pot through this package, beside the engine with everything it observes by default.

    python benchmarks/melting_pot.py [--substrate cleanup harvest] [--steps 1000] [--rounds 5]

Each round plays, one after the other, an episode of random actions with (a) the engine as dm-meltingpot builds it: all
observations of all players, rebuilt for each episode, in this process; (b) our environment with one game; (c) with
two games. Everybody gets RGB pictures. Printed are medians over the rounds: steps a second without and with the start
of the episode, and what the start takes. Ours has a pause before each episode, as the learner's update would be one,
in which workers get the next game ready; `at once` is a start without it.
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
    """The engine as dm-meltingpot builds it."""

    def __init__(self, substrate: SubstrateName) -> None:
        self._dmlab2d, self._module = install.import_substrate(SUBSTRATES[substrate].module)
        definition = dict(self._module.build(("default",) * 7, None))
        definition["levelName"] = f"{definition['levelDirectory']}/{definition['levelName']}"
        definition["levelDirectory"] = str(install.find_package_root())
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
    """The game that a worker plays, without the worker."""

    def __init__(self, substrate: SubstrateName) -> None:
        self._layout = MemoryLayout(substrate, "upstream", 1, 7, ("pixels",), False)
        self._arrays = self._layout.views(bytearray(self._layout.nbytes))

    def reset(self) -> None:
        self._game = Game(self._layout)
        self._game.start(1)
        self._game.observe(self._arrays, 0)

    def step(self, action: np.ndarray) -> None:
        self._game.step(action[0])
        self._game.observe(self._arrays, 0)


def episode(env: Official | SingleGame | MeltingPotEnv, actions: np.ndarray) -> tuple[float, float]:
    """Return seconds for the start of an episode, and for the steps `actions` [T, n_envs, n_agents]."""
    start = time.perf_counter()
    env.reset()
    first_step = time.perf_counter()
    for action in actions:
        env.step(action)
    return first_step - start, time.perf_counter() - first_step


def compare(substrate: SubstrateName, steps: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    ours = {n: MeltingPotEnv(SubstrateSettings(substrate, n, horizon=steps), Seeds(n)) for n in (1, 2)}
    players: dict[str, tuple[int, Official | SingleGame | MeltingPotEnv]] = {
        "official": (1, Official(substrate)),
        "ours, bare": (1, SingleGame(substrate)),
    }
    players |= {f"ours, {n} game{'s' * (n > 1)}": (n, env) for n, env in ours.items()}
    measured: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    at_once = []
    for env in ours.values():
        env.reset()
    for _ in range(rounds):
        for name, (n, env) in players.items():
            actions = rng.integers(0, len(SUBSTRATES[substrate].actions), (steps, n, 7))
            if isinstance(env, MeltingPotEnv):
                env.reset()
                at_once.append(episode(env, actions[:0])[0])  # the one before is not over: nothing is ready
                for action in actions:
                    env.step(action)
                time.sleep(PAUSE_SECONDS)
            begin, play = episode(env, actions)
            measured[name].append((n * steps / play, n * steps / (begin + play), begin))
    for env in ours.values():
        env.close()

    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in measured.items()
    }
    reference = medians["official"]
    print(f"{substrate:14}  env steps/s          with starts          start, s")
    for name, (rate, whole, begin) in medians.items():
        alone, together = f"{rate:7.0f} ({rate / reference[0]:4.2f}x)", f"{whole:7.0f} ({whole / reference[1]:4.2f}x)"
        print(f"  {name:12}  {alone}     {together}     {begin:.3f}")
    print(f"  one to two games: {medians['ours, 2 games'][0] / medians['ours, 1 game'][0]:.2f}x", end="; ")
    print(f"start at once: {statistics.median(at_once):.3f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", nargs="+", default=["cleanup", "harvest"], choices=list(SUBSTRATES))
    parser.add_argument("--steps", type=int, default=1000, help="steps an episode, below 1099")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for chosen in arguments.substrate:
        compare(chosen, arguments.steps, arguments.rounds)
