"""A batch in lanes: on processors, games are stepped a few hundred at a time, whose tensors stay in the cache, and
lanes on several threads.

PyTorch divides single operations among threads, and those of a step are too small for that. Games know nothing of each
other and draw by address, so a lane of them can go through a whole step by itself: results do not depend on the lanes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.records import Observation
from llmrl.envs.native.draws import Draws
from llmrl.envs.native.engine import Engine
from llmrl.envs.native.observing import Observer
from llmrl.envs.native.state import Events, State

LANE = 512
"""Games of a lane, at most, where there are lanes."""
THREADED = 128
"""Games of a lane, at least, where there is one for each thread: with fewer the threads only wait for Python."""

Advance = Callable[[State, torch.Tensor, Draws], tuple[State, Events]]


@dataclass
class Happened:
    """What a step of some games gave, [k, ...].

    Attributes:
        reward: apples eaten, [k, N] float32.
        cleaned: dirty cells cleaned, [k, N] float32; None where there is no dirt.
        present: who could act, [k, N] bool.
        counts: numbers of each game, [k].
        observation: of all channels; those there was room for are in it.
    """

    reward: torch.Tensor
    cleaned: torch.Tensor | None
    present: torch.Tensor
    counts: dict[str, torch.Tensor]
    observation: Observation


class Lane:
    """Some games of a batch.

    Args:
        engine, observer: what plays and looks; the observer is the lane's own.
        advance: the engine's step, or what it was compiled to.
        games: which of the batch.
    """

    def __init__(self, engine: Engine, observer: Observer, advance: Advance, games: slice) -> None:
        self.engine, self.observer, self.games = engine, observer, games
        self._advance = advance
        self.draws: Draws | None = None
        self.state: State | None = None
        self.events: Events | None = None

    def reset(self, keys: torch.Tensor, chosen: NDArray[np.bool_]) -> None:
        """New episodes with `keys` [k, 2] in the `chosen` [k] games."""
        self.draws = Draws(keys)
        if not chosen.any():
            return
        fresh = self.engine.start(self.draws)
        self.state = fresh if self.state is None else fresh.where(self._mask(chosen), self.state)
        self.events = None if self.events is None else self.events.only(self._mask(~chosen))

    def observe(self, talks: NDArray[np.bool_], room: dict[str, torch.Tensor]) -> Observation:
        assert self.state is not None
        return self.observer.observe(self.state, self.events, talks, room)

    def step(self, action: torch.Tensor, live: NDArray[np.bool_], room: dict[str, torch.Tensor]) -> Happened:
        """Step the games that are `live` [k]; the others stay as they are. Observations are written into `room`."""
        before = self.state
        assert before is not None and self.draws is not None
        state, events = self._advance(before, action, self.draws)
        present, counted = before.alive, state.alive
        if not live.all():
            playing = self._mask(live)
            state, events = state.where(playing, before), events.only(playing)
            present, counted = present & playing[:, None], state.alive & playing[:, None]
        self.state, self.events = state, events
        counts = {
            "apples_eaten": events.reward.sum(1),
            "zaps": events.zaps.sum(1),
            "players_present": counted.sum(1),
            "apples_live": state.apple.sum(1),
        }
        cleaned = None
        if self.engine.n_dirt:
            cleaned = events.cleaned.to(torch.float32)
            counts |= {
                "apples_regrown": counts["apples_live"] - before.apple.sum(1) + counts["apples_eaten"],
                "cells_cleaned": cleaned.sum(1),
                "cleaners": (cleaned > 0).sum(1),
                "dirt": state.dirt.sum(1),
            }
        return Happened(events.reward, cleaned, present, counts, self.observe(live, room))

    def _mask(self, games: NDArray[np.bool_]) -> torch.Tensor:
        device = torch.device(self.engine.device)
        return torch.from_numpy(games.copy()).to(device, non_blocking=device.type == "cuda")


class Lanes:
    """All games of a batch.

    Args:
        engine, observer: what plays and looks.
        advance: the engine's step, or what it was compiled to.
        n_games: of the batch.
        one: put all games into one lane.
    """

    def __init__(self, engine: Engine, observer: Observer, advance: Advance, n_games: int, one: bool) -> None:
        self.n_games = n_games
        threads = torch.get_num_threads() if torch.device(engine.device).type == "cpu" and not one else 1
        if n_games < threads * THREADED:
            threads = 1
        n = 1 if one or torch.device(engine.device).type != "cpu" else -(-n_games // LANE)
        n = -(-n // threads) * threads
        bounds = [n_games * i // n for i in range(n + 1)]
        games = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        self.lanes = [Lane(engine, observer.another(), advance, each) for each in games]
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def each(self, work: Callable[[Lane], Any]) -> list[Any]:
        """What `work` gives for every lane."""

        def plainly(lane: Lane) -> Any:
            # Tensors made here are changed in place later, which those of inference mode cannot be outside of it.
            with torch.inference_mode(False), torch.no_grad():
                return work(lane)

        if self.threads == 1:
            return [plainly(lane) for lane in self.lanes]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "native games", torch.set_num_threads, (1,))
            all_there = threading.Barrier(self.threads)
            list(self._pool.map(lambda _: all_there.wait(), range(self.threads)))
            torch.set_num_threads(self.threads)  # what a thread of the pool sets holds for some libraries everywhere
        return list(self._pool.map(plainly, self.lanes))

    def gathered(self, part: Callable[[Lane], State | Events | None]) -> dict[str, torch.Tensor | None] | None:
        """The states, or the events, of all games by name, on the processor; None where some lane has none."""
        parts = [part(lane) for lane in self.lanes]
        if any(each is None for each in parts):
            return None
        found: dict[str, torch.Tensor | None] = {}
        for each in fields(parts[0]):  # type: ignore[arg-type]
            tensors = [getattr(x, each.name) for x in parts]
            found[each.name] = None if tensors[0] is None else torch.cat(tensors).cpu()
        return found

    def lane_of(self, game: int) -> tuple[Lane, int]:
        """The lane a game is in, and its place there."""
        for lane in self.lanes:
            if lane.games.start <= game < lane.games.stop:
                return lane, game - lane.games.start
        raise ValueError(f"there are {self.n_games} games, numbered from 0: there is no game {game}")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def joined(parts: Sequence[Any]) -> Any:
    """Tensors, or arrays of texts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(list(parts))
