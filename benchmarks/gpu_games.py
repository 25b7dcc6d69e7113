"""Games on a GPU, for `benchmarks/gpu.py`: whether they are those of the processor, and how many steps a second."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_part import Part, Sizes, seconds, wait

from llmrl.core.records import to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import BracketedTax
from llmrl.envs.native import compilation
from llmrl.envs.native.compilation import CpuLoop, is_simulated
from llmrl.envs.native.game_arrays import LoopInputs, LoopOutputs, to_loop_array
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings

PLAYERS = 7
SUBSTRATES: tuple[Any, ...] = ("cleanup", "harvest")
AIMS = {"grid": 100e6, "pixels": 10e6}
"""Agent steps a second."""


class GamesDifferError(Exception):
    """The device does not play the games that the processor plays."""


def make_games(device: str, game: SubstrateSettings) -> NativeEnv:
    """Return games on `cuda`, on `simulated` (Numba's simulator), or on `cpu`."""
    env = NativeEnv(game, Seeds(0), "cuda" if device == "cuda" else "cpu")
    if device == "cpu" and is_simulated():
        env.engine.play_games = CpuLoop()
    return env


def harvest(device: str, games: int, horizon: int = 1000) -> NativeEnv:
    """Return games of Harvest under a tax, whose players see maps."""
    game = SubstrateSettings("harvest", games, PLAYERS, horizon, observe=["grid"], mechanism=BracketedTax())
    return make_games(device, game)


def check(part: Part) -> None:
    """Raise GamesDifferError at the first difference between the games of the device and those of the processor."""
    games, steps = part.sizes.check
    for substrate in SUBSTRATES:
        game = SubstrateSettings(substrate, games, PLAYERS, observe=["grid", "pixels"])
        device, processor = make_games(part.device, game), make_games("cpu", game)
        generator = torch.Generator().manual_seed(0)
        for step in range(steps + 1):
            if step == 0:
                facts = [{f"seen {k}": x for k, x in env.reset(seed=1).items()} for env in (device, processor)]
            else:
                action = torch.randint(device.spec.n_actions, (games, PLAYERS), generator=generator)
                facts = [_facts(env, action) for env in (device, processor)]
            for env, found in zip((device, processor), facts, strict=True):
                saved = env.state_dict()
                found |= {f"state {k}": x for k, x in saved["state"].items()} | {
                    "player_events": saved["player_events"]
                }
            for name, theirs in facts[1].items():
                ours, theirs = (torch.as_tensor(to_numpy(x)) for x in (facts[0][name], theirs))
                if ours.dtype != theirs.dtype or not torch.equal(ours, theirs):
                    raise GamesDifferError(
                        f"{substrate}, step {step}: {name} of the device is not that of the processor. THE GAMES ARE "
                        "WRONG, and no speed of them means anything."
                    )
        part.row(f"{substrate}, {games} games, {steps} steps", "equal, bit for bit", f"{len(facts[0])} facts a step")


def _facts(env: NativeEnv, action: torch.Tensor) -> dict[str, Any]:
    step = env.step(action)
    seen = {f"seen {k}": x for k, x in step.observation.items()}
    return seen | {f"info {k}": x for k, x in step.info.items()} | {"reward": step.reward, "ended": step.truncated}


class RandomGames:
    """Games with random actions, as whole steps and as the kernel alone."""

    def __init__(self, device: str, substrate: Any, games: int, what: str) -> None:
        self.device, self.games = device, games
        self.env = make_games(device, SubstrateSettings(substrate, games, PLAYERS, observe=[what], horizon=None))
        generator = torch.Generator().manual_seed(0)
        actions = torch.randint(self.env.spec.n_actions, (16, games, PLAYERS), generator=generator)
        self.actions = actions.to("cuda" if device == "cuda" else "cpu")

    def first(self) -> float:
        """Return the seconds of the first reset and step, including compilation."""

        def begin() -> None:
            self.env.reset(seed=1)
            self.step(0)

        return seconds(begin, self.device)

    def step(self, k: int) -> None:
        if self.env.step(self.actions[k]).truncated.any():
            self.env.reset()

    def kernel_alone(self) -> Callable[[int], None]:
        """Return a function that runs the loops and the painting, with its own arrays."""
        env, observer = self.env, self.env.observer
        checked_actions = [env._check_actions(action) for action in self.actions]
        rooms = [env._allocate((3, self.games, PLAYERS)), env._allocate((8, self.games))]
        written = [room if env._on_host else to_loop_array(room) for room in rooms]

        def kernel_step(k: int) -> None:
            frame = observer.next_buffers()
            outputs = LoopOutputs(*written, frame["grid"][1], frame["tile_ids"][1], env.engine.empty_vectors)
            inputs = LoopInputs(env._commands, checked_actions[k], env._device_game_keys)
            env.engine.play_games(env.threads, self.games, (inputs, outputs, *env._loop_constants))
            if observer.has_pixels:
                observer.renderer.render(frame["tile_ids"][0], out=frame["pixels"][0])

        return kernel_step

    def rate(self, way: Callable[[int], None], sizes: Sizes) -> float:
        """Return agent steps per second; the device is synchronized after each block of steps."""
        way(1)
        wait(self.device)
        done, begin = 0, time.perf_counter()
        while not done or time.perf_counter() - begin < sizes.seconds:
            for k in range(sizes.block):
                way(k)
            wait(self.device)
            done += sizes.block
        return PLAYERS * self.games * done / (time.perf_counter() - begin)


@torch.inference_mode()
def measure_games(part: Part) -> None:
    sizes = part.sizes
    part.row("", "first", "step, M/s", "kernel, M/s", "memory", "x CPU", "aim of step")
    processor: dict[tuple[Any, str], float] = {}  # agent steps a second
    fitting = dict.fromkeys(((substrate, what) for what in AIMS for substrate in SUBSTRATES), True)
    for device, games in [("cpu", sizes.games[0]), *((part.device, n) for n in sizes.games)]:
        for kind in (kind for kind, fits in fitting.items() if fits):
            title = f"{kind[0]}, {kind[1]}, {games:,} games" + ", CPU" * (device == "cpu")
            fits = part.fits(title, functools.partial(_games_row, part, device, kind, games, title, processor))
            fitting[kind] = fits or device == "cpu"


@torch.inference_mode()
def measure_blocks(part: Part) -> None:
    """Of a GPU alone: neither processors nor the simulator have blocks whose size matters."""
    blocks, default_block = (8, 16, 32, 64, 128), compilation.THREADS_PER_BLOCK
    part.row("", *(f"{block}, M/s" for block in blocks))
    try:
        for games in part.sizes.games[:3:2]:
            for substrate in SUBSTRATES:
                random_games = RandomGames(part.device, substrate, games, "grid")
                random_games.first()
                cells = []
                for compilation.THREADS_PER_BLOCK in blocks:
                    cells.append(f"{random_games.rate(random_games.kernel_alone(), part.sizes) / 1e6:.3f}")
                part.row(f"{substrate}, grid, {games:,} games", *cells)
    finally:
        compilation.THREADS_PER_BLOCK = default_block


def _games_row(
    part: Part, device: str, kind: tuple[Any, str], games: int, title: str, processor: dict[tuple[Any, str], float]
) -> None:
    random_games = RandomGames(device, kind[0], games, kind[1])
    first = random_games.first()
    rate = random_games.rate(random_games.step, part.sizes)
    kernel_rate = random_games.rate(random_games.kernel_alone(), part.sizes)
    cells = [f"{first:.1f} s", f"{rate / 1e6:.3f}", f"{kernel_rate / 1e6:.3f}", part.memory()]
    if device == "cpu":
        processor[kind] = rate
    else:
        aim = AIMS[kind[1]]
        cells.append(f"{rate / processor[kind]:.1f}x" if kind in processor else "-")
        cells.append(f"{aim / 1e6:.0f} M {'met' if rate >= aim else 'not met'}")
    part.row(title, *cells)
