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
from llmrl.envs.substrate.grid_text import SpriteEncoder
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
"""Numbers for each player in the array `census`; the counts of `Substrate.piece_groups` follow them."""

_ALIGNMENT = 64  # of arrays in the shared memory, in bytes


@dataclass(frozen=True)
class MemoryLayout:
    """Settings of the games, which determine the arrays in shared memory; a worker creates its game from them."""

    substrate: SubstrateName
    rules: Rules
    n_envs: int
    n_agents: int
    channels: Sequence[str]
    render: bool
    map_text: str | None = None
    """Text of the map; None: the map of the substrate in Melting Pot."""

    @property
    def world_shape(self) -> tuple[int, int, int]:
        """Shape of a frame of the whole map, [height, width, 3]."""
        if self.map_text is None:
            return SUBSTRATES[self.substrate].world_shape
        rows = self.map_text.splitlines()
        return 8 * len(rows), 8 * len(rows[0]), 3

    @property
    def has_vectors(self) -> bool:
        """True if the numbers of `Substrate.vector_observations` are read, for the channel `vector` or `text`."""
        return "vector" in self.channels or "text" in self.channels

    @property
    def has_grids(self) -> bool:
        """True if the cells in view are read, for the channel `grid` or `text`."""
        return "grid" in self.channels or "text" in self.channels

    @property
    def array_formats(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> shape and dtype of each array.

        Workers read `seed` (of the next episode) and `action`, and write all other arrays.
        """
        games, agents = self.n_envs, self.n_agents
        census_size = len(CENSUS_FIELDS) * agents + len(SUBSTRATES[self.substrate].piece_groups)
        formats: dict[str, tuple[tuple[int, ...], str]] = {
            "seed": ((games,), "int64"),
            "action": ((games, agents), "int32"),
            "census": ((games, census_size), "float64"),
        }
        if "pixels" in self.channels:
            formats["pixels"] = ((games, agents, *PIXELS_SHAPE), "uint8")
        if self.has_grids:
            formats["grid"] = ((games, agents, *GRID_SHAPE), "uint8")
        if self.has_vectors:
            formats["vector"] = ((games, agents, len(SUBSTRATES[self.substrate].vector_observations)), "float32")
        if self.render:
            formats["world"] = ((games, *self.world_shape), "uint8")
        return formats

    @property
    def nbytes(self) -> int:
        """Size of the shared memory, in bytes."""
        return sum(_compute_padded_size(shape, dtype) for shape, dtype in self.array_formats.values())

    def map_arrays(self, memory: Any) -> dict[str, NDArray[Any]]:
        """Return name -> array, as views of `memory`, a writable buffer of `nbytes` bytes."""
        arrays, offset = {}, 0
        for name, (shape, dtype) in self.array_formats.items():
            arrays[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _compute_padded_size(shape, dtype)
        return arrays


def _compute_padded_size(shape: tuple[int, ...], dtype: str) -> int:
    """Return the size of an array in the shared memory, in bytes, rounded up to a multiple of `_ALIGNMENT`."""
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
        dmlab2d, module = install.import_substrate(SUBSTRATES[layout.substrate].module_name)
        settings = _build_engine_settings(layout, module)
        try:
            self._engine = dmlab2d.Lab2d(importlib.import_module("dmlab2d.runfiles_helper").find(), settings)
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the engine failed to build {layout.substrate}: {error}") from error

        # The engine has several controls per player. An action sets them to a row of `_controls_by_action`.
        names = list(self._engine.action_discrete_names())
        upstream_indices = [
            SUBSTRATES[layout.substrate].upstream_actions.index(action)
            for action in list_action_names(layout.substrate, layout.rules)
        ]
        controls = list(module.ACTION_SET[0])
        control_rows = [[module.ACTION_SET[action][control] for control in controls] for action in upstream_indices]
        self._controls_by_action = np.array(control_rows, dtype=np.int32)
        players = range(1, layout.n_agents + 1)
        self._control_indices = np.array([[names.index(f"{player}.{c}") for c in controls] for player in players])
        self._control_values = np.zeros(len(names), dtype=np.int32)

        self._pixel_names = [f"{player}.RGB" for player in players] if "pixels" in layout.channels else []
        vector_names = SUBSTRATES[layout.substrate].vector_observations if layout.has_vectors else ()
        self._vector_names = [[f"{player}.{name}" for name in vector_names] for player in players if vector_names]
        self._grid_names = [f"{player}.SEEN" for player in players] if layout.has_grids else []
        self._sprite_encoder: SpriteEncoder | None = None
        self._renders_world = layout.render
        self._running_status = dmlab2d.RUNNING

    def start(self, seed: int) -> None:
        """Start the episode; `seed` is in [0, 2**31)."""
        self._engine.start(0, seed)
        if self._grid_names:
            self._sprite_encoder = SpriteEncoder(self._engine.observation("WORLD.SPRITES").decode().split(","))

    def step(self, action: NDArray[np.int32]) -> bool:
        """Advance by one step with `action` [n_agents]; return whether the episode continues.

        After a result of False, another call would make the engine abort the process.
        """
        self._control_values[self._control_indices] = self._controls_by_action[action]
        self._engine.act_discrete(self._control_values)
        status, _ = self._engine.advance()
        return bool(status == self._running_status)

    def observe(self, arrays: Mapping[str, NDArray[Any]], game_index: int) -> None:
        """Write the observations of this game into index `game_index` of the shared arrays."""
        observation = self._engine.observation
        arrays["census"][game_index] = observation("WORLD.CENSUS")
        if self._pixel_names:
            for player, name in enumerate(self._pixel_names):
                arrays["pixels"][game_index, player] = observation(name)
        if self._sprite_encoder is not None:
            for player, name in enumerate(self._grid_names):
                arrays["grid"][game_index, player] = self._sprite_encoder(observation(name), player)
        if self._vector_names:
            arrays["vector"][game_index] = [
                [float(observation(name)) for name in names] for names in self._vector_names
            ]
        if self._renders_world:
            arrays["world"][game_index] = observation("WORLD.RGB")


def _build_engine_settings(layout: MemoryLayout, module: Any) -> dict[str, str]:
    """Return the settings of the engine for a game: flat key -> string."""
    definition = build_definition(module, layout.substrate, layout.n_agents, layout.rules, layout.map_text)
    piece_groups = list(SUBSTRATES[layout.substrate].piece_groups.values())
    definition["simulation"]["scene"]["components"].append({"component": "Census", "kwargs": {"groups": piece_groups}})
    if layout.has_grids:
        definition["simulation"]["scene"]["components"].append({"component": "Seen", "kwargs": {}})
    # The engine joins these two paths to the path of a Lua level of this package, which imports modules of Melting Pot.
    definition["levelDirectory"] = str(install.find_package_parent())
    definition["levelName"] = os.path.relpath(LUA_DIR / definition["levelName"], install.find_package_parent())
    flat_settings = importlib.import_module("dmlab2d.settings_helper").flatten_args(definition)
    return {key.replace("$", "."): str(value) for key, value in flat_settings.items()}


EXIT_EPISODE_ENDED = 0
"""Exit code of a child whose episode has ended; the next child prepares the next episode."""
EXIT_RESET_REQUESTED = 11
"""Exit code of a child that got the command to start an episode other than its own; the next child starts it."""
EXIT_LEARNER_GONE = 12
"""Exit code of a child if the learner has exited."""

_PR_SET_PDEATHSIG = 1  # of Linux: signal to a process when its parent process dies


def play_episode(
    game: Game, layout: MemoryLayout, game_index: int, connection: socket.socket, memory: mmap.mmap, reset_pending: bool
) -> int:
    """Start the game, execute the commands of one episode, and return the exit code.

    `reset_pending`: whether the worker already received the command `R`, so that the learner waits for an answer.
    """
    arrays = layout.map_arrays(memory)
    seed = int(arrays["seed"][game_index])
    game.start(seed)
    if not reset_pending:
        command = connection.recv(1)
        if not command:
            return EXIT_LEARNER_GONE
        if int(arrays["seed"][game_index]) != seed:
            return EXIT_RESET_REQUESTED
    game.observe(arrays, game_index)
    connection.sendall(b"C")
    action = arrays["action"][game_index]
    while True:
        command = connection.recv(1)
        if not command:
            return EXIT_LEARNER_GONE
        if command == b"R":
            return EXIT_RESET_REQUESTED
        continues = game.step(action)
        game.observe(arrays, game_index)
        connection.sendall(b"C" if continues else b"E")
        if command == b"L" or not continues:
            return EXIT_EPISODE_ENDED


def serve_episodes(layout: MemoryLayout, game_index: int, connection: socket.socket, memory: mmap.mmap) -> int:
    """Create the game and fork a child process for every episode; return the exit code of the worker."""
    game = Game(layout)
    reset_pending = False
    while True:
        child = os.fork()
        if child == 0:
            # If the worker dies, the child is killed, because no process could fork the next episode.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                exit_code = play_episode(game, layout, game_index, connection, memory, reset_pending)
            except (BrokenPipeError, ConnectionResetError):
                exit_code = EXIT_LEARNER_GONE
            except Exception:
                logging.exception("game %d of %d (%s) failed", game_index, layout.n_envs, layout.substrate)
                exit_code = 1
            # Not `sys.exit`, because the child must not run exit handlers of its parent process.
            os._exit(exit_code)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if exit_code == EXIT_LEARNER_GONE:
            return 0
        if exit_code not in (EXIT_EPISODE_ENDED, EXIT_RESET_REQUESTED):
            return exit_code if exit_code > 0 else 128 - exit_code
        reset_pending = exit_code == EXIT_RESET_REQUESTED


def main() -> int:
    """Run the worker of one game.

    Arguments are the memory layout as JSON, the index of the game, and the file descriptors of the socket to the
    learner and of the shared memory.
    """
    layout = MemoryLayout(**json.loads(sys.argv[1]))
    game_index, socket_descriptor, memory_descriptor = (int(argument) for argument in sys.argv[2:])
    # Ctrl-C and preemption send signals to every process; only the learner decides when the games end.
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signal_number, signal.SIG_IGN)
    with socket.socket(fileno=socket_descriptor) as connection, mmap.mmap(memory_descriptor, layout.nbytes) as memory:
        return serve_episodes(layout, game_index, connection, memory)


if __name__ == "__main__":
    sys.exit(main())
