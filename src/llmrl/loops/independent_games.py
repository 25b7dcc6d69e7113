"""Games whose player asks a language model; each game goes on as soon as it has its own replies.

All state changes in the thread that calls `go_on`; other threads only wait for replies. The result of an episode is a
function of its number and its replies, not of when the replies arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from llmrl.core.errors import LLMError
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import NeedsCamera, VecEnv
from llmrl.core.records import ChatReply, ChatRequest, Observation, PolicyOutput, State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import generators
from llmrl.llms.async_requests import Mailbox
from llmrl.llms.client import ChatClient, FetchedReplies
from llmrl.rollout.collector import Collector, camera


class OneGame(VecEnv, Protocol):
    """An environment with one game.

    Attributes:
        place: (i, n): a reset with a seed begins the same episode as game i of n would; (0, 1) by default.
    """

    place: tuple[int, int]


@runtime_checkable
class Separable(Protocol):
    """An environment whose games can be played separately.

    Its `reset` takes a seed for each game (`VecEnv.reset`), or it is `PerGameSeeding`. Either way, a separate game that
    gets this seed begins the same episode.
    """

    def one_game(self) -> OneGame:
        """Return the same environment with one game, independent of this one."""
        ...


@runtime_checkable
class PerGameSeeding(Protocol):
    """An environment whose games can each be given a seed, in addition to that of the reset."""

    def seed_games(self, seeds: np.ndarray) -> None:
        """Set the seeds of the games at the next reset, [n_envs] int64."""
        ...


def separable(env: object) -> bool:
    """Return whether the games of an environment can be played separately.

    Its own class must define `one_game`; an inherited method does not count. An environment whose episodes depend on
    the game in which they are played sets `separable` to False.
    """
    return "one_game" in vars(type(env)) and isinstance(env, Separable) and getattr(env, "separable", True)


@runtime_checkable
class AsksToPlay(Protocol):
    """A policy that asks a language model for actions, and can leave sending the requests to its caller."""

    llm: Any
    channels: tuple[str, ...]
    episodes: Sequence[int] | None

    def one_game(self) -> AsksToPlay: ...

    def acting(
        self, observation: Observation
    ) -> Generator[Sequence[ChatRequest], Sequence[ChatReply], PolicyOutput]: ...

    def values(self, observation: Observation, state: Any = None) -> Any: ...

    def on_reset(self, games: np.ndarray, observation: Observation) -> None: ...

    def on_step(self, transition: Transition) -> None: ...

    def counted(self) -> Any: ...

    def add(self, counted: Any) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


O = TypeVar("O", bound=Observer)  # noqa: E741


@dataclass(frozen=True)
class FinishedEpisode:
    """A finished episode with its number, and what its player counted in it."""

    number: int
    episode: Episode
    counted: Any


@dataclass
class _Lane(Generic[O]):
    """One of the parallel games, with its player.

    Attributes:
        number: index of the lane.
        episode: number of the episode in play; None: no more episodes are played here.
        acting: the pending decision, and `before` the state of the player before it.
        fetched: replies for the pending decision, which are counted when it is made.
        observers: observers of this lane only.
        begun: state of the player before the episode, for games that cannot be restored.
    """

    number: int
    env: OneGame
    policy: AsksToPlay
    player: _Decided
    collector: Collector
    observers: Sequence[O]
    episode: int | None = None
    acting: Generator[Sequence[ChatRequest], Sequence[ChatReply], PolicyOutput] | None = None
    before: State = field(default_factory=dict)
    fetched: list[FetchedReplies] = field(default_factory=list)
    begun: State = field(default_factory=dict)


class _Decided:
    """A policy that returns a decision made in advance."""

    def __init__(self, policy: AsksToPlay) -> None:
        self._policy, self.channels = policy, policy.channels
        self.decision: PolicyOutput | None = None

    def act(
        self, observation: Observation, state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        decision, self.decision = self.decision, None
        assert decision is not None
        return decision

    def values(self, observation: Observation, state: Any = None) -> Any:
        return self._policy.values(observation, state)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        self._policy.on_reset(games, observation)

    def on_step(self, transition: Transition) -> None:
        self._policy.on_step(transition)


class IndependentGames(Generic[O]):
    """A player of episodes 0 to `episodes` - 1, in as many parallel games as the environment has.

    When an episode of a game ends, its next one begins: the first that has not begun. If something is `carried` between
    episodes of a game, it is the number of the old one plus the number of games. The agents of a society decide
    simultaneously. So a game waits for the replies of all its agents, but not for those of other games.

    On resume an episode continues from the state of its game, or from its beginning in games that cannot be restored.

    Args:
        env: environment whose games are played, each as an environment of its own.
        policy: policy that plays; `add` collects the counts of its copies.
        device: torch device of the policy.
        seeds: function from the number of an episode to its seed.
        episodes: number of episodes to play.
        carried: whether a player carries state from one episode to the next.
        places: function from an episode to (i, n), if its seed is that of game i of n; None: each has its own seed.
        prepare: function to call with each game before it begins, e.g. to set its mechanism.
        watched: function that makes the observers of a game from their states (None: new); gets `first_episode` set.
        others: observers of all games, which see one game at a time.
        state: `state_dict()` to resume from; None: a new start.
    """

    def __init__(
        self,
        env: Separable,
        policy: AsksToPlay,
        device: str,
        seeds: Callable[[int], int],
        episodes: int,
        carried: bool = False,
        places: Callable[[int], tuple[int, int]] | None = None,
        prepare: Callable[[VecEnv], None] = lambda env: None,
        watched: Callable[[VecEnv, Sequence[State] | None], Sequence[O]] = lambda env, states: (),
        others: Sequence[Observer] = (),
        state: State | None = None,
    ) -> None:
        assert isinstance(policy.llm, ChatClient)
        self.client: ChatClient = policy.llm
        self._seeds, self._places, self.episodes, self._carried = seeds, places, episodes, carried
        self._mail: Mailbox[_Lane[O]] = Mailbox(self.client)
        self._error: LLMError | None = None
        self.n = min(env.spec.n_envs, episodes)  # type: ignore[attr-defined]
        self.steps = 0 if state is None else int(state["steps"])
        self._next = self.n if state is None else int(state["next"])
        self._restorable: bool = env.spec.deterministic  # type: ignore[attr-defined]
        self.lanes: list[_Lane[O]] = []
        try:
            self._set_up(env, policy, device, prepare, watched, others, None if state is None else state["lanes"])
        except BaseException:
            self.close()
            raise

    def _set_up(
        self,
        env: Separable,
        policy: AsksToPlay,
        device: str,
        prepare: Callable[[VecEnv], None],
        watched: Callable[[VecEnv, Sequence[State] | None], Sequence[O]],
        others: Sequence[Observer],
        standing: Sequence[State] | None,
    ) -> None:
        """Make the lanes, and begin or restore the game of each."""
        for i in range(self.n):
            saved = None if standing is None else standing[i]
            own, player = env.one_game(), policy.one_game()
            prepare(own)
            if isinstance(player, NeedsCamera):
                player.camera = camera(own)
            observers = watched(own, saved["observers"] if saved is not None and self._restorable else None)
            decided = _Decided(player)
            collector = Collector(own, decided, device, observers=[*observers, *others])
            lane = _Lane(i, own, player, decided, collector, observers)
            self.lanes.append(lane)
            if saved is None:
                continue
            player.load_state_dict(saved["policy"])
            if saved["episode"] is None:
                continue
            if self._restorable:
                lane.episode = saved["episode"]
                player.episodes = [lane.episode]
                collector.load_state_dict(saved["collector"])
            else:
                self._begin(lane, saved["episode"])
        if standing is None:
            for lane in self.lanes:
                self._begin(lane, lane.number)

    @staticmethod
    def fit(env: object, policy: object) -> bool:
        """Return whether the games can be played separately, and the policy asks its model through a `ChatClient`."""
        return separable(env) and isinstance(policy, AsksToPlay) and isinstance(policy.llm, ChatClient)

    @property
    def going(self) -> bool:
        """Whether an episode is still in play."""
        return any(lane.episode is not None for lane in self.lanes)

    @property
    def begun(self) -> set[int]:
        """Numbers of all episodes that have begun."""
        if not self._carried:
            return set(range(min(self._next, self.episodes)))
        last = [self.episodes - 1 if lane.episode is None else lane.episode for lane in self.lanes]
        return {k for lane, end in zip(self.lanes, last, strict=True) for k in range(lane.number, end + 1, self.n)}

    def go_on(self) -> list[FinishedEpisode]:
        """Advance each game that has its replies, or wait for a reply if none has; return the episodes that ended.

        Raises:
            LLMError: the model could not be reached, or the budget is used up. No request is pending then, and games
                without replies are in their state before the pending decision.
        """
        if self._error is not None:
            raise self._error
        self.client.check_understood()
        ended: list[FinishedEpisode] = []
        steps = self.steps
        try:
            for lane in self.lanes:
                if lane.episode is not None and lane.acting is None:
                    lane.before = lane.policy.state_dict()
                    lane.acting = lane.policy.acting(lane.collector.observation)
                    self._think(lane, None, ended)
            if self.steps == steps:
                for lane, fetched in self._mail.receive():
                    lane.fetched.append(fetched)
                    self._think(lane, fetched, ended)
        except LLMError as error:
            self._mail.drain()
            if self.steps == steps:
                raise
            # The episodes of games that advanced are returned first.
            self._error = error
        return ended

    def state_dict(self) -> State:
        """Return the state of all games, before pending decisions; an episode of a game that cannot be restored counts
        as not begun."""
        return {
            "lanes": [
                {
                    "episode": lane.episode,
                    "policy": self._remembered(lane),
                    "collector": lane.collector.state_dict(),
                    "observers": [each.state_dict() for each in lane.observers],  # type: ignore[attr-defined]
                }
                for lane in self.lanes
            ],
            "next": self._next,
            "steps": self.steps,
        }

    def close(self) -> None:
        """Close the games."""
        for lane in self.lanes:
            if callable(close := getattr(lane.env, "close", None)):
                close()

    def _remembered(self, lane: _Lane[O]) -> State:
        """Return the state from which a lane's player would resume."""
        if not self._restorable:
            return lane.begun
        return lane.policy.state_dict() if lane.acting is None else lane.before

    def _begin(self, lane: _Lane[O], episode: int) -> None:
        if episode >= self.episodes:
            lane.episode = None
            return
        lane.episode = episode
        lane.policy.episodes = [episode]
        for each in lane.observers:
            each.first_episode = episode  # type: ignore[attr-defined]
        if not self._restorable:
            lane.begun = lane.policy.state_dict()
        seed = self._seeds(episode)
        if self._places is not None:
            lane.env.place = self._places(episode)
        elif isinstance(lane.env, PerGameSeeding):
            lane.env.seed_games(np.array([seed], dtype=np.int64))
        lane.collector.reset(seed, reseed=True)

    def _think(self, lane: _Lane[O], fetched: FetchedReplies | None, ended: list[FinishedEpisode]) -> None:
        """Advance a decision to its next requests, or to a step of the game."""
        assert lane.acting is not None
        try:
            requests = next(lane.acting) if fetched is None else lane.acting.send(self.client.replies(fetched))
        except StopIteration as decision:
            self._act(lane, decision.value, ended)
        else:
            self._mail.send(lane, requests)

    def _act(self, lane: _Lane[O], decision: PolicyOutput, ended: list[FinishedEpisode]) -> None:
        for fetched in lane.fetched:
            self.client.count(fetched)
        lane.fetched, lane.acting, lane.before = [], None, {}
        lane.player.decision = decision
        [generator] = generators([0])  # such a player draws no random numbers
        found = lane.collector.collect(1, generator, learn=False, restart=False).episodes
        self.steps += 1
        if not found:
            return
        assert lane.episode is not None
        [episode] = found
        ended.append(FinishedEpisode(lane.episode, replace(episode, game=lane.episode % self.n), lane.policy.counted()))
        following = lane.episode + self.n if self._carried else self._next
        self._next = max(self._next, following + 1)
        self._begin(lane, following)
