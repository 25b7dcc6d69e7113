"""What players see of a batch of games, in every channel, and pictures of single games for films."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.records import Observation
from llmrl.envs.melting_pot.layout import PIXELS
from llmrl.envs.melting_pot.seen import told
from llmrl.envs.native import tables
from llmrl.envs.native.art import Source
from llmrl.envs.native.codes import number
from llmrl.envs.native.engine import Engine
from llmrl.envs.native.maps import MARGIN
from llmrl.envs.native.pictures import Pictures, world
from llmrl.envs.native.state import Events, State
from llmrl.envs.native.tiles import Tiles
from llmrl.envs.native.tiles import tiles as tiles_of
from llmrl.envs.native.views import Views

_FRAMES = 3
"""What is seen at a step or reset stays while it is looked at twice more."""


class Observer:
    """Looks at the states of an engine.

    Args:
        engine: whose states.
        channels: what players see: of `pixels`, `grid`, `vector`, `text`.
        tiles: whose pictures.
    """

    def __init__(self, engine: Engine, channels: Sequence[str], tiles: Source) -> None:
        self._engine, self._channels, self._source = engine, tuple(channels), tiles
        game_map, device = engine.setup.game_map, engine.device
        codes = number(game_map, engine.n_agents)
        self.views = Views(game_map, codes, device, engine.branches)
        self.grid = torch.from_numpy(codes.grid().view(np.int32).reshape(-1)).to(device)
        if "pixels" in channels:
            self.tiles = torch.from_numpy(np.array(self._drawn().player).reshape(-1)).to(device)
            self.pictures = Pictures(self._drawn().bank, device)
        # A table, because a division rounds differently on different devices.
        cooldown = engine.facts.zap_cooldown
        self._ready = torch.tensor([1 - wait / cooldown for wait in range(cooldown + 1)], device=device)
        self._frames: dict[str, list[torch.Tensor]] = {}

    @property
    def bytes_per_game(self) -> int:
        """About the memory of one game: its state, what is worked out from it, and what its players see, in bytes."""
        engine, n = self._engine, self._engine.n_agents
        state = 16 * (n * 6 + engine.n_apples + engine.n_water) + 30 * (engine.n_apples + engine.n_dirt)
        # Beams are worked out for everybody where nobody looks who fires.
        shots = n * (600 if engine.branches else 2000)
        seen = (
            121 * (4 + 2 + 4 * _FRAMES) * n + 2 * engine.n_cells
            if {"pixels", "grid", "text"} & set(self._channels)
            else 0
        )
        pixels = n * (_FRAMES * int(np.prod(PIXELS)) + 4 * 968) if "pixels" in self._channels else 0
        return state + shots + seen + pixels

    def observe(self, state: State, events: Events | None, talks: NDArray[np.bool_]) -> Observation:
        """All channels asked for; `talks` [B]: games whose players are told something, where they are told."""
        shape = tuple(state.pos.shape)
        found: dict[str, Any] = {}
        if {"pixels", "grid", "text"} & set(self._channels):
            cells = self.views.cells(state, events, water="pixels" in self._channels)
            seen = self.views.seen(cells, state).view(-1)
            if "pixels" in self._channels:
                ids = self.tiles.index_select(0, seen).view(*shape, *tables.VIEW)
                found["pixels"] = self.pictures.expand(ids, out=self.frame("pixels", (*shape, *PIXELS), torch.uint8))
            if {"grid", "text"} & set(self._channels):
                grid = self.frame("grid", (seen.numel(),), torch.int32)
                torch.index_select(self.grid, 0, seen, out=grid)
                found["grid"] = grid.view(torch.uint8).view(*shape, *tables.VIEW, 4)
        if {"vector", "text"} & set(self._channels):
            found["vector"] = self._vector(state, events)
        if "text" in self._channels:
            found["text"] = self._texts(state, found["grid"], found["vector"], talks)
        return found

    def frame(self, channel: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Room for a channel of a step or reset, other than that of the two before: fresh memory of megabytes each time
        costs more in page faults than what is written to it."""
        frames = self._frames.setdefault(channel, [])
        if not frames:
            with torch.inference_mode(False):  # it is written to again later, in that mode or not
                frames += [torch.empty(shape, dtype=dtype, device=self._engine.device) for _ in range(_FRAMES)]
        frames.append(frames.pop(0))
        return frames[-1]

    def world_codes(self, state: State, events: Events | None, index: int) -> NDArray[np.int64]:
        """The codes of the cells of game `index` as they lie, [height, width]."""
        game_map = self._engine.setup.game_map
        cells = self.views.cells(*_only(state, events, index), water=True).view(-1, game_map.stride).cpu().numpy()
        inside = slice(MARGIN, MARGIN + game_map.height)
        return cells[inside, MARGIN : MARGIN + game_map.width].astype(np.int64)

    def world(self, state: State, events: Events | None, index: int) -> NDArray[np.uint8]:
        """The whole world of game `index`, [8 height, 8 width, 3] uint8."""
        return world(self._drawn(), self.world_codes(state, events, index))

    def players(self, state: State, events: Events | None, index: int) -> NDArray[np.uint8]:
        """What the players of game `index` see, [N, 88, 88, 3] uint8, whatever they observe."""
        one = _only(state, events, index)
        seen = self.views.seen(self.views.cells(*one, water=True), one[0]).cpu().numpy().reshape(-1, *tables.VIEW)
        drawn = self._drawn()
        picture = drawn.bank[drawn.player.reshape(-1)[seen]]  # [N, 11, 11, 8, 8, 3]
        return np.ascontiguousarray(picture.transpose(0, 1, 3, 2, 4, 5)).reshape(-1, *PIXELS)

    def _drawn(self) -> Tiles:
        game_map = self._engine.setup.game_map
        return tiles_of(game_map.substrate, game_map.text, self._engine.n_agents, self._source)

    def _vector(self, state: State, events: Events | None) -> torch.Tensor:
        """The numbers of `layout.VECTOR`, [B, N, 1 or 2] float32."""
        ready = self._ready[state.zap_wait] * state.alive
        if not self._engine.n_dirt:
            return ready[..., None]
        others = torch.zeros_like(ready) if events is None else events.others_cleaned.to(ready.dtype)
        return torch.stack([ready, others], dim=-1)

    def _texts(self, state: State, grid: torch.Tensor, vector: torch.Tensor, talks: NDArray[np.bool_]) -> NDArray[Any]:
        """What each player is told, [B, N]; on the processor, for words are read there."""
        setup = self._engine.setup
        views, scalars = grid.cpu().numpy(), vector.cpu().numpy()
        texts = np.full(views.shape[:2], "", dtype=object)
        for game, player in np.argwhere(state.alive.cpu().numpy() & talks[:, None]).tolist():
            seen, numbers = views[game, player], scalars[game, player]
            texts[game, player] = told(seen, setup.game_map.substrate, setup.rules, numbers)
        return texts


def _only(state: State, events: Events | None, index: int) -> tuple[State, Events | None]:
    """One game of a batch, as a batch of one."""
    chosen = slice(index, index + 1)
    return state.map(lambda _, x: x[chosen]), None if events is None else events.map(lambda x: x[chosen])
