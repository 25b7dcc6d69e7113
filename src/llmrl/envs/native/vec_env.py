"""`NativeEnv`: one to thousands of games of Clean Up or Harvest in lock step, with state in tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.ram import need_memory
from llmrl.core.records import Array, Observation, Step, on_host
from llmrl.core.records import State as Saved
from llmrl.core.seeding import Seeds
from llmrl.envs.env_errors import guarded
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import Settlement
from llmrl.envs.mechanisms import SocietyEvents as Settled
from llmrl.envs.melting_pot.env_spec import SubstrateSettings, check_choices, describe
from llmrl.envs.native.batch import Batch, array
from llmrl.envs.native.compilation import lanes
from llmrl.envs.native.engine import Engine, Setup
from llmrl.envs.native.episode_clock import EpisodeClock
from llmrl.envs.native.game_loop import KEEP, METRICS, REGROWN, START, STEP, WAIT
from llmrl.envs.native.hashed_random import game_keys
from llmrl.envs.native.maps import find
from llmrl.envs.native.observations import ObservationBuilder
from llmrl.envs.native.sprites import Source, colours
from llmrl.envs.native.state import State


class NativeEnv:
    """Clean Up or Harvest, with the rules, channels, metrics and mechanisms of `MeltingPotEnv`.

    A game depends only on the seed stream, its index among the games and the index of its episode. It does not depend
    on the number of games, the device or the number of threads. No step waits for the device.

    Observations and rewards are tensors on `device`. The metrics in `info` are tensors on a GPU, else NumPy arrays.
    `pixels` and `grid` are overwritten at the third step or reset after their own.

    Args:
        game: settings of the games.
        seeds: stream from which episodes draw.
        device: torch device of all state and observations.
        tiles: sprites for `pixels` and videos; `auto`: those of Melting Pot if it is installed.

    Attributes:
        place: (i, n): the first game draws the numbers of game i of n (`llmrl.loops.independent_games.OneGame`).

    Raises:
        ConfigError: settings that the game does not support, too little memory for the games, or a GPU without the
            packages to play on it.
        EngineError: the map or the sprites of Melting Pot are requested, and it is not installed.
    """

    place = (0, 1)

    def __init__(self, game: SubstrateSettings, seeds: Seeds, device: str = "cpu", tiles: Source = "auto") -> None:
        self._made_of = (game, seeds, device, tiles)
        channels, game_map = check_choices(game), find(game.substrate, game.map)
        n_envs, mechanism = game.n_envs, game.mechanism
        self.engine = Engine(Setup(game_map, game.n_agents, game.rules), device)
        self._mechanism, self._horizon, self._shown = mechanism, game.horizon, game.mechanism_seen
        self._seeds, self._device = seeds, torch.device(device)
        self._on_host = self._device.type == "cpu"
        self._roots: list[int] = []  # roots of the keys, one for each equal group of games; empty: the root of `seeds`
        self._group = n_envs  # games with numbers of their own; the following groups draw the same numbers
        self.spec = describe(game, channels, engine="native", device=device, sites=game_map.sites)
        self.observer = ObservationBuilder(self.engine, n_envs, channels, tiles)
        room = self.observer.bytes_per_game
        need_memory(
            room * n_envs,
            device,
            f"env.n_envs={n_envs:,} games of {game.substrate} ({room / 1024:,.1f} KiB each with "
            f"env.observe=[{','.join(channels)}])",
            "use fewer games" + (", or observe grid instead of pixels" if "pixels" in channels else ""),
        )
        self._shape = (n_envs, game.n_agents)
        self._lanes = lanes(n_envs, game.n_agents, self.observer.pixels or self.observer.grids)
        self._batch = self.engine.batch(n_envs, self._lanes)
        self._fixed = self.engine.fixed(self._batch, self.observer.pixels, self.observer.tables())
        self._metrics = METRICS if self.engine.n_dirt else METRICS[:REGROWN]
        self._idle = self._room(3, *self._shape)  # rewards of a reset, unused
        self._still = self._at_device(np.zeros(self._shape, dtype=np.int64))  # actions of a reset, unused
        self._episodes = np.zeros(n_envs, dtype=np.int64)
        self._keys = np.zeros((n_envs, 2), dtype=np.int32)
        self._calendar = EpisodeClock(n_envs, game.horizon, self.engine.setup)
        self._begun = False
        self._todo: Any = None  # what the next step does with each game, `game_loop.STEP` or `game_loop.WAIT`
        self._source: Any = None
        self._playing: torch.Tensor | None = None  # whether each game goes on; None: all do
        low = np.zeros(0) if mechanism is None else mechanism.spec.low
        self._show(self._at_device(np.tile(low.astype(np.float32), (n_envs, 1))))
        self.settlement: Settlement | None = None
        """The mechanism's settlement of the last step; None without a mechanism or before the first step."""
        self._report: MechanismReport | None = None
        if mechanism is not None and "text" in channels:
            self._report = MechanismReport(mechanism.spec, *self._shape, self._shown, mechanism.player_facts)

    def resized(self, n_envs: int) -> NativeEnv:
        """Return the same environment with `n_envs` games, none of them begun."""
        game, seeds, device, tiles = self._made_of
        mechanism = copy.deepcopy(game.mechanism)  # a mechanism has a memory of its games
        return NativeEnv(replace(game, n_envs=n_envs, mechanism=mechanism), seeds, device, tiles)

    def one_game(self) -> NativeEnv:
        """Return the same environment with a single independent game."""
        return guarded(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            self._reseed(seed)
        roots = self._roots or [_root(self._seeds)]
        own = self._group if len(roots) == 1 else self.spec.n_envs // len(roots)
        sources = np.repeat(np.array(roots, dtype=np.int64), self.spec.n_envs // len(roots))
        keys = game_keys(sources, self.place[0] + np.arange(self.spec.n_envs) % own, self._episodes)
        self._keys[games] = keys[games]
        self._episodes[games] += 1
        self._calendar.begin(games)
        todo = array(self._at_device(np.where(games | (not self._begun), START, KEEP).astype(np.uint8)))
        self._begun = True
        self._follow()
        if self._mechanism is not None:
            self._mechanism.reset(games)
        if self._report is not None:
            self._report.begin(games)
        return self._observation(*self._played(todo, array(self._still), self._idle, self._room(0, 0)))

    def step(self, action: Array) -> Step:
        if not self._begun:
            raise ValueError("reset() must be called before step()")
        chosen = self._checked(action)
        pay, info = self._room(3, *self._shape), self._room(len(METRICS), self._shape[0])
        playing = self._playing
        written = self._played(self._todo, chosen, pay, info)
        raw = self._tensor(pay[0])
        metrics = dict(zip(self._metrics, info, strict=False))
        base = reward = raw
        reward_jacobian = None
        if self._mechanism is not None:
            values = self._values if playing is None else self._values * playing[:, None]
            cleaned = self._tensor(pay[1]) if self.engine.n_dirt else None
            happened = Settled(raw, cleaned, self._tensor(pay[2]) != 0)
            self.settlement = self._mechanism.settle(happened, values)
            base, reward = self.settlement.base_reward, self.settlement.reward(values)
            metrics |= self.settlement.metrics
            reward_jacobian = self.settlement.reward_jacobian
            if self._report is not None:
                self._report.settle(base, reward_jacobian, values, self._calendar.live, self.settlement.player_facts)
        observation = self._observation(*written)
        if self._calendar.advance(self._keys):
            self._follow()
        never = np.zeros(self._shape[0], dtype=bool)
        return Step(observation, reward, base, never, self._calendar.ended.copy(), metrics, reward_jacobian)

    def pair_games(self, groups: int) -> None:
        """Give game i of each of `groups` equal groups the same random numbers from the next reset on."""
        self._group = self.spec.games_per_group(groups)

    def set_mechanism(self, values: Array) -> None:
        if self._mechanism is None:
            raise ConfigError(
                f"{self.spec.name} runs without a mechanism: give it one, e.g. `env.mechanism` of its option file"
            )
        checked = self._mechanism.spec.check(values).astype(np.float32)
        shape = (self.spec.n_envs, self._mechanism.spec.dim)
        self._show(self._at_device(np.broadcast_to(checked, shape)))

    def set_context(self, context: int | np.ndarray) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def world_codes(self, index: int = 0) -> NDArray[np.int64]:
        """Return the codes of the map's cells in game `index` (`cell_codes`), [height, width]."""
        return self.observer.world_codes(self._shown_now(), index)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Return a frame of the whole world of game `index`, [8 * height, 8 * width, 3] uint8."""
        return self.observer.world(self._shown_now(), index)

    def render_players(self, index: int = 0) -> NDArray[np.uint8]:
        """Return frames of the views of all players of game `index`, [n_agents, 88, 88, 3] uint8, for any `observe`."""
        return self.observer.players(self._shown_now(), index)

    def agent_colours(self) -> NDArray[np.uint8]:
        """The colour of each player in pictures of the world, [n_agents, 3] uint8."""
        game, _, _, tiles = self._made_of
        return colours(game.substrate, game.n_agents, tiles)

    def state_dict(self) -> Saved:
        state = self._state
        return {
            "map": self.engine.setup.game_map.text,
            "state": None if state is None else {each.name: getattr(state, each.name).cpu() for each in fields(state)},
            "deeds": self._batch.deeds.cpu().clone(),
            "roots": self._roots,
            "group": self._group,
            "episodes": self._episodes.copy(),
            "keys": self._keys.copy(),
            "steps": self._calendar.steps.copy(),
            "ended": self._calendar.ended.copy(),
            "values": self._values.cpu(),
            "mechanism": None if self._mechanism is None else self._mechanism.state_dict(),
            "report": None if self._report is None else self._report.state_dict(),
        }

    def load_state_dict(self, state: Saved) -> None:
        if state["state"] is not None and tuple(state["state"]["pos"].shape) != self._shape:
            raise CheckpointError(
                f"the saved games are {list(state['state']['pos'].shape)} [games, players], these {list(self._shape)}: "
                "set env.n_envs and env.n_agents to those of that run"
            )
        if state["map"] != self.engine.setup.game_map.text:
            raise CheckpointError(
                "the saved games are on another map than env.map gives here (is Melting Pot installed here and was not "
                "there, or the other way round?): set env.map to the map of that run"
            )
        self._roots, self._group = list(state["roots"]), state["group"]
        self._episodes[:], self._keys[:] = np.array(state["episodes"]), np.array(state["keys"])
        self._calendar.set(np.array(state["steps"]), np.array(state["ended"], dtype=bool))
        self._show(torch.as_tensor(state["values"]).to(self._device))
        self._begun = state["state"] is not None
        if state["state"] is not None:
            saved = {name: torch.as_tensor(x).to(self._device) for name, x in state["state"].items()}
            self._batch.load(State(**saved), self.engine.near)
            self._batch.deeds.copy_(torch.as_tensor(state["deeds"]))
        self._follow()
        if self._mechanism is not None:
            self._mechanism.load_state_dict(state["mechanism"])
        if self._report is not None:
            self._report.load_state_dict(state["report"])

    def close(self) -> None:
        """Do nothing: there are no processes to end."""

    @property
    def threads(self) -> int:
        """Number of threads that play the next step on a CPU: that of torch, but at most what the games can use."""
        return min(torch.get_num_threads(), self._lanes)

    @property
    def _state(self) -> State | None:
        """A copy of the state of all games; None before the first reset."""
        return self._batch.state(self.engine.harvest) if self._begun else None

    def _shown_now(self) -> Batch:
        if not self._begun:
            raise ConfigError(f"{self.spec.name} has no picture to show: call reset() first")
        return self._batch

    def _follow(self) -> None:
        """Update the device's copy of which games go on, and of their keys, after either has changed."""
        live = self._calendar.live
        self._todo = array(self._at_device(np.where(live, STEP, WAIT).astype(np.uint8)))
        self._playing = None if live.all() else self._at_device(live)
        self._source = array(self._at_device(self._keys))

    def _show(self, values: torch.Tensor) -> None:
        """Set the mechanism's values [n_envs, d], which players may observe."""
        self._values = values
        self._values_seen = values[:, None, :].expand(-1, self._shape[1], -1)

    def _played(self, todo: Any, action: Any, pay: Array, info: Array) -> tuple[dict[str, Any], torch.Tensor | None]:
        """Do `todo` with all games (`game_loop.play`) and return what the loops wrote for the observation."""
        observer, engine = self.observer, self.engine
        frame = observer.frame()
        vector, written = observer.vector() if observer.vectors else (None, engine.untold)
        if not self._on_host:
            pay, info = array(pay), array(info)
        arrays = (todo, action, self._source, pay, info, frame["grid"][1], frame["ids"][1], written, *self._fixed)
        engine.run(self.threads, self._shape[0], arrays)
        return frame, vector

    def _observation(self, frame: dict[str, Any], vector: torch.Tensor | None) -> Observation:
        """Return the observation made of what `_played` returned, with what players are told of the mechanism."""
        more = None if self._report is None else partial(self._told_of_mechanism, self._report, on_host(self._values))
        observation = self.observer.observation(frame, vector, self._batch, self._calendar.live, more)
        if self._shown:
            observation["mechanism"] = self._values_seen
        return {name: observation[name] for name in self.spec.observation}

    @staticmethod
    def _told_of_mechanism(report: MechanismReport, values: NDArray[Any], game: int, player: int) -> dict[str, Any]:
        return report.told(game, player, values[game])

    def _checked(self, action: Array) -> Any:
        """Return checked actions in the type that the compiled loops take."""
        if tuple(action.shape) != self._shape:
            raise ValueError(
                f"actions of {self.spec.name} are {list(self._shape)} integers, got shape {list(action.shape)}"
            )
        if isinstance(action, torch.Tensor):
            if not self._on_host:
                moved = action.to(self._device, torch.int64, non_blocking=self._device.type == "cuda")
                return array(moved.contiguous())
            action = action.cpu().numpy()
        chosen = np.ascontiguousarray(action, dtype=np.int64)
        if self.engine.outside(chosen, self.spec.n_actions):
            raise ValueError(
                f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, got {chosen.min()} to {chosen.max()}"
            )
        return chosen if self._on_host else array(self._at_device(chosen))

    def _reseed(self, seed: int | Sequence[int]) -> None:
        seeds = [seed] if isinstance(seed, int | np.integer) else list(seed)
        self.spec.games_per_group(len(seeds))  # raises if the games cannot be divided
        self._roots = [_root(Seeds(int(each))) for each in seeds]
        self._episodes[:] = 0

    def _room(self, *shape: int) -> Array:
        """Return new memory for results of the loops. On the host it is a NumPy array, which takes a third of the time
        of a tensor to create; `_tensor` converts it."""
        if self._on_host:
            return np.empty(shape, dtype=np.float32)
        return torch.empty(shape, dtype=torch.float32, device=self._device)

    def _tensor(self, room: Array) -> torch.Tensor:
        return torch.from_numpy(room) if self._on_host else room

    def _at_device(self, x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(x.copy()).to(self._device, non_blocking=self._device.type == "cuda")


def _root(seeds: Seeds) -> int:
    """Return the root of the keys of all games: 62 bits of a stream."""
    return seeds.integer("games") << 31 | seeds.integer("more games")
