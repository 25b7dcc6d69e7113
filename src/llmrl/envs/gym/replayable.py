"""Environments that go on exactly after a resume because episodes are played again, from their seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec


class ReplayableEnv(ABC):
    """Games in lock step whose episodes are functions of a seed and of actions.

    **Seeds.** The k-th episode of a game is seeded with a function of the seed, the game's index and k, so the games
    that follow a seeded reset start alike whatever the agents do.

    A subclass sets `spec`, and says how games start, advance and look.

    Args:
        n_envs: games.
        stream: the seed that episodes are seeded from until a reset brings another.

    Attributes:
        place: (i, n): the first game is seeded as game i of n (`llmrl.loops.independent_games.OneGame`).
    """

    spec: EnvSpec
    place = (0, 1)

    def __init__(self, n_envs: int, stream: int) -> None:
        self._stream = stream
        self._groups = 1
        self._begun = np.zeros(n_envs, dtype=np.int64)  # episodes since the last seeding
        self._seeds = np.zeros(n_envs, dtype=np.int64)  # of the episodes in progress
        self._given: np.ndarray | None = None  # seeds of the next episodes
        # Actions of the last steps, each of all games; those of game i's episode are `_length[i]` from `_since[i]` on.
        self._actions: list[np.ndarray] = []
        self._since, self._length = np.zeros(n_envs, dtype=np.int64), np.zeros(n_envs, dtype=np.int64)
        self._terminated, self._truncated = np.ones(n_envs, dtype=bool), np.zeros(n_envs, dtype=bool)

    @abstractmethod
    def _begin(self, chosen: np.ndarray) -> None:
        """Start the games of `chosen` [n_envs] from `_seeds`."""

    @abstractmethod
    def _advance(self, action: np.ndarray, playing: np.ndarray) -> np.ndarray:
        """One step of the games that are `playing` [n_envs], which may end in it; their rewards [n_envs]."""

    @abstractmethod
    def _observe(self) -> Observation:
        """What every game shows now."""

    @abstractmethod
    def _step(self, reward: np.ndarray, playing: np.ndarray) -> Step:
        """What a step gave, of the games that were `playing` [n_envs] and their rewards [n_envs]."""

    def reset(self, mask: Array | None = None, seed: int | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: everywhere); `seed` begins new series of episodes."""
        n = self.spec.n_envs
        if seed is not None:
            self._stream = seed
            self._begun[:] = 0
        chosen = np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        streams, per_group = Seeds(self._stream), n // self._groups
        for i in np.flatnonzero(chosen).tolist():
            self._seeds[i] = streams.child(self.place[0] + i % per_group).integer(int(self._begun[i]))
        self._forget(chosen)
        if self._given is not None:
            self._seeds[chosen], self._given = self._given[chosen], None
        self._begun[chosen] += 1
        self._start(chosen)
        return self._observe()

    def seed_games(self, seeds: np.ndarray) -> None:
        """Let the next reset seed game i with `seeds[i]`, [n_envs] int64, whatever seed it is given itself."""
        self._given = np.array(seeds, dtype=np.int64)

    def _forget(self, chosen: np.ndarray) -> None:
        """The episodes of the `chosen` games need not be played again."""
        self._since[chosen], self._length[chosen] = len(self._actions), 0
        first = int(self._since[self._length > 0].min(initial=len(self._actions)))
        del self._actions[:first]
        self._since -= first

    def _start(self, chosen: np.ndarray) -> None:
        self._begin(chosen)
        self._terminated[chosen] = self._truncated[chosen] = False

    def step(self, action: Array) -> Step:
        """Advance the games that go on by `action` [n_envs, 1] or [n_envs, 1, a]; the others stay as they are."""
        action = np.array(action)
        playing = ~(self._terminated | self._truncated)
        self._actions.append(action)
        self._length += playing
        return self._step(self._advance(action, playing), playing)

    def pair_games(self, groups: int) -> None:
        self.spec.games_per_group(groups)
        self._groups = groups

    def set_mechanism(self, values: Array) -> None:
        raise ConfigError(f"env={self.spec.name} has no mechanism to set")

    def set_context(self, context: int) -> None:
        raise ConfigError(f"env={self.spec.name} has no contexts")

    def state_dict(self) -> State:
        return {
            "stream": self._stream,
            "groups": self._groups,
            "begun": self._begun.copy(),
            "seeds": self._seeds.copy(),
            "acted": [self._acted(i) for i in range(self.spec.n_envs)],
        }

    def _acted(self, game: int) -> np.ndarray:
        """Actions of a game's episode, [steps, 1] or [steps, 1, a]."""
        first = int(self._since[game])
        acted = [action[game] for action in self._actions[first : first + int(self._length[game])]]
        return np.array(acted)

    def load_state_dict(self, state: State) -> None:
        self._stream, self._groups = state["stream"], state["groups"]
        self._begun, self._seeds = np.array(state["begun"]), np.array(state["seeds"])
        self._terminated[:] = True
        self._start(self._begun > 0)
        acted = [np.asarray(actions) for actions in state["acted"]]
        self._length = np.array([len(actions) for actions in acted])
        longest = int(self._length.max(initial=0))
        # They end together, so that the actions of games that go on follow on each other.
        self._since = longest - self._length
        a_game = (1,) if self.spec.continuous_actions is None else (1, self.spec.continuous_actions.dim)
        kind = np.int64 if self.spec.continuous_actions is None else np.float64
        self._actions = [np.zeros((self.spec.n_envs, *a_game), dtype=kind) for _ in range(longest)]
        for i, (first, actions) in enumerate(zip(self._since.tolist(), acted, strict=True)):
            for action, own in zip(self._actions[first:], actions, strict=True):
                action[i] = own
        for t, action in enumerate(self._actions):
            self._advance(action, t >= self._since)
