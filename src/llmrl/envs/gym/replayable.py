"""Environments that resume exactly: they replay the episodes in progress from their seeds, actions and mechanisms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.trust import Trust
from llmrl.envs.array_games import GroupedGames


class ReplayableEnv(GroupedGames, ABC):
    """Base class of `n_envs` parallel copies (games) whose episodes depend only on a seed, actions and the mechanism.

    **Seeds.** The seed of a game's k-th episode is a function of the seed of the last seeded reset, the game's index
    and k. Start states therefore do not depend on the agents' actions.

    **Mechanism.** Its values are recorded with the actions. A subclass with a mechanism sets `_mechanism_values` to the
    initial values.

    A subclass sets `spec`, and implements `_begin_episodes`, `_advance`, `_observe` and `_build_step`.

    Args:
        settings: options of the environment, a dataclass with the field `n_envs`.
        seeds: the environment's node of the seed tree. Its stream `games` seeds the episodes until a seeded reset.
        trust: modules that options may name.
    """

    settings: Any

    def __init__(self, settings: Any, seeds: Seeds, trust: Trust) -> None:
        self.settings, self._seed_tree, self._trust = settings, seeds, trust
        n_envs: int = settings.n_envs
        self._root_seeds = [seeds.integer("games")]  # one for each of several equal groups of games
        self._episode_counts = np.zeros(n_envs, dtype=np.int64)  # number of episodes since the last seeding
        self._episode_seeds = np.zeros(n_envs, dtype=np.int64)  # seeds of the episodes in progress
        self._next_seeds: np.ndarray | None = None  # seeds of the next episodes, set by `seed_games`
        # Per step: the actions and the mechanism's values of all games. Game i's episode in progress consists of
        # `_episode_lengths[i]` steps from the index `_history_starts[i]` on.
        self._history: list[tuple[np.ndarray, np.ndarray]] = []
        # The mechanism's current values, and its values at the start of each episode, [n_envs, d].
        self._mechanism_values = np.zeros((n_envs, 0))
        self._initial_mechanism_values = self._mechanism_values.copy()
        self._history_starts, self._episode_lengths = np.zeros((2, n_envs), dtype=np.int64)
        # Forks during the episodes in progress: each game's step at the fork (-1: its episode began later), and the
        # new seeds, [n_envs] each.
        self._forks: list[tuple[np.ndarray, np.ndarray]] = []
        self._terminated, self._truncated = np.ones(n_envs, dtype=bool), np.zeros(n_envs, dtype=bool)

    @abstractmethod
    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        """Start an episode in the games where `reset_mask` [n_envs] is true, with the seeds `_episode_seeds`."""

    @abstractmethod
    def _advance(self, action: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Advance the games that are `active` [n_envs] by one step; return their rewards, [n_envs].

        Update `_terminated` and `_truncated` of games that end.
        """

    @abstractmethod
    def _observe(self) -> Observation:
        """Return the current observation of every game."""

    @abstractmethod
    def _build_step(self, reward: np.ndarray, active: np.ndarray) -> Step:
        """Return the `Step` of the games that were `active` [n_envs], given their rewards [n_envs]."""

    def _reseed(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        """Give new random generators with `seeds` to the games where `mask` [n_envs] is true, for `fork`."""

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: everywhere).

        With `seed`, the seeds of this and later episodes derive from it. With a sequence of m seeds, the games are
        divided into m equal groups, and each group derives its seeds from one of them (`VecEnv.reset`).
        """
        n = self.spec.n_envs
        if seed is not None:
            root_seeds = list(seed) if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(root_seeds))
            self._root_seeds = root_seeds
            self._episode_counts[:] = 0
        reset_mask = np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        seed_trees, games_per_root = [Seeds(root_seed) for root_seed in self._root_seeds], n // len(self._root_seeds)
        games_per_group = n // self._groups if len(seed_trees) == 1 else games_per_root
        for i in np.flatnonzero(reset_mask).tolist():
            index = i % games_per_root % games_per_group
            self._episode_seeds[i] = seed_trees[i // games_per_root].child(index).integer(int(self._episode_counts[i]))
        self._discard_history(reset_mask)
        if self._next_seeds is not None:
            self._episode_seeds[reset_mask], self._next_seeds = self._next_seeds[reset_mask], None
        self._episode_counts[reset_mask] += 1
        self._begin_recorded_episodes(reset_mask)
        return self._observe()

    def seed_games(self, seeds: np.ndarray) -> None:
        """Set the seeds of episodes that the next reset starts, [n_envs] int64; its `seed` is for later episodes."""
        self._next_seeds = np.array(seeds, dtype=np.int64)

    def _discard_history(self, reset_mask: np.ndarray) -> None:
        """Delete the records of the episodes that end because `reset_mask` is true; they need no replay."""
        self._history_starts[reset_mask], self._episode_lengths[reset_mask] = len(self._history), 0
        for steps, _ in self._forks:
            steps[reset_mask] = -1
        self._forks = [fork for fork in self._forks if (fork[0] >= 0).any()]
        start = int(self._history_starts[self._episode_lengths > 0].min(initial=len(self._history)))
        del self._history[:start]
        self._history_starts -= start

    def _begin_recorded_episodes(self, reset_mask: np.ndarray) -> None:
        # Record the mechanism's values. Shapes differ at the first reset of an environment with a mechanism.
        if self._initial_mechanism_values.shape != self._mechanism_values.shape:
            self._initial_mechanism_values = self._mechanism_values.copy()
        self._initial_mechanism_values[reset_mask] = self._mechanism_values[reset_mask]
        self._begin_episodes(reset_mask)
        self._terminated[reset_mask] = self._truncated[reset_mask] = False

    def step(self, action: Array) -> Step:
        """Advance the games whose episodes have not ended; the others do not change.

        `action` is [n_envs, n_agents], or [n_envs, n_agents, a] if an action consists of a numbers.
        """
        action = np.array(action)
        active = ~(self._terminated | self._truncated)
        self._history.append((action, self._mechanism_values))
        self._episode_lengths += active
        return self._build_step(self._advance(action, active), active)

    def set_mechanism(self, values: Array) -> None:
        """Set the mechanism's values of all games, [d], or of each game, [n_envs, d], from the next step on.

        Raises:
            ConfigError: there is no mechanism, or a value is out of bounds.
        """
        self._mechanism_values = self._broadcast_mechanism_values(values)

    def state_dict(self) -> State:
        state: State = {
            "root_seeds": list(self._root_seeds),
            "groups": self._groups,
            "episode_counts": self._episode_counts.copy(),
        }
        if self.spec.mechanism is not None:
            state["values"] = self._mechanism_values.copy()
        if not self.spec.deterministic:
            return state
        state |= {"seeds": self._episode_seeds.copy(), "actions": self._split_history(element=0)}
        if self._forks:
            state["forks"] = [[steps.copy(), seeds.copy()] for steps, seeds in self._forks]
        if self.spec.mechanism is not None:
            state["initial_mechanism"] = self._initial_mechanism_values.copy()
            state["mechanism_history"] = self._split_history(element=1)
        return state

    def _split_history(self, element: int) -> list[np.ndarray]:
        """Return the actions (`element` 0) or the mechanism's values (1) of each game's episode, [steps, ...] each."""
        spans = zip(self._history_starts, self._history_starts + self._episode_lengths, strict=True)
        return [np.array([step[element][i] for step in self._history[a:b]]) for i, (a, b) in enumerate(spans)]

    def load_state_dict(self, state: State) -> None:
        self._root_seeds = list(state["root_seeds"])
        self._groups, self._episode_counts = state["groups"], np.array(state["episode_counts"])
        self._terminated[:] = True
        if "actions" in state:
            self._replay(state)
        if self.spec.mechanism is not None:
            self._mechanism_values = np.array(state["values"])

    def _replay(self, state: State) -> None:
        """Replay the episodes in progress up to their saved step."""
        self._episode_seeds = np.array(state["seeds"])
        has_mechanism = self.spec.mechanism is not None
        if has_mechanism:
            self._mechanism_values = np.array(state["initial_mechanism"])
        self._begin_recorded_episodes(self._episode_counts > 0)
        actions_by_game = [np.asarray(actions) for actions in state["actions"]]
        self._episode_lengths = np.array([len(actions) for actions in actions_by_game])
        max_length = int(self._episode_lengths.max(initial=0))
        # Episodes are aligned at their last steps, so that later actions can be appended.
        self._history_starts = max_length - self._episode_lengths
        numbers, n_agents = self.spec.continuous_actions, self.spec.n_agents
        action_shape = (n_agents,) if numbers is None else (n_agents, numbers.dim)
        actions = self._align_steps(actions_by_game, action_shape).astype(np.int64 if numbers is None else np.float64)
        empty_values = [np.zeros((len(actions), 0)) for actions in actions_by_game]
        values = self._align_steps(
            state["mechanism_history"] if has_mechanism else empty_values, self._mechanism_values.shape[1:]
        )
        self._history = list(zip(actions, values, strict=True))
        self._forks = [(np.array(steps), np.array(seeds)) for steps, seeds in state.get("forks", ())]
        for t, (action, mechanism_values) in enumerate(self._history):
            self._mechanism_values = mechanism_values
            self._replay_forks(t)
            self._advance(action, t >= self._history_starts)
        self._replay_forks(max_length)

    def _replay_forks(self, t: int) -> None:
        """Repeat the forks that took place at step `t` of a replay."""
        for steps, seeds in self._forks:
            mask = (steps >= 0) & (t - self._history_starts == steps)
            if mask.any():
                self._reseed(seeds, mask)

    def _align_steps(self, episodes: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Return one array [max steps, n_envs, *shape] of the games' arrays [steps, *shape], aligned at the last step.

        Elements before the first step of a game are zero.
        """
        padded_episodes = [
            np.concatenate([np.zeros((start, *shape)), episode.reshape(len(episode), *shape)])
            for start, episode in zip(self._history_starts, episodes, strict=True)
        ]
        return np.stack(padded_episodes, axis=1)
