"""Environments that resume exactly, by replaying the episodes in progress from their seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.trust import Trust


class ReplayableEnv(ABC):
    """Games in lock step whose episodes are functions of a seed, of actions, and of the mechanism's values.

    **Seeds.** The k-th episode of a game is seeded with a function of the seed, the game's index and k, so the games
    after a seeded reset have the same starts whatever the agents do.

    **Mechanism.** Values are recorded with the actions, because an episode may depend on them. A subclass with a
    mechanism sets `_values` to those that hold first.

    A subclass sets `spec`, and implements `_begin`, `_advance`, `_observe` and `_step`.

    Args:
        settings: options of the environment, a dataclass with the field `n_envs`.
        seeds: the environment's node of the seed tree. Its stream `games` seeds the episodes until a seeded reset.
        trust: modules that options may name.
    """

    spec: EnvSpec
    settings: Any

    def __init__(self, settings: Any, seeds: Seeds, trust: Trust) -> None:
        self.settings, self._seed_tree, self._trust = settings, seeds, trust
        n_envs: int = settings.n_envs
        self._streams = [seeds.integer("games")]  # one for each equal group of games
        self._groups = 1
        self._episode_counts = np.zeros(n_envs, dtype=np.int64)  # number of episodes since the last seeding
        self._seeds = np.zeros(n_envs, dtype=np.int64)  # seeds of the episodes in progress
        self._next_seeds: np.ndarray | None = None  # seeds of the next episodes
        # Actions and the mechanism's values in the last steps, each of all games; those of game i's episode are the
        # `_length[i]` from `_start_steps[i]` on.
        self._history: list[tuple[np.ndarray, np.ndarray]] = []
        # The mechanism's values: current ones, [n_envs, d], and those at the start of each episode.
        self._values = np.zeros((n_envs, 0))
        self._initial_values = self._values.copy()
        self._start_steps, self._length = np.zeros(n_envs, dtype=np.int64), np.zeros(n_envs, dtype=np.int64)
        # Forks of the episodes in progress: step of each game (-1: in no present episode), and seeds, [n_envs] each.
        self._forks: list[tuple[np.ndarray, np.ndarray]] = []
        self._terminated, self._truncated = np.ones(n_envs, dtype=bool), np.zeros(n_envs, dtype=bool)

    @abstractmethod
    def _begin(self, reset_mask: np.ndarray) -> None:
        """Start the games where `reset_mask` [n_envs] is true, from `_seeds`."""

    @abstractmethod
    def _advance(self, action: np.ndarray, playing: np.ndarray) -> np.ndarray:
        """Advance the games that are `playing` [n_envs] by one step; return their rewards, [n_envs].

        Games may end in it.
        """

    @abstractmethod
    def _observe(self) -> Observation:
        """Return the current observation of every game."""

    @abstractmethod
    def _step(self, reward: np.ndarray, playing: np.ndarray) -> Step:
        """Return the `Step` of the games that were `playing` [n_envs], given their rewards [n_envs]."""

    def _reseed(self, seeds: np.ndarray, mask: np.ndarray) -> None:  # noqa: B027 (needed only by subclasses that record forks)
        """Draw further random numbers of the games where `mask` [n_envs] is true from `seeds` [n_envs]."""

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: everywhere); `seed` begins new series of episodes.

        A sequence of seeds divides the games into equal groups with a series each (`VecEnv.reset`).
        """
        n = self.spec.n_envs
        if seed is not None:
            streams = list(seed) if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(streams))
            self._streams = streams
            self._episode_counts[:] = 0
        reset_mask = np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        seed_trees, games_per_stream = [Seeds(stream) for stream in self._streams], n // len(self._streams)
        games_per_group = n // self._groups if len(seed_trees) == 1 else games_per_stream
        for i in np.flatnonzero(reset_mask).tolist():
            index = i % games_per_stream % games_per_group
            self._seeds[i] = seed_trees[i // games_per_stream].child(index).integer(int(self._episode_counts[i]))
        self._drop_records(reset_mask)
        if self._next_seeds is not None:
            self._seeds[reset_mask], self._next_seeds = self._next_seeds[reset_mask], None
        self._episode_counts[reset_mask] += 1
        self._start(reset_mask)
        return self._observe()

    def seed_games(self, seeds: np.ndarray) -> None:
        """Let the next reset seed game i with `seeds[i]`, [n_envs] int64, regardless of its argument `seed`."""
        self._next_seeds = np.array(seeds, dtype=np.int64)

    def _drop_records(self, reset_mask: np.ndarray) -> None:
        """Drop the records of the episodes of the games where `reset_mask` is true, as they need no replay."""
        self._start_steps[reset_mask], self._length[reset_mask] = len(self._history), 0
        for steps, _ in self._forks:
            steps[reset_mask] = -1
        self._forks = [fork for fork in self._forks if (fork[0] >= 0).any()]
        start = int(self._start_steps[self._length > 0].min(initial=len(self._history)))
        del self._history[:start]
        self._start_steps -= start

    def _start(self, reset_mask: np.ndarray) -> None:
        if self._initial_values.shape != self._values.shape:  # the first reset of an environment with a mechanism
            self._initial_values = self._values.copy()
        self._initial_values[reset_mask] = self._values[reset_mask]
        self._begin(reset_mask)
        self._terminated[reset_mask] = self._truncated[reset_mask] = False

    def step(self, action: Array) -> Step:
        """Advance the games in progress; the others do not change.

        `action` is [n_envs, n_agents], or [n_envs, n_agents, a] where an action is several numbers.
        """
        action = np.array(action)
        playing = ~(self._terminated | self._truncated)
        self._history.append((action, self._values))
        self._length += playing
        return self._step(self._advance(action, playing), playing)

    def pair_games(self, groups: int) -> None:
        self.spec.games_per_group(groups)
        self._groups = groups

    def set_mechanism(self, values: Array) -> None:
        """Set the mechanism's values of all games, [d], or of each game, [n_envs, d], from the next step on.

        Raises:
            ConfigError: there is no mechanism, or a number is out of bounds.
        """
        if self.spec.mechanism is None:
            raise ConfigError(f"env={self.spec.name} has no mechanism, so no values can be set")
        self._values = np.broadcast_to(self.spec.mechanism.check(values), self._values.shape).copy()

    def set_context(self, context: int) -> None:
        raise ConfigError(f"env={self.spec.name} has no contexts")

    def state_dict(self) -> State:
        state: State = {"streams": list(self._streams), "groups": self._groups, "begun": self._episode_counts.copy()}
        if self.spec.mechanism is not None:
            state["values"] = self._values.copy()
        if not self.spec.deterministic:
            return state
        state |= {"seeds": self._seeds.copy(), "acted": self._episode_records(0)}
        if self._forks:
            state["forks"] = [[steps.copy(), seeds.copy()] for steps, seeds in self._forks]
        if self.spec.mechanism is not None:
            state["began_under"] = self._initial_values.copy()
            state["imposed"] = self._episode_records(1)
        return state

    def _episode_records(self, part: int) -> list[np.ndarray]:
        """Return the actions (`part` 0) or the mechanism's values (1) of each game's current episode, [steps, ...]."""
        slices = zip(self._start_steps.tolist(), (self._start_steps + self._length).tolist(), strict=True)
        return [np.array([step[part][i] for step in self._history[a:b]]) for i, (a, b) in enumerate(slices)]

    def load_state_dict(self, state: State) -> None:
        self._streams = list(state["streams"])
        self._groups, self._episode_counts = state["groups"], np.array(state["begun"])
        self._terminated[:] = True
        if "acted" in state:
            self._replay(state)
        if self.spec.mechanism is not None:
            self._values = np.array(state["values"])

    def _replay(self, state: State) -> None:
        """Replay the episodes in progress up to their saved step."""
        self._seeds = np.array(state["seeds"])
        has_mechanism = self.spec.mechanism is not None
        if has_mechanism:
            self._values = np.array(state["began_under"])
        self._start(self._episode_counts > 0)
        game_actions = [np.asarray(actions) for actions in state["acted"]]
        self._length = np.array([len(actions) for actions in game_actions])
        max_length = int(self._length.max(initial=0))
        # All replayed episodes end in the same step, so that later actions can be appended.
        self._start_steps = max_length - self._length
        numbers = self.spec.continuous_actions
        game_shape = (self.spec.n_agents,) if numbers is None else (self.spec.n_agents, numbers.dim)
        actions = self._align_records(game_actions, game_shape, np.int64 if numbers is None else np.float64)
        mechanisms = state["imposed"] if has_mechanism else [np.zeros((len(actions), 0)) for actions in game_actions]
        values = self._align_records(mechanisms, self._values.shape[1:], np.float64)
        self._history = list(zip(actions, values, strict=True))
        self._forks = [(np.array(steps), np.array(seeds)) for steps, seeds in state.get("forks", ())]
        for t, (action, values_then) in enumerate(self._history):
            self._values = values_then
            self._replay_forks(t)
            self._advance(action, t >= self._start_steps)
        self._replay_forks(max_length)

    def _replay_forks(self, t: int) -> None:
        """Repeat the forks that took place at step `t` of a replay."""
        for steps, seeds in self._forks:
            mask = (steps >= 0) & (t - self._start_steps == steps)
            if mask.any():
                self._reseed(seeds, mask)

    def _align_records(self, episodes: Sequence[np.ndarray], game_shape: tuple[int, ...], kind: type) -> np.ndarray:
        """Return the records of each game's steps, [steps, *game_shape] each, as [steps, n_envs, *game_shape].

        Before a game's first step, they are zeros.
        """
        steps: np.ndarray = np.zeros((int(self._length.max(initial=0)), self.spec.n_envs, *game_shape), dtype=kind)
        for i, (start, episode) in enumerate(zip(self._start_steps.tolist(), episodes, strict=True)):
            steps[start:, i] = episode.reshape(len(episode), *game_shape)
        return steps
