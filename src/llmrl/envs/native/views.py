"""What lies on every cell, and what each player sees of it: integers that grids, pictures and texts are made of."""

from __future__ import annotations

import torch

from llmrl.envs.melting_pot.seen import BEAMS
from llmrl.envs.native import tables
from llmrl.envs.native.codes import WATERS, Codes
from llmrl.envs.native.maps import GameMap
from llmrl.envs.native.state import Events, State

_WATER_STEPS = 3
"""Steps between two frames of the water."""


class Views:
    """Codes (`codes.Codes`) of cells and views.

    Args:
        game_map, codes: what is played and how it is numbered.
        device: torch device.
        branches: look at those who fire alone (see `Engine`).
    """

    def __init__(self, game_map: GameMap, codes: Codes, device: str, branches: bool) -> None:
        self.codes, self.branches = codes, branches
        # Half the memory to write and to read, where the numbers allow it.
        self.dtype = torch.int16 if 4 * codes.n_codes < 2**15 else torch.int32
        cells = torch.from_numpy(game_map.apples), torch.from_numpy(game_map.dirt), torch.from_numpy(game_map.river)
        changing = torch.cat(cells)
        base = torch.from_numpy(codes.base).to(self.dtype)
        self._base = base.to(device)
        self._changing = changing.to(device)
        self._plain = base[changing].to(device)
        self._views = tables.tensor(tables.views(game_map).astype("int32"), device)
        self._beams = tables.tensor(tables.beams(game_map).reshape(-1, 9), device)
        self._n_cells = game_map.n_cells
        self._buffers: dict[str, torch.Tensor] = {}
        self._slots = torch.arange(codes.n_agents, device=device)
        self._n_dirt = len(game_map.dirt)

    def cells(self, state: State, events: Events | None, water: bool) -> torch.Tensor:
        """Codes of all cells, [B, n_cells]; with `water` its frames, else always the first. Without `events` no beams
        are seen. Overwritten by the next call."""
        codes = self._buffer("cells", (len(state.t), self._n_cells), self.dtype, state.pos.device)
        codes.copy_(self._base.expand_as(codes))
        change = self._plain + torch.cat([state.apple.to(self.dtype), self._river(state, water)], dim=1)
        if state.dry.shape[1]:
            change[:, : state.dry.shape[1]] += 2 * state.dry.to(self.dtype)
        codes.index_copy_(1, self._changing, change)
        n_grounds = self.codes.n_grounds
        avatar = torch.where(state.alive, n_grounds * (1 + 4 * self._slots + state.heading), 0).to(self.dtype)
        codes.scatter_add_(1, state.pos, avatar)
        if events is not None:
            self._shine(codes, events)
        codes[:, 0] = 0  # where everything went that is nowhere
        return codes

    def _shine(self, codes: torch.Tensor, events: Events) -> None:
        """Put beams over the cells they pass."""
        beam = self.codes.n_grounds * self.codes.n_avatars
        marks = []
        for kind, passed in (("clean", events.washed), ("zap", events.zapped)):
            if passed is None:
                continue
            n = passed.shape[1]
            who = torch.arange(len(codes) * n, device=passed.device)
            lit = passed.flatten(0, 1)
            if self.branches:
                who = lit.any(-1).nonzero()[:, 0]
                lit = lit[who]
            cells = self._beams.index_select(0, events.place.flatten().index_select(0, who)) * lit
            at = ((who // n)[:, None] * self._n_cells + cells).flatten()
            # Codes below the beams are read before any is drawn: where two cross, the last is seen.
            marks.append((at, codes.view(-1).index_select(0, at) + beam * BEAMS.index(kind)))
        for at, lit in marks:
            codes.view(-1).index_copy_(0, at, lit)

    def seen(self, cells: torch.Tensor, state: State) -> torch.Tensor:
        """Codes of the cells each player sees, [B, N, 121] int32, turned so that it faces up; to each, `n_codes` times
        the player's heading is added. 0 for players out of the game. Overwritten by the next call."""
        games, n = state.pos.shape
        device = state.pos.device
        row = torch.where(state.alive, state.heading, 4).flatten()
        first = torch.arange(games, dtype=torch.int32, device=device)[:, None] * self._n_cells
        where = self._buffer("where", (games * n, self._views.shape[1]), torch.int32, device)
        torch.index_select(self._views, 0, row, out=where)
        where += (state.pos.to(torch.int32) + first).flatten()[:, None]
        seen = self._buffer("seen", (where.numel(),), self.dtype, device)
        torch.index_select(cells.view(-1), 0, where.view(-1), out=seen)
        seen = seen.view(games, n, -1)
        oneself = self.codes.n_grounds * (self.codes.oneself - (1 + 4 * self._slots + state.heading))
        seen[..., tables.OWN_CELL] += torch.where(state.alive, oneself, 0).to(self.dtype)
        turned = torch.where(state.alive, state.heading * self.codes.n_codes, 0).to(torch.int32)
        # Copied first: to add numbers of two types would make a third tensor of them.
        return where.view(games, n, -1).copy_(seen).add_(turned[..., None])

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory that is used again: a fresh tensor of megabytes each step costs more in page faults than its use."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape:
            with torch.inference_mode(False):  # it is changed in place later, in that mode or not
                buffer = self._buffers[name] = torch.empty(shape, dtype=dtype, device=device)
        return buffer

    def _river(self, state: State, water: bool) -> torch.Tensor:
        """What `Codes.base` adds for each river cell, [B, W]."""
        wet = torch.zeros(state.phase.shape, dtype=self.dtype, device=state.phase.device)
        if water:
            wet += (state.phase + (state.t // _WATER_STEPS)[:, None].to(torch.uint8)) % WATERS
        wet[:, : self._n_dirt] += WATERS * state.dirt.to(self.dtype)
        return wet
