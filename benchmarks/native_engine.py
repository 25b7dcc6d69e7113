"""Speed of the native engine beside Melting Pot, in one run: agent steps a second with random actions, 7 players.

    python benchmarks/native_engine.py [--substrate cleanup harvest] [--batch 1 64 1024 4096] [--seconds 2] [--rounds 3]
        [--device cuda] [--profile | --pictures | --compiled]

The reference plays one process a core: `stock` as dm-meltingpot builds the engine, with all it observes; `pictures`
asked for the players' pictures alone. Ours plays in one process with one thread, in one with as many threads as there
are cores, and in a process a core with one thread each, as the runs of a sweep do: `rules` are the steps alone, `grid`
and `pixels` with what all players see. Everything is measured in turns, `--rounds` times, and the medians are printed,
with their ratio to `stock` on all cores. Starts of episodes, which take the reference as long as a thousand steps and
ours less than one, are left out. `--profile` says where the time goes; `--pictures` and `--compiled` compare ways.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import torch
from melting_pot import Bare, Official
from torch.profiler import ProfilerActivity, profile, record_function

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.melting_pot.describe import SubstrateSettings
from llmrl.envs.melting_pot.layout import PIXELS
from llmrl.envs.melting_pot.rules import SUBSTRATES, SubstrateName
from llmrl.envs.native import maps
from llmrl.envs.native.engine import Engine
from llmrl.envs.native.pictures import Pictures
from llmrl.envs.native.tables import VIEW
from llmrl.envs.native.tiles import tiles
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.sweeps.machine import Machine

PLAYERS = 7
MANY = 1024
"""Games from which on a process a core is measured, too."""
STEPS = 1000
"""Of an episode of the reference; ours goes on for as long as it is measured."""


def reference_process(kind: str, substrate: SubstrateName, seconds: float, barrier: Barrier, rates: Any) -> None:
    env: Official | Bare = Official(substrate) if kind == "stock" else Bare(substrate)
    actions = np.random.default_rng(0).integers(len(SUBSTRATES[substrate].actions), size=(STEPS, 1, PLAYERS))
    env.reset()
    barrier.wait()
    done, spent = 0, 0.0
    while spent < seconds:
        begin = time.perf_counter()
        for action in actions[:100]:
            env.step(action)
        spent += time.perf_counter() - begin
        done += 100
        if done % STEPS == 0:
            env.reset()
    rates.put(PLAYERS * done / spent)


def reference(kind: str, substrate: SubstrateName, processes: int, seconds: float) -> float:
    """Agent steps a second of all processes together."""
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
    """What is measured of one batch: `rules`, `grid` or `pixels`."""

    def __init__(self, substrate: SubstrateName, batch: int, what: str, device: str) -> None:
        observe = ["grid" if what == "rules" else what]
        self.env = NativeEnv(SubstrateSettings(substrate, batch, observe=observe, horizon=None), Seeds(0), device)
        self.env.reset(seed=1)
        self.batch, self.device = batch, device
        generator = torch.Generator().manual_seed(0)
        n = self.env.spec.n_actions
        self.actions = torch.randint(n, (16, batch, PLAYERS), generator=generator).to(device)
        self.step: Callable[[torch.Tensor], None] = self._rules if what == "rules" else self._whole
        state, draws = self.env._state, self.env._draws
        assert state is not None and draws is not None
        self._state, self._draws = state, draws
        for action in self.actions[:8]:
            self.step(action)

    def _rules(self, action: torch.Tensor) -> None:
        self._state, _ = self.env.engine.step(self._state, action, self._draws)

    def _whole(self, action: torch.Tensor) -> None:
        if self.env.step(action).truncated.any():
            self.env.reset()

    def wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def rate(self, seconds: float) -> float:
        """Agent steps a second."""
        done = 0
        self.wait()
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for action in self.actions:
                self.step(action)
            self.wait()
            done += len(self.actions)
        return PLAYERS * self.batch * done / (time.perf_counter() - begin)


def native_process(
    substrate: SubstrateName, batch: int, what: str, seconds: float, rounds: int, barrier: Barrier, rates: Any
) -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        player = Native(substrate, batch, what, "cpu")
        for _ in range(rounds):
            barrier.wait()
            rates.put(player.rate(seconds))


def in_processes(substrate: SubstrateName, batch: int, what: str, processes: int, arguments: Any) -> list[float]:
    """Agent steps a second of a process a core, all together, in each round."""
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(processes), context.SimpleQueue()
    given = (substrate, batch, what, arguments.seconds, arguments.rounds, barrier, rates)
    workers = [context.Process(target=native_process, args=given) for _ in range(processes)]
    for worker in workers:
        worker.start()
    totals = [sum(rates.get() for _ in workers) for _ in range(arguments.rounds)]
    for worker in workers:
        worker.join()
    return totals


def compare(substrate: SubstrateName, arguments: argparse.Namespace, cores: int) -> None:
    device = arguments.device
    threads = [1] if device.startswith("cuda") else sorted({1, cores})
    players: dict[tuple[str, int], Native] = {}
    for what in ("rules", "grid", "pixels"):
        for batch in arguments.batch:
            try:
                players[what, batch] = Native(substrate, batch, what, device)
            except ConfigError as error:
                print(f"left out: {error}")
    measured: dict[Any, list[float]] = defaultdict(list)
    for _ in range(arguments.rounds):
        for kind in ("stock", "pictures"):
            measured[kind].append(reference(kind, substrate, cores, arguments.seconds))
        for key, player in players.items():
            for n in threads:
                torch.set_num_threads(n)
                measured[(*key, n)].append(player.rate(arguments.seconds))
    many = {}
    if not device.startswith("cuda"):
        large = [key for key in players if key[1] >= MANY]
        many = {key: in_processes(substrate, key[1], key[0], cores, arguments) for key in large}
    median = {key: statistics.median(rates) for key, rates in measured.items()}
    stock = median["stock"]
    print(f"\n{substrate}: agent steps/s (x stock engine on {cores} cores)")
    for kind, label in (("stock", "all it observes"), ("pictures", "pictures only")):
        print(f"  Melting Pot, {cores} processes, {label:16} {median[kind]:12,.0f}  ({median[kind] / stock:6.2f}x)")
    for what, batch in players:
        rates = "   ".join(
            f"{n} thread{'s' * (n > 1)} {median[what, batch, n]:12,.0f} ({median[what, batch, n] / stock:6.1f}x)"
            for n in threads
        )
        if together := many.get((what, batch)):
            whole = statistics.median(together)
            rates += f"   {cores} processes {whole:12,.0f} ({whole / stock:6.1f}x)"
        print(f"  native {what:7} {batch:6,} games   {rates}")
    for what in ("grid", "pixels"):
        if sizes := [batch for kind, batch in players if kind == what]:
            env = players[what, sizes[-1]].env
            state = env._state
            assert state is not None
            print(
                f"  memory of a game with {what}: {env.observer.bytes_per_game / 1024:,.1f} KiB, its state alone "
                f"{state.nbytes / env.spec.n_envs:,.0f} bytes"
            )


def show_profile(substrate: SubstrateName, batch: int, device: str) -> None:
    """What the time of a step with pictures goes to, and the operations that take most of it."""
    torch.set_num_threads(1)
    env = Native(substrate, batch, "pixels", device).env
    actions = torch.randint(env.spec.n_actions, (20, batch, PLAYERS)).to(device)
    state, draws, observer = env._state, env._draws, env.observer
    assert state is not None and draws is not None
    picture = observer.frame("pixels", (batch, PLAYERS, *PIXELS), torch.uint8)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.startswith("cuda") else [])
    with profile(activities=activities) as measured:
        for action in actions:
            with record_function("1 rules"):
                state, events = env.engine.step(state, action, draws)
            with record_function("2 codes of all cells"):
                cells = observer.views.cells(state, events, water=True)
            with record_function("3 codes of cells in view"):
                seen = observer.views.seen(cells, state).view(-1)
            with record_function("4 grid"):
                observer.grid.index_select(0, seen)
            with record_function("5 pictures"):
                ids = observer.tiles.index_select(0, seen).view(batch, PLAYERS, 11, 11)
                observer.pictures.expand(ids, out=picture)
    averages = measured.key_averages()
    print(f"\n{substrate}: a step of {batch:,} games, one thread, ms")
    for each in sorted((a for a in averages if a.key[0].isdigit()), key=lambda a: a.key):
        print(f"  {each.key[2:]:26} {each.cpu_time_total / 1e3 / len(actions):8.2f}")
    print("  operations that take most:")
    own = sorted((a for a in averages if not a.key[0].isdigit()), key=lambda a: -a.self_cpu_time_total)[:8]
    for each in own:
        print(f"    {each.key:30} {each.self_cpu_time_total / 1e3 / len(actions):8.2f}")


def show_pictures(threads: list[int], views: int) -> None:
    """Million views of 88 x 88 painted a second: memory filled with zeros, PyTorch's way, and the compiled loop."""
    drawn = tiles("cleanup", maps.find("cleanup", "auto").text, PLAYERS, "auto")
    ids = torch.randint(len(drawn.bank), (views, *VIEW), dtype=torch.int32)
    out = torch.empty((views, *PIXELS), dtype=torch.uint8)
    ways: dict[str, Callable[[], Any]] = {"only zeros": out.zero_}
    for name, compiled in (("torch", False), ("loop in C++", True)):
        ways[name] = functools.partial(Pictures(drawn.bank, compiled=compiled).expand, ids, out=out)
    for name, paint in ways.items():
        rates = []
        for n in threads:
            torch.set_num_threads(n)
            rates.append(views / best(paint, 10) / 1e6)
        print(
            f"  {name:12}"
            + "".join(f"  {n} thread{'s' * (n > 1)} {x:.2f}" for n, x in zip(threads, rates, strict=True))
        )


def show_compiled(substrate: SubstrateName, batch: int, device: str) -> None:
    """Milliseconds of a step of the rules, as it is and compiled."""
    torch.set_num_threads(1)
    player = Native(substrate, batch, "rules", device)
    engine = Engine(player.env.engine.setup, device, branches=False)
    ways = {"as it is": player.env.engine.step, "compiled": torch.compile(engine.step, dynamic=False)}
    state, draws = player._state, player._draws
    for name, advance in ways.items():
        took = best(lambda advance=advance: advance(state, player.actions[0], draws), 20)  # type: ignore[misc]
        print(f"  {substrate}, {batch:,} games, rules {name}: {took * 1e3:.2f} ms")


def best(work: Callable[[], Any], times: int) -> float:
    """The least seconds that `work` takes, after it was done once."""
    work()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", nargs="+", default=["cleanup", "harvest"], choices=list(SUBSTRATES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 64, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", action="store_true", help="only say where the time goes, with 1,024 games")
    parser.add_argument("--pictures", action="store_true", help="only compare ways to paint 7,168 views")
    parser.add_argument("--compiled", action="store_true", help="only compare compiled steps of 1,024 games")
    chosen = parser.parse_args()
    if chosen.pictures:
        show_pictures(sorted({1, Machine.this().cores}), 7168)
        raise SystemExit
    for name in chosen.substrate:
        with torch.inference_mode():
            if chosen.profile:
                show_profile(name, 1024, chosen.device)
            elif chosen.compiled:
                show_compiled(name, 1024, chosen.device)
            else:
                compare(name, chosen, Machine.this().cores)
