"""`MeltingPotEnv`: parallel copies (games) of a Melting Pot substrate in worker processes, as one `VecEnv`."""

from __future__ import annotations

import copy
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.mechanisms import SocietyEvents
from llmrl.envs.melting_pot.worker import CENSUS_FIELDS, MemoryLayout
from llmrl.envs.substrate import install
from llmrl.envs.substrate.maps import load_map
from llmrl.envs.substrate.society_env import SocietyEnv, SubstrateSettings, build_spec
from llmrl.envs.substrate.substrate_rules import MAX_AGENTS, SUBSTRATES

_POLL_INTERVAL_SECONDS = 1  # time after which a pool that waits for an answer checks whether the worker still runs
_EXIT_TIMEOUT_SECONDS = 5  # time that workers have to end before they are killed


@dataclass
class GameWorker:
    """The process of one game and its socket (the protocol is described in `worker`)."""

    process: subprocess.Popen[bytes]
    connection: socket.socket


class GameWorkerPool:
    """Pool of worker processes, one per game.

    Workers end when the pool is closed or the parent process has ended for any reason. The shared memory has no name,
    so it is then freed, too.

    Args:
        layout: settings of the games and of the shared memory.
        seeds: seed of the first episode of each game.
    """

    def __init__(self, layout: MemoryLayout, seeds: Sequence[int]) -> None:
        self._layout = layout
        self.workers: list[GameWorker] = []
        memory_descriptor = os.memfd_create("llmrl-melting-pot")
        try:
            os.truncate(memory_descriptor, layout.nbytes)
            # The memory is unmapped with the last array that refers to it.
            self.arrays: dict[str, NDArray[Any]] = layout.map_arrays(mmap.mmap(memory_descriptor, layout.nbytes))
            self.arrays["seed"][:] = seeds
            for game in range(layout.n_envs):
                self.workers.append(self._spawn_worker(game, memory_descriptor))
        finally:
            os.close(memory_descriptor)

    def execute_commands(self, commands: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send `commands` (game -> byte, see `worker`) to the games, and return their answers (game -> byte).

        Raises:
            EngineError: a game died. All other games are then ended, too.
        """
        for game, command in commands.items():
            try:
                self.workers[game].connection.sendall(command)
            except OSError as error:
                raise self._build_exit_error(game) from error
        return {game: self._receive_answer(game) for game in commands}

    def close(self) -> None:
        """End the games; later calls do nothing. It may be called after a game has died."""
        for worker in self.workers:
            worker.connection.close()
        deadline = time.monotonic() + _EXIT_TIMEOUT_SECONDS
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self.workers = []

    def _spawn_worker(self, game: int, memory_descriptor: int) -> GameWorker:
        parent_socket, child_socket = socket.socketpair()
        # A timeout of the kernel: a Python timeout would need one more system call for each step of each game.
        parent_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _POLL_INTERVAL_SECONDS, 0))
        with child_socket:
            command = [sys.executable, "-m", "llmrl.envs.melting_pot.worker"]
            command += [json.dumps(asdict(self._layout)), str(game), str(child_socket.fileno()), str(memory_descriptor)]
            # One core per game: threads of NumPy's linear algebra would also interfere with fork.
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            descriptors = (child_socket.fileno(), memory_descriptor)
            process = subprocess.Popen(command, pass_fds=descriptors, env=variables, stdin=subprocess.DEVNULL)
        return GameWorker(process, parent_socket)

    def _receive_answer(self, game: int) -> bytes:
        worker = self.workers[game]
        while True:
            try:
                answer = worker.connection.recv(1)
            except BlockingIOError:
                # After a worker was killed, its child process keeps the socket open for a moment.
                if worker.process.poll() is None:
                    continue
                answer = b""
            except OSError:
                answer = b""
            if not answer:
                raise self._build_exit_error(game)
            return answer

    def _build_exit_error(self, game: int) -> EngineError:
        """End all games after one has died, and return an error with the cause."""
        try:
            exit_code = self.workers[game].process.wait(_EXIT_TIMEOUT_SECONDS)
            # As in a shell, the exit code of a worker whose child was killed is 128 + signal.
            signal_number = -exit_code if exit_code < 0 else exit_code - 128
            is_signal = signal_number in set(signal.Signals)
            cause = f"exit code {exit_code}" + (f": {signal.Signals(signal_number).name}" if is_signal else "")
        except subprocess.TimeoutExpired:
            cause = "its process hangs"
        self.close()
        game_name = f"game {game} of {self._layout.n_envs} ({self._layout.substrate})"
        return EngineError(
            f"{game_name} died ({cause}); the output of its process is above. Start the same command again; the run "
            "resumes from its newest checkpoint."
        )


class MeltingPotEnv(SocietyEnv):
    """Clean Up or Harvest on the Melting Pot engine.

    **Observation.** `pixels` [n_envs, n_agents, 88, 88, 3] uint8; `grid` [n_envs, n_agents, 11, 11, 4] uint8, codes of
    the cells in view (`grid_text.count_grid_codes`); `vector` [n_envs, n_agents, 1 or 2] float32
    (`Substrate.vector_observations`); `text` [n_envs, n_agents], JSON (`grid_text.describe_observation`); `mechanism`
    [n_envs, n_agents, d] float32, the unscaled values of a mechanism, with `show_mechanism`. Removed (zapped) players
    get black pixels and an empty text until they return.

    **End.** An episode is truncated at the horizon or, under upstream rules, at a random step; no episode terminates.
    The same seed repeats an episode within a run, but not in another run, because the engine's order of events differs
    between processes.

    Args:
        settings: settings of the environment.
        seeds: seed tree from which seeds of episodes are derived.
        render: whether `render` works; a frame of the whole map is then computed in each step.

    Raises:
        EngineError: the engine is not installed or cannot run on this machine; in later calls: a game died.
        ConfigError: the substrate does not support the settings.
    """

    def __init__(self, settings: SubstrateSettings, seeds: Seeds, render: bool = False) -> None:
        install.check_installed()
        self._init_arguments = (settings, seeds, render)
        n_envs, n_agents, rules = settings.n_envs, settings.n_agents, settings.rules
        self._substrate = SUBSTRATES[settings.substrate]
        max_agents = len(self._substrate.spawn_cells) if rules == "legislative" else MAX_AGENTS
        if not 1 <= n_agents <= max_agents:
            raise ConfigError(
                f"env.n_agents={n_agents} must be 1 to {max_agents} in {settings.substrate} with env.rules={rules}"
            )
        game_map = None if settings.map in ("auto", "melting_pot") else load_map(settings.substrate, settings.map)
        if game_map is not None:
            game_map.list_start_cells(n_agents)
            if rules == "legislative":
                raise ConfigError(
                    "env.rules=legislative defines the players' own cells only on Melting Pot's map; use env.map=auto"
                )
        map_text = None if game_map is None else game_map.text
        self._layout = MemoryLayout(settings.substrate, rules, n_envs, n_agents, settings.channels, render, map_text)
        site_counts = None if game_map is None else game_map.site_counts
        super().__init__(settings, build_spec(settings, "meltingpot", site_counts=site_counts))
        self._seeds = seeds
        self._reset_seeds: list[int] = []  # root seed of each equal group of games; empty: `seeds` is used
        self._episode_counts = np.zeros(n_envs, dtype=np.int64)
        self._pool: GameWorkerPool | None = None
        self._arrays: dict[str, NDArray[Any]] = {}
        self._has_ended = np.ones(n_envs, dtype=bool)
        self._episode_lengths = np.zeros(n_envs, dtype=np.int64)
        self._is_present = np.ones((n_envs, n_agents), dtype=bool)
        self._n_live_apples = np.zeros(n_envs, dtype=np.float32)

    def make_single_game(self) -> MeltingPotEnv:
        """Return a new environment with the same options and one game, not reset yet, in another worker process."""
        settings, seeds, render = self._init_arguments
        # The mechanism is copied, because it may contain state for each game.
        single_game_settings = replace(settings, n_envs=1, mechanism=copy.deepcopy(settings.mechanism))
        return name_env_in_errors(MeltingPotEnv(single_game_settings, seeds, render))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        reset_mask = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            seeds = list(seed) if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(seeds))
            self._reset_seeds, self._episode_counts[:] = seeds, 0
        if self._pool is None:  # workers start at the first reset, so that an unused environment has none
            self._pool = GameWorkerPool(self._layout, self._compute_next_seeds())
            self._arrays = self._pool.arrays
        self._arrays["seed"][:] = self._compute_next_seeds()
        self._execute_commands(self._pool, {int(game): b"R" for game in np.flatnonzero(reset_mask)})
        # Seeds of the next episodes, which workers prepare as soon as these end.
        self._episode_counts[reset_mask] += 1
        self._arrays["seed"][:] = self._compute_next_seeds()
        player_census, group_counts = self._read_census()
        self._has_ended[reset_mask], self._episode_lengths[reset_mask] = False, 0
        self._is_present[reset_mask] = player_census[CENSUS_FIELDS.index("present")][reset_mask] > 0
        self._n_live_apples[reset_mask] = group_counts["apples_live"][reset_mask]
        self._reset_mechanism(reset_mask)
        return self._build_observation()

    def step(self, action: Array) -> Step:
        if self._pool is None:
            raise ValueError("reset() must be called before step()")
        active = ~self._has_ended
        self._arrays["action"][:] = self._check_actions(action)
        self._episode_lengths[active] += 1
        horizon = self._settings.horizon
        is_last_step = np.zeros_like(active) if horizon is None else self._episode_lengths >= horizon
        commands = {int(game): b"L" if is_last_step[game] else b"S" for game in np.flatnonzero(active)}
        for game, answer in self._execute_commands(self._pool, commands).items():
            self._has_ended[game] = is_last_step[game] or answer == b"E"
        return self._build_step(active)

    def _build_step(self, active: NDArray[np.bool_]) -> Step:
        """Return the `Step`. Games that wait for a reset (not `active`) have their last observation, and rewards 0."""
        player_census, group_counts = self._read_census()
        values = self._mechanism_values
        if not active.all():
            player_census[:, ~active], self._is_present[~active] = 0, False
            values = values * active[:, None]
        raw_reward, n_cleaned, n_zapped, is_present = player_census
        n_eaten = raw_reward.sum(axis=1)
        info = {
            "apples_eaten": n_eaten,
            "zaps": n_zapped.sum(axis=1),
            "players_present": is_present.sum(axis=1),
            **group_counts,
        }
        if self._substrate.has_dirt:
            info["apples_regrown"] = group_counts["apples_live"] - self._n_live_apples + n_eaten
            info["cells_cleaned"] = n_cleaned.sum(axis=1)
            info["cleaning_shots"] = (n_cleaned > 0).sum(axis=1, dtype=np.float32)
        base_reward = reward = raw_reward
        reward_jacobian = None
        if self._mechanism is not None:
            events = SocietyEvents(raw_reward, n_cleaned if self._substrate.has_dirt else None, self._is_present)
            settlement = self._settle(events, values, active, info)
            base_reward, reward = settlement.base_reward, settlement.reward
            reward_jacobian = settlement.reward_jacobian
        self._is_present, self._n_live_apples = is_present > 0, group_counts["apples_live"]
        return Step(
            self._build_observation(),
            reward,
            base_reward,
            np.zeros_like(self._has_ended),
            self._has_ended.copy(),
            info,
            reward_jacobian,
        )

    def _read_census(self) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """Return `worker.CENSUS_FIELDS`, [4, n_envs, n_agents], and the counts of `Substrate.piece_groups`.

        The counts are a dictionary: metric name -> [n_envs].
        """
        census = self._arrays["census"].astype(np.float32)
        n_player_columns = len(CENSUS_FIELDS) * self.spec.n_agents
        player_census = census[:, :n_player_columns].reshape(self.spec.n_envs, self.spec.n_agents, len(CENSUS_FIELDS))
        group_counts = {name: census[:, n_player_columns + i] for i, name in enumerate(self._substrate.piece_groups)}
        return np.ascontiguousarray(player_census.transpose(2, 0, 1)), group_counts

    def _build_observation(self) -> Observation:
        """Return copies of all channels, because the workers overwrite the shared memory in the next step."""
        observation = {name: self._arrays[name].copy() for name in self._layout.channels if name != "text"}
        if "text" in self._layout.channels:
            observation["text"] = self._describe_observations(
                self._arrays["grid"], self._arrays["vector"], self._is_present, self._mechanism_values
            )
        if self._settings.shows_mechanism:
            observation["mechanism"] = np.repeat(self._mechanism_values[:, None, :], self.spec.n_agents, axis=1)
        return observation

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Return a frame of the whole map in game `index`, uint8, 8 pixels per cell.

        On Melting Pot's maps its shape is [168, 240, 3] for cleanup and [144, 192, 3] for harvest.

        Raises:
            ConfigError: the environment was created with render=False, or was never reset.
        """
        if "world" not in self._arrays:
            remedy = "call reset() first" if self._layout.render else "set env.render=true"
            raise ConfigError(f"{self.spec.name} has no frame to render; {remedy}")
        return np.array(self._arrays["world"][index])

    def state_dict(self) -> State:
        """Return the number of episodes that each game has begun, so that a resumed run continues with new seeds.

        The state of episodes in progress cannot be saved.
        """
        return {"episodes": self._episode_counts.tolist(), "reset_seeds": self._reset_seeds}

    def load_state_dict(self, state: State) -> None:
        self._episode_counts[:], self._reset_seeds = state["episodes"], state["reset_seeds"]
        self._has_ended[:] = True

    def close(self) -> None:
        """End the games; later calls do nothing. It may be called after a game has died. `reset` starts new games."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self._arrays = None, {}
        self._has_ended[:] = True

    def _compute_next_seeds(self) -> list[int]:
        """Return the seed of the next episode of each game."""
        roots = [Seeds(seed) for seed in self._reset_seeds] or [self._seeds]
        games_per_root = self.spec.n_envs // len(roots)
        group_size = games_per_root if len(roots) > 1 else self._group_size
        return [
            roots[game // games_per_root].child(f"game{game % group_size}").integer(int(count))
            for game, count in enumerate(self._episode_counts)
        ]

    def _execute_commands(self, pool: GameWorkerPool, commands: dict[int, bytes]) -> dict[int, bytes]:
        try:
            return pool.execute_commands(commands)
        except EngineError:
            self.close()
            raise
