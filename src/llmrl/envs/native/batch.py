"""The arrays of a batch of games for rules and views, with conversions to and from `State` and to `GameEvents`."""

from __future__ import annotations

from typing import Any

import torch

from llmrl.envs.native import rules
from llmrl.envs.native.state import GameEvents, State


class Batch:
    """State of a batch of B games in a few arrays with the games first, so that a step passes few arguments.

    Args:
        games, players, apples, dirt, water, cells: number of each; `water` counts all cells of the river.
        lanes: number of concurrent threads, each with its own scratch memory.
        device: torch device.

    Attributes:
        world [B, 3], players [B, N, 7], orchard [B, 4, A], river [B, 2, W], occupied [B, n_cells], deeds [B, N, 6]:
            tensors whose columns and rows are named in `rules`. `occupied` is the player on each cell, slot + 1, or 0.
        notes, codes: scratch memory of each lane.
        parts: all these tensors in the order of the arguments of `game_loop.play`.
    """

    def __init__(
        self, games: int, players: int, apples: int, dirt: int, water: int, cells: int, lanes: int, device: str
    ) -> None:
        def made(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            with torch.inference_mode(False):  # the tensor is changed in place later, in either mode
                return torch.zeros(shape, dtype=dtype, device=device)

        self.n_dirt = dirt
        self.world, self.players = made(games, 3), made(games, players, 7)
        self.orchard = made(games, 4, apples, dtype=torch.int8)
        self.river = made(games, 2, water, dtype=torch.int8)
        self.occupied = made(games, cells, dtype=torch.uint8)
        self.deeds = made(games, players, 6)
        self.notes, self.codes = made(lanes, 9, max(apples, 3 * players)), made(lanes, cells)
        self.parts = (
            self.world,
            self.players,
            self.orchard,
            self.river,
            self.occupied,
            self.deeds,
            self.notes,
            self.codes,
        )

    def load(self, state: State, near: torch.Tensor) -> None:
        """Load a state and compute redundant counts; `near` [A, A] float32 is 1 where apple sites are neighbours."""
        who = [state.pos, state.heading, state.alive, state.out_for, state.zap_wait]
        nobody = torch.zeros_like(state.pos)
        who += [x if x.shape[1] else nobody for x in (state.clean_wait, state.cleaners)]
        self.players.copy_(torch.stack([x.to(torch.int32) for x in who], -1))
        apple = state.apple.to(torch.int8)
        lawn = [state.group, state.dry] if state.group.shape[1] else [torch.full_like(apple, -1), 0 * apple]
        around = (state.apple.to(torch.float32) @ near).to(torch.int8)
        self.orchard.copy_(torch.stack([apple, lawn[0], lawn[1].to(torch.int8), around], 1))
        self.river.zero_()
        self.river[:, rules.DIRT, : self.n_dirt] = state.dirt.to(torch.int8)
        self.river[:, rules.PHASE] = state.phase.to(torch.int8)
        counts = [state.t, state.apple.sum(1), state.dirt.sum(1)]
        self.world.copy_(torch.stack([x.to(torch.int32) for x in counts], 1))
        self.occupied.zero_()
        slots = torch.arange(1, state.pos.shape[1] + 1, device=self.occupied.device).to(torch.uint8)
        self.occupied.scatter_(1, state.pos.to(torch.int64), slots.expand(state.pos.shape).contiguous())
        self.occupied[:, 0] = 0  # the cell of players that are out of the game

    def state(self, harvest: bool) -> State:
        """Return a copy of the state; `harvest`: whether the substrate is Harvest."""
        players = self.players
        sites, river = self.orchard.shape[2], self.n_dirt > 0
        lawn = slice(0, sites if harvest else 0)
        return State(
            t=self.world[:, rules.T].clone(),
            pos=players[..., rules.POS].to(torch.int64),
            heading=players[..., rules.HEADING].to(torch.int64),
            alive=players[..., rules.ALIVE] != 0,
            out_for=players[..., rules.OUT_FOR].clone(),
            zap_wait=players[..., rules.ZAP_WAIT].clone(),
            clean_wait=players[..., rules.CLEAN_WAIT].clone() if river else players[:, :0, rules.CLEAN_WAIT],
            apple=self.orchard[:, rules.APPLE] != 0,
            dirt=self.river[:, rules.DIRT, : self.n_dirt] != 0,
            phase=self.river[:, rules.PHASE].to(torch.uint8),
            group=self.orchard[:, rules.GROUP, lawn].clone(),
            dry=self.orchard[:, rules.DRY, lawn] != 0,
            cleaners=players[..., rules.CLEANER] != 0 if river else players[:, :0, rules.CLEANER] != 0,
        )

    def events(self, reward: torch.Tensor, zaps: bool) -> GameEvents:
        """Return a copy of the events of the last step; `zaps`: whether players can zap."""
        did = self.deeds.to(torch.int64)
        cells = torch.arange(9, device=did.device)

        def passed(column: int) -> torch.Tensor:
            return (did[..., column, None] >> cells & 1) != 0

        return GameEvents(
            reward=reward,
            cleaned=did[..., rules.CLEANED],
            zaps=did[..., rules.ZAPS],
            others_cleaned=did[..., rules.OTHERS],
            place=did[..., rules.SHOT_FROM],
            zapped=passed(rules.ZAPPED) if zaps else None,
            washed=passed(rules.WASHED) if self.n_dirt else None,
        )


def array(x: torch.Tensor) -> Any:
    """Return a tensor as an array for compiled functions, with shared memory: NumPy's, or on a GPU Numba's."""
    if x.device.type == "cpu":
        return x.numpy()
    from numba import cuda

    return cuda.as_cuda_array(x)
