"""`MeltingPotEnv`: several Melting Pot games side by side, each in a worker process, as one `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import Events, Settlement
from llmrl.envs.melting_pot import install
from llmrl.envs.melting_pot.describe import SubstrateSettings, check_choices, describe
from llmrl.envs.melting_pot.layout import CENSUS, Layout
from llmrl.envs.melting_pot.pool import GamePool
from llmrl.envs.melting_pot.rules import SUBSTRATES, check_n_agents
from llmrl.envs.melting_pot.seen import told
from llmrl.envs.native.maps import find


class MeltingPotEnv:
    """Clean Up or Harvest on the Melting Pot engine.

    Observation channels: `pixels` [n_envs, n_agents, 88, 88, 3] uint8, `grid` [n_envs, n_agents, 11, 11, 4] uint8 (what
    lies on the cells in view, see `seen.grid_codes`), `vector` [n_envs, n_agents, 1 or 2] float32 (see
    `layout.VECTOR`), `text` [n_envs, n_agents] (the grid in words, see `seen.told`), and with a mechanism its current
    values, `mechanism` [n_envs, n_agents, d] float32, as they are. Players who have been zapped see black, and are told
    nothing (an empty text), until they are back.

    An episode is truncated at the horizon. The end that the engine draws at random is a time limit too, so it is
    reported as truncation; nothing terminates. The same seed gives the same episode again while the workers live, and
    another one in another run: the engine's order of events differs between processes.

    Args:
        game: which games, and how many: each has a worker process.
        seeds: the stream that episodes draw their seeds from.
        render: whether `render` works: it costs a picture of the world at each step.

    Raises:
        EngineError: the engine is not installed or cannot run on this machine; later: a game died.
        ConfigError: values that the substrate cannot play.
    """

    def __init__(self, game: SubstrateSettings, seeds: Seeds, render: bool = False) -> None:
        install.check()
        n_envs, n_agents, rules, mechanism = game.n_envs, game.n_agents, game.rules, game.mechanism
        check_n_agents(n_agents, game.substrate, rules)
        self._facts = SUBSTRATES[game.substrate]
        channels = check_choices(game)
        drawn = None if game.map in ("auto", "melting_pot") else find(game.substrate, game.map)
        if drawn is not None:
            drawn.starts(n_agents)
            if rules == "legislative":
                raise ConfigError(
                    "env.rules=legislative knows the players' own cells on Melting Pot's map only: use env.map=auto"
                )
        text = None if drawn is None else drawn.text
        self._layout = Layout(game.substrate, rules, n_envs, n_agents, channels, render, text)
        self._mechanism = mechanism
        self._shown = game.mechanism_seen
        self._horizon = game.horizon
        self._seeds = seeds
        self._reseeded: list[int] = []  # a seed for each equal group of games; none: what it was built with
        self._group = n_envs  # games that draw numbers of their own; the next ones draw the same again
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
        """How the mechanism settled the last step, with each player's exposure to its values; None without one."""
        sites = None if drawn is None else drawn.sites
        self.spec = describe(game, channels, engine="meltingpot", sites=sites)

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            several = list(seed) if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(several))
            self._reseeded, self._episodes[:] = several, 0
        pool = self._running()
        self._arrays["seed"][:] = self._next_seeds()
        self._exchange(pool, {int(slot): b"R" for slot in np.flatnonzero(games)})
        # Known before this episode ends, so that the workers can get the next one ready.
        self._episodes[games] += 1
        self._arrays["seed"][:] = self._next_seeds()
        players, counts = self._census()
        self._ended[games], self._steps[games] = False, 0
        self._present[games] = players[CENSUS.index("present")][games] > 0
        self._apples[games] = counts["apples_live"][games]
        if self._mechanism is not None:
            self._mechanism.reset(games)
        return self._observation()

    def step(self, action: Array) -> Step:
        if self._pool is None:
            raise ValueError("reset() must be called before step()")
        chosen = np.asarray(action)
        if chosen.shape != (self.spec.n_envs, self.spec.n_agents):
            wanted = [self.spec.n_envs, self.spec.n_agents]
            raise ValueError(f"actions of {self.spec.name} are {wanted} integers, got shape {list(chosen.shape)}")
        if chosen.min() < 0 or chosen.max() >= self.spec.n_actions:
            raise ValueError(
                f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, got {chosen.min()} to {chosen.max()}"
            )
        live = ~self._ended
        self._arrays["action"][:] = chosen
        self._steps[live] += 1
        last = self._steps >= self._horizon if self._horizon is not None else np.zeros_like(live)
        answers = self._exchange(self._pool, {int(slot): b"L" if last[slot] else b"S" for slot in np.flatnonzero(live)})
        for slot, answer in answers.items():
            self._ended[slot] = last[slot] or answer == b"E"
        return self._settle(live)

    def _settle(self, live: NDArray[np.bool_]) -> Step:
        """The step's record; games that wait for a reset (not `live`) show what they ended with, and earn nothing."""
        players, counts = self._census()
        values = self._values
        if not live.all():
            players[:, ~live], self._present[~live] = 0, False
            values = values * live[:, None]
        raw, cleaned, zapped, present = players
        eaten = raw.sum(axis=1)
        info = {
            "apples_eaten": eaten,
            "zaps": zapped.sum(axis=1),
            "players_present": present.sum(axis=1),
            **counts,
        }
        if self._facts.dirt:
            info["apples_regrown"] = counts["apples_live"] - self._apples + eaten
            info["cells_cleaned"] = cleaned.sum(axis=1)
            info["cleaning_shots"] = (cleaned > 0).sum(axis=1, dtype=np.float32)
        base = reward = raw
        exposure = None
        if self._mechanism is not None:
            events = Events(raw, cleaned if self._facts.dirt else None, self._present)
            self.settlement = self._mechanism.settle(events, values)
            base, reward = self.settlement.base_reward, self.settlement.reward(values)
            info |= self.settlement.metrics
            exposure = self.settlement.exposure
        self._present, self._apples = present > 0, counts["apples_live"]
        return Step(self._observation(), reward, base, np.zeros_like(self._ended), self._ended.copy(), info, exposure)

    def pair_games(self, groups: int) -> None:
        """Start game i of each of `groups` equal groups from the same seed. That pairs what the engine draws, not the
        order in which it works through its objects, which differs between processes."""
        self._group = self.spec.games_per_group(groups)

    def _census(self) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """`layout.CENSUS` of all players, [4, n_envs, n_agents], and the counts in the world, by name, [n_envs]."""
        census = self._arrays["census"].astype(np.float32)
        split = len(CENSUS) * self.spec.n_agents
        players = census[:, :split].reshape(self.spec.n_envs, self.spec.n_agents, len(CENSUS))
        counts = {name: census[:, split + i] for i, name in enumerate(self._facts.groups)}
        return np.ascontiguousarray(players.transpose(2, 0, 1)), counts

    def _observation(self) -> Observation:
        """Copies, because the games write the next observation over this one."""
        observation = {name: self._arrays[name].copy() for name in self._layout.channels if name != "text"}
        if "text" in self._layout.channels:
            observation["text"] = self._texts()
        if self._shown:
            observation["mechanism"] = np.repeat(self._values[:, None, :], self.spec.n_agents, axis=1)
        return observation

    def _texts(self) -> NDArray[Any]:
        """What each player is told, [n_envs, n_agents]."""
        seen, scalars, layout = self._arrays["grid"], self._arrays["vector"], self._layout
        texts = np.full(self._present.shape, "", dtype=object)
        for game, player in np.argwhere(self._present).tolist():
            texts[game, player] = told(seen[game, player], layout.substrate, layout.rules, scalars[game, player])
        return texts

    def set_mechanism(self, values: Array) -> None:
        if self._mechanism is None:
            raise ConfigError(
                f"{self.spec.name} runs without a mechanism: give it one, e.g. `env.mechanism` of its option file"
            )
        checked = self._mechanism.spec.check(values).astype(np.float32)
        self._values = np.broadcast_to(checked, self._values.shape).copy()

    def set_context(self, context: int) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """The whole world of game `index`, [168, 240, 3] for cleanup and [144, 192, 3] for harvest, uint8."""
        if "world" not in self._arrays:
            why = "call reset() first" if self._layout.render else "set env.render=true"
            raise ConfigError(f"{self.spec.name} has no picture to show: {why}")
        return np.array(self._arrays["world"][index])

    def state_dict(self) -> State:
        """How many episodes each game has begun: a resumed run goes on with new seeds. A game cannot be saved."""
        return {"episodes": self._episodes.tolist(), "reseeded": self._reseeded}

    def load_state_dict(self, state: State) -> None:
        self._episodes[:], self._reseeded = state["episodes"], state["reseeded"]
        self._ended[:] = True

    def close(self) -> None:
        """End the games; may be called twice, and after a game has died. A later `reset` starts new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self._arrays = None, {}
        self._ended[:] = True

    def _next_seeds(self) -> list[int]:
        """What the next episode of each game starts with."""
        roots = [Seeds(seed) for seed in self._reseeded] or [self._seeds]
        games = self.spec.n_envs // len(roots)  # that share a root
        own = games if len(roots) > 1 else self._group
        return [
            roots[slot // games].child(f"game{slot % own}").integer(int(count))
            for slot, count in enumerate(self._episodes)
        ]

    def _running(self) -> GamePool:
        """The workers, started at the first reset: an environment that only describes itself costs nothing."""
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
