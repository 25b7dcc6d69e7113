"""Base classes of environments whose parallel copies (games) can be grouped, and whose state is stored in arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields


def check_discrete_actions(actions: Array, n_actions: int, subject: str = "actions") -> NDArray[np.int64]:
    """Return discrete actions, of any shape, as int64; `subject` is for messages.

    Raises:
        ValueError: an action is not in 0 .. n_actions - 1.
    """
    indices = np.ascontiguousarray(actions, dtype=np.int64)
    # One comparison checks both bounds: as unsigned integers, negative ones are the largest.
    if np.count_nonzero(indices.view(np.uint64) >= n_actions):
        raise ValueError(f"{subject} must be 0 to {n_actions - 1}, got {indices.min()} to {indices.max()}")
    return indices


class GroupedGames:
    """Base class of environments whose groups of games may get the same random numbers. A subclass sets `spec`."""

    spec: EnvSpec
    _groups = 1  # number of groups; the name of the attribute is a key of saved states

    def share_random_numbers(self, n_groups: int) -> None:
        """Use the same random numbers in each of `n_groups` equal groups of games, from the next reset on."""
        self.spec.games_per_group(n_groups)
        self._groups = n_groups

    def set_context(self, context: int | np.ndarray) -> None:
        """Raise ConfigError: there are no contexts."""
        raise ConfigError(f"{self.spec.name} has no contexts, and context {context} was set. Do not set a context.")

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _check_actions(self, action: Array) -> np.ndarray:
        """Return discrete actions [n_envs, n_agents] as int64.

        Raises:
            ValueError: the shape is wrong, or an action does not exist.
        """
        shape = (self.spec.n_envs, self.spec.n_agents)
        if np.shape(action) != shape:
            raise ValueError(f"actions of {self.spec.name} are {shape} integers, got shape {np.shape(action)}")
        return check_discrete_actions(action, self.spec.n_actions, f"actions of {self.spec.name}")

    def _broadcast_mechanism_values(self, values: Array) -> np.ndarray:
        """Return the mechanism's values of all games, [d], or of each game, [n_envs, d], as [n_envs, d] float64.

        Raises:
            ConfigError: a value is out of bounds, or there is no mechanism.
        """
        space = self.spec.mechanism
        if space is None:
            raise ConfigError(f"{self.spec.name} has no mechanism to set, as with env.mechanism=false; remove the call")
        return np.broadcast_to(space.check(values), (self.spec.n_envs, space.dim)).copy()


class ArrayGames(GroupedGames, StateFields, ABC):
    """Base class of games that are stepped together and can be forked, i.e. continued with other random numbers.

    A subclass lists `_rngs` (a random generator for each group of games) or `_roots` (a seed for each group) in
    `_state_fields`. Its games can be forked as `llmrl.core.protocols.Forkable` describes.
    """

    _stream_name: ClassVar[str]
    """Name of the stream of random numbers in the seed tree."""
    _mechanism_field: ClassVar[str] = ""
    """Name of the attribute with the mechanism's values, [n_envs, d]; "" without a mechanism."""

    _rngs: list[np.random.Generator]
    _roots: list[int]

    @property
    @abstractmethod
    def _started_mask(self) -> np.ndarray:
        """Mask of the games that were ever reset, [n_envs] bool."""

    @abstractmethod
    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        """Start new episodes in the games where `reset_mask` [n_envs] is true."""

    @abstractmethod
    def _observe(self) -> Observation:
        """Return the current observation of every game."""

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds all random streams; with m seeds, each of m equal groups of games has one (`VecEnv.reset`).
        """
        if seed is not None:
            seeds = seed if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(seeds))
            self._reseed([(Seeds(root_seed), self._stream_name) for root_seed in seeds])
        self._begin_episodes(np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool))
        return self._observe()

    def set_mechanism(self, values: Array) -> None:
        """Set the mechanism's values of all games, [d], or of each game, [n_envs, d], from the next step on.

        Raises:
            ConfigError: a value is out of bounds, or there is no mechanism.
        """
        setattr(self, self._mechanism_field, self._broadcast_mechanism_values(values))

    def fork(self, state: State, seed: int) -> None:
        self.load_state_dict(state)
        seeds = Seeds(seed).child("fork")
        n_streams = len(self._rngs if "_rngs" in self._state_fields else self._roots)
        self._reseed([(seeds, i) for i in range(n_streams)])

    def _reseed(self, streams: Sequence[tuple[Seeds, str | int]]) -> None:
        """Seed each of several equal groups of games by a stream: a seed tree and the name of a stream in it."""
        if "_rngs" in self._state_fields:
            self._rngs = [seeds.numpy(name) for seeds, name in streams]
        else:
            self._roots = [seeds.integer(name) for seeds, name in streams]

    def _sample(self, sample_group: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]) -> list[np.ndarray]:
        """Return the arrays [n_envs, ...] that `sample_group` generates, given a generator and the number of games.

        Numbers are generated for all games, also for those that are not reset, so that no game affects another one.
        """
        n_streams = len(self._rngs)
        group_size = self.spec.games_per_group(n_streams if n_streams > 1 else self._groups)
        samples = [sample_group(rng, group_size) for rng in self._rngs]
        arrays = (np.concatenate(arrays_by_group) for arrays_by_group in zip(*samples, strict=True))
        return [np.concatenate([array] * (self.spec.n_envs // len(array))) for array in arrays]

    def _find_group_seed_and_index(self, game: int) -> tuple[int, int]:
        """Return the seed of a game's group, and the game's index in the group."""
        games_per_seed = self.spec.games_per_group(len(self._roots))
        group_size = games_per_seed if len(self._roots) > 1 else self.spec.n_envs // self._groups
        return self._roots[game // games_per_seed], game % group_size

    def _check_actions(self, action: Array) -> np.ndarray:
        """Return actions [n_envs, n_agents].

        Raises:
            ValueError: the shape is wrong, an action does not exist, or a game was never reset.
        """
        actions = super()._check_actions(action)
        if not self._started_mask.all():
            raise ValueError("reset() must be called before step()")
        return actions

    def _build_step(
        self,
        reward: Any,
        base_reward: Any,
        terminated: Any,
        truncated: Any,
        info: Mapping[str, Any],
        jacobian: Any = None,
    ) -> Step:
        """Return a step with the current observation and copies of the arrays, in which numbers are float32.

        Args:
            reward, base_reward: rewards after and before the mechanism's payments, [n_envs, n_agents].
            terminated, truncated: whether each episode reached a terminal state, or its horizon, [n_envs] bool.
            info: metrics (`EnvSpec.per_step`), [n_envs] each.
            jacobian: derivatives of rewards with respect to the mechanism's values, [n_envs, n_agents, d]; ignored
                unless `EnvSpec.has_reward_jacobian`.
        """
        metrics = {name: np.array(info[name], dtype=np.float32) for name in self.spec.per_step}
        rewards, base_rewards = (np.array(x, dtype=np.float32) for x in (reward, base_reward))
        reward_jacobian = np.array(jacobian, dtype=np.float32) if self.spec.has_reward_jacobian else None
        ends = np.array(terminated), np.array(truncated)
        return Step(self._observe(), rewards, base_rewards, *ends, metrics, reward_jacobian)
