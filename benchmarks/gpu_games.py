"""Correctness and throughput of games on a GPU, for `benchmarks/gpu.py`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_part import Part, Sizes, measure_seconds, synchronize

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
TARGETS = {"grid": 100e6, "pixels": 10e6}
"""Target throughput by observation, agent steps per second."""


class GamesDifferError(Exception):
    """Signal that games on the device differ from games on the CPU."""


def make_games(device: str, game: SubstrateSettings) -> NativeEnv:
    """Create games on `cuda`, on `simulated` (the CUDA simulator of Numba), or on `cpu`."""
    env = NativeEnv(game, Seeds(0), "cuda" if device == "cuda" else "cpu")
    if device == "cpu" and is_simulated():
        env.engine.game_loop = CpuLoop()
    return env


def make_harvest(device: str, games: int, horizon: int = 1000) -> NativeEnv:
    """Create games of Harvest with a bracketed tax and `grid` observations."""
    game = SubstrateSettings("harvest", games, PLAYERS, horizon, observe=["grid"], mechanism=BracketedTax())
    return make_games(device, game)


def check(part: Part) -> None:
    """Compare games on the device with games on the CPU, step by step.

    Raises:
        GamesDifferError: an array differs.
    """
    games, steps = part.sizes.check
    for substrate in SUBSTRATES:
        game = SubstrateSettings(substrate, games, PLAYERS, observe=["grid", "pixels"])
        device_games, cpu_games = make_games(part.device, game), make_games("cpu", game)
        generator = torch.Generator().manual_seed(0)
        for step in range(steps + 1):
            if step == 0:
                arrays = [
                    {f"observation {k}": x for k, x in env.reset(seed=1).items()} for env in (device_games, cpu_games)
                ]
            else:
                action = torch.randint(device_games.spec.n_actions, (games, PLAYERS), generator=generator)
                arrays = [_collect_step_arrays(env, action) for env in (device_games, cpu_games)]
            for env, env_arrays in zip((device_games, cpu_games), arrays, strict=True):
                state_dict = env.state_dict()
                env_arrays |= {f"state {k}": x for k, x in state_dict["state"].items()}
                env_arrays["player_events"] = state_dict["player_events"]
            for name, cpu_array in arrays[1].items():
                tensor, cpu_tensor = (torch.as_tensor(to_numpy(x)) for x in (arrays[0][name], cpu_array))
                if tensor.dtype != cpu_tensor.dtype or not torch.equal(tensor, cpu_tensor):
                    raise GamesDifferError(
                        f"{substrate}, step {step}: {name} differs between the device and the CPU. THE GAMES ARE "
                        "WRONG, and their speed is meaningless."
                    )
        part.print_row(
            f"{substrate}, {games} games, {steps} steps", "equal, bit for bit", f"{len(arrays[0])} arrays per step"
        )


def _collect_step_arrays(env: NativeEnv, action: torch.Tensor) -> dict[str, Any]:
    """Step the games, and return observations, infos, rewards and ends by name."""
    step = env.step(action)
    observations = {f"observation {k}": x for k, x in step.observation.items()}
    infos = {f"info {k}": x for k, x in step.info.items()}
    return observations | infos | {"reward": step.reward, "truncated": step.truncated}


class RandomGames:
    """Games with random actions, executed by `VecEnv.step` or by the kernel."""

    def __init__(self, device: str, substrate: Any, games: int, observation: str) -> None:
        self.device, self.games = device, games
        self.env = make_games(device, SubstrateSettings(substrate, games, PLAYERS, observe=[observation], horizon=None))
        generator = torch.Generator().manual_seed(0)
        actions = torch.randint(self.env.spec.n_actions, (16, games, PLAYERS), generator=generator)
        self.actions = actions.to("cuda" if device == "cuda" else "cpu")

    def measure_first_step(self) -> float:
        """Return the duration of the first reset and step, seconds, including compilation."""

        def reset_and_step() -> None:
            self.env.reset(seed=1)
            self.step(0)

        return measure_seconds(reset_and_step, self.device)

    def step(self, k: int) -> None:
        """Step all games with actions `k`, and reset them at the end of an episode."""
        if self.env.step(self.actions[k]).truncated.any():
            self.env.reset()

    def make_kernel_step(self) -> Callable[[int], None]:
        """Return a function of the index of actions that runs only the game loops and rendering."""
        env, observer = self.env, self.env.observation_builder
        checked_actions = [env._check_actions(action) for action in self.actions]
        buffers = [env._allocate((3, self.games, PLAYERS)), env._allocate((8, self.games))]
        outputs = [buffer if env._uses_cpu else to_loop_array(buffer) for buffer in buffers]

        def kernel_step(k: int) -> None:
            frame = observer.rotate_buffers()
            loop_outputs = LoopOutputs(*outputs, frame["grid"][1], frame["tile_ids"][1], env.engine.empty_vectors)
            inputs = LoopInputs(env._commands, checked_actions[k], env._device_game_keys)
            env.engine.game_loop(env.n_threads, self.games, (inputs, loop_outputs, *env._loop_constants))
            if observer.has_pixels:
                observer.renderer.render(frame["tile_ids"][0], out=frame["pixels"][0])

        return kernel_step

    def measure_rate(self, step: Callable[[int], None], sizes: Sizes) -> float:
        """Return agent steps per second; the device is synchronized after each block of steps."""
        step(1)
        synchronize(self.device)
        n_steps, start = 0, time.perf_counter()
        while not n_steps or time.perf_counter() - start < sizes.seconds:
            for k in range(sizes.block):
                step(k)
            synchronize(self.device)
            n_steps += sizes.block
        return PLAYERS * self.games * n_steps / (time.perf_counter() - start)


@torch.inference_mode()
def measure_games(part: Part) -> None:
    """Print the throughput of games by substrate, observation and number of games.

    A combination of substrate and observation that exceeds the memory is not measured with more games.
    """
    sizes = part.sizes
    part.print_row("", "first", "step, M/s", "kernel, M/s", "memory", "x CPU", "target of step")
    cpu_rates: dict[tuple[Any, str], float] = {}  # agent steps per second, by substrate and observation
    fits = dict.fromkeys(((substrate, observation) for observation in TARGETS for substrate in SUBSTRATES), True)
    for device, games in [("cpu", sizes.games[0]), *((part.device, n) for n in sizes.games)]:
        for setting in (setting for setting, fits_memory in fits.items() if fits_memory):
            title = f"{setting[0]}, {setting[1]}, {games:,} games" + ", CPU" * (device == "cpu")
            measure = functools.partial(_print_games_row, part, device, setting, games, title, cpu_rates)
            fits[setting] = part.run_measurement(title, measure) or device == "cpu"


@torch.inference_mode()
def measure_blocks(part: Part) -> None:
    """Print the throughput of the kernel by threads per block, which matters only on a GPU."""
    blocks, default_block = (8, 16, 32, 64, 128), compilation.THREADS_PER_BLOCK
    part.print_row("", *(f"{block}, M/s" for block in blocks))
    try:
        for games in part.sizes.games[:3:2]:
            for substrate in SUBSTRATES:
                random_games = RandomGames(part.device, substrate, games, "grid")
                random_games.measure_first_step()
                cells = []
                for compilation.THREADS_PER_BLOCK in blocks:
                    rate = random_games.measure_rate(random_games.make_kernel_step(), part.sizes)
                    cells.append(f"{rate / 1e6:.3f}")
                part.print_row(f"{substrate}, grid, {games:,} games", *cells)
    finally:
        compilation.THREADS_PER_BLOCK = default_block


def _print_games_row(
    part: Part, device: str, setting: tuple[Any, str], games: int, title: str, cpu_rates: dict[tuple[Any, str], float]
) -> None:
    random_games = RandomGames(device, setting[0], games, setting[1])
    first_seconds = random_games.measure_first_step()
    rate = random_games.measure_rate(random_games.step, part.sizes)
    kernel_rate = random_games.measure_rate(random_games.make_kernel_step(), part.sizes)
    cells = [f"{first_seconds:.1f} s", f"{rate / 1e6:.3f}", f"{kernel_rate / 1e6:.3f}", part.format_peak_memory()]
    if device == "cpu":
        cpu_rates[setting] = rate
    else:
        target = TARGETS[setting[1]]
        cells.append(f"{rate / cpu_rates[setting]:.1f}x" if setting in cpu_rates else "-")
        cells.append(f"{target / 1e6:.0f} M {'met' if rate >= target else 'not met'}")
    part.print_row(title, *cells)
