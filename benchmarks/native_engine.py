"""Speed of the native engine compared with Melting Pot: agent steps per second with random actions and 7 players.

    python benchmarks/native_engine.py [--substrate cleanup harvest] [--batch 1 64 1024 4096] [--seconds 2] [--rounds 3]
        [--what rules grid pixels] [--cpu]

Melting Pot runs in one process per core: `stock` as dm-meltingpot configures the engine, with all observations;
`pictures` with only the images of the players. The native engine runs in one process with one thread, in one process
with a thread per core, and in one process per core with one thread each, like the runs of a sweep. It is measured with
`rules` (no images or grids), `grid` and `pixels` observations of all players. `kernel` is only the compiled loops,
`step` is `VecEnv.step`. Measurements alternate, `--rounds` times; prints medians and their ratios to `stock` on all
cores. Starts of episodes are excluded: they take as long as a thousand steps in Melting Pot, and less than one step in
the native engine. The last lines compare the speed of `pixels` with the speed at which torch fills the same memory with
zeros.
`--cpu` measures CPU time of one process instead, for machines with other load.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import torch
from melting_pot import Official, SingleGame

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.native.game_arrays import LoopInputs, LoopOutputs
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.envs.substrate.substrate_rules import PIXELS_SHAPE, SUBSTRATES, SubstrateName
from llmrl.sweeps.machine import Machine

PLAYERS = 7
MIN_GAMES_IN_PROCESSES = 1024
"""Minimum number of games in a batch for the measurement with one process per core."""
STEPS = 1000
"""Number of steps of an episode in Melting Pot; native games have no horizon."""
CLOCK = time.perf_counter
"""Clock of all measurements, seconds; CPU time with `--cpu`."""


def run_melting_pot(kind: str, substrate: SubstrateName, seconds: float, barrier: Barrier, rates: Any) -> None:
    """Play episodes for `seconds` after the barrier, and put agent steps per second into the queue `rates`."""
    env: Official | SingleGame = Official(substrate) if kind == "stock" else SingleGame(substrate)
    actions = np.random.default_rng(0).integers(len(SUBSTRATES[substrate].upstream_actions), size=(STEPS, 1, PLAYERS))
    env.reset()
    barrier.wait()
    n_steps, elapsed = 0, 0.0
    while elapsed < seconds:
        start = CLOCK()
        for action in actions[:100]:
            env.step(action)
        elapsed += CLOCK() - start
        n_steps += 100
        if n_steps % STEPS == 0:
            env.reset()
    rates.put(PLAYERS * n_steps / elapsed)


def measure_melting_pot(kind: str, substrate: SubstrateName, processes: int, seconds: float) -> float:
    """Return the total agent steps per second of all processes."""
    context = multiprocessing.get_context("fork")
    barrier, rates = context.Barrier(processes), context.SimpleQueue()
    arguments = (kind, substrate, seconds, barrier, rates)
    workers = [context.Process(target=run_melting_pot, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(rates.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(total)


class NativeGames:
    """Batch of native games with random actions.

    Args:
        substrate: substrate of the games.
        batch: number of games.
        observation: `rules` (only vectors), `grid` or `pixels`.
    """

    def __init__(self, substrate: SubstrateName, batch: int, observation: str) -> None:
        observe = ["vector" if observation == "rules" else observation]
        self.env = NativeEnv(SubstrateSettings(substrate, batch, observe=observe, horizon=None), Seeds(0))
        self.env.reset(seed=1)
        self.batch = batch
        generator = torch.Generator().manual_seed(0)
        self.actions = torch.randint(self.env.spec.n_actions, (16, batch, PLAYERS), generator=generator)
        observer, frame = self.env.observation_builder, self.env.observation_builder.rotate_buffers()
        buffers = self.env._allocate((3, batch, PLAYERS)), self.env._allocate((8, batch))
        vector = observer.allocate_vectors()[1] if observer.has_vectors else self.env.engine.empty_vectors
        self._outputs = LoopOutputs(*buffers, frame["grid"][1], frame["tile_ids"][1], vector)
        self._frame = frame
        for action in self.actions[:8]:
            self.step(action), self.kernel(action.numpy())

    def step(self, action: torch.Tensor) -> None:
        self.env.step(action)

    def kernel(self, action: Any) -> None:
        """Run the game loops and rendering."""
        env = self.env
        inputs = LoopInputs(env._commands, action, env._device_game_keys)
        env.engine.game_loop(env.n_threads, self.batch, (inputs, self._outputs, *env._loop_constants))
        if env.observation_builder.has_pixels:
            env.observation_builder.renderer.render(self._frame["tile_ids"][0], out=self._frame["pixels"][0])

    def measure_rate(self, seconds: float, method: str = "step") -> float:
        """Return agent steps per second of the method `step` or `kernel`."""
        n_steps, step = 0, getattr(self, method)
        actions = list(self.actions if method == "step" else self.actions.numpy())
        start = CLOCK()
        while CLOCK() - start < seconds:
            for action in actions:
                step(action)
            # The check runs once per pass over the actions, because it takes a tenth of a step of one game.
            if self.env._episode_clock.has_ended.any():
                self.env.reset()
            n_steps += len(actions)
        return PLAYERS * self.batch * n_steps / (CLOCK() - start)


def run_native(
    substrate: SubstrateName, batch: int, observation: str, seconds: float, rounds: int, barrier: Barrier, rates: Any
) -> None:
    """Play with one thread for `seconds` in each round, and put agent steps per second into the queue `rates`."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        games = NativeGames(substrate, batch, observation)
        for _ in range(rounds):
            barrier.wait()
            rates.put(games.measure_rate(seconds))


def measure_in_processes(
    substrate: SubstrateName, batch: int, observation: str, processes: int, arguments: Any
) -> list[float]:
    """Return the total agent steps per second of one process per core in each round."""
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(processes), context.SimpleQueue()
    process_arguments = (substrate, batch, observation, arguments.seconds, arguments.rounds, barrier, rates)
    workers = [context.Process(target=run_native, args=process_arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    totals = [sum(rates.get() for _ in workers) for _ in range(arguments.rounds)]
    for worker in workers:
        worker.join()
    return totals


def compare(substrate: SubstrateName, arguments: argparse.Namespace, cores: int) -> None:
    """Measure and print the speed of a substrate on both engines."""
    games: dict[tuple[str, int], NativeGames] = {}
    for observation in arguments.what:
        for batch in arguments.batch:
            try:
                games[observation, batch] = NativeGames(substrate, batch, observation)
            except ConfigError as error:
                print(f"skipped: {error}")
    measurements: dict[Any, list[float]] = defaultdict(list)
    threads = sorted({1, cores})
    for _ in range(arguments.rounds):
        for kind in ("stock", "pictures"):
            measurements[kind].append(measure_melting_pot(kind, substrate, cores, arguments.seconds))
        for key, native_games in games.items():
            for n in threads:
                torch.set_num_threads(n)
                for method in ("kernel", "step"):
                    measurements[(*key, method, n)].append(native_games.measure_rate(arguments.seconds, method))
                if key[0] == "pixels":
                    buffer = native_games.env.observation_builder.rotate_buffers()["pixels"][0]
                    n_views = buffer.numel() / np.prod(PIXELS_SHAPE)
                    measurements[(*key, "fill", n)].append(n_views / measure_min_seconds(buffer.zero_, 5))
    large = [key for key in games if key[1] >= MIN_GAMES_IN_PROCESSES and not arguments.cpu]
    process_rates = {key: measure_in_processes(substrate, key[1], key[0], cores, arguments) for key in large}
    median = {key: statistics.median(rates) for key, rates in measurements.items()}
    stock = median["stock"]
    print(f"\n{substrate}: agent steps/s (x stock engine on {cores} cores)")
    for kind, label in (("stock", "all observations"), ("pictures", "images only")):
        print(f"  Melting Pot, {cores} processes, {label:16} {median[kind]:12,.0f}  ({median[kind] / stock:6.2f}x)")
    for observation, batch in games:
        for method in ("kernel", "step"):
            rates = "   ".join(
                f"{n} thread{'s' * (n > 1)} {median[observation, batch, method, n]:12,.0f} "
                f"({median[observation, batch, method, n] / stock:6.1f}x)"
                for n in threads
            )
            if method == "step" and (totals := process_rates.get((observation, batch))):
                total = statistics.median(totals)
                rates += f"   {cores} processes {total:12,.0f} ({total / stock:6.1f}x)"
            print(f"  native {observation:7} {batch:6,} games {method:7} {rates}")
    for observation, batch, n in ((key[0], key[1], key[3]) for key in median if key[2:3] == ("fill",)):
        share = median[observation, batch, "step", n] / median[observation, batch, "fill", n]
        print(f"  {batch:6,} games, {n} threads: {share:.0%} of the speed of filling this memory with zeros in torch")
    for (observation, batch), native_games in games.items():
        if batch == arguments.batch[-1]:
            n_bytes = native_games.env.observation_builder.bytes_per_game
            print(f"  memory per game with {observation}: {n_bytes / 1024:,.1f} KiB")


def measure_min_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Return the minimum duration of a function over `repeats` calls, seconds, after a warm-up call."""
    function()
    seconds = []
    for _ in range(repeats):
        start = CLOCK()
        function()
        seconds.append(CLOCK() - start)
    return min(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", nargs="+", default=["cleanup", "harvest"], choices=list(SUBSTRATES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 64, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", nargs="+", default=["rules", "grid", "pixels"], choices=["rules", "grid", "pixels"])
    parser.add_argument("--cpu", action="store_true", help="measure CPU time of one process")
    options = parser.parse_args()
    if options.cpu:
        CLOCK = time.process_time
    with torch.inference_mode():
        for name in options.substrate:
            compare(name, options, 1 if options.cpu else Machine.detect().cores)
