"""An engine whose games are stepped from given states, with given random numbers, to inspect its rules."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from llmrl.core.numba_cache import use_numba_cache
from llmrl.envs.native import batch_loop, compilation, hashed_random, rules
from llmrl.envs.native.compilation import CpuLoop
from llmrl.envs.native.engine import Engine
from llmrl.envs.native.game_arrays import (
    PLAYER_EVENTS_DTYPE,
    WORLD_DTYPE,
    GameBatch,
    LoopInputs,
    LoopOutputs,
    split_fields,
    to_loop_array,
)
from llmrl.envs.native.hashed_random import (
    GOLDEN_RATIO_MULTIPLIER,
    MIX_MULTIPLIER_1,
    MIX_MULTIPLIER_2,
    N_RANDOM_BITS,
    UINT32_MASK,
    UNIT_SCALE,
)

PURPOSES = ("place", "heading", "phase", "order", "grow", "spill", "return", "return_heading")
"""Purposes of random numbers, in the order of `hashed_random`."""


class HashedRandom:
    """The numbers of `hashed_random` as tensors; a subclass that overrides `uniform` replaces those of the rules.

    Args:
        keys: key of each game's episode, [n_games, 2] int32; equal keys give equal numbers.
    """

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys

    def uniform(self, purpose: str, t: torch.Tensor, n: int) -> torch.Tensor:
        """Return numbers in [0, 1), multiples of 2**-24, [n_games, n] float32, for step `t` [n_games] of each game."""
        keys, ticks = self.keys.to(torch.int64), t.to(torch.int64)
        word_0 = _mix((keys[:, 0] + ticks * GOLDEN_RATIO_MULTIPLIER) & UINT32_MASK)[:, None]
        word_1 = _mix((keys[:, 1] ^ (ticks * MIX_MULTIPLIER_1)) & UINT32_MASK)[:, None]
        x = ((torch.arange(n) * 8 + PURPOSES.index(purpose)) * GOLDEN_RATIO_MULTIPLIER + word_0) & UINT32_MASK
        x = ((x ^ (x >> 16)) * MIX_MULTIPLIER_1) & UINT32_MASK
        x = ((x ^ (x >> 15)) + word_1) & UINT32_MASK
        x = (x * MIX_MULTIPLIER_2) & UINT32_MASK
        x = ((x ^ (x >> 16)) * MIX_MULTIPLIER_1) & UINT32_MASK
        return (x >> 8).to(torch.float32) * float(UNIT_SCALE)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Return `hashed_random.mix_bits` of a tensor of words."""
    x = ((x ^ (x >> 16)) * MIX_MULTIPLIER_1) & UINT32_MASK
    x = ((x ^ (x >> 15)) * MIX_MULTIPLIER_2) & UINT32_MASK
    return x ^ (x >> 16)


@dataclass
class State:
    """State of B games with N players, as tensors with the games first.

    Tensors that a substrate does not use have no columns.

    Attributes:
        t: number of steps taken, [B] int32.
        pos: cell of each player, [B, N] int64; 0 (no cell of the map) while the player is out of the game.
        heading: 0 north, 1 east, 2 south, 3 west, [B, N] int64.
        alive: whether the player is in the game, [B, N] bool.
        steps_until_return: number of steps until the player is back, [B, N] int32.
        steps_until_zap, steps_until_clean: number of steps until the player can fire that beam again, [B, N] int32.
        apple: whether each of A sites has an apple, [B, A] bool.
        dirt: whether each of D river cells is dirty, [B, D] bool.
        phase: frame of the water of each of W river cells at the start, [B, W] uint8; cells of `dirt` first.
        group: number of apples near a site without one, at most 3, two steps before; -1 if none can grow yet,
            [B, A] int8.
        is_withered: whether the grass of a site has withered, [B, A] bool.
        has_cleaned: whether the player cleaned dirt in the last step, [B, N] bool.
    """

    t: torch.Tensor
    pos: torch.Tensor
    heading: torch.Tensor
    alive: torch.Tensor
    steps_until_return: torch.Tensor
    steps_until_zap: torch.Tensor
    steps_until_clean: torch.Tensor
    apple: torch.Tensor
    dirt: torch.Tensor
    phase: torch.Tensor
    group: torch.Tensor
    is_withered: torch.Tensor
    has_cleaned: torch.Tensor

    def where(self, games: torch.Tensor, other: State) -> State:
        """Return this state in the games where `games` [B] is true, and `other` in the others."""
        return State(
            **{
                name: torch.where(games if x.dim() == 1 else games[:, None], x, getattr(other, name))
                for name, x in vars(self).items()
            }
        )


@dataclass
class GameEvents:
    """Events of a step of B games with N players.

    Attributes:
        reward: apples that each player ate, [B, N] float32.
        cleaned: number of dirty cells that each player cleaned, [B, N] int64.
        zaps: number of players that each player removed, [B, N] int64.
        others_cleaned: number of other players who cleaned in the step before, as players observe it, [B, N] int64.
    """

    reward: torch.Tensor
    cleaned: torch.Tensor
    zaps: torch.Tensor
    others_cleaned: torch.Tensor


class SteppedEngine(Engine):
    """An engine on the host that returns states and events instead of changing a batch in place."""

    def start(self, draws: HashedRandom) -> State:
        """Return the state of new episodes, one game for each key of `draws`."""
        batch = self.allocate_batch(len(draws.keys), 1)
        action = torch.zeros(batch.players.shape[:2], dtype=torch.int64)
        self._play(batch, batch_loop.START, action, draws)
        return State(**batch.state_dict())

    def step(self, state: State, action: torch.Tensor, draws: HashedRandom) -> tuple[State, GameEvents]:
        """Return the state after one step of all games, with its events; `action` is [B, N] int64."""
        batch = self.allocate_batch(len(state.t), 1)
        batch.load_state_dict(vars(state), self.site_adjacency)
        reward = self._play(batch, batch_loop.STEP, action, draws)
        return State(**batch.state_dict()), self._events(batch, reward)

    def _events(self, batch: GameBatch, reward: torch.Tensor) -> GameEvents:
        events = split_fields(batch.player_events.to(torch.int64), PLAYER_EVENTS_DTYPE)
        return GameEvents(reward, events["n_cleaned"], events["n_zapped"], events["n_other_cleaners"])

    def _play(self, batch: GameBatch, command: int, action: torch.Tensor, draws: HashedRandom) -> torch.Tensor:
        """Execute `command` (`batch_loop.START` or `batch_loop.STEP`) in all games; return rewards [B, N]."""
        n, players = action.shape
        run, source = self.game_loop, draws.keys
        if type(draws).uniform is not HashedRandom.uniform:
            run = _replaying_games()
            source = self._replay_table(draws, split_fields(batch.world, WORLD_DTYPE)["n_steps"] + 1)
        commands = torch.full((n,), command, dtype=torch.uint8)
        player_stats = torch.zeros((3, n, players), dtype=torch.float32)
        inputs = LoopInputs(
            to_loop_array(commands), to_loop_array(action.contiguous()), to_loop_array(source.contiguous())
        )
        no_metrics = to_loop_array(torch.zeros((0, 0), dtype=torch.float32))
        outputs = LoopOutputs(
            to_loop_array(player_stats), no_metrics, self.empty_grids, self.empty_grids, self.empty_vectors
        )
        run(1, n, (inputs, outputs, batch.build_loop_arrays(), self.tables, self.empty_views))
        return player_stats[0]

    def _replay_table(self, draws: HashedRandom, t: torch.Tensor) -> torch.Tensor:
        """Return the numbers of an overridden `uniform` as a table [B, ...] for `_replay_draw`.

        Its first columns are, for each purpose, the column where the purpose's numbers begin.
        """
        n_draws = {"grow": self.n_apple_sites, "return": len(self.tables.spawn_cells)}
        if not self.setup.has_rule_change("fixed_move_order"):
            n_draws["order"] = self.n_agents
        if not self.is_harvest:
            n_draws["spill"] = 2
        n_draws["return_heading"] = self.n_agents
        if "zap" not in self.action_names or self.setup.has_rule_change("own_spawn_cells"):
            del n_draws["return"]
        columns, draw_tables = len(PURPOSES), []
        offsets = torch.zeros((len(t), columns), dtype=torch.int64)
        for purpose, n in n_draws.items():
            offsets[:, PURPOSES.index(purpose)] = columns
            draw_tables.append((draws.uniform(purpose, t, n).to(torch.float64) * 2**N_RANDOM_BITS).to(torch.int64))
            columns += n
        return torch.cat([offsets, *draw_tables], 1)


def _replay_hash_step(source: Any, b: int, t: int) -> Any:
    """Return a game's row of the table of replayed random numbers; replaces `hashed_random.hash_step`."""
    return source[b]


def _replay_draw(row: Any, purpose: int, index: int) -> Any:
    """Return a number from a row of the table of replayed random numbers; replaces `hashed_random.sample_integer`."""
    return row[row[purpose] + index]


@functools.cache
def _replaying_games() -> CpuLoop:
    """Return games whose random numbers are replayed."""
    games = CpuLoop()
    games._functions = _replaying_functions()
    return games


def _replaying_functions() -> SimpleNamespace:
    import numba

    # Rows of a table are views of an array, which need reference counts.
    options = {**compilation.JIT_OPTIONS, "_nrt": True}
    with use_numba_cache(compilation.find_game_cache_folder()) as cache:
        inner, entry = numba.njit(**compilation.INNER_JIT_OPTIONS, **options), numba.njit(cache=cache, **options)
        replay = {"hash_step": _replay_hash_step, "sample_integer": _replay_draw}
        with mock.patch.multiple(rules, **replay), mock.patch.multiple(hashed_random, **replay):
            return compilation.build_functions(inner, entry)
