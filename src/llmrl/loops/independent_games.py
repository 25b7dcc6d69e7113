"""Games whose player asks a language model, each of which goes on as soon as its own replies are there.

Everything that is remembered changes in the thread that calls `go_on`; other threads only wait for replies. What comes
of an episode is a function of its number and of its replies, and not of when these come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from llmrl.core.errors import LLMError
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import LooksAtFrames, VecEnv
from llmrl.core.records import Act, ChatReply, ChatRequest, Observation, State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import generators
from llmrl.llms.client import ChatClient, Fetched
from llmrl.llms.mailbox import Mailbox
from llmrl.rollout.collector import Collector, camera


@runtime_checkable
class Separable(Protocol):
    """An environment whose games can be played apart, each begun as it is told to."""

    def one_game(self) -> SeededGame:
        """Return the same environment with one game, which goes on by itself."""
        ...


class SeededGame(VecEnv, Protocol):
    """One game that can be given a seed."""

    def seed_games(self, seeds: np.ndarray) -> None:
        """Begin the game of the next reset as `seeds` [1] int64 has it."""
        ...


@runtime_checkable
class AsksToPlay(Protocol):
    """A policy that asks a language model what to do, and can leave the sending to others."""

    llm: Any
    channels: tuple[str, ...]
    episodes: Sequence[int] | None

    def one_game(self) -> AsksToPlay: ...

    def acting(self, observation: Observation) -> Generator[Sequence[ChatRequest], Sequence[ChatReply], Act]: ...

    def on_reset(self, games: np.ndarray, observation: Observation) -> None: ...

    def on_step(self, transition: Transition) -> None: ...

    def counted(self) -> Any: ...

    def add(self, counted: Any) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


O = TypeVar("O", bound=Observer)  # noqa: E741


@dataclass(frozen=True)
class Ended:
    """An episode that is over, and what its player counted in it."""

    number: int
    episode: Episode
    counted: Any


@dataclass
class _Lane(Generic[O]):
    """One place at the table: a game, and who plays it.

    Attributes:
        number: of the place.
        episode: that is played here; None: none is, or will be any more.
        acting: the decision that is under way, and `before` what the player remembered before it began.
        fetched: what was asked for it, which counts as soon as it is made.
        observer: who watches.
    """

    number: int
    env: SeededGame
    policy: AsksToPlay
    player: _Decided
    collector: Collector
    observer: O | None
    episode: int | None = None
    acting: Generator[Sequence[ChatRequest], Sequence[ChatReply], Act] | None = None
    before: State = field(default_factory=dict)
    fetched: list[Fetched] = field(default_factory=list)


class _Decided:
    """A player whose decision is there before it is asked for."""

    def __init__(self, policy: AsksToPlay) -> None:
        self._policy, self.channels = policy, policy.channels
        self.decision: Act | None = None

    def act(self, observation: Observation, state: Any = None, generator: Any = None, greedy: bool = False) -> Act:
        decision, self.decision = self.decision, None
        assert decision is not None
        return decision

    def values(self, observation: Observation, state: Any = None) -> Any:
        raise NotImplementedError("a player that asks knows no values")

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        self._policy.on_reset(games, observation)

    def on_step(self, transition: Transition) -> None:
        self._policy.on_step(transition)


class IndependentGames(Generic[O]):
    """Plays episodes 0 to `episodes` - 1 in as many games at once as the environment has.

    When a game's episode is over its next one begins: the first that nobody plays yet, or, where something is `carried`
    from episode to episode of a game, the one that follows by as many as there are games.

    Args:
        env: whose games are played, each as an environment of its own.
        policy: who plays; it counts what is asked of others as it says (`add`).
        device: of the policy.
        seeds: of episode k.
        episodes: to be played.
        carried: whether a player takes something from one episode to the next.
        watched: makes the observer of a place, whose `first_episode` is set; None: nobody watches.
        others: who watches all games, told of one at a time.
        state: to go on from; None: nothing was played yet.
    """

    def __init__(
        self,
        env: Separable,
        policy: AsksToPlay,
        device: str,
        seeds: Callable[[int], int],
        episodes: int,
        carried: bool = False,
        watched: Callable[[SeededGame, State | None], O] | None = None,
        others: Sequence[Observer] = (),
        state: State | None = None,
    ) -> None:
        assert isinstance(policy.llm, ChatClient)
        self.client: ChatClient = policy.llm
        self._seeds, self.episodes, self._carried = seeds, episodes, carried
        self._mail: Mailbox[_Lane[O]] = Mailbox(self.client)
        self._error: LLMError | None = None
        self.n = min(env.spec.n_envs, episodes)  # type: ignore[attr-defined]
        self.steps = 0 if state is None else int(state["steps"])
        self._next = self.n if state is None else int(state["next"])
        self.lanes: list[_Lane[O]] = []
        for i in range(self.n):
            saved = None if state is None else state["lanes"][i]
            own, player = env.one_game(), policy.one_game()
            if isinstance(player, LooksAtFrames):
                player.camera = camera(own)
            observer = None if watched is None else watched(own, None if saved is None else saved["observer"])
            decided = _Decided(player)
            watching = [*others] if observer is None else [observer, *others]
            collector = Collector(own, decided, device, observers=watching)  # type: ignore[arg-type]
            lane = _Lane(i, own, player, decided, collector, observer)
            self.lanes.append(lane)
            if saved is None:
                continue
            lane.episode = saved["episode"]
            player.load_state_dict(saved["policy"])
            player.episodes = [lane.episode or 0]
            collector.load_state_dict(saved["collector"])
        if state is None:
            for lane in self.lanes:
                self._begin(lane, lane.number)

    @staticmethod
    def fit(env: object, policy: object) -> bool:
        """Whether the games can be played apart, and their player asks through the client.

        A class derived from an environment that can do so says for itself how one of its games is made. One whose
        episodes depend on the game that they are played in says so (`separable`).
        """
        return (
            "one_game" in vars(type(env))
            and isinstance(env, Separable)
            and getattr(env, "separable", True)
            and isinstance(policy, AsksToPlay)
            and isinstance(policy.llm, ChatClient)
        )

    @property
    def going(self) -> bool:
        """Whether an episode is still to be played."""
        return any(lane.episode is not None for lane in self.lanes)

    def go_on(self) -> list[Ended]:
        """Let each game that can go on do so, and wait for a reply if none can; returns the episodes that ended.

        Raises:
            LLMError: the model could not be reached, or may not be paid any more. Nothing is under way then, and the
                games stand where they stood before the decisions that lack a reply.
        """
        if self._error is not None:
            raise self._error
        self.client.check_understood()
        ended: list[Ended] = []
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
            # What others did meanwhile is told first.
            self._error = error
        return ended

    def state_dict(self) -> State:
        """Where the games stand; a decision that is under way has not begun."""
        return {
            "lanes": [
                {
                    "episode": lane.episode,
                    "policy": lane.policy.state_dict() if lane.acting is None else lane.before,
                    "collector": lane.collector.state_dict(),
                    "observer": None if lane.observer is None else lane.observer.state_dict(),  # type: ignore[attr-defined]
                }
                for lane in self.lanes
            ],
            "next": self._next,
            "steps": self.steps,
        }

    def close(self) -> None:
        """Give the games back."""
        for lane in self.lanes:
            if callable(close := getattr(lane.env, "close", None)):
                close()

    def _begin(self, lane: _Lane[O], episode: int) -> None:
        if episode >= self.episodes:
            lane.episode = None
            return
        lane.episode = episode
        lane.policy.episodes = [episode]
        if lane.observer is not None:
            lane.observer.first_episode = episode  # type: ignore[attr-defined]
        seed = self._seeds(episode)
        lane.env.seed_games(np.array([seed], dtype=np.int64))
        lane.collector.reset(seed)

    def _think(self, lane: _Lane[O], fetched: Fetched | None, ended: list[Ended]) -> None:
        """Take a decision further: to its next question, or to a step of the game."""
        assert lane.acting is not None
        try:
            requests = next(lane.acting) if fetched is None else lane.acting.send(self.client.replies(fetched))
        except StopIteration as decision:
            self._act(lane, decision.value, ended)
        else:
            self._mail.send(lane, requests)

    def _act(self, lane: _Lane[O], decision: Act, ended: list[Ended]) -> None:
        for fetched in lane.fetched:
            self.client.count(fetched)
        lane.fetched, lane.acting, lane.before = [], None, {}
        lane.player.decision = decision
        [generator] = generators([0])  # such a player draws nothing
        found = lane.collector.collect(1, generator, learn=False, restart=False).episodes
        self.steps += 1
        if not found:
            return
        assert lane.episode is not None
        [episode] = found
        ended.append(Ended(lane.episode, replace(episode, game=lane.episode % self.n), lane.policy.counted()))
        following = lane.episode + self.n if self._carried else self._next
        self._next = max(self._next, following + 1)
        self._begin(lane, following)
