"""The process of one game (parallel copy): `python -m llmrl.envs.melting_pot.worker`, started by `MeltingPotEnv`.

The creation of a game takes 0.1 to 0.4 s and its start 0.2 s, as long as hundreds of steps, and the engine can start a
game only once. So the worker creates one game and never starts it; for each episode it forks a child process, which
starts its copy of the game. The next child is forked as soon as an episode has ended, and starts its game while the
learner (the process with the `MeltingPotEnv`) computes an update.

The learner sends one-byte commands over a socket; actions and observations are in shared memory. The commands are `R`
(start an episode), `S` (step) and `L` (last step of this episode). The answer is `C` (the episode continues) or `E`
(the engine has ended it). When the learner has exited, the socket is closed and the worker exits, too.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import mmap
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import EngineError
from llmrl.envs.substrate import install
from llmrl.envs.substrate.grid_text import SpriteCodes
from llmrl.envs.substrate.substrate_rules import (
    GRID_SHAPE,
    PIXELS_SHAPE,
    SUBSTRATES,
    Rules,
    SubstrateName,
    build_definition,
    list_action_names,
)

LUA_DIR = Path(__file__).with_name("lua")
CENSUS_FIELDS = ("reward", "cleaned", "zapped", "present")
"""Numbers for each player in the array `census`, which are followed by the counts of `Substrate.groups`."""

_ALIGNMENT = 64  # of arrays in the shared memory, in bytes


@dataclass(frozen=True)
class MemoryLayout:
    """Settings that determine the shared memory of all games, and from which a worker creates its game."""

    substrate: SubstrateName
    rules: Rules
    n_envs: int
    n_agents: int
    channels: Sequence[str]
    render: bool
    map: str | None = None
    """Text of the map; None: the map of the substrate in Melting Pot."""

    @property
    def world_shape(self) -> tuple[int, int, int]:
        """Shape of a frame of the whole map, [height, width, 3]."""
        if self.map is None:
            return SUBSTRATES[self.substrate].world_shape
        rows = self.map.splitlines()
        return 8 * len(rows), 8 * len(rows[0]), 3

    @property
    def has_scalars(self) -> bool:
        """True if the numbers of `Substrate.vector_observations` are read, for the channel `vector` or `text`."""
        return "vector" in self.channels or "text" in self.channels

    @property
    def has_cells(self) -> bool:
        """True if the cells in view are read, for the channel `grid` or `text`."""
        return "grid" in self.channels or "text" in self.channels

    @property
    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of each array.

        Workers read `seed` (of the next episode) and `action`, and write all other arrays.
        """
        games, agents = self.n_envs, self.n_agents
        census = len(CENSUS_FIELDS) * agents + len(SUBSTRATES[self.substrate].groups)
        arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "seed": ((games,), "int64"),
            "action": ((games, agents), "int32"),
            "census": ((games, census), "float64"),
        }
        if "pixels" in self.channels:
            arrays["pixels"] = ((games, agents, *PIXELS_SHAPE), "uint8")
        if self.has_cells:
            arrays["grid"] = ((games, agents, *GRID_SHAPE), "uint8")
        if self.has_scalars:
            arrays["vector"] = ((games, agents, len(SUBSTRATES[self.substrate].vector_observations)), "float32")
        if self.render:
            arrays["world"] = ((games, *self.world_shape), "uint8")
        return arrays

    @property
    def nbytes(self) -> int:
        """Size of the shared memory, in bytes."""
        return sum(_padded_size(shape, dtype) for shape, dtype in self.arrays.values())

    def views(self, memory: Any) -> dict[str, NDArray[Any]]:
        """Return name -> array, as views of `memory`, a writable buffer of `nbytes` bytes."""
        views, offset = {}, 0
        for name, (shape, dtype) in self.arrays.items():
            views[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _padded_size(shape, dtype)
        return views


def _padded_size(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Game:
    """One game that is not yet started. `start` may be called once, because the engine cannot start a second episode.

    The environment class of Melting Pot computes every observation of every player in each step. This class computes
    only the requested channels.

    Args:
        layout: settings of the game.

    Raises:
        EngineError: the engine is missing or cannot create the game.
    """

    def __init__(self, layout: MemoryLayout) -> None:
        dmlab2d, module = install.import_substrate(SUBSTRATES[layout.substrate].module)
        settings = _build_engine_settings(layout, module)
        try:
            self._lab = dmlab2d.Lab2d(importlib.import_module("dmlab2d.runfiles_helper").find(), settings)
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the engine failed to build {layout.substrate}: {error}") from error

        # The engine has several controls per player. An action sets them to a row of `_controls_by_action`.
        names = list(self._lab.action_discrete_names())
        indices = [
            SUBSTRATES[layout.substrate].actions.index(action)
            for action in list_action_names(layout.substrate, layout.rules)
        ]
        controls = list(module.ACTION_SET[0])
        settings_by_action = [[module.ACTION_SET[action][c] for c in controls] for action in indices]
        self._controls_by_action = np.array(settings_by_action, dtype=np.int32)
        players = range(1, layout.n_agents + 1)
        self._action_columns = np.array([[names.index(f"{player}.{c}") for c in controls] for player in players])
        self._control_values = np.zeros(len(names), dtype=np.int32)

        self._pixel_names = [f"{player}.RGB" for player in players] if "pixels" in layout.channels else []
        scalars = SUBSTRATES[layout.substrate].vector_observations if layout.has_scalars else ()
        self._scalar_names = [[f"{player}.{name}" for name in scalars] for player in players] if scalars else []
        self._cell_names = [f"{player}.SEEN" for player in players] if layout.has_cells else []
        self._sprite_codes: SpriteCodes | None = None
        self._render = layout.render
        self._running = dmlab2d.RUNNING

    def start(self, seed: int) -> None:
        """Start the episode; `seed` is in [0, 2**31)."""
        self._lab.start(0, seed)
        if self._cell_names:
            self._sprite_codes = SpriteCodes(self._lab.observation("WORLD.SPRITES").decode().split(","))

    def step(self, action: NDArray[np.int32]) -> bool:
        """Advance by one step with `action` [n_agents]; return whether the episode continues.

        After a result of False, another call would make the engine abort the process.
        """
        self._control_values[self._action_columns] = self._controls_by_action[action]
        self._lab.act_discrete(self._control_values)
        status, _ = self._lab.advance()
        return bool(status == self._running)

    def observe(self, arrays: Mapping[str, NDArray[Any]], game_index: int) -> None:
        """Write the observations of this game into index `game_index` of the shared arrays."""
        observation = self._lab.observation
        arrays["census"][game_index] = observation("WORLD.CENSUS")
        if self._pixel_names:
            pixels = arrays["pixels"][game_index]
            for player, name in enumerate(self._pixel_names):
                pixels[player] = observation(name)
        if self._sprite_codes is not None:
            grid = arrays["grid"][game_index]
            for player, name in enumerate(self._cell_names):
                grid[player] = self._sprite_codes(observation(name), player)
        if self._scalar_names:
            arrays["vector"][game_index] = [
                [float(observation(name)) for name in names] for names in self._scalar_names
            ]
        if self._render:
            arrays["world"][game_index] = observation("WORLD.RGB")


def _build_engine_settings(layout: MemoryLayout, module: Any) -> dict[str, str]:
    """Return the settings of the engine for a game: flat keys -> strings."""
    definition = build_definition(module, layout.substrate, layout.n_agents, layout.rules, layout.map)
    groups = list(SUBSTRATES[layout.substrate].groups.values())
    definition["simulation"]["scene"]["components"].append({"component": "Census", "kwargs": {"groups": groups}})
    if layout.has_cells:
        definition["simulation"]["scene"]["components"].append({"component": "Seen", "kwargs": {}})
    # The engine joins these two paths to the path of a Lua level of this package, which imports modules of Melting Pot.
    definition["levelDirectory"] = str(install.find_package_root())
    definition["levelName"] = os.path.relpath(LUA_DIR / definition["levelName"], install.find_package_root())
    flat = importlib.import_module("dmlab2d.settings_helper").flatten_args(definition)
    return {key.replace("$", "."): str(value) for key, value in flat.items()}


EXIT_EPISODE_ENDED = 0
"""Exit code of a child whose episode has ended; the next child prepares the next episode."""
EXIT_RESTARTED = 11
"""Exit code of a child that got the command to start another episode than it had prepared; the next child starts it."""
EXIT_LEARNER_GONE = 12
"""Exit code of a child if the learner has exited."""

_PR_SET_PDEATHSIG = 1  # of Linux: signal to a process when its parent process dies


def play(
    game: Game, layout: MemoryLayout, game_index: int, connection: socket.socket, memory: mmap.mmap, reset_pending: bool
) -> int:
    """Start the game, execute the commands of one episode, and return the exit code.

    `reset_pending`: whether the command `R` was already received, so that the learner waits for the answer.
    """
    arrays = layout.views(memory)
    seed = int(arrays["seed"][game_index])
    game.start(seed)
    if not reset_pending:
        command = connection.recv(1)
        if not command:
            return EXIT_LEARNER_GONE
        if int(arrays["seed"][game_index]) != seed:
            return EXIT_RESTARTED
    game.observe(arrays, game_index)
    connection.sendall(b"C")
    action = arrays["action"][game_index]
    while True:
        command = connection.recv(1)
        if not command:
            return EXIT_LEARNER_GONE
        if command == b"R":
            return EXIT_RESTARTED
        running = game.step(action)
        game.observe(arrays, game_index)
        connection.sendall(b"C" if running else b"E")
        if command == b"L" or not running:
            return EXIT_EPISODE_ENDED


def serve(layout: MemoryLayout, game_index: int, connection: socket.socket, memory: mmap.mmap) -> int:
    """Create the game and fork a child process for every episode; return the exit code of the worker."""
    game = Game(layout)
    reset_pending = False
    while True:
        child = os.fork()
        if child == 0:
            # If the worker dies, the child is killed, because no process could fork the next episode.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                code = play(game, layout, game_index, connection, memory, reset_pending)
            except (BrokenPipeError, ConnectionResetError):
                code = EXIT_LEARNER_GONE
            except Exception:
                logging.exception("game %d of %d (%s) failed", game_index, layout.n_envs, layout.substrate)
                code = 1
            # Not `sys.exit`, because the child must not run exit handlers of its parent process.
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == EXIT_LEARNER_GONE:
            return 0
        if code not in (EXIT_EPISODE_ENDED, EXIT_RESTARTED):
            return code if code > 0 else 128 - code
        reset_pending = code == EXIT_RESTARTED


def main() -> int:
    """Run the worker of one game.

    Arguments are the memory layout as JSON, the index of the game, and the file descriptors of the socket to the
    learner and of the shared memory.
    """
    layout = MemoryLayout(**json.loads(sys.argv[1]))
    game_index, link, memory_file = (int(argument) for argument in sys.argv[2:])
    # Ctrl-C and preemption send signals to every process; only the learner decides when the games end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=link) as connection, mmap.mmap(memory_file, layout.nbytes) as memory:
        return serve(layout, game_index, connection, memory)


if __name__ == "__main__":
    sys.exit(main())
