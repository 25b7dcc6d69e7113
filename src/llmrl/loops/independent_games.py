"""Games whose player asks a language model; each game continues as soon as it has its own replies.

All state changes in the thread that calls `advance`; other threads only wait for replies. The result of an episode is a
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


@runtime_checkable
class Separable(Protocol):
    """Protocol of environments whose games can be played separately.

    `reset` takes a seed for each game (`VecEnv.reset`), or the environment is `PerGameSeeding`. Either way, a separate
    game with the same seed starts the same episode.
    """

    def one_game(self) -> VecEnv:
        """Return the same environment with one game, independent of this one."""
        ...


@runtime_checkable
class PerGameSeeding(Protocol):
    """Protocol of environments that accept a seed for each game, in addition to that of the reset."""

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
    """Protocol of policies that ask a language model for actions and let their caller send the requests."""

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
class EpisodePlan:
    """Numbers and seeds of the episodes to play.

    Attributes:
        episodes: number of episodes.
        seed_of: function from the number of an episode to its seed.
        carried: whether a player carries state from one episode to the next.
    """

    episodes: int
    seed_of: Callable[[int], int]
    carried: bool = False


@dataclass(frozen=True)
class GameHooks(Generic[O]):
    """Preparation and observers of the games.

    Attributes:
        observers: function that makes the observers of a game from their states (None: new ones); the attribute
            `first_episode` of each is then set.
        shared_observers: observers of all games, which see one game at a time.
    """

    observers: Callable[[VecEnv, Sequence[State] | None], Sequence[O]] = lambda env, states: ()
    shared_observers: Sequence[Observer] = ()


@dataclass(frozen=True)
class FinishedEpisode:
    """A finished episode with its number and the counts of its player (`AsksToPlay.counted`)."""

    number: int
    episode: Episode
    counted: Any


@dataclass
class _Lane(Generic[O]):
    """One of the parallel games, with its player.

    Attributes:
        number: index of the lane.
        episode: number of the episode in play; None: no more episodes are played here.
        acting: the pending decision; None: none is pending.
        state_before: state of the player before the pending decision.
        pending_replies: replies for the pending decision, which are counted when it is made.
        observers: observers of this lane only.
        episode_start: state of the player before the episode, for games that cannot be restored.
    """

    number: int
    env: VecEnv
    policy: AsksToPlay
    player: _DecidedPolicy
    collector: Collector
    observers: Sequence[O]
    episode: int | None = None
    acting: Generator[Sequence[ChatRequest], Sequence[ChatReply], PolicyOutput] | None = None
    state_before: State = field(default_factory=dict)
    pending_replies: list[FetchedReplies] = field(default_factory=list)
    episode_start: State = field(default_factory=dict)


class _DecidedPolicy:
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
    """A player of episodes 0 to `plan.episodes` - 1, in as many parallel games as the environment has.

    When an episode of a game ends, the game starts the first episode that has not started. If a player carries state
    from one episode to the next (`plan.carried`), the game starts the episode whose number is higher by the number of
    games instead. The agents of a society decide simultaneously. So a game waits for the replies of all its agents, but
    not for those of other games.

    On resume an episode continues from the state of its game, or from its beginning in games that cannot be restored.

    Args:
        env: environment whose games are played, each as an environment of its own.
        policy: policy that plays; `add` collects the counts of its copies.
        device: torch device of the policy.
        plan: numbers and seeds of the episodes to play.
        hooks: preparation and observers of the games.
        state: `state_dict()` to resume from; None: a new start.
    """

    def __init__(
        self,
        env: Separable,
        policy: AsksToPlay,
        device: str,
        plan: EpisodePlan,
        hooks: GameHooks[O],
        state: State | None = None,
    ) -> None:
        assert isinstance(policy.llm, ChatClient)
        self.client: ChatClient = policy.llm
        self._plan = plan
        self._mail: Mailbox[_Lane[O]] = Mailbox(self.client)
        self._error: LLMError | None = None
        self.n = min(env.spec.n_envs, plan.episodes)  # type: ignore[attr-defined]
        self.steps = 0 if state is None else int(state["steps"])
        self._next = self.n if state is None else int(state["next"])
        self._restorable: bool = env.spec.deterministic  # type: ignore[attr-defined]
        self.lanes: list[_Lane[O]] = []
        try:
            self._set_up(env, policy, device, hooks, None if state is None else state["lanes"])
        except BaseException:
            self.close()
            raise

    def _set_up(
        self, env: Separable, policy: AsksToPlay, device: str, hooks: GameHooks[O], states: Sequence[State] | None
    ) -> None:
        """Make the lanes, and start or restore the game of each."""
        for i in range(self.n):
            game_state = None if states is None else states[i]
            game, player = env.one_game(), policy.one_game()
            if isinstance(player, NeedsCamera):
                player.camera = camera(game)
            observers = hooks.observers(
                game, game_state["observers"] if game_state is not None and self._restorable else None
            )
            player_policy = _DecidedPolicy(player)
            collector = Collector(game, player_policy, device, observers=[*observers, *hooks.shared_observers])
            lane = _Lane(i, game, player, player_policy, collector, observers)
            self.lanes.append(lane)
            if game_state is None:
                continue
            player.load_state_dict(game_state["policy"])
            if game_state["episode"] is None:
                continue
            if self._restorable:
                lane.episode = game_state["episode"]
                player.episodes = [lane.episode]
                collector.load_state_dict(game_state["collector"])
            else:
                self._begin(lane, game_state["episode"])
        if states is None:
            for lane in self.lanes:
                self._begin(lane, lane.number)

    @staticmethod
    def fit(env: object, policy: object) -> bool:
        """Return whether the games can be played separately, and the policy asks its model through a `ChatClient`."""
        return separable(env) and isinstance(policy, AsksToPlay) and isinstance(policy.llm, ChatClient)

    @property
    def running(self) -> bool:
        """True while an episode is in play."""
        return any(lane.episode is not None for lane in self.lanes)

    @property
    def started(self) -> set[int]:
        """Numbers of all episodes that have started."""
        if not self._plan.carried:
            return set(range(min(self._next, self._plan.episodes)))
        last = [self._plan.episodes - 1 if lane.episode is None else lane.episode for lane in self.lanes]
        return {k for lane, end in zip(self.lanes, last, strict=True) for k in range(lane.number, end + 1, self.n)}

    def advance(self) -> list[FinishedEpisode]:
        """Advance each game that has its replies, or wait for a reply if none has; return the episodes that ended.

        Raises:
            LLMError: the model could not be reached, or the budget is used up. No request is pending then, and games
                without replies are in their state before the pending decision.
        """
        if self._error is not None:
            raise self._error
        self.client.check_invalid_rate()
        episodes: list[FinishedEpisode] = []
        steps = self.steps
        try:
            for lane in self.lanes:
                if lane.episode is not None and lane.acting is None:
                    lane.state_before = lane.policy.state_dict()
                    lane.acting = lane.policy.acting(lane.collector.observation)
                    self._think(lane, None, episodes)
            if self.steps == steps:
                for lane, replies in self._mail.receive():
                    lane.pending_replies.append(replies)
                    self._think(lane, replies, episodes)
        except LLMError as error:
            self._mail.drain()
            if self.steps == steps:
                raise
            # The episodes of games that advanced are returned first.
            self._error = error
        return episodes

    def state_dict(self) -> State:
        """Return the state of all games, before pending decisions.

        An episode of a game that cannot be restored counts as not started.
        """
        return {
            "lanes": [
                {
                    "episode": lane.episode,
                    "policy": self._player_state(lane),
                    "collector": lane.collector.state_dict(),
                    "observers": [observer.state_dict() for observer in lane.observers],  # type: ignore[attr-defined]
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

    def _player_state(self, lane: _Lane[O]) -> State:
        """Return the state from which a lane's player would resume."""
        if not self._restorable:
            return lane.episode_start
        return lane.policy.state_dict() if lane.acting is None else lane.state_before

    def _begin(self, lane: _Lane[O], episode: int) -> None:
        if episode >= self._plan.episodes:
            lane.episode = None
            return
        lane.episode = episode
        lane.policy.episodes = [episode]
        for observer in lane.observers:
            observer.first_episode = episode  # type: ignore[attr-defined]
        if not self._restorable:
            lane.episode_start = lane.policy.state_dict()
        seed = self._plan.seed_of(episode)
        if isinstance(lane.env, PerGameSeeding):
            lane.env.seed_games(np.array([seed], dtype=np.int64))
        lane.collector.reset(seed, reseed=True)

    def _think(self, lane: _Lane[O], replies: FetchedReplies | None, episodes: list[FinishedEpisode]) -> None:
        """Advance a decision until it sends requests or the game makes a step."""
        assert lane.acting is not None
        try:
            requests = next(lane.acting) if replies is None else lane.acting.send(self.client.replies(replies))
        except StopIteration as decision:
            self._act(lane, decision.value, episodes)
        else:
            self._mail.send(lane, requests)

    def _act(self, lane: _Lane[O], decision: PolicyOutput, episodes: list[FinishedEpisode]) -> None:
        for replies in lane.pending_replies:
            self.client.count(replies)
        lane.pending_replies, lane.acting, lane.state_before = [], None, {}
        lane.player.decision = decision
        [generator] = generators([0])  # the player draws no random numbers
        lane_episodes = lane.collector.collect(1, generator, learn=False, restart=False).episodes
        self.steps += 1
        if not lane_episodes:
            return
        assert lane.episode is not None
        [episode] = lane_episodes
        episodes.append(
            FinishedEpisode(lane.episode, replace(episode, game=lane.episode % self.n), lane.policy.counted())
        )
        following = lane.episode + self.n if self._plan.carried else self._next
        self._next = max(self._next, following + 1)
        self._begin(lane, following)
