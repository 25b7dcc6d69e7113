"""What players see of a batch of games, in every channel, and pictures of single games for videos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.records import Observation
from llmrl.envs.melting_pot.grid_text import told
from llmrl.envs.melting_pot.memory_layout import CELLS, PIXELS, VECTOR
from llmrl.envs.native import map_geometry, rules, view_loops
from llmrl.envs.native.batch import Batch, array
from llmrl.envs.native.engine import Engine
from llmrl.envs.native.maps import MARGIN
from llmrl.envs.native.sprites import Source
from llmrl.envs.native.tiles import Tiles
from llmrl.envs.native.tiles import tiles as tiles_of
from llmrl.envs.native.view_renderer import ViewRenderer, world

_FRAMES = 3
"""What is seen at a step or reset stays while it is looked at twice more."""


class ObservationBuilder:
    """Looks at the games of an engine: what it has room for, the loops write (`game_loop.play`).

    Args:
        engine: what is played.
        games: how many.
        channels: what players see: of `pixels`, `grid`, `vector`, `text`.
        tiles: whose pictures.
    """

    def __init__(self, engine: Engine, games: int, channels: Sequence[str], tiles: Source) -> None:
        self._engine, self._games, self._channels, self._source = engine, games, tuple(channels), tiles
        self.grids = bool({"grid", "text"} & set(channels))
        self.vectors = bool({"vector", "text"} & set(channels))
        self.pixels = "pixels" in channels
        if self.pixels:
            self.pictures = ViewRenderer(self._drawn().bank, engine.device)
        self._frames: list[dict[str, tuple[torch.Tensor, Any]]] = []

    @property
    def bytes_per_game(self) -> int:
        """About the memory of one game: its state, what is worked out from it, and what its players see, in bytes."""
        engine, n = self._engine, self._engine.n_agents
        state = 4 * (16 + 13 * n) + 4 * engine.n_apples + 2 * engine.n_water + engine.n_cells
        if engine.on_gpu:
            state += 4 * (engine.n_cells + 9 * max(engine.n_apples, 3 * n))
        step = 4 * _FRAMES * (8 + 8 * n)
        grid = self.grids * 4 * 121 * _FRAMES
        pixels = self.pixels * (4 * 121 + _FRAMES * int(np.prod(PIXELS)))
        return state + step + (grid + pixels) * n

    def tables(self) -> tuple[torch.Tensor, ...]:
        """What `view_loops` reads, see `view_loops.lay` and `view_loops.look`."""
        if not (self.grids or self.pixels):
            return self._engine.unseen
        return self._tables(self._engine.device, self.pixels)

    def frame(self) -> dict[str, tuple[torch.Tensor, Any]]:
        """Room for all channels of a step or reset, other than that of the two before: fresh memory of megabytes each
        time costs more in page faults than what is written to it."""
        if not self._frames:
            with torch.inference_mode(False):  # it is written to again later, in that mode or not
                self._frames = [self._made() for _ in range(_FRAMES)]
        self._frames.append(self._frames.pop(0))
        return self._frames[-1]

    def observation(
        self,
        frame: dict[str, tuple[torch.Tensor, Any]],
        vector: torch.Tensor | None,
        batch: Batch,
        talks: Any,
        more: Callable[[int, int], Mapping[str, Any]] | None = None,
    ) -> Observation:
        """Return all channels asked for, from what the loops have written.

        `talks` [B]: games whose players are told something, where they are told. `more`: what players are told of a
        mechanism, a function of game and player."""
        found: dict[str, Any] = {}
        if self.pixels:
            found["pixels"] = self.pictures.expand(frame["ids"][0], out=frame["pixels"][0])
        if self.grids:
            found["grid"] = frame["grid"][0]
        if vector is not None:
            found["vector"] = vector
        if "text" in self._channels:
            found["text"] = self._texts(batch, found["grid"], found["vector"], talks, more)
        return found

    def world_codes(self, batch: Batch, index: int) -> NDArray[np.int64]:
        """The codes of the cells of game `index` as they lie, [height, width]."""
        game_map = self._engine.setup.game_map
        cells = self._laid(batch, index)[0].reshape(-1, game_map.stride)
        inside = slice(MARGIN, MARGIN + game_map.height)
        codes: NDArray[np.int64] = cells[inside, MARGIN : MARGIN + game_map.width].astype(np.int64)
        return codes

    def world(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """The whole world of game `index`, [8 height, 8 width, 3] uint8."""
        return world(self._drawn(), self.world_codes(batch, index))

    def players(self, batch: Batch, index: int) -> NDArray[np.uint8]:
        """What the players of game `index` see, [N, 88, 88, 3] uint8, whatever they observe."""
        codes = self._laid(batch, index)
        _, _, turns, grid_of, tile_of = (x.numpy() for x in self._tables("cpu", True))
        ids = np.zeros((1, self._engine.n_agents, 121), np.int32)
        players, facts = batch.players[index : index + 1].cpu().numpy(), self._engine.numbers(True)
        view_loops.look(0, 0, players, facts, turns, codes, grid_of, tile_of, ids[:0], ids)
        picture = self._drawn().bank[ids.reshape(-1, *map_geometry.VIEW)]  # [N, 11, 11, 8, 8, 3]
        return np.ascontiguousarray(picture.transpose(0, 1, 3, 2, 4, 5)).reshape(-1, *PIXELS)

    def _laid(self, batch: Batch, index: int) -> NDArray[np.int32]:
        """`view_loops.lay` of one game, on the host and as it is written: for one it need not be compiled."""
        parts = batch.world, batch.players, batch.orchard, batch.river, batch.deeds
        world, players, orchard, river, deeds = (part[index : index + 1].cpu().numpy() for part in parts)
        engine, codes = self._engine, np.zeros((1, self._engine.n_cells), np.int32)
        base, spots, *_ = (x.numpy() for x in self._tables("cpu", False))
        facts = engine.numbers(True)
        view_loops.lay(0, 0, world, players, orchard, river, engine.beams, facts, deeds, base, spots, codes)
        return codes

    def _tables(self, device: str, drawn: bool) -> tuple[torch.Tensor, ...]:
        game_map, codes = self._engine.setup.game_map, self._engine.codes
        none = np.zeros((4, 0), np.int32)
        parts = [
            codes.base,
            np.concatenate([game_map.apples, game_map.dirt, game_map.river]),
            map_geometry.views(game_map),
            codes.grid().view(np.int32).reshape(4, -1),
            np.array(self._drawn().player).reshape(4, -1) if drawn else none,
        ]
        return tuple(map_geometry.tensor(part.astype(np.int32), device) for part in parts)

    def _made(self) -> dict[str, tuple[torch.Tensor, Any]]:
        """Room for one frame, each channel as what players get and as what the loops write into."""
        engine, shape = self._engine, (self._games, self._engine.n_agents)
        frame: dict[str, tuple[torch.Tensor, Any]] = {"grid": (engine.unseen[0], engine.unshown)}
        frame["ids"] = frame["grid"]
        if self.grids:
            grid = torch.zeros((*shape, *CELLS), dtype=torch.uint8, device=engine.device)
            frame["grid"] = grid, array(grid.view(torch.int32).view(*shape, -1))
        if self.pixels:
            ids = torch.zeros((*shape, *map_geometry.VIEW), dtype=torch.int32, device=engine.device)
            frame["ids"] = ids, array(ids.view(*shape, -1))
            pixels = torch.zeros((*shape, *PIXELS), dtype=torch.uint8, device=engine.device)
            frame["pixels"] = pixels, None
        return frame

    def vector(self) -> tuple[torch.Tensor, Any]:
        """Room for the numbers of `memory_layout.VECTOR`, [B, N, 1 or 2] float32, of its own at every step: for
        players, and for the loops."""
        engine = self._engine
        shape = (self._games, engine.n_agents, len(VECTOR[engine.setup.game_map.substrate]))
        room = torch.empty(shape, dtype=torch.float32, device=engine.device)
        return room, array(room)

    def _drawn(self) -> Tiles:
        game_map = self._engine.setup.game_map
        return tiles_of(game_map.substrate, game_map.text, self._engine.n_agents, self._source)

    def _texts(
        self,
        batch: Batch,
        grid: torch.Tensor,
        vector: torch.Tensor,
        talks: NDArray[np.bool_],
        more: Callable[[int, int], Mapping[str, Any]] | None,
    ) -> NDArray[Any]:
        """What each player is told, [B, N]; on the processor, for words are read there."""
        setup = self._engine.setup
        views, scalars = grid.cpu().numpy(), vector.cpu().numpy()
        alive = batch.players[..., rules.ALIVE].cpu().numpy() == 1
        texts = np.full(views.shape[:2], "", dtype=object)
        for game, player in np.argwhere(alive & talks[:, None]).tolist():
            seen, numbers = views[game, player], scalars[game, player]
            report = None if more is None else more(game, player)
            texts[game, player] = told(seen, setup.game_map.substrate, setup.rules, numbers, report)
        return texts
