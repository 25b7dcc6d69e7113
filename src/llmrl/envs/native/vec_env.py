"""`NativeEnv`: thousands of games of Clean Up or Harvest in lock step, as tensors on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.ram import need_memory
from llmrl.core.records import Array, Observation, Step
from llmrl.core.records import State as Saved
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import Events as Settled
from llmrl.envs.mechanisms import Settlement
from llmrl.envs.melting_pot.describe import SubstrateSettings, check_choices, describe
from llmrl.envs.melting_pot.rules import FIRST_END, SUBSTRATES
from llmrl.envs.native.art import Source
from llmrl.envs.native.draws import Draws, game_keys
from llmrl.envs.native.engine import Engine, Setup, counted
from llmrl.envs.native.maps import find
from llmrl.envs.native.observing import Observer
from llmrl.envs.native.state import Events, State

INTERVAL, LAST_END = 100, 5000
"""Steps between the chances of an end at random, from `FIRST_END` on, and steps after which it is over in any case."""


class NativeEnv:
    """Clean Up or Harvest, with the rules, channels, metrics and mechanisms of `MeltingPotEnv`.

    A game depends on its seed alone: on the stream it was given, its place among the games and the number of its
    episode; not on how many games there are beside it, nor on the device. Nothing in a step waits for the device.

    Observations are tensors on `device`. `pixels` and `grid` are written over at the third step or reset after theirs.

    Args:
        game: which games, and how many.
        seeds: the stream that episodes draw from.
        device: torch device of all state and observations.
        tiles: whose pictures `pixels` and videos are made of, `auto`: Melting Pot's where it is installed.
        compile: compile the step with `torch.compile`, for a minute at the first step: slower on a processor, to be
            tried on GPUs.

    Raises:
        ConfigError: values that the game cannot be played with, or more games than there is memory for.
        EngineError: what is asked for is Melting Pot's, and that is not installed.
    """

    def __init__(
        self,
        game: SubstrateSettings,
        seeds: Seeds,
        device: str = "cpu",
        tiles: Source = "auto",
        compile: bool = False,
    ) -> None:
        channels, game_map = check_choices(game), find(game.substrate, game.map)
        n_envs, mechanism = game.n_envs, game.mechanism
        setup = Setup(game_map, game.n_agents, game.rules)
        self.engine = Engine(setup, device, branches=False if compile else None)
        self._channels, self._mechanism, self._horizon = channels, mechanism, game.horizon
        self._shown = game.mechanism_seen
        self._seeds, self._device = seeds, torch.device(device)
        self._roots: list[
            int
        ] = []  # of the keys, one for each equal group of games; none: the stream it was built with
        self._group = n_envs  # games that draw numbers of their own; the next ones draw the same again
        self.spec = describe(game, channels, engine="native", device=device, sites=game_map.sites)
        self.observer = Observer(self.engine, channels, tiles)
        room = self.observer.bytes_per_game
        need_memory(
            room * n_envs,
            device,
            f"env.n_envs={n_envs:,} games of {game.substrate} ({room / 1024:,.1f} KiB each with "
            f"env.observe=[{','.join(channels)}])",
            "use fewer games" + (", or observe grid instead of pixels" if "pixels" in channels else ""),
        )
        if n_envs * game_map.n_cells >= 2**31:
            raise ConfigError(
                f"env.n_envs={n_envs:,}: cells of all games are numbered with 32 bits; use at most "
                f"{2**31 // game_map.n_cells:,} games of this map"
            )
        self._advance = torch.compile(self.engine.step, dynamic=False) if compile else self.engine.step
        self._episodes = np.zeros(n_envs, dtype=np.int64)
        self._keys = np.zeros((n_envs, 2), dtype=np.int32)
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)
        self._told = np.zeros(n_envs, dtype=bool)  # games whose players are told what they see: not those that wait
        self._draws: Draws | None = None
        self._state: State | None = None
        self._events: Events | None = None
        self._values = torch.zeros((n_envs, 0), device=device)
        if mechanism is not None:
            self._values = self._at_device(np.tile(mechanism.spec.low.astype(np.float32), (n_envs, 1)))
        self.settlement: Settlement | None = None
        """How the mechanism settled the last step, with each player's exposure to its values; None without one."""

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            self._reseed(seed)
        roots = self._roots or [_root(self._seeds)]
        own = self._group if len(roots) == 1 else self.spec.n_envs // len(roots)
        sources = np.repeat(np.array(roots, dtype=np.int64), self.spec.n_envs // len(roots))
        keys = game_keys(sources, np.arange(self.spec.n_envs) % own, self._episodes)
        self._keys[games] = keys[games]
        self._episodes[games] += 1
        self._steps[games], self._ended[games] = 0, False
        self._told = ~self._ended
        self._draws = Draws(self._at_device(self._keys))
        fresh = self.engine.start(self._draws)
        if self._state is None or games.all():
            self._state, self._events = fresh, None
        else:
            self._state = fresh.where(self._at_device(games), self._state)
            self._events = None if self._events is None else self._events.only(self._at_device(~games))
        if self._mechanism is not None:
            self._mechanism.reset(games)
        return self._observation()

    def step(self, action: Array) -> Step:
        if self._state is None or self._draws is None:
            raise ValueError("reset() must be called before step()")
        chosen = self._checked(action)
        live = ~self._ended
        before = self._state
        state, events = self._advance(before, chosen, self._draws)
        values, present, there = self._values, before.alive, state.alive
        if not live.all():
            playing = self._at_device(live)
            state, events = state.where(playing, before), events.only(playing)
            values, present = values * playing[:, None], present & playing[:, None]
            there = state.alive & playing[:, None]
        self._state, self._events, self._told = state, events, live
        self._steps[live] += 1
        self._ended |= over(self._steps, self._horizon, self._keys, self.engine.setup)
        raw = events.reward
        info = {
            "apples_eaten": raw.sum(1),
            "zaps": events.zaps.sum(1),
            "players_present": there.sum(1),
            "apples_live": counted(state.apple),
        }
        cleaned = None
        if self.engine.n_dirt:
            cleaned = events.cleaned.to(torch.float32)
            info |= {
                "apples_regrown": info["apples_live"] - counted(before.apple) + info["apples_eaten"],
                "cells_cleaned": cleaned.sum(1),
                "cleaning_shots": (cleaned > 0).sum(1),
                "dirt": counted(state.dirt),
            }
        base = reward = raw
        exposure = None
        if self._mechanism is not None:
            self.settlement = self._mechanism.settle(Settled(raw, cleaned, present), values)
            base, reward = self.settlement.base_reward, self.settlement.reward(values)
            info |= self.settlement.metrics
            exposure = self.settlement.exposure
        never = np.zeros_like(self._ended)
        return Step(self._observation(), reward, base, never, self._ended.copy(), info, exposure)

    def pair_games(self, groups: int) -> None:
        """Let game i of each of `groups` equal groups draw the same numbers."""
        self._group = self.spec.games_per_group(groups)

    def set_mechanism(self, values: Array) -> None:
        if self._mechanism is None:
            raise ConfigError(
                f"{self.spec.name} runs without a mechanism: give it one, e.g. `env.mechanism` of its option file"
            )
        checked = self._mechanism.spec.check(values).astype(np.float32)
        shape = (self.spec.n_envs, self._mechanism.spec.dim)
        self._values = self._at_device(np.broadcast_to(checked, shape).copy())

    def set_context(self, context: int) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def world_codes(self, index: int = 0) -> NDArray[np.int64]:
        """The codes of the cells of game `index` as they lie, [height, width]."""
        return self.observer.world_codes(*self._shown_now(), index)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """The whole world of game `index`, [8 height, 8 width, 3] uint8."""
        return self.observer.world(*self._shown_now(), index)

    def render_players(self, index: int = 0) -> NDArray[np.uint8]:
        """What the players of game `index` see, [n_agents, 88, 88, 3] uint8, whatever they observe."""
        return self.observer.players(*self._shown_now(), index)

    def state_dict(self) -> Saved:
        state, events = (
            None if part is None else {each.name: _saved(getattr(part, each.name)) for each in fields(part)}
            for part in (self._state, self._events)
        )
        return {
            "map": self.engine.setup.game_map.text,
            "state": state,
            "events": events,
            "roots": self._roots,
            "group": self._group,
            "episodes": self._episodes.copy(),
            "keys": self._keys.copy(),
            "steps": self._steps.copy(),
            "ended": self._ended.copy(),
            "values": self._values.cpu(),
            "mechanism": None if self._mechanism is None else self._mechanism.state_dict(),
        }

    def load_state_dict(self, state: Saved) -> None:
        games = (self.spec.n_envs, self.spec.n_agents)
        if state["state"] is not None and tuple(state["state"]["pos"].shape) != games:
            raise CheckpointError(
                f"the saved games are {list(state['state']['pos'].shape)} [games, players], these {list(games)}: set "
                "env.n_envs and env.n_agents to those of that run"
            )
        if state["map"] != self.engine.setup.game_map.text:
            raise CheckpointError(
                "the saved games are on another map than env.map gives here (is Melting Pot installed here and was not "
                "there, or the other way round?): set env.map to the map of that run"
            )
        self._roots, self._group = list(state["roots"]), state["group"]
        self._episodes, self._keys = np.array(state["episodes"]), np.array(state["keys"], dtype=np.int32)
        self._steps, self._ended = np.array(state["steps"]), np.array(state["ended"])
        self._values = torch.as_tensor(state["values"]).to(self._device)
        self._state = None if state["state"] is None else State(**self._restored(state["state"]))
        self._events = None if state["events"] is None else Events(**self._restored(state["events"]))
        self._draws, self._told = Draws(self._at_device(self._keys)), ~self._ended
        if self._mechanism is not None:
            self._mechanism.load_state_dict(state["mechanism"])

    def close(self) -> None:
        """Nothing to end: there are no processes."""

    def _shown_now(self) -> tuple[State, Events | None]:
        if self._state is None:
            raise ConfigError(f"{self.spec.name} has no picture to show: call reset() first")
        return self._state, self._events

    def _observation(self) -> Observation:
        assert self._state is not None
        observation = self.observer.observe(self._state, self._events, self._told)
        if self._shown:
            observation["mechanism"] = self._values[:, None, :].expand(-1, self.spec.n_agents, -1)
        return {name: observation[name] for name in self.spec.observation}

    def _checked(self, action: Array) -> torch.Tensor:
        chosen = torch.as_tensor(action)
        wanted = (self.spec.n_envs, self.spec.n_agents)
        if tuple(chosen.shape) != wanted:
            raise ValueError(f"actions of {self.spec.name} are {list(wanted)} integers, got shape {list(chosen.shape)}")
        if chosen.device.type == "cpu" and (int(chosen.min()) < 0 or int(chosen.max()) >= self.spec.n_actions):
            raise ValueError(
                f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, got {int(chosen.min())} to "
                f"{int(chosen.max())}"
            )
        return chosen.to(self._device, torch.int64, non_blocking=self._device.type == "cuda")

    def _reseed(self, seed: int | Sequence[int]) -> None:
        seeds = [seed] if isinstance(seed, int | np.integer) else list(seed)
        self.spec.games_per_group(len(seeds))  # refuses what cannot be divided
        self._roots = [_root(Seeds(int(each))) for each in seeds]
        self._episodes[:] = 0

    def _restored(self, saved: Saved) -> dict[str, Any]:
        return {name: None if x is None else torch.as_tensor(x).to(self._device) for name, x in saved.items()}

    def _at_device(self, x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(x.copy()).to(self._device, non_blocking=self._device.type == "cuda")


def _root(seeds: Seeds) -> int:
    """Of the keys of all games: 62 bits of a stream."""
    return seeds.integer("games") << 31 | seeds.integer("more games")


def _saved(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.cpu()


def over(steps: NDArray[np.int64], horizon: int | None, keys: NDArray[np.int32], setup: Setup) -> NDArray[np.bool_]:
    """Which games are over after `steps` [n] of their episodes, of which `keys` [n, 2] are those of the draws."""
    ended = steps >= min(horizon or LAST_END, LAST_END)
    due = (steps >= FIRST_END) & ((steps - FIRST_END) % INTERVAL == 0)
    if due.any() and not setup.switched("no_random_end"):
        drawn = game_keys(keys[:, 0].astype(np.int64), keys[:, 1].astype(np.int64), steps)[:, 0].view(np.uint32)
        ended |= due & (drawn < SUBSTRATES[setup.game_map.substrate].end_probability * 2.0**32)
    return ended
