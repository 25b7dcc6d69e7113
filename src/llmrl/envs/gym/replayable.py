"""Environments that go on exactly after a resume because episodes are played again, from their seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec


class ReplayableEnv(ABC):
    """Games in lock step whose episodes are functions of a seed, of actions, and of the mechanism's values.

    **Seeds.** The k-th episode of a game is seeded with a function of the seed, the game's index and k, so the games
    that follow a seeded reset start alike whatever the agents do.

    **Mechanism.** Values are recorded with the actions, because an episode may depend on them. A subclass with a
    mechanism sets `_values` to those that hold first.

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
        self._streams = [stream]  # one for each equal group of games
        self._groups = 1
        self._begun = np.zeros(n_envs, dtype=np.int64)  # episodes since the last seeding
        self._seeds = np.zeros(n_envs, dtype=np.int64)  # of the episodes in progress
        self._given: np.ndarray | None = None  # seeds of the next episodes
        # Actions of the last steps, each of all games; those of game i's episode are `_length[i]` from `_since[i]` on.
        self._actions: list[np.ndarray] = []
        # The mechanism's values now, [n_envs, d], in those steps, and when each game's episode began.
        self._values = np.zeros((n_envs, 0))
        self._imposed: list[np.ndarray] = []
        self._began_under = self._values.copy()
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

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: everywhere); `seed` begins new series of episodes.

        A sequence of seeds divides the games into equal groups with a series each (`VecEnv.reset`)."""
        n = self.spec.n_envs
        if seed is not None:
            streams = list(seed) if isinstance(seed, Sequence) else [seed]
            self.spec.games_per_group(len(streams))
            self._streams = streams
            self._begun[:] = 0
        chosen = np.ones(n, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        trees, per_stream = [Seeds(stream) for stream in self._streams], n // len(self._streams)
        per_group = n // self._groups if len(trees) == 1 else per_stream
        for i in np.flatnonzero(chosen).tolist():
            place = self.place[0] + i % per_stream % per_group
            self._seeds[i] = trees[i // per_stream].child(place).integer(int(self._begun[i]))
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
        del self._actions[:first], self._imposed[:first]
        self._since -= first

    def _start(self, chosen: np.ndarray) -> None:
        if self._began_under.shape != self._values.shape:  # the first reset of an environment with a mechanism
            self._began_under = self._values.copy()
        self._began_under[chosen] = self._values[chosen]
        self._begin(chosen)
        self._terminated[chosen] = self._truncated[chosen] = False

    def step(self, action: Array) -> Step:
        """Advance the games that go on; the others stay as they are.

        `action` is [n_envs, n_agents], or [n_envs, n_agents, a] where an action is several numbers."""
        action = np.array(action)
        playing = ~(self._terminated | self._truncated)
        self._actions.append(action)
        self._imposed.append(self._values)
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
            raise ConfigError(f"env={self.spec.name} has no mechanism to set")
        self._values = np.broadcast_to(self.spec.mechanism.check(values), self._values.shape).copy()

    def set_context(self, context: int) -> None:
        raise ConfigError(f"env={self.spec.name} has no contexts")

    def state_dict(self) -> State:
        state: State = {"streams": list(self._streams), "groups": self._groups, "begun": self._begun.copy()}
        if self.spec.mechanism is not None:
            state["values"] = self._values.copy()
        if not self.spec.deterministic:
            return state
        games = range(self.spec.n_envs)
        state |= {"seeds": self._seeds.copy(), "acted": [self._of_episode(self._actions, i) for i in games]}
        if self.spec.mechanism is not None:
            state["began_under"] = self._began_under.copy()
            state["imposed"] = [self._of_episode(self._imposed, i) for i in games]
        return state

    def _of_episode(self, recorded: list[np.ndarray], game: int) -> np.ndarray:
        """What was recorded of a game in the steps of its episode, [steps, ...]."""
        first = int(self._since[game])
        return np.array([step[game] for step in recorded[first : first + int(self._length[game])]])

    def load_state_dict(self, state: State) -> None:
        self._streams = list(state["streams"])
        self._groups, self._begun = state["groups"], np.array(state["begun"])
        self._terminated[:] = True
        if "acted" in state:
            self._replay(state)
        if self.spec.mechanism is not None:
            self._values = np.array(state["values"])

    def _replay(self, state: State) -> None:
        """Play the episodes in progress again, up to where they were."""
        self._seeds = np.array(state["seeds"])
        governed = self.spec.mechanism is not None
        if governed:
            self._values = np.array(state["began_under"])
        self._start(self._begun > 0)
        acted = [np.asarray(actions) for actions in state["acted"]]
        self._length = np.array([len(actions) for actions in acted])
        longest = int(self._length.max(initial=0))
        # They end together, so that the actions of games that go on follow on each other.
        self._since = longest - self._length
        numbers = self.spec.continuous_actions
        a_game = (self.spec.n_agents,) if numbers is None else (self.spec.n_agents, numbers.dim)
        self._actions = self._aligned(acted, a_game, np.int64 if numbers is None else np.float64)
        imposed = state["imposed"] if governed else [np.zeros((len(actions), 0)) for actions in acted]
        self._imposed = self._aligned(imposed, self._values.shape[1:], np.float64)
        for t, (action, values) in enumerate(zip(self._actions, self._imposed, strict=True)):
            self._values = values
            self._advance(action, t >= self._since)

    def _aligned(self, recorded: Sequence[np.ndarray], a_game: tuple[int, ...], kind: type) -> list[np.ndarray]:
        """What each game's steps hold, [steps, *a_game] each, as steps of all games: zeros before a game's first."""
        longest = int(self._length.max(initial=0))
        steps: list[np.ndarray] = [np.zeros((self.spec.n_envs, *a_game), dtype=kind) for _ in range(longest)]
        for i, (first, own) in enumerate(zip(self._since.tolist(), recorded, strict=True)):
            for step, value in zip(steps[first:], own, strict=True):
                step[i] = value
        return steps
