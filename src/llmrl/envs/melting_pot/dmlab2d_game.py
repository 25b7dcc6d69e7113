"""One game on the dmlab2d engine, read through the shortest list of observations that serves.

The official environment computes every observation of every player at each step; this one asks for what is used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import EngineError
from llmrl.envs.melting_pot import install
from llmrl.envs.melting_pot.grid_text import SpriteCodes
from llmrl.envs.melting_pot.memory_layout import VECTOR, MemoryLayout
from llmrl.envs.melting_pot.substrate_rules import SUBSTRATES, action_names, define

LUA = Path(__file__).with_name("lua")


class Game:
    """One game, built but not started: `start` may be called once, because the engine cannot begin a second episode.

    Args:
        layout: which substrate, rules, players and channels.

    Raises:
        EngineError: the engine is missing or refuses the substrate.
    """

    def __init__(self, layout: MemoryLayout) -> None:
        dmlab2d, module = install.load(SUBSTRATES[layout.substrate].module)
        settings = _settings(layout, module)
        try:
            self._lab = dmlab2d.Lab2d(importlib.import_module("dmlab2d.runfiles_helper").find(), settings)
        except (ValueError, RuntimeError) as error:
            raise EngineError(f"the engine refused to build {layout.substrate}: {error}") from error

        # An action of a player is a row of `table`: one number for each of the player's controls.
        names = list(self._lab.action_discrete_names())
        chosen = [SUBSTRATES[layout.substrate].actions.index(a) for a in action_names(layout.substrate, layout.rules)]
        controls = list(module.ACTION_SET[0])
        self._table = np.array([[module.ACTION_SET[a][c] for c in controls] for a in chosen], dtype=np.int32)
        players = range(1, layout.n_agents + 1)
        self._columns = np.array([[names.index(f"{player}.{c}") for c in controls] for player in players])
        self._vector = np.zeros(len(names), dtype=np.int32)

        self._pixels = [f"{player}.RGB" for player in players] if "pixels" in layout.channels else []
        scalars = VECTOR[layout.substrate] if layout.scalars else ()
        self._scalars = [[f"{player}.{name}" for name in scalars] for player in players] if scalars else []
        self._seen = [f"{player}.SEEN" for player in players] if layout.cells else []
        self._codes: SpriteCodes | None = None
        self._render = layout.render
        self._running = dmlab2d.RUNNING

    def start(self, seed: int) -> None:
        """Begin the episode; `seed` in [0, 2**31)."""
        self._lab.start(0, seed)
        if self._seen:
            self._codes = SpriteCodes(self._lab.observation("WORLD.SPRITES").decode().split(","))

    def step(self, action: NDArray[np.int32]) -> bool:
        """Advance by one step, `action` [n_agents]; returns whether the engine lets the episode go on.

        Once it has returned False it must not be called again: the engine would abort the process.
        """
        self._vector[self._columns] = self._table[action]
        self._lab.act_discrete(self._vector)
        status, _ = self._lab.advance()
        return bool(status == self._running)

    def observe(self, arrays: Mapping[str, NDArray[Any]], slot: int) -> None:
        """Write what this game shows into row `slot` of the shared arrays."""
        observation = self._lab.observation
        arrays["census"][slot] = observation("WORLD.CENSUS")
        if self._pixels:
            pixels = arrays["pixels"][slot]
            for player, name in enumerate(self._pixels):
                pixels[player] = observation(name)
        if self._codes is not None:
            grid = arrays["grid"][slot]
            for player, name in enumerate(self._seen):
                grid[player] = self._codes(observation(name), player)
        if self._scalars:
            arrays["vector"][slot] = [[float(observation(name)) for name in names] for names in self._scalars]
        if self._render:
            arrays["world"][slot] = observation("WORLD.RGB")


def _settings(layout: MemoryLayout, module: Any) -> dict[str, str]:
    """The substrate as the flat table of strings that the engine reads."""
    definition = define(module, layout.substrate, layout.n_agents, layout.rules, layout.map)
    groups = list(SUBSTRATES[layout.substrate].groups.values())
    definition["simulation"]["scene"]["components"].append({"component": "Census", "kwargs": {"groups": groups}})
    if layout.cells:
        definition["simulation"]["scene"]["components"].append({"component": "Seen", "kwargs": {}})
    # The engine joins the two and finds our level, which in turn finds the modules of Melting Pot under its root.
    definition["levelDirectory"] = str(install.root())
    definition["levelName"] = os.path.relpath(LUA / definition["levelName"], install.root())
    flat = importlib.import_module("dmlab2d.settings_helper").flatten_args(definition)
    return {key.replace("$", "."): str(value) for key, value in flat.items()}
