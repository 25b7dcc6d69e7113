"""`MeltingPotEnv`: Melting Pot games in worker processes, as one `VecEnv`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.envs.env_errors import guarded
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import Settlement, SocietyEvents
from llmrl.envs.melting_pot.pool import GamePool
from llmrl.envs.substrate import install
from llmrl.envs.substrate.env_spec import SubstrateSettings, check_settings, describe
from llmrl.envs.substrate.grid_text import observation_text
from llmrl.envs.substrate.maps import find
from llmrl.envs.substrate.memory_layout import CENSUS, MemoryLayout
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, check_n_agents


class MeltingPotEnv:
    """Clean Up or Harvest on the Melting Pot engine.

    **Observation.** `pixels` [n_envs, n_agents, 88, 88, 3] uint8; `grid` [n_envs, n_agents, 11, 11, 4] uint8, contents
    of the cells in view (`grid_text.grid_codes`); `vector` [n_envs, n_agents, 1 or 2] float32 (`memory_layout.VECTOR`);
    `text` [n_envs, n_agents], the grid in words (`grid_text.observation_text`); `mechanism` [n_envs, n_agents, d]
    float32, the current values of a mechanism that is shown, unscaled. Players who have been zapped get black pixels
    and an empty text until they are back.

    **End.** An episode is truncated at the horizon. The engine's random end is a time limit, too, and reported as
    truncation; no game terminates. The same seed repeats an episode within a run, but not in another run, because the
    engine's order of events differs between processes.

    Args:
        game: settings of the games; each game has a worker process.
        seeds: stream from which episodes draw their seeds.
        render: whether `render` works; this costs a frame of the world at each step.

    Raises:
        EngineError: the engine is not installed or cannot run on this machine; in later calls: a game died.
        ConfigError: settings that the substrate does not support.
    """

    def __init__(self, game: SubstrateSettings, seeds: Seeds, render: bool = False) -> None:
        install.check()
        self._init_args = (game, seeds, render)
        n_envs, n_agents, rules, mechanism = game.n_envs, game.n_agents, game.rules, game.mechanism
        check_n_agents(n_agents, game.substrate, rules)
        self._substrate = SUBSTRATES[game.substrate]
        channels = check_settings(game)
        game_map = None if game.map in ("auto", "melting_pot") else find(game.substrate, game.map)
        if game_map is not None:
            game_map.starts(n_agents)
            if rules == "legislative":
                raise ConfigError(
                    "env.rules=legislative defines the players' own cells only on Melting Pot's map; use env.map=auto"
                )
        text = None if game_map is None else game_map.text
        self._layout = MemoryLayout(game.substrate, rules, n_envs, n_agents, channels, render, text)
        self._mechanism = mechanism
        self._mechanism_shown = game.mechanism_shown
        self._horizon = game.horizon
        self._seeds = seeds
        self._reset_seeds: list[int] = []  # seed of each equal group of games; empty: `seeds` is used
        self._group_size = n_envs  # number of games with different seeds; the following groups have the same seeds
        self._episodes = np.zeros(n_envs, dtype=np.int64)
        self._pool: GamePool | None = None
        self._arrays: dict[str, NDArray[Any]] = {}
        self._ended = np.ones(n_envs, dtype=bool)
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._present = np.ones((n_envs, n_agents), dtype=bool)
        self._apples = np.zeros(n_envs, dtype=np.float32)
        self._values = np.zeros((n_envs, 0), np.float32)
        if mechanism is not None:
            self._values = np.tile(mechanism.spec.low.astype(np.float32), (n_envs, 1))
        self.settlement: Settlement | None = None
        """The mechanism's settlement of the last step; None without a mechanism or before the first step."""
        self._report: MechanismReport | None = None
        if mechanism is not None and "text" in channels:
            self._report = MechanismReport(
                mechanism.spec, n_envs, n_agents, self._mechanism_shown, mechanism.player_facts
            )
        sites = None if game_map is None else game_map.sites
        self.spec = describe(game, channels, engine="meltingpot", sites=sites)

    def one_game(self) -> MeltingPotEnv:
        """Return the same environment with a single independent game in a worker process of its own."""
        game, seeds, render = self._init_args
        solo = replace(game, n_envs=1, mechanism=copy.deepcopy(game.mechanism))  # a mechanism stores state of its games
        return guarded(MeltingPotEnv(solo, seeds, render))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            seeds = list(seed) if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(seeds))
            self._reset_seeds, self._episodes[:] = seeds, 0
        pool = self._get_pool()
        self._arrays["seed"][:] = self._next_seeds()
        self._exchange(pool, {int(slot): b"R" for slot in np.flatnonzero(games)})
        # Set before this episode ends, so that the workers can prepare the next one.
        self._episodes[games] += 1
        self._arrays["seed"][:] = self._next_seeds()
        players, counts = self._census()
        self._ended[games], self._steps[games] = False, 0
        self._present[games] = players[CENSUS.index("present")][games] > 0
        self._apples[games] = counts["apples_live"][games]
        if self._mechanism is not None:
            self._mechanism.reset(games)
        if self._report is not None:
            self._report.begin(games)
        return self._observation()

    def step(self, action: Array) -> Step:
        if self._pool is None:
            raise ValueError("reset() must be called before step()")
        actions = np.asarray(action)
        if actions.shape != (self.spec.n_envs, self.spec.n_agents):
            shape = [self.spec.n_envs, self.spec.n_agents]
            raise ValueError(f"actions of {self.spec.name} are {shape} integers, got shape {list(actions.shape)}")
        if actions.min() < 0 or actions.max() >= self.spec.n_actions:
            raise ValueError(
                f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, "
                f"got {actions.min()} to {actions.max()}"
            )
        live = ~self._ended
        self._arrays["action"][:] = actions
        self._steps[live] += 1
        last = self._steps >= self._horizon if self._horizon is not None else np.zeros_like(live)
        answers = self._exchange(self._pool, {int(slot): b"L" if last[slot] else b"S" for slot in np.flatnonzero(live)})
        for slot, answer in answers.items():
            self._ended[slot] = last[slot] or answer == b"E"
        return self._settle(live)

    def _settle(self, live: NDArray[np.bool_]) -> Step:
        """Return the `Step`. Games that wait for a reset (not `live`) show their last state, with rewards of 0."""
        players, counts = self._census()
        values = self._values
        if not live.all():
            players[:, ~live], self._present[~live] = 0, False
            values = values * live[:, None]
        raw, cleanings, zaps, present = players
        apples = raw.sum(axis=1)
        info = {
            "apples_eaten": apples,
            "zaps": zaps.sum(axis=1),
            "players_present": present.sum(axis=1),
            **counts,
        }
        if self._substrate.dirt:
            info["apples_regrown"] = counts["apples_live"] - self._apples + apples
            info["cells_cleaned"] = cleanings.sum(axis=1)
            info["cleaning_shots"] = (cleanings > 0).sum(axis=1, dtype=np.float32)
        base = reward = raw
        reward_jacobian = None
        if self._mechanism is not None:
            events = SocietyEvents(raw, cleanings if self._substrate.dirt else None, self._present)
            self.settlement = self._mechanism.settle(events, values)
            base, reward = self.settlement.base_reward, self.settlement.reward(values)
            info |= self.settlement.metrics
            reward_jacobian = self.settlement.reward_jacobian
            if self._report is not None:
                self._report.settle(base, reward_jacobian, values, live, self.settlement.player_facts)
        self._present, self._apples = present > 0, counts["apples_live"]
        return Step(
            self._observation(), reward, base, np.zeros_like(self._ended), self._ended.copy(), info, reward_jacobian
        )

    def pair_games(self, groups: int) -> None:
        """Give game i of each of `groups` equal groups the same seed from the next reset on.

        This pairs the engine's random numbers, but not the order in which it updates objects, which differs between
        processes.
        """
        self._group_size = self.spec.games_per_group(groups)

    def _census(self) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """Return `memory_layout.CENSUS` of all players, and the counts of `Substrate.groups` by name.

        Shapes are [4, n_envs, n_agents] and [n_envs] each.
        """
        census = self._arrays["census"].astype(np.float32)
        split = len(CENSUS) * self.spec.n_agents
        players = census[:, :split].reshape(self.spec.n_envs, self.spec.n_agents, len(CENSUS))
        counts = {name: census[:, split + i] for i, name in enumerate(self._substrate.groups)}
        return np.ascontiguousarray(players.transpose(2, 0, 1)), counts

    def _observation(self) -> Observation:
        """Return copies of all channels, because the games overwrite the shared memory with the next observation."""
        observation = {name: self._arrays[name].copy() for name in self._layout.channels if name != "text"}
        if "text" in self._layout.channels:
            observation["text"] = self._texts()
        if self._mechanism_shown:
            observation["mechanism"] = np.repeat(self._values[:, None, :], self.spec.n_agents, axis=1)
        return observation

    def _texts(self) -> NDArray[Any]:
        """Return the text observation of each player, [n_envs, n_agents]; "" while the player is out of the game."""
        grids, scalars, layout = self._arrays["grid"], self._arrays["vector"], self._layout
        texts = np.full(self._present.shape, "", dtype=object)
        for game, player in np.argwhere(self._present).tolist():
            report = (
                None if self._report is None else self._report.observation_entries(game, player, self._values[game])
            )
            texts[game, player] = observation_text(
                grids[game, player], layout.substrate, layout.rules, scalars[game, player], report
            )
        return texts

    def set_mechanism(self, values: Array) -> None:
        if self._mechanism is None:
            raise ConfigError(f"{self.spec.name} has no mechanism; set one, e.g. with env.mechanism in its option file")
        parameters = self._mechanism.spec.check(values).astype(np.float32)
        self._values = np.broadcast_to(parameters, self._values.shape).copy()

    def set_context(self, context: int) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Return a frame of the whole world of game `index`, uint8, 8 pixels per cell.

        On Melting Pot's maps its shape is [168, 240, 3] for cleanup and [144, 192, 3] for harvest.

        Raises:
            ConfigError: the environment was built with render=false, or was never reset.
        """
        if "world" not in self._arrays:
            remedy = "call reset() first" if self._layout.render else "set env.render=true"
            raise ConfigError(f"{self.spec.name} has no frame to show; {remedy}")
        return np.array(self._arrays["world"][index])

    def state_dict(self) -> State:
        """Return the number of episodes that each game has begun, so that a resumed run continues with new seeds.

        The games themselves cannot be saved.
        """
        return {"episodes": self._episodes.tolist(), "reseeded": self._reset_seeds}

    def load_state_dict(self, state: State) -> None:
        self._episodes[:], self._reset_seeds = state["episodes"], state["reseeded"]
        self._ended[:] = True

    def close(self) -> None:
        """End the games. It may be called twice, and after a game has died. A later `reset` starts new games."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self._arrays = None, {}
        self._ended[:] = True

    def _next_seeds(self) -> list[int]:
        """Return the seed of the next episode of each game."""
        roots = [Seeds(seed) for seed in self._reset_seeds] or [self._seeds]
        games = self.spec.n_envs // len(roots)  # number of games that share a root
        group_size = games if len(roots) > 1 else self._group_size
        return [
            roots[slot // games].child(f"game{slot % group_size}").integer(int(count))
            for slot, count in enumerate(self._episodes)
        ]

    def _get_pool(self) -> GamePool:
        """Return the pool of workers, started at the first call, so that an unused environment costs nothing."""
        if self._pool is None:
            self._pool = GamePool(self._layout, self._next_seeds())
            self._arrays = self._pool.arrays
        return self._pool

    def _exchange(self, pool: GamePool, orders: dict[int, bytes]) -> dict[int, bytes]:
        try:
            return pool.exchange(orders)
        except EngineError:
            self.close()
            raise
