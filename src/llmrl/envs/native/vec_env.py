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
from llmrl.core.numba_cache import compile_for_types
from llmrl.core.ram import require_memory
from llmrl.core.records import Array, Observation, State, Step, to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.mechanisms import SocietyEvents
from llmrl.envs.native.batch_loop import APPLES_REGROWN, METRIC_NAMES, OBSERVE, START, STEP, WAIT
from llmrl.envs.native.compilation import count_threads, load_compiled_functions
from llmrl.envs.native.engine import Engine, GameSetup
from llmrl.envs.native.game_arrays import PLAYER_DTYPE, GameBatch, LoopInputs, LoopOutputs, split_fields, to_loop_array
from llmrl.envs.native.hashed_random import derive_game_keys
from llmrl.envs.native.observations import ObservationBuilder
from llmrl.envs.native.rules import IS_ACTIVE, N_CLEANED, REWARD
from llmrl.envs.substrate.maps import load_map
from llmrl.envs.substrate.society_env import MAX_HORIZON, SocietyEnv, SubstrateSettings, build_spec
from llmrl.envs.substrate.sprites import TileSource
from llmrl.envs.substrate.substrate_rules import FIRST_RANDOM_END_STEP, SUBSTRATES


class NativeEnv(SocietyEnv):
    """Clean Up or Harvest, with the rules, channels, metrics and mechanisms of `MeltingPotEnv`.

    A game depends only on the seed, its index among the games and the index of its episode. It does not depend
    on the number of games, the device or the number of threads. No step waits for the device.

    Observations are tensors on `device`. Rewards, their Jacobian and the metrics in `info` are tensors on a GPU, else
    NumPy arrays, because operations on few numbers take less time in NumPy.
    `pixels` and `grid` are overwritten at the third following step or reset.

    Args:
        settings: settings of the games.
        seeds: seed tree from which the random numbers of episodes are derived.
        device: torch device of all state and observations.
        tile_source: sprites for `pixels` and videos; `auto`: those of Melting Pot if it is installed.

    Raises:
        ConfigError: settings that the game does not support, too little memory for the games, or a GPU without the
            packages to play on it.
        EngineError: the map or the sprites of Melting Pot are requested, and it is not installed.
    """

    def __init__(
        self, settings: SubstrateSettings, seeds: Seeds, device: str = "cpu", tile_source: TileSource = "auto"
    ) -> None:
        self._init_arguments = (settings, seeds, device, tile_source)
        channels, game_map = settings.channels, load_map(settings.substrate, settings.map)
        n_envs, n_agents = settings.n_envs, settings.n_agents
        self.engine = Engine(GameSetup(game_map, n_agents, settings.rules), device)
        self._seeds, self._device = seeds, torch.device(device)
        self._uses_cpu = self._device.type == "cpu"
        self._action_shape = (n_envs, n_agents)
        self._stats_shape, self._metrics_shape = (3, *self._action_shape), (len(METRIC_NAMES), n_envs)
        super().__init__(settings, build_spec(settings, "native", device, game_map.site_counts), tile_source)
        self._root_seeds: list[int] = []  # root of the keys of each equal group of games; empty: the root of `seeds`
        self.observation_builder = builder = ObservationBuilder(self.engine, n_envs, channels, tile_source)
        bytes_per_game = builder.bytes_per_game
        require_memory(
            bytes_per_game * n_envs,
            device,
            f"env.n_envs={n_envs:,} games of {settings.substrate} ({bytes_per_game / 1024:,.1f} KiB each with "
            f"env.observe=[{','.join(channels)}])",
            "use fewer games" + (", or observe grid instead of pixels" if "pixels" in channels else ""),
        )
        self._max_threads = count_threads(n_envs, n_agents, builder.has_pixels or builder.has_grids)
        self._batch = self.engine.allocate_batch(n_envs, self._max_threads)
        # The last arguments of `Engine.game_loop`, which are the same at every step.
        self._loop_constants = (self._batch.build_loop_arrays(), self.engine.tables, builder.build_loop_tables())
        self._metric_names = METRIC_NAMES if self.engine.n_dirt_cells else METRIC_NAMES[:APPLES_REGROWN]
        self._episode_counts = np.zeros(n_envs, dtype=np.int64)
        self._game_keys = np.zeros((n_envs, 2), dtype=np.int32)
        self._episode_clock = EpisodeClock(n_envs, settings.horizon, self.engine.setup)
        self._has_invalid_action = compile_for_types(
            load_compiled_functions().has_invalid_action, (np.zeros(self._action_shape, np.int64), 0)
        )
        self._was_reset = False
        self._commands: Any = None  # command for each game in the next step, `batch_loop.STEP` or `batch_loop.WAIT`
        self._device_game_keys: Any = None
        self._running_mask: Array | None = None  # whether each game is in progress; None: all are

    def resized(self, n_envs: int) -> Self:
        """Return a new environment with the same options and `n_envs` games, none of them reset yet."""
        settings, seeds, device, tile_source = self._init_arguments
        mechanism = copy.deepcopy(settings.mechanism)  # a mechanism stores state of its games
        return type(self)(replace(settings, n_envs=n_envs, mechanism=mechanism), seeds, device, tile_source)

    def make_single_game(self) -> NativeEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        reset_mask = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            seeds = [seed] if isinstance(seed, int | np.integer) else list(seed)
            self.spec.games_per_group(len(seeds))  # raises ConfigError if the games cannot be divided
            self._root_seeds = [_derive_root_key(Seeds(int(root_seed))) for root_seed in seeds]
            self._episode_counts[:] = 0
        roots = self._root_seeds or [_derive_root_key(self._seeds)]
        group_size = self._group_size if len(roots) == 1 else self.spec.n_envs // len(roots)
        root_by_game = np.repeat(np.array(roots, dtype=np.int64), self.spec.n_envs // len(roots))
        keys = derive_game_keys(root_by_game, np.arange(self.spec.n_envs) % group_size, self._episode_counts)
        self._game_keys[reset_mask] = keys[reset_mask]
        self._episode_counts[reset_mask] += 1
        clock = self._episode_clock
        clock.set_episodes(np.where(reset_mask, 0, clock.steps), clock.has_ended & ~reset_mask)
        starts = reset_mask | (not self._was_reset)
        commands = to_loop_array(self._to_device(np.where(starts, START, OBSERVE).astype(np.uint8)))
        self._was_reset = True
        self._update_device_copies()
        self._reset_mechanism(reset_mask)
        # A reset uses no actions, and its rewards are not read.
        actions = to_loop_array(self._to_device(np.zeros(self._action_shape, dtype=np.int64)))
        outputs = self._run_loop(commands, actions, self._allocate(self._stats_shape), metrics=self._allocate((0, 0)))
        return self._build_observation(*outputs)

    def step(self, action: Array) -> Step:
        if not self._was_reset:
            raise ValueError("reset() must be called before step()")
        actions = self._check_actions(action)
        player_stats, metrics_array = self._allocate(self._stats_shape), self._allocate(self._metrics_shape)
        running_mask = self._running_mask
        outputs = self._run_loop(self._commands, actions, player_stats, metrics_array)
        metrics = dict(zip(self._metric_names, metrics_array, strict=False))
        raw_reward = player_stats[REWARD]
        base_reward = reward = raw_reward
        reward_jacobian = None
        if self._mechanism is not None:
            # On the host in NumPy, as mechanisms have compiled functions for its arrays.
            values = self._host_mechanism_values if self._uses_cpu else self._mechanism_values
            values = values if running_mask is None else values * running_mask[:, None]
            n_cleaned = player_stats[N_CLEANED] if self.engine.n_dirt_cells else None
            events = SocietyEvents(raw_reward, n_cleaned, player_stats[IS_ACTIVE])
            settlement = self._settle(events, values, self._episode_clock.is_live, metrics)
            base_reward, reward, reward_jacobian = settlement.base_reward, settlement.reward, settlement.reward_jacobian
        observation = self._build_observation(*outputs)
        if self._episode_clock.advance(self._game_keys):
            self._update_device_copies()
        terminated, truncated = np.zeros(self._action_shape[0], dtype=bool), self._episode_clock.has_ended.copy()
        return Step(observation, reward, base_reward, terminated, truncated, metrics, reward_jacobian)

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Return a frame of the whole world of game `index`, [8 * height, 8 * width, 3] uint8."""
        return self.observation_builder.render_world(self._get_started_batch(), index)

    def render_players(self, index: int = 0) -> NDArray[np.uint8]:
        """Return frames of the views of all players of game `index`, [n_agents, 88, 88, 3] uint8, for any `observe`."""
        return self.observation_builder.render_players(self._get_started_batch(), index)

    def state_dict(self) -> State:
        return {
            "map": self.engine.setup.game_map.text,
            "state": {name: x.cpu() for name, x in self._batch.state_dict().items()} if self._was_reset else None,
            "player_events": self._batch.player_events.cpu().clone(),
            "root_seeds": self._root_seeds,
            "group": self._group_size,
            "episodes": self._episode_counts.copy(),
            "keys": self._game_keys.copy(),
            "steps": self._episode_clock.steps.copy(),
            "ended": self._episode_clock.has_ended.copy(),
            "values": self._mechanism_values.cpu(),
            "mechanism": None if self._mechanism is None else self._mechanism.state_dict(),
            "report": None if self._report is None else self._report.state_dict(),
        }

    def fork(self, state: State, seed: int) -> None:
        self.load_state_dict(state)
        n = self.spec.n_envs
        self._game_keys[:] = derive_game_keys(np.full(n, seed, dtype=np.int64), np.arange(n), self._episode_counts)
        self._update_device_copies()

    def load_state_dict(self, state: State) -> None:
        if state["state"] is not None and tuple(state["state"]["pos"].shape) != self._action_shape:
            raise CheckpointError(
                f"the saved games have the shape {list(state['state']['pos'].shape)} (games, players), and this "
                f"environment has {list(self._action_shape)}; set env.n_envs and env.n_agents to those of the saved run"
            )
        if state["map"] != self.engine.setup.game_map.text:
            raise CheckpointError(
                "the saved games use another map than env.map selects here (was Melting Pot installed in only one of "
                "the two runs?); set env.map to the map of the saved run"
            )
        self._root_seeds, self._group_size = list(state["root_seeds"]), state["group"]
        self._episode_counts[:], self._game_keys[:] = np.array(state["episodes"]), np.array(state["keys"])
        self._episode_clock.set_episodes(np.array(state["steps"]), np.array(state["ended"], dtype=bool))
        self._set_mechanism_values(np.array(state["values"]))
        self._was_reset = state["state"] is not None
        if state["state"] is not None:
            saved_tensors = {name: torch.as_tensor(x).to(self._device) for name, x in state["state"].items()}
            self._batch.load_state_dict(saved_tensors, self.engine.site_adjacency)
            self._batch.player_events.copy_(torch.as_tensor(state["player_events"]))
        self._update_device_copies()
        if self._mechanism is not None:
            self._mechanism.load_state_dict(state["mechanism"])
        if self._report is not None:
            self._report.load_state_dict(state["report"])

    @property
    def n_threads(self) -> int:
        """Number of threads that play the next step on a CPU: that of torch, or fewer if the games cannot use all."""
        return 1 if self._max_threads == 1 else min(torch.get_num_threads(), self._max_threads)

    def _get_started_batch(self) -> GameBatch:
        if not self._was_reset:
            raise ConfigError(f"{self.spec.name} has no frame to render; call reset() first")
        return self._batch

    def _update_device_copies(self) -> None:
        """Update the device's copies of commands, running mask and game keys, after one of them has changed."""
        is_live = self._episode_clock.is_live
        self._commands = to_loop_array(self._to_device(np.where(is_live, STEP, WAIT).astype(np.uint8)))
        self._running_mask = None if is_live.all() else is_live.copy() if self._uses_cpu else self._to_device(is_live)
        self._device_game_keys = to_loop_array(self._to_device(self._game_keys))

    def _set_mechanism_values(self, values: NDArray[np.float32]) -> None:
        self._mechanism_values = self._to_device(values)
        self._host_mechanism_values = self._mechanism_values.numpy() if self._uses_cpu else None
        self._observed_mechanism_values = self._mechanism_values[:, None, :].expand(-1, self._action_shape[1], -1)

    def _run_loop(
        self, commands: Any, actions: Any, player_stats: Array, metrics: Array
    ) -> tuple[dict[str, Any], torch.Tensor | None]:
        """Execute `commands`, write `player_stats` and `metrics`, and return the arguments of `_build_observation`."""
        builder, engine = self.observation_builder, self.engine
        buffers = builder.rotate_buffers()
        vector, vector_array = builder.allocate_vectors() if builder.has_vectors else (None, engine.empty_vectors)
        if not self._uses_cpu:
            player_stats, metrics = to_loop_array(player_stats), to_loop_array(metrics)
        inputs = LoopInputs(commands, actions, self._device_game_keys)
        outputs = LoopOutputs(player_stats, metrics, buffers["grid"][1], buffers["tile_ids"][1], vector_array)
        engine.game_loop(self.n_threads, self._action_shape[0], (inputs, outputs, *self._loop_constants))
        return buffers, vector

    def _build_observation(self, buffers: dict[str, Any], vector: torch.Tensor | None) -> Observation:
        """Return the observation made of the outputs of `_run_loop`."""
        observation = self.observation_builder.build_observation(buffers, vector)
        if "text" in self.spec.observation:
            is_alive = split_fields(self._batch.players, PLAYER_DTYPE)["alive"].cpu().numpy() == 1
            arrays = map(to_numpy, (observation["grid"], observation["vector"], self._mechanism_values))
            (grids, vectors, values), is_live = arrays, self._episode_clock.is_live[:, None]
            observation["text"] = self._describe_observations(grids, vectors, is_alive & is_live, values)
        if self._settings.shows_mechanism:
            observation["mechanism"] = self._observed_mechanism_values
        return {name: observation[name] for name in self.spec.observation}

    def _check_actions(self, action: Array) -> Any:
        """Return the actions in the type that the compiled loops take, after checking shape and range."""
        if action.shape != self._action_shape:
            raise ValueError(
                f"actions of {self.spec.name} are {list(self._action_shape)} integers, got shape {list(action.shape)}"
            )
        if isinstance(action, torch.Tensor):
            if not self._uses_cpu:
                device_actions = action.to(self._device, torch.int64, non_blocking=self._device.type == "cuda")
                return to_loop_array(device_actions.contiguous())
            action = action.numpy() if action.is_cpu else action.cpu().numpy()
        actions = np.ascontiguousarray(action, dtype=np.int64)
        if self._has_invalid_action(actions, self.spec.n_actions):
            raise ValueError(
                f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, "
                f"got {actions.min()} to {actions.max()}"
            )
        return actions if self._uses_cpu else to_loop_array(self._to_device(actions))

    def _allocate(self, shape: tuple[int, ...]) -> Array:
        """Return new float32 memory for outputs of the loops.

        On the host it is a NumPy array, which is created in a third of the time of a tensor.
        """
        if self._uses_cpu:
            return np.empty(shape, dtype=np.float32)
        return torch.empty(shape, dtype=torch.float32, device=self._device)

    def _to_device(self, x: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(x.copy()).to(self._device, non_blocking=self._device.type == "cuda")


def _derive_root_key(seeds: Seeds) -> int:
    """Return the integer from which the keys of all games are derived, 62 bits of `seeds`."""
    return seeds.integer("games") << 31 | seeds.integer("more games")


RANDOM_END_INTERVAL = 100
"""Number of steps between random ends, from `FIRST_RANDOM_END_STEP` on."""


class EpisodeClock:
    """Counter, on the host, of the steps of games. It finds which episodes end, at the horizon or by chance.

    Args:
        n: number of games, which have not begun.
        horizon: number of steps after which an episode ends; None: `MAX_HORIZON`.
        setup: map, number of players and rules.

    Attributes:
        has_ended, is_live: whether each game is over, and whether it is not, [n] bool; not to be changed in place.
    """

    def __init__(self, n: int, horizon: int | None, setup: GameSetup) -> None:
        self._horizon, self._setup = horizon, setup
        self._n_ticks = self._last_counted_tick = self._next_check_tick = 0
        self._steps = np.zeros(n, dtype=np.int64)  # at the tick `_last_counted_tick`
        self.has_ended = np.ones(n, dtype=bool)
        self.is_live = ~self.has_ended

    @property
    def steps(self) -> NDArray[np.int64]:
        """Number of steps of each game's episode, [n]; it stays constant after the end of the episode."""
        self._steps[self.is_live] += self._n_ticks - self._last_counted_tick
        self._last_counted_tick = self._n_ticks
        return self._steps

    def set_episodes(self, steps: NDArray[np.int64], has_ended: NDArray[np.bool_]) -> None:
        """Set the number of steps and whether the episode has ended for all games, both [n]."""
        self._steps, self._last_counted_tick = steps.astype(np.int64), self._n_ticks
        self._set_ended(has_ended)

    def advance(self, game_keys: NDArray[np.int32]) -> bool:
        """Count one more step of all running games; return whether any of them ended in it.

        `game_keys` [n, 2] are the keys of the random numbers.
        """
        self._n_ticks += 1
        if self._n_ticks < self._next_check_tick:
            return False
        previous = self.has_ended
        self._set_ended(previous | find_ended_games(self.steps, self._horizon, game_keys, self._setup))
        return bool((self.has_ended & ~previous).any())

    def _set_ended(self, has_ended: NDArray[np.bool_]) -> None:
        """Set which games have ended, and compute the next tick (step of the batch) at which any game can end."""
        self.has_ended, self.is_live = has_ended, ~has_ended
        steps = self._steps[self.is_live]
        if not len(steps):
            self._next_check_tick = self._n_ticks + MAX_HORIZON
            return
        n_remaining = np.maximum((self._horizon or MAX_HORIZON) - steps, 1)
        if not self._setup.has_rule_change("no_random_end"):
            n_intervals = np.maximum((steps - FIRST_RANDOM_END_STEP) // RANDOM_END_INTERVAL + 1, 0)
            n_remaining = np.minimum(n_remaining, FIRST_RANDOM_END_STEP + RANDOM_END_INTERVAL * n_intervals - steps)
        self._next_check_tick = self._n_ticks + int(n_remaining.min())


def find_ended_games(
    steps: NDArray[np.int64], horizon: int | None, game_keys: NDArray[np.int32], setup: GameSetup
) -> NDArray[np.bool_]:
    """Return whether each game's episode ends at its step `steps` [n], as [n] bool.

    `game_keys` [n, 2] are the keys of the random numbers. `horizon`: see `EpisodeClock`.
    """
    has_ended = steps >= (horizon or MAX_HORIZON)
    can_end = (steps >= FIRST_RANDOM_END_STEP) & ((steps - FIRST_RANDOM_END_STEP) % RANDOM_END_INTERVAL == 0)
    if can_end.any() and not setup.has_rule_change("no_random_end"):
        first_keys, second_keys = game_keys.astype(np.int64).T
        random_integers = derive_game_keys(first_keys, second_keys, steps)[:, 0].view(np.uint32)
        has_ended |= can_end & (random_integers < SUBSTRATES[setup.game_map.substrate].end_probability * 2.0**32)
    return has_ended
