"""`NativeEnv`: thousands of games of Clean Up or Harvest in lock step, as tensors on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.limits import PositiveInt
from llmrl.core.memory import need_memory
from llmrl.core.records import Array, Observation, Step
from llmrl.core.records import State as Saved
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import Events as Settled
from llmrl.envs.mechanisms import Mechanism, Settlement
from llmrl.envs.melting_pot.describe import check_choices, describe
from llmrl.envs.melting_pot.layout import PIXELS
from llmrl.envs.melting_pot.rules import Rules, SubstrateName
from llmrl.envs.melting_pot.seen import told
from llmrl.envs.native import episodes, tables
from llmrl.envs.native.art import Source
from llmrl.envs.native.codes import number
from llmrl.envs.native.draws import Draws, game_keys
from llmrl.envs.native.engine import Engine, Setup
from llmrl.envs.native.maps import MARGIN, find
from llmrl.envs.native.pictures import Pictures, world
from llmrl.envs.native.state import Events, State
from llmrl.envs.native.tiles import tiles as tiles_of
from llmrl.envs.native.views import Views


class NativeEnv:
    """Clean Up or Harvest, with the rules, channels, metrics and mechanisms of `MeltingPotEnv`.

    A game depends on its seed alone: on the stream it was given, its place among the games and the number of its
    episode; not on how many games there are beside it, nor on the device. Nothing in a step waits for the device.

    Observations are tensors on `device`. A step's `pixels` are written over by the step after the next.

    Args:
        substrate: `cleanup` or `harvest`.
        n_envs: games.
        seeds: the stream that episodes draw from.
        device: torch device of all state and observations.
        n_agents: players in a game.
        horizon: steps an episode; None leaves the end to the rules (1099 steps or more at random, at most 5000).
        rules: `upstream`, or `legislative` (see `melting_pot.rules.CHANGES`).
        observe: which channels of the game every player sees.
        mechanism: what a principal sets, or None for plain rewards.
        show_mechanism: whether players see the mechanism's values, where there is one.
        map: see `maps.find`.
        tiles: whose pictures `pixels` and videos are made of, `auto`: Melting Pot's where it is installed.
        compile: compile the step with `torch.compile`: a minute at the first step, then faster for large batches.

    Raises:
        ConfigError: values that the game cannot be played with, or more games than there is memory for.
        EngineError: what is asked for is Melting Pot's, and that is not installed.
    """

    def __init__(
        self,
        substrate: SubstrateName,
        n_envs: PositiveInt,
        seeds: Seeds,
        device: str = "cpu",
        n_agents: PositiveInt = 7,
        horizon: PositiveInt | None = 1000,
        rules: Rules = "upstream",
        observe: list[Literal["pixels", "grid", "vector", "text"]] | None = None,
        mechanism: Mechanism | None = None,
        show_mechanism: bool = True,
        map: str = "auto",
        tiles: Source = "auto",
        compile: bool = False,
    ) -> None:
        channels = check_choices(substrate, observe, mechanism)
        game_map = find(substrate, map)
        self.engine = Engine(Setup(game_map, n_agents, rules), device, branches=False if compile else None)
        self._channels, self._mechanism, self._horizon = channels, mechanism, horizon
        self._shown = mechanism is not None and show_mechanism
        self._seeds, self._device = seeds, torch.device(device)
        self._roots: NDArray[np.int64] | None = None
        self._group = n_envs  # games that draw numbers of their own; the next ones draw the same again
        self.spec = describe(
            substrate, rules, n_envs, n_agents, channels, mechanism, show_mechanism, horizon, True, device
        )
        self._codes = number(game_map, n_agents)
        self._views = Views(game_map, self._codes, device, self.engine.branches)
        self._needs_cells = bool({"pixels", "grid", "text"} & set(channels))
        grid = self._codes.grid().view(np.int32).reshape(-1)
        self._grid = torch.from_numpy(grid).to(device)
        self._tile_source = tiles
        if "pixels" in channels:
            drawn = tiles_of(substrate, game_map.text, n_agents, tiles)
            self._tiles = torch.from_numpy(np.array(drawn.player).reshape(-1)).to(device)
            self._pictures = Pictures(drawn.bank, device)
        self._frames: list[torch.Tensor] = []
        need_memory(
            self.bytes_per_game * n_envs,
            device,
            f"env.n_envs={n_envs:,} games of {substrate} ({self.bytes_per_game / 1024:,.1f} KiB each with "
            f"env.observe=[{','.join(channels)}])",
            "use fewer games" + (", or observe grid instead of pixels" if "pixels" in channels else ""),
        )
        self._advance = torch.compile(self.engine.step, dynamic=False) if compile else self.engine.step
        self._episodes = np.zeros(n_envs, dtype=np.int64)
        self._keys = np.zeros((n_envs, 2), dtype=np.int32)
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)
        self._draws: Draws | None = None
        self._state: State | None = None
        self._events: Events | None = None
        self._values = torch.zeros((n_envs, 0), device=device)
        if mechanism is not None:
            self._values = self._at_device(np.tile(mechanism.spec.low.astype(np.float32), (n_envs, 1)))
        self.settlement: Settlement | None = None
        """How the mechanism settled the last step, with each player's exposure to its values; None without one."""

    @property
    def bytes_per_game(self) -> int:
        """Memory of one game: its state, what is worked out from it, and what its players see, in bytes."""
        n, cells = self.spec.n_agents, self.engine.n_cells
        state = 16 * (n * 6 + self.engine.n_apples + self.engine.n_water)
        seen = 121 * (4 + 2 + 4) * n + 2 * cells if self._needs_cells else 0
        pixels = 2 * n * int(np.prod(PIXELS)) if "pixels" in self._channels else 0
        return state + seen + pixels

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            self._reseed(seed)
        slots = np.arange(self.spec.n_envs) % self._group
        keys = game_keys(self._sources(), slots, self._episodes)
        self._keys[games] = keys[games]
        self._episodes[games] += 1
        self._steps[games], self._ended[games] = 0, False
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
        values, present = self._values, before.alive
        if not live.all():
            playing = self._at_device(live)
            state, events = state.where(playing, before), events.only(playing)
            values, present = values * playing[:, None], present & playing[:, None]
        self._state, self._events = state, events
        self._steps[live] += 1
        self._ended |= episodes.over(self._steps, self._horizon, self._keys, self.engine.setup)
        raw = events.reward
        info = {
            "apples_eaten": raw.sum(1),
            "zaps": events.zaps.sum(1),
            "players_present": (state.alive & present if not live.all() else state.alive).sum(1),
            "apples_live": state.apple.sum(1),
        }
        cleaned = None
        if self.engine.n_dirt:
            cleaned = events.cleaned.to(torch.float32)
            info |= {
                "apples_regrown": info["apples_live"] - before.apple.sum(1) + info["apples_eaten"],
                "cells_cleaned": cleaned.sum(1),
                "cleaners": (cleaned > 0).sum(1),
                "dirt": state.dirt.sum(1),
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
        if self._state is None:
            raise ConfigError(f"{self.spec.name} has no picture to show: call reset() first")
        game_map = self.engine.setup.game_map
        state = self._state.map(lambda _, x: x[index : index + 1])
        events = None if self._events is None else self._events.map(lambda x: x[index : index + 1])
        cells = self._views.cells(state, events, water=True).view(-1, game_map.stride).cpu().numpy()
        inside = slice(MARGIN, MARGIN + game_map.height)
        return cells[inside, MARGIN : MARGIN + game_map.width].astype(np.int64)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """The whole world of game `index`, [8 height, 8 width, 3] uint8."""
        game_map = self.engine.setup.game_map
        drawn = tiles_of(game_map.substrate, game_map.text, self.spec.n_agents, self._tile_source)
        return world(drawn, self.world_codes(index))

    def state_dict(self) -> Saved:
        state = None
        if self._state is not None:
            state = {each.name: getattr(self._state, each.name).cpu() for each in fields(self._state)}
        return {
            "map": self.engine.setup.game_map.text,
            "state": state,
            "roots": None if self._roots is None else self._roots.tolist(),
            "group": self._group,
            "episodes": self._episodes.copy(),
            "keys": self._keys.copy(),
            "steps": self._steps.copy(),
            "ended": self._ended.copy(),
            "values": self._values.cpu(),
            "mechanism": None if self._mechanism is None else self._mechanism.state_dict(),
        }

    def load_state_dict(self, state: Saved) -> None:
        if state["map"] != self.engine.setup.game_map.text:
            raise CheckpointError(
                "the saved games are on another map than env.map gives here (is Melting Pot installed here and was not "
                "there, or the other way round?): set env.map to the map of that run"
            )
        self._roots = None if state["roots"] is None else np.array(state["roots"], dtype=np.int64)
        self._group = state["group"]
        self._episodes, self._keys = np.array(state["episodes"]), np.array(state["keys"], dtype=np.int32)
        self._steps, self._ended = np.array(state["steps"]), np.array(state["ended"])
        self._values = torch.as_tensor(state["values"]).to(self._device)
        self._state = None
        if state["state"] is not None:
            self._state = State(**{name: torch.as_tensor(x).to(self._device) for name, x in state["state"].items()})
        self._events, self._draws = None, Draws(self._at_device(self._keys))
        if self._mechanism is not None:
            self._mechanism.load_state_dict(state["mechanism"])

    def close(self) -> None:
        """Nothing to end: there are no processes."""

    def _observation(self) -> Observation:
        assert self._state is not None
        state, shape = self._state, (self.spec.n_envs, self.spec.n_agents)
        observation: dict[str, Any] = {}
        if self._needs_cells:
            seen = self._views.seen(self._views.cells(state, self._events, "pixels" in self._channels), state).view(-1)
            if "pixels" in self._channels:
                ids = self._tiles.index_select(0, seen).view(*shape, *tables.VIEW)
                observation["pixels"] = self._pictures.expand(ids, out=self._frame())
            if "grid" in self._channels or "text" in self._channels:
                grid = self._grid.index_select(0, seen).view(torch.uint8).view(*shape, *tables.VIEW, 4)
                observation["grid"] = grid
        if "vector" in self._channels or "text" in self._channels:
            observation["vector"] = self._vector()
        if "text" in self._channels:
            observation["text"] = self._texts(observation["grid"], observation["vector"])
        if self._shown:
            observation["mechanism"] = self._values[:, None, :].expand(-1, self.spec.n_agents, -1)
        return {name: observation[name] for name in self.spec.observation}

    def _frame(self) -> torch.Tensor:
        """Room for the pictures of this step, other than those of the last."""
        if not self._frames:
            shape = (self.spec.n_envs, self.spec.n_agents, *PIXELS)
            self._frames = [torch.empty(shape, dtype=torch.uint8, device=self._device) for _ in range(2)]
        self._frames.reverse()
        return self._frames[0]

    def _vector(self) -> torch.Tensor:
        """The numbers of `layout.VECTOR`, [n_envs, n_agents, 1 or 2] float32."""
        assert self._state is not None
        state = self._state
        ready = (1 - state.zap_wait / self.engine.facts.zap_cooldown).clamp_min(0) * state.alive
        if not self.engine.n_dirt:
            return ready[..., None]
        others = torch.zeros_like(ready) if self._events is None else self._events.others_cleaned.to(ready.dtype)
        return torch.stack([ready, others], dim=-1)

    def _texts(self, grid: torch.Tensor, vector: torch.Tensor) -> NDArray[Any]:
        """What each player is told, [n_envs, n_agents]; on the processor, for words are read there."""
        assert self._state is not None
        setup = self.engine.setup
        views, scalars = grid.cpu().numpy(), vector.cpu().numpy()
        texts = np.full(views.shape[:2], "", dtype=object)
        for game, player in np.argwhere(self._state.alive.cpu().numpy() & ~self._ended[:, None]).tolist():
            texts[game, player] = told(
                views[game, player], setup.game_map.substrate, setup.rules, scalars[game, player]
            )
        return texts

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
        games = self.spec.games_per_group(len(seeds))
        if len(seeds) > 1:
            self._group = games
        self._roots = np.repeat(np.array([_root(Seeds(int(each))) for each in seeds]), games)
        self._episodes[:] = 0

    def _sources(self) -> NDArray[np.int64]:
        if self._roots is None:
            return np.full(self.spec.n_envs, _root(self._seeds))
        return self._roots

    def _at_device(self, x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(x.copy()).to(self._device, non_blocking=self._device.type == "cuda")


def _root(seeds: Seeds) -> int:
    """Of the keys of all games: 62 bits of a stream."""
    return seeds.integer("games") << 31 | seeds.integer("more games")
