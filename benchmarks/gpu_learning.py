"""PPO and batches of societies on a GPU, for `benchmarks/gpu.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from batched_societies import Maps, Setting
from gpu_games import PLAYERS, harvest
from gpu_part import Part, seconds
from plain_ppo import PPO_SETTINGS, plain_ppo

from llmrl.api.environments import make_env
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector


class Learning:
    """PPO on Harvest: rollouts, and updates."""

    def __init__(self, device: str, games: int, steps: int, minibatch: int) -> None:
        self.device, self.steps = "cuda" if device == "cuda" else "cpu", steps
        env = harvest(device, games)
        ppo = replace(PPO_SETTINGS, minibatch_size=minibatch)
        self.agent = plain_ppo(env.spec, Seeds(0), ppo, self.device)
        self.collector = Collector(env, self.agent.policy, self.device)
        self.collector.reset(0)
        self.generators = Seeds(0).torch("actions"), Seeds(0).torch("minibatches")
        self.samples = games * steps * PLAYERS

    def round(self) -> tuple[float, float]:
        """Return seconds of playing, and of learning."""
        rollouts: list[Any] = []
        played = seconds(lambda: rollouts.append(self.collector.collect(self.steps, self.generators[0])), self.device)
        return played, seconds(lambda: self.agent.update(rollouts[0], self.generators[1]), self.device)


def measure_ppo(part: Part) -> None:
    part.row("", "first", "whole, k/s", "rollout, k/s", "update, k/s", "memory", "x CPU")
    processor: list[float] = []
    for device, sizes in [("cpu", part.sizes.ppo[0]), *((part.device, each) for each in part.sizes.ppo)]:
        title = f"{sizes[0]:,} games x {sizes[1]} steps, minibatches of {sizes[2]:,}" + ", CPU" * (device == "cpu")

        def measure_and_print(device: str = device, sizes: tuple[int, int, int] = sizes, title: str = title) -> None:
            learning = Learning(device, *sizes)
            first = sum(learning.round())
            rounds = 1 if device == "cpu" else part.sizes.rounds
            played, learned = min((learning.round() for _ in range(rounds)), key=sum)
            rates = [learning.samples / x for x in (played + learned, played, learned)]
            if device == "cpu":
                processor.append(rates[0])
            ratio = f"{rates[0] / processor[0]:.1f}x" if processor else "-"
            part.row(title, f"{first:.1f} s", *(f"{x / 1e3:.1f}" for x in rates), part.memory(), ratio)

        part.fits(title, measure_and_print, 15.0)


@dataclass(frozen=True)
class Kind:
    """A kind of society: `make(device, games)`, games of each society, samples of a minibatch."""

    make: Callable[[str, int], VecEnv]
    games: int
    minibatch: int


def measure_societies(part: Part) -> None:
    steps, games = part.sizes.society_steps, part.sizes.society_games
    kinds = {
        "escape room, 32 games": Kind(lambda _, n: make_env("escape_room", n_envs=n), 32, 256),
        f"maps, 1 game of {steps} steps": Kind(lambda _, n: Maps(n, steps), 1, 256),
        f"harvest, {games} games of {steps} steps": Kind(lambda device, n: harvest(device, n, steps), games, 512),
    }
    part.row("training rounds", "first", "round", "societies/s", "x one", "memory", "x CPU")
    for name, kind in kinds.items():
        found: dict[tuple[str, int], float] = {}  # seconds of a round
        for device, several in [("cpu", part.sizes.societies[1]), *((part.device, n) for n in part.sizes.societies)]:
            title = f"{name}, {several} societ{'ies' if several > 1 else 'y'}" + ", CPU" * (device == "cpu")
            part.fits(title, functools.partial(_society_row, part, kind, device, several, title, found))


def _society_row(
    part: Part, kind: Kind, device: str, several: int, title: str, found: dict[tuple[str, int], float]
) -> None:
    learner = "cuda" if device == "cuda" else "cpu"
    setting = Setting(functools.partial(kind.make, device), kind.games, several, True, kind.minibatch, learner)
    first = seconds(setting.round, learner)
    rounds = 1 if device == "cpu" else part.sizes.rounds
    duration = found[device, several] = min(seconds(setting.round, learner) for _ in range(rounds))
    one, cpu = found.get((device, 1)), found.get(("cpu", several))
    times = f"{duration / one:.1f}x" if one else "-"
    ratio = f"{cpu / duration:.1f}x" if cpu and device != "cpu" else "-"
    part.row(title, f"{first:.2f} s", f"{duration:.3f} s", f"{several / duration:.1f}", times, part.memory(), ratio)
