"""Speed of the native engine beside Melting Pot, in one run: agent steps a second with random actions, 7 players.

    python benchmarks/native_engine.py [--substrate cleanup harvest] [--batch 1 64 1024 4096] [--seconds 2] [--rounds 3]
        [--what rules grid pixels] [--cpu]

The reference plays one process a core: `stock` as dm-meltingpot builds the engine, with all it observes; `pictures`
asked for the players' pictures alone. Ours plays in one process with one thread, in one with as many threads as there
are cores, and in a process a core with one thread each, as the runs of a sweep do: `rules` without anything seen,
`grid` and `pixels` with what all players see. `kernel` is the compiled loops alone, `step` is `VecEnv.step`. Everything
is measured in turns, `--rounds` times, and the medians are printed, with their ratio to `stock` on all cores. Starts of
episodes, which take the reference as long as a thousand steps and ours less than one, are left out. Last comes the
speed of `pixels` as a share of the speed at which torch fills the same memory with zeros.
`--cpu` counts processor time instead, of one process of each kind: for machines that others use, too.
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
from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.envs.native.game_arrays import LoopInputs, LoopOutputs
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.envs.substrate.substrate_rules import PIXELS_SHAPE, SUBSTRATES, SubstrateName
from llmrl.sweeps.machine import Machine

PLAYERS = 7
MIN_GAMES_IN_PROCESSES = 1024
"""Minimum number of games of a batch that is also measured with one process per core."""
STEPS = 1000
"""Number of steps of an episode of the reference; native games have no horizon."""
CLOCK = time.perf_counter


def reference_process(kind: str, substrate: SubstrateName, seconds: float, barrier: Barrier, rates: Any) -> None:
    env: Official | SingleGame = Official(substrate) if kind == "stock" else SingleGame(substrate)
    actions = np.random.default_rng(0).integers(len(SUBSTRATES[substrate].actions), size=(STEPS, 1, PLAYERS))
    env.reset()
    barrier.wait()
    done, elapsed = 0, 0.0
    while elapsed < seconds:
        begin = CLOCK()
        for action in actions[:100]:
            env.step(action)
        elapsed += CLOCK() - begin
        done += 100
        if done % STEPS == 0:
            env.reset()
    rates.put(PLAYERS * done / elapsed)


def reference(kind: str, substrate: SubstrateName, processes: int, seconds: float) -> float:
    """Return agent steps per second of all processes together."""
    context = multiprocessing.get_context("fork")
    barrier, rates = context.Barrier(processes), context.SimpleQueue()
    arguments = (kind, substrate, seconds, barrier, rates)
    workers = [context.Process(target=reference_process, args=arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(rates.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(total)


class Native:
    """The measurement of one batch: `rules`, `grid` or `pixels`, as `kernel` or whole `step`."""

    def __init__(self, substrate: SubstrateName, batch: int, what: str) -> None:
        observe = ["vector" if what == "rules" else what]
        self.env = NativeEnv(SubstrateSettings(substrate, batch, observe=observe, horizon=None), Seeds(0))
        self.env.reset(seed=1)
        self.batch = batch
        generator = torch.Generator().manual_seed(0)
        self.actions = torch.randint(self.env.spec.n_actions, (16, batch, PLAYERS), generator=generator)
        observer, frame = self.env.observer, self.env.observer.next_buffers()
        room = self.env._allocate((3, batch, PLAYERS)), self.env._allocate((8, batch))
        vector = observer.allocate_vector()[1] if observer.has_vectors else self.env.engine.empty_vectors
        self._outputs = LoopOutputs(*room, frame["grid"][1], frame["tile_ids"][1], vector)
        self._frame = frame
        for action in self.actions[:8]:
            self.step(action), self.kernel(action.numpy())

    def step(self, action: torch.Tensor) -> Step:
        return self.env.step(action)

    def kernel(self, action: Any) -> None:
        """Run the loops and the painting of pictures."""
        env = self.env
        inputs = LoopInputs(env._commands, action, env._device_game_keys)
        env.engine.play_games(env.threads, self.batch, (inputs, self._outputs, *env._loop_constants))
        if env.observer.has_pixels:
            env.observer.renderer.render(self._frame["tile_ids"][0], out=self._frame["pixels"][0])

    def rate(self, seconds: float, way: str = "step") -> float:
        """Return agent steps per second."""
        done, step = 0, getattr(self, way)
        actions = list(self.actions if way == "step" else self.actions.numpy())
        begin = CLOCK()
        while CLOCK() - begin < seconds:
            for action in actions:
                result = step(action)
            # Once per pass over the actions, as the check takes a tenth of a step of one game.
            if result is not None and result.truncated.any():
                self.env.reset()
            done += len(actions)
        return PLAYERS * self.batch * done / (CLOCK() - begin)


def native_process(
    substrate: SubstrateName, batch: int, what: str, seconds: float, rounds: int, barrier: Barrier, rates: Any
) -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        player = Native(substrate, batch, what)
        for _ in range(rounds):
            barrier.wait()
            rates.put(player.rate(seconds))


def measure_in_processes(
    substrate: SubstrateName, batch: int, what: str, processes: int, arguments: Any
) -> list[float]:
    """Return agent steps per second of one process per core, all together, in each round."""
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(processes), context.SimpleQueue()
    process_arguments = (substrate, batch, what, arguments.seconds, arguments.rounds, barrier, rates)
    workers = [context.Process(target=native_process, args=process_arguments) for _ in range(processes)]
    for worker in workers:
        worker.start()
    totals = [sum(rates.get() for _ in workers) for _ in range(arguments.rounds)]
    for worker in workers:
        worker.join()
    return totals


def compare(substrate: SubstrateName, arguments: argparse.Namespace, cores: int) -> None:
    players: dict[tuple[str, int], Native] = {}
    for what in arguments.what:
        for batch in arguments.batch:
            try:
                players[what, batch] = Native(substrate, batch, what)
            except ConfigError as error:
                print(f"left out: {error}")
    measured: dict[Any, list[float]] = defaultdict(list)
    threads = sorted({1, cores})
    for _ in range(arguments.rounds):
        for kind in ("stock", "pictures"):
            measured[kind].append(reference(kind, substrate, cores, arguments.seconds))
        for key, player in players.items():
            for n in threads:
                torch.set_num_threads(n)
                for way in ("kernel", "step"):
                    measured[(*key, way, n)].append(player.rate(arguments.seconds, way))
                if key[0] == "pixels":
                    room = player.env.observer.next_buffers()["pixels"][0]
                    views = room.numel() / np.prod(PIXELS_SHAPE)
                    measured[(*key, "fill", n)].append(views / best(room.zero_, 5))
    large = [key for key in players if key[1] >= MIN_GAMES_IN_PROCESSES and not arguments.cpu]
    many = {key: measure_in_processes(substrate, key[1], key[0], cores, arguments) for key in large}
    median = {key: statistics.median(rates) for key, rates in measured.items()}
    stock = median["stock"]
    print(f"\n{substrate}: agent steps/s (x stock engine on {cores} cores)")
    for kind, label in (("stock", "all it observes"), ("pictures", "pictures only")):
        print(f"  Melting Pot, {cores} processes, {label:16} {median[kind]:12,.0f}  ({median[kind] / stock:6.2f}x)")
    for what, batch in players:
        for way in ("kernel", "step"):
            rates = "   ".join(
                f"{n} thread{'s' * (n > 1)} {median[what, batch, way, n]:12,.0f} "
                f"({median[what, batch, way, n] / stock:6.1f}x)"
                for n in threads
            )
            if way == "step" and (together := many.get((what, batch))):
                whole = statistics.median(together)
                rates += f"   {cores} processes {whole:12,.0f} ({whole / stock:6.1f}x)"
            print(f"  native {what:7} {batch:6,} games {way:7} {rates}")
    for what, batch, n in ((key[0], key[1], key[3]) for key in median if key[2:3] == ("fill",)):
        share = median[what, batch, "step", n] / median[what, batch, "fill", n]
        print(f"  {batch:6,} games, {n} threads: {share:.0%} of the speed at which torch fills this memory with zeros")
    for (what, batch), player in players.items():
        if batch == arguments.batch[-1]:
            print(f"  memory of a game with {what}: {player.env.observer.bytes_per_game / 1024:,.1f} KiB")


def best(work: Callable[[], Any], times: int) -> float:
    """Return the minimum seconds of `work`, after one call to warm up."""
    work()
    seconds = []
    for _ in range(times):
        begin = CLOCK()
        work()
        seconds.append(CLOCK() - begin)
    return min(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", nargs="+", default=["cleanup", "harvest"], choices=list(SUBSTRATES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 64, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--what", nargs="+", default=["rules", "grid", "pixels"], choices=["rules", "grid", "pixels"])
    parser.add_argument("--cpu", action="store_true", help="processor time, one process of each")
    options = parser.parse_args()
    if options.cpu:
        CLOCK = time.process_time
    with torch.inference_mode():
        for name in options.substrate:
            compare(name, options, 1 if options.cpu else Machine.detect().cores)
