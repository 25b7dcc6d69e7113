"""The process that plays one game of a batch: `python -m llmrl.envs.melting_pot.worker`, started by `MeltingPotEnv`.

Building a game costs 0.1 to 0.4 s and starting it 0.2 s, as much as hundreds of steps, and the engine can start a
game only once. So the worker builds one game and never starts it; for each episode it forks a child, which starts
its copy and plays it. The next child is forked as soon as an episode is over, and starts its game while the learner
is busy with the update.

The learner sends one-byte commands over a socket; actions and observations are in shared memory.
The commands are `R` begin an episode, `S` step, `L` the last step of this episode. The answer is
`C` (the episode goes on) or `E` (the engine ended it). A closed socket means that the learner has exited: the worker
exits, too.
"""

from __future__ import annotations

import argparse
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
    action_names,
    substrate_definition,
)

LUA_FOLDER = Path(__file__).with_name("lua")
CENSUS = ("reward", "cleaned", "zapped", "present")
"""Entries of the census for each player; the counts of `Substrate.groups` follow."""

_ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryLayout:
    """Settings of a batch of games that determine the shared memory and suffice to build each game."""

    substrate: SubstrateName
    rules: Rules
    n_envs: int
    n_agents: int
    channels: Sequence[str]
    render: bool
    map: str | None = None
    """Text of the map to play on; None: the substrate's own map."""

    @property
    def world_shape(self) -> tuple[int, int, int]:
        """Shape of a frame of the whole world, [height, width, 3]."""
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
        """Shape and dtype of each array by name.

        The games read `seed` (of the next episode) and `action`, and write all other arrays.
        """
        games, agents = self.n_envs, self.n_agents
        census = len(CENSUS) * agents + len(SUBSTRATES[self.substrate].groups)
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
        """Size of the shared memory, bytes."""
        return sum(_padded_size(shape, dtype) for shape, dtype in self.arrays.values())

    def views(self, memory: Any) -> dict[str, NDArray[Any]]:
        """Return the arrays by name as views of `memory`, a writable buffer of `nbytes` bytes."""
        views, offset = {}, 0
        for name, (shape, dtype) in self.arrays.items():
            views[name] = np.ndarray(shape, dtype, memory, offset)
            offset += _padded_size(shape, dtype)
        return views


def _padded_size(shape: tuple[int, ...], dtype: str) -> int:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Game:
    """One game, built but not started. `start` may be called once, because the engine cannot begin a second episode.

    Melting Pot's own environment computes every observation of every player at each step. This class requests only
    those that are used.

    Args:
        layout: substrate, rules, players and channels.

    Raises:
        EngineError: the engine is missing or refuses the substrate.
    """

    def __init__(self, layout: MemoryLayout) -> None:
        dmlab2d, module = install.load(SUBSTRATES[layout.substrate].module)
        settings = _settings(layout, module)
        try:
            self._lab = dmlab2d.Lab2d(importlib.import_module("dmlab2d.runfiles_helper").find(), settings)
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the engine failed to build {layout.substrate}: {error}") from error

        # An action is a row of `_table`: one number for each of the player's controls.
        names = list(self._lab.action_discrete_names())
        indices = [
            SUBSTRATES[layout.substrate].actions.index(action)
            for action in action_names(layout.substrate, layout.rules)
        ]
        controls = list(module.ACTION_SET[0])
        self._table = np.array([[module.ACTION_SET[action][c] for c in controls] for action in indices], dtype=np.int32)
        players = range(1, layout.n_agents + 1)
        self._action_columns = np.array([[names.index(f"{player}.{c}") for c in controls] for player in players])
        self._vector = np.zeros(len(names), dtype=np.int32)

        self._pixels = [f"{player}.RGB" for player in players] if "pixels" in layout.channels else []
        scalars = SUBSTRATES[layout.substrate].vector_observations if layout.has_scalars else ()
        self._scalars = [[f"{player}.{name}" for name in scalars] for player in players] if scalars else []
        self._cell_observation_names = [f"{player}.SEEN" for player in players] if layout.has_cells else []
        self._codes: SpriteCodes | None = None
        self._render = layout.render
        self._running = dmlab2d.RUNNING

    def start(self, seed: int) -> None:
        """Start the episode; `seed` is in [0, 2**31)."""
        self._lab.start(0, seed)
        if self._cell_observation_names:
            self._codes = SpriteCodes(self._lab.observation("WORLD.SPRITES").decode().split(","))

    def step(self, action: NDArray[np.int32]) -> bool:
        """Advance by one step with `action` [n_agents]; return whether the episode goes on.

        After it has returned False it must not be called again, because the engine would abort the process.
        """
        self._vector[self._action_columns] = self._table[action]
        self._lab.act_discrete(self._vector)
        status, _ = self._lab.advance()
        return bool(status == self._running)

    def observe(self, arrays: Mapping[str, NDArray[Any]], slot: int) -> None:
        """Write the observations of this game into index `slot` of the shared arrays."""
        observation = self._lab.observation
        arrays["census"][slot] = observation("WORLD.CENSUS")
        if self._pixels:
            pixels = arrays["pixels"][slot]
            for player, name in enumerate(self._pixels):
                pixels[player] = observation(name)
        if self._codes is not None:
            grid = arrays["grid"][slot]
            for player, name in enumerate(self._cell_observation_names):
                grid[player] = self._codes(observation(name), player)
        if self._scalars:
            arrays["vector"][slot] = [[float(observation(name)) for name in names] for names in self._scalars]
        if self._render:
            arrays["world"][slot] = observation("WORLD.RGB")


def _settings(layout: MemoryLayout, module: Any) -> dict[str, str]:
    """Return the substrate as the flat table of strings that the engine reads."""
    definition = substrate_definition(module, layout.substrate, layout.n_agents, layout.rules, layout.map)
    groups = list(SUBSTRATES[layout.substrate].groups.values())
    definition["simulation"]["scene"]["components"].append({"component": "Census", "kwargs": {"groups": groups}})
    if layout.has_cells:
        definition["simulation"]["scene"]["components"].append({"component": "Seen", "kwargs": {}})
    # The engine joins the two paths and finds our level, which finds the modules of Melting Pot under its root.
    definition["levelDirectory"] = str(install.root())
    definition["levelName"] = os.path.relpath(LUA_FOLDER / definition["levelName"], install.root())
    flat = importlib.import_module("dmlab2d.settings_helper").flatten_args(definition)
    return {key.replace("$", "."): str(value) for key, value in flat.items()}


EPISODE_ENDED = 0
"""Exit code of a child whose episode has ended: the next child prepares the next episode."""
RESTARTED = 11
"""Exit code of a child that was requested to start a different episode from the one it had prepared; the next child
starts it."""
LEARNER_GONE = 12
"""Exit code of a child whose learner has exited."""

_PR_SET_PDEATHSIG = 1


def play(
    game: Game, layout: MemoryLayout, slot: int, connection: socket.socket, memory: mmap.mmap, reset_pending: bool
) -> int:
    """Start the game, play one episode, and return the exit code.

    `reset_pending`: whether the learner is already waiting for the first answer.
    """
    arrays = layout.views(memory)
    seed = int(arrays["seed"][slot])
    game.start(seed)
    if not reset_pending:
        command = connection.recv(1)
        if not command:
            return LEARNER_GONE
        if int(arrays["seed"][slot]) != seed:
            return RESTARTED
    game.observe(arrays, slot)
    connection.sendall(b"C")
    action = arrays["action"][slot]
    while True:
        command = connection.recv(1)
        if not command:
            return LEARNER_GONE
        if command == b"R":
            return RESTARTED
        running = game.step(action)
        game.observe(arrays, slot)
        connection.sendall(b"C" if running else b"E")
        if command == b"L" or not running:
            return EPISODE_ENDED


def serve(layout: MemoryLayout, slot: int, connection: socket.socket, memory: mmap.mmap) -> int:
    """Keep an unstarted game and fork a child process for every episode; return the worker's exit code."""
    game = Game(layout)
    reset_pending = False
    while True:
        child = os.fork()
        if child == 0:
            # If the worker dies, nobody can fork the next episode, so the child dies with it.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                code = play(game, layout, slot, connection, memory, reset_pending)
            except (BrokenPipeError, ConnectionResetError):
                code = LEARNER_GONE
            except Exception:
                logging.exception("game %d of %d (%s) failed", slot, layout.n_envs, layout.substrate)
                code = 1
            # Not sys.exit, because the child must not run the clean-up of its parent process.
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == LEARNER_GONE:
            return 0
        if code not in (EPISODE_ENDED, RESTARTED):
            return code if code > 0 else 128 - code
        reset_pending = code == RESTARTED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", type=json.loads, required=True, help="memory layout of the batch, as JSON")
    parser.add_argument("--slot", type=int, required=True, help="which game of the batch this is")
    parser.add_argument("--link", type=int, required=True, help="file descriptor of the socket to the learner")
    parser.add_argument("--memory", type=int, required=True, help="file descriptor of the shared memory")
    arguments = parser.parse_args()
    # Ctrl-C and preemption send signals to every process; only the learner decides when the games end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    layout = MemoryLayout(**arguments.layout)
    with socket.socket(fileno=arguments.link) as connection, mmap.mmap(arguments.memory, layout.nbytes) as memory:
        return serve(layout, arguments.slot, connection, memory)


if __name__ == "__main__":
    sys.exit(main())
