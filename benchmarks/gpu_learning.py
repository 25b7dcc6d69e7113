"""Throughput of PPO and of batched societies on a GPU, for `benchmarks/gpu.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from batched_societies import MapsEnv, SocietyTraining
from gpu_games import PLAYERS, make_harvest
from gpu_part import Part, measure_seconds
from plain_ppo import PPO_SETTINGS, build_ppo_agent

from llmrl.api.environments import make_env
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector


class PPOTraining:
    """Training of PPO on Harvest: rollouts and updates."""

    def __init__(self, device: str, games: int, steps: int, minibatch: int) -> None:
        self.device, self.steps = "cuda" if device == "cuda" else "cpu", steps
        env = make_harvest(device, games)
        ppo = replace(PPO_SETTINGS, minibatch_size=minibatch)
        self.agent = build_ppo_agent(env.spec, Seeds(0), ppo, self.device)
        self.collector = Collector(env, self.agent.policy, self.device)
        self.collector.reset(0)
        self.generators = Seeds(0).torch("actions"), Seeds(0).torch("minibatches")
        self.n_samples = games * steps * PLAYERS

    def measure_round(self) -> tuple[float, float]:
        """Collect a rollout and update the policy; return the seconds of each."""
        rollouts: list[Any] = []
        rollout_seconds = measure_seconds(
            lambda: rollouts.append(self.collector.collect(self.steps, self.generators[0])), self.device
        )
        return rollout_seconds, measure_seconds(lambda: self.agent.update(rollouts[0], self.generators[1]), self.device)


def measure_ppo(part: Part) -> None:
    """Print agent steps per second of training, of rollouts and of updates, by size."""
    part.print_row("", "first", "total, k/s", "rollout, k/s", "update, k/s", "memory", "x CPU")
    cpu_rates: list[float] = []
    for device, sizes in [("cpu", part.sizes.ppo[0]), *((part.device, sizes) for sizes in part.sizes.ppo)]:
        title = f"{sizes[0]:,} games x {sizes[1]} steps, minibatches of {sizes[2]:,}" + ", CPU" * (device == "cpu")

        def measure_and_print(device: str = device, sizes: tuple[int, int, int] = sizes, title: str = title) -> None:
            training = PPOTraining(device, *sizes)
            first_seconds = sum(training.measure_round())
            rounds = 1 if device == "cpu" else part.sizes.rounds
            rollout_seconds, update_seconds = min((training.measure_round() for _ in range(rounds)), key=sum)
            durations = rollout_seconds + update_seconds, rollout_seconds, update_seconds
            rates = [training.n_samples / seconds for seconds in durations]
            if device == "cpu":
                cpu_rates.append(rates[0])
            ratio = f"{rates[0] / cpu_rates[0]:.1f}x" if cpu_rates else "-"
            cells = [f"{first_seconds:.1f} s", *(f"{rate / 1e3:.1f}" for rate in rates)]
            part.print_row(title, *cells, part.format_peak_memory(), ratio)

        part.run_measurement(title, measure_and_print, 15.0)


@dataclass(frozen=True)
class SocietySetting:
    """Setting of societies.

    Attributes:
        make_env: function of the device and the number of games that creates the environment.
        games: number of games of each society.
        minibatch: number of samples of a minibatch.
    """

    make_env: Callable[[str, int], VecEnv]
    games: int
    minibatch: int


def measure_societies(part: Part) -> None:
    """Print the duration of training rounds by environment and number of societies."""
    steps, games = part.sizes.society_steps, part.sizes.society_games
    settings = {
        "escape room, 32 games": SocietySetting(lambda _, n: make_env("escape_room", n_envs=n), 32, 256),
        f"maps, 1 game of {steps} steps": SocietySetting(lambda _, n: MapsEnv(n, steps), 1, 256),
        f"harvest, {games} games of {steps} steps": SocietySetting(
            lambda device, n: make_harvest(device, n, steps), games, 512
        ),
    }
    part.print_row("training rounds", "first", "round", "societies/s", "x one", "memory", "x CPU")
    for name, setting in settings.items():
        round_seconds: dict[tuple[str, int], float] = {}  # by device and number of societies
        for device, n in [("cpu", part.sizes.societies[1]), *((part.device, n) for n in part.sizes.societies)]:
            title = f"{name}, {n} societ{'ies' if n > 1 else 'y'}" + ", CPU" * (device == "cpu")
            measure = functools.partial(_print_society_row, part, setting, device, n, title, round_seconds)
            part.run_measurement(title, measure)


def _print_society_row(
    part: Part,
    setting: SocietySetting,
    device: str,
    n_societies: int,
    title: str,
    round_seconds: dict[tuple[str, int], float],
) -> None:
    torch_device = "cuda" if device == "cuda" else "cpu"
    make_env = functools.partial(setting.make_env, device)
    training = SocietyTraining(make_env, setting.games, n_societies, True, setting.minibatch, torch_device)
    first_seconds = measure_seconds(training.measure_round, torch_device)
    rounds = 1 if device == "cpu" else part.sizes.rounds
    seconds = min(measure_seconds(training.measure_round, torch_device) for _ in range(rounds))
    round_seconds[device, n_societies] = seconds
    single_seconds, cpu_seconds = round_seconds.get((device, 1)), round_seconds.get(("cpu", n_societies))
    cells = [f"{first_seconds:.2f} s", f"{seconds:.3f} s", f"{n_societies / seconds:.1f}"]
    cells.append(f"{seconds / single_seconds:.1f}x" if single_seconds else "-")
    cells.append(part.format_peak_memory())
    cells.append(f"{cpu_seconds / seconds:.1f}x" if cpu_seconds and device != "cpu" else "-")
    part.print_row(title, *cells)
