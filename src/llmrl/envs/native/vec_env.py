"""`NativeEnv`: one to thousands of games of Clean Up or Harvest in lock step, with state in tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.core.errors import CheckpointError, ConfigError
from llmrl.core.numba_cache import compile_for
from llmrl.core.ram import require_memory
from llmrl.core.records import Array, Observation, State, Step, to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.mechanisms import SocietyEvents
from llmrl.envs.native.batch_loop import APPLES_REGROWN, METRICS, OBSERVE, START, STEP, WAIT
from llmrl.envs.native.compilation import compiled_functions, count_threads
from llmrl.envs.native.engine import Engine, GameSetup
from llmrl.envs.native.game_arrays import PLAYER_DTYPE, GameBatch, LoopInputs, LoopOutputs, split_fields, to_loop_array
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.native.observations import ObservationBuilder
from llmrl.envs.substrate.maps import load_map
from llmrl.envs.substrate.society_env import MAX_HORIZON, SocietyEnv, SubstrateSettings, build_spec
from llmrl.envs.substrate.sprites import TileSource
from llmrl.envs.substrate.substrate_rules import FIRST_END, SUBSTRATES


class NativeEnv(SocietyEnv):
    """Clean Up or Harvest, with the rules, channels, metrics and mechanisms of `MeltingPotEnv`.

    A game depends only on the seed stream, its index among the games and the index of its episode. It does not depend
    on the number of games, the device or the number of threads. No step waits for the device.

    Observations are tensors on `device`. Rewards, their Jacobian and the metrics in `info` are tensors on a GPU, else
    NumPy arrays, because operations on few numbers take less time in NumPy.
    `pixels` and `grid` are overwritten at the third following step or reset.

    Args:
        game: settings of the games.
        seeds: stream from which episodes draw.
        device: torch device of all state and observations.
        tiles: sprites for `pixels` and videos; `auto`: those of Melting Pot if it is installed.

    Raises:
        ConfigError: settings that the game does not support, too little memory for the games, or a GPU without the
            packages to play on it.
        EngineError: the map or the sprites of Melting Pot are requested, and it is not installed.
    """

    def __init__(self, game: SubstrateSettings, seeds: Seeds, device: str = "cpu", tiles: TileSource = "auto") -> None:
        self._init_args = (game, seeds, device, tiles)
        channels, game_map = game.channels, load_map(game.substrate, game.map)
        n_envs = game.n_envs
        self.engine = Engine(GameSetup(game_map, game.n_agents, game.rules), device)
        self._seeds, self._device = seeds, torch.device(device)
        self._on_host = self._device.type == "cpu"
        self._shape = (n_envs, game.n_agents)
        self._stats_shape, self._metrics_shape = (3, *self._shape), (len(METRICS), n_envs)
        super().__init__(game, build_spec(game, "native", device, game_map.sites), tiles)
        self._root_seeds: list[int] = []  # root of the keys of each equal group of games; empty: the root of `seeds`
        self.observer = ObservationBuilder(self.engine, n_envs, channels, tiles)
        bytes_per_game = self.observer.bytes_per_game
        require_memory(
            bytes_per_game * n_envs,
            device,
            f"env.n_envs={n_envs:,} games of {game.substrate} ({bytes_per_game / 1024:,.1f} KiB each with "
            f"env.observe=[{','.join(channels)}])",
            "use fewer games" + (", or observe grid instead of pixels" if "pixels" in channels else ""),
        )
        self._max_threads = count_threads(n_envs, game.n_agents, self.observer.has_pixels or self.observer.has_grids)
        self._batch = self.engine.allocate_batch(n_envs, self._max_threads)
        # The last arguments of `Engine.play_games`, which are the same at every step.
        self._loop_constants = (self._batch.arrays(), self.engine.tables, self.observer.view_tables())
        self._metrics = METRICS if self.engine.n_dirt_cells else METRICS[:APPLES_REGROWN]
        self._episode_counts = np.zeros(n_envs, dtype=np.int64)
        self._game_keys = np.zeros((n_envs, 2), dtype=np.int32)
        self._episode_clock = EpisodeClock(n_envs, game.horizon, self.engine.setup)
        self._has_invalid_action = compile_for(
            compiled_functions().has_invalid_action, (np.zeros(self._shape, np.int64), 0)
        )
        self._was_reset = False
        self._commands: Any = None  # command for each game in the next step, `batch_loop.STEP` or `batch_loop.WAIT`
        self._device_game_keys: Any = None
        self._running_mask: Array | None = None  # whether each game is in progress; None: all are

    def resized(self, n_envs: int) -> Self:
        """Return a new environment with the same options and `n_envs` games, none of them reset yet."""
        game, seeds, device, tiles = self._init_args
        mechanism = copy.deepcopy(game.mechanism)  # a mechanism stores state of its games
        return type(self)(replace(game, n_envs=n_envs, mechanism=mechanism), seeds, device, tiles)

    def make_single_game(self) -> NativeEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            seeds = [seed] if isinstance(seed, int | np.integer) else list(seed)
            self.spec.games_per_group(len(seeds))  # raises ConfigError if the games cannot be divided
            self._root_seeds = [_root_seed(Seeds(int(root_seed))) for root_seed in seeds]
            self._episode_counts[:] = 0
        roots = self._root_seeds or [_root_seed(self._seeds)]
        group_size = self._group_size if len(roots) == 1 else self.spec.n_envs // len(roots)
        sources = np.repeat(np.array(roots, dtype=np.int64), self.spec.n_envs // len(roots))
        keys = derive_game_keys(sources, np.arange(self.spec.n_envs) % group_size, self._episode_counts)
        self._game_keys[games] = keys[games]
        self._episode_counts[games] += 1
        self._episode_clock.set(np.where(games, 0, self._episode_clock.steps), self._episode_clock.ended & ~games)
        commands = to_loop_array(
            self._to_device(np.where(games | (not self._was_reset), START, OBSERVE).astype(np.uint8))
        )
        self._was_reset = True
        self._update_device_copies()
        self._reset_mechanism(games)
        # A reset uses no actions, and its rewards are not read.
        actions = to_loop_array(self._to_device(np.zeros(self._shape, dtype=np.int64)))
        return self._observation(
            *self._run_loop(commands, actions, self._allocate(self._stats_shape), self._allocate((0, 0)))
        )

    def step(self, action: Array) -> Step:
        if not self._was_reset:
            raise ValueError("reset() must be called before step()")
        actions = self._check_actions(action)
        player_stats, info = self._allocate(self._stats_shape), self._allocate(self._metrics_shape)
        running = self._running_mask
        outputs = self._run_loop(self._commands, actions, player_stats, info)
        metrics = dict(zip(self._metrics, info, strict=False))
        raw_reward = player_stats[0]
        base = reward = raw_reward
        reward_jacobian = None
        if self._mechanism is not None:
            # On the host in NumPy, as mechanisms have compiled functions for its arrays.
            values = self._host_values if self._on_host else self._values
            values = values if running is None else values * running[:, None]
            cleanings = player_stats[1] if self.engine.n_dirt_cells else None
            events = SocietyEvents(raw_reward, cleanings, player_stats[2])
            settlement = self._settle(events, values, self._episode_clock.live, metrics)
            base, reward, reward_jacobian = settlement.base_reward, settlement.reward, settlement.reward_jacobian
        observation = self._observation(*outputs)
        if self._episode_clock.advance(self._game_keys):
            self._update_device_copies()
        terminated = np.zeros(self._shape[0], dtype=bool)
        return Step(observation, reward, base, terminated, self._episode_clock.ended.copy(), metrics, reward_jacobian)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Return a frame of the whole world of game `index`, [8 * height, 8 * width, 3] uint8."""
        return self.observer.render_world(self._checked_batch(), index)

    def render_players(self, index: int = 0) -> NDArray[np.uint8]:
        """Return frames of the views of all players of game `index`, [n_agents, 88, 88, 3] uint8, for any `observe`."""
        return self.observer.render_players(self._checked_batch(), index)

    def state_dict(self) -> State:
        state = {name: x.cpu() for name, x in self._batch.state_dict().items()}
        return {
            "map": self.engine.setup.game_map.text,
            "state": state if self._was_reset else None,
            "player_events": self._batch.player_events.cpu().clone(),
            "root_seeds": self._root_seeds,
            "group": self._group_size,
            "episodes": self._episode_counts.copy(),
            "keys": self._game_keys.copy(),
            "steps": self._episode_clock.steps.copy(),
            "ended": self._episode_clock.ended.copy(),
            "values": self._values.cpu(),
            "mechanism": None if self._mechanism is None else self._mechanism.state_dict(),
            "report": None if self._report is None else self._report.state_dict(),
        }

    def fork(self, state: State, seed: int) -> None:
        self.load_state_dict(state)
        n = self.spec.n_envs
        self._game_keys[:] = derive_game_keys(np.full(n, seed, dtype=np.int64), np.arange(n), self._episode_counts)
        self._update_device_copies()

    def load_state_dict(self, state: State) -> None:
        if state["state"] is not None and tuple(state["state"]["pos"].shape) != self._shape:
            raise CheckpointError(
                f"the saved games have the shape {list(state['state']['pos'].shape)} (games, players), and this "
                f"environment has {list(self._shape)}; set env.n_envs and env.n_agents to those of the saved run"
            )
        if state["map"] != self.engine.setup.game_map.text:
            raise CheckpointError(
                "the saved games use another map than env.map selects here (was Melting Pot installed in only one of "
                "the two runs?); set env.map to the map of the saved run"
            )
        self._root_seeds, self._group_size = list(state["root_seeds"]), state["group"]
        self._episode_counts[:], self._game_keys[:] = np.array(state["episodes"]), np.array(state["keys"])
        self._episode_clock.set(np.array(state["steps"]), np.array(state["ended"], dtype=bool))
        self._set_values(np.array(state["values"]))
        self._was_reset = state["state"] is not None
        if state["state"] is not None:
            saved = {name: torch.as_tensor(x).to(self._device) for name, x in state["state"].items()}
            self._batch.load_state_dict(saved, self.engine.site_adjacency)
            self._batch.player_events.copy_(torch.as_tensor(state["player_events"]))
        self._update_device_copies()
        if self._mechanism is not None:
            self._mechanism.load_state_dict(state["mechanism"])
        if self._report is not None:
            self._report.load_state_dict(state["report"])

    @property
    def threads(self) -> int:
        """Number of threads that play the next step on a CPU: that of torch, or fewer if the games cannot use all."""
        return 1 if self._max_threads == 1 else min(torch.get_num_threads(), self._max_threads)

    def _checked_batch(self) -> GameBatch:
        if not self._was_reset:
            raise ConfigError(f"{self.spec.name} has no frame to render; call reset() first")
        return self._batch

    def _update_device_copies(self) -> None:
        """Update the device's copies of the running games and of their keys, after either has changed."""
        live = self._episode_clock.live
        self._commands = to_loop_array(self._to_device(np.where(live, STEP, WAIT).astype(np.uint8)))
        self._running_mask = None if live.all() else live.copy() if self._on_host else self._to_device(live)
        self._device_game_keys = to_loop_array(self._to_device(self._game_keys))

    def _set_values(self, values: NDArray[np.float32]) -> None:
        self._values = self._to_device(values)
        self._host_values = self._values.numpy() if self._on_host else None
        self._observed_values = self._values[:, None, :].expand(-1, self._shape[1], -1)

    def _run_loop(
        self, commands: Any, actions: Any, player_stats: Array, info: Array
    ) -> tuple[dict[str, Any], torch.Tensor | None]:
        """Run `batch_loop.play` for all games with `commands`; return the outputs for the observation."""
        observer, engine = self.observer, self.engine
        buffers = observer.next_buffers()
        vector, vector_array = observer.allocate_vector() if observer.has_vectors else (None, engine.empty_vectors)
        if not self._on_host:
            player_stats, info = to_loop_array(player_stats), to_loop_array(info)
        inputs = LoopInputs(commands, actions, self._device_game_keys)
        outputs = LoopOutputs(player_stats, info, buffers["grid"][1], buffers["tile_ids"][1], vector_array)
        engine.play_games(self.threads, self._shape[0], (inputs, outputs, *self._loop_constants))
        return buffers, vector

    def _observation(self, buffers: dict[str, Any], vector: torch.Tensor | None) -> Observation:
        """Return the observation made of the outputs of `_run_loop`."""
        observation = self.observer.build_observation(buffers, vector)
        if "text" in self.spec.observation:
            alive = split_fields(self._batch.players, PLAYER_DTYPE)["alive"].cpu().numpy() == 1
            views, scalars, values = (to_numpy(x) for x in (observation["grid"], observation["vector"], self._values))
            present = alive & self._episode_clock.live[:, None]
            observation["text"] = self._describe_observations(views, scalars, present, values)
        if self._settings.shows_mechanism:
            observation["mechanism"] = self._observed_values
        return {name: observation[name] for name in self.spec.observation}

    def _check_actions(self, action: Array) -> Any:
        """Return the actions in the type that the compiled loops take, after checking shape and range."""
        if action.shape != self._shape:
            raise ValueError(
                f"actions of {self.spec.name} are {list(self._shape)} integers, got shape {list(action.shape)}"
            )
        if isinstance(action, torch.Tensor):
            if not self._on_host:
                device_actions = action.to(self._device, torch.int64, non_blocking=self._device.type == "cuda")
                return to_loop_array(device_actions.contiguous())
            action = action.numpy() if action.is_cpu else action.cpu().numpy()
        actions = np.ascontiguousarray(action, dtype=np.int64)
        if self._has_invalid_action(actions, self.spec.n_actions):
            raise ValueError(
                f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, "
                f"got {actions.min()} to {actions.max()}"
            )
        return actions if self._on_host else to_loop_array(self._to_device(actions))

    def _allocate(self, shape: tuple[int, ...]) -> Array:
        """Return new float32 memory for outputs of the loops.

        On the host it is a NumPy array, which is created in a third of the time of a tensor.
        """
        if self._on_host:
            return np.empty(shape, dtype=np.float32)
        return torch.empty(shape, dtype=torch.float32, device=self._device)

    def _to_device(self, x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(x.copy()).to(self._device, non_blocking=self._device.type == "cuda")


def _root_seed(seeds: Seeds) -> int:
    """Return the root of the keys of all games: 62 bits of a stream."""
    return seeds.integer("games") << 31 | seeds.integer("more games")


RANDOM_END_INTERVAL = 100
"""Number of steps between random ends, from `FIRST_END` on."""


class EpisodeClock:
    """Counts the steps of a batch of games on the host. It determines which episodes end at their horizon or by chance.

    Args:
        n: number of games, which have not begun.
        horizon: steps an episode; None leaves its end to the rules.
        setup: map, number of players and rules.

    Attributes:
        ended, live: which games are over, and which are not, [n] bool; not to be changed.
    """

    def __init__(self, n: int, horizon: int | None, setup: GameSetup) -> None:
        self._horizon, self._setup = horizon, setup
        self._n_ticks = self._last_counted_tick = self._next_check_tick = 0
        self._steps = np.zeros(n, dtype=np.int64)  # at the tick `_last_counted_tick`
        self.ended = np.ones(n, dtype=bool)
        self.live = ~self.ended

    @property
    def steps(self) -> NDArray[np.int64]:
        """Number of steps of each game's episode, [n]; it stays constant after the end of the episode."""
        self._steps[self.live] += self._n_ticks - self._last_counted_tick
        self._last_counted_tick = self._n_ticks
        return self._steps

    def set(self, steps: NDArray[np.int64], is_ended: NDArray[np.bool_]) -> None:
        """Set the number of steps and whether the episode has ended for all games, both [n]."""
        self._steps, self._last_counted_tick = steps.astype(np.int64), self._n_ticks
        self._set_ended(is_ended)

    def advance(self, keys: NDArray[np.int32]) -> bool:
        """Count one more step of all running games; return whether any of them ended in it.

        `keys` [n, 2] are the keys of the random numbers.
        """
        self._n_ticks += 1
        if self._n_ticks < self._next_check_tick:
            return False
        previous = self.ended
        self._set_ended(previous | has_ended(self.steps, self._horizon, keys, self._setup))
        return bool((self.ended & ~previous).any())

    def _set_ended(self, is_ended: NDArray[np.bool_]) -> None:
        """Set which games have ended, and compute the next step at which any game can end."""
        self.ended, self.live = is_ended, ~is_ended
        steps = self._steps[self.live]
        if not len(steps):
            self._next_check_tick = self._n_ticks + MAX_HORIZON
            return
        remaining = np.maximum((self._horizon or MAX_HORIZON) - steps, 1)
        if not self._setup.has_rule("no_random_end"):
            chances = FIRST_END + RANDOM_END_INTERVAL * np.maximum((steps - FIRST_END) // RANDOM_END_INTERVAL + 1, 0)
            remaining = np.minimum(remaining, chances - steps)
        self._next_check_tick = self._n_ticks + int(remaining.min())


def has_ended(
    steps: NDArray[np.int64], horizon: int | None, keys: NDArray[np.int32], setup: GameSetup
) -> NDArray[np.bool_]:
    """Return whether each game's episode ends after `steps` [n] of its episode, [n] bool.

    `keys` [n, 2] are the keys of the random numbers.
    """
    is_ended = steps >= (horizon or MAX_HORIZON)
    can_end = (steps >= FIRST_END) & ((steps - FIRST_END) % RANDOM_END_INTERVAL == 0)
    if can_end.any() and not setup.has_rule("no_random_end"):
        random_integers = derive_game_keys(keys[:, 0].astype(np.int64), keys[:, 1].astype(np.int64), steps)[:, 0].view(
            np.uint32
        )
        is_ended |= can_end & (random_integers < SUBSTRATES[setup.game_map.substrate].end_probability * 2.0**32)
    return is_ended
