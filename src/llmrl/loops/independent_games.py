"""Games played by a language model, each of which takes its next step as soon as its own replies have arrived.

Only the thread that calls `IndependentGames.advance` changes the state; other threads wait for replies. The result of
an episode depends on its number and its replies, not on the times at which the replies arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import LLMError
from llmrl.core.model_protocols import ConversationGenerator
from llmrl.core.observers import Observer, StepObserver, Transition
from llmrl.core.protocols import NeedsCamera, VecEnv
from llmrl.core.records import Observation, PolicyOutput, State
from llmrl.core.seeding import make_generators
from llmrl.llms.client import ChatClient, FetchedReplies, RequestDispatcher
from llmrl.rollout.collector import Collector, make_camera


@runtime_checkable
class Separable(Protocol):
    """Protocol of environments whose games can be played separately.

    `reset` takes a seed for each game (`VecEnv.reset`), or the environment is `PerGameSeeding`. Either way, a separate
    game with the same seed starts the same episode.
    """

    def make_single_game(self) -> VecEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        ...


@runtime_checkable
class PerGameSeeding(Protocol):
    """Protocol of environments that accept a seed for each game by a method; `reset` takes one seed for all games."""

    def seed_games(self, seeds: np.ndarray) -> None:
        """Set the seeds of the games at the next reset, [n_envs] int64."""
        ...


def has_separable_games(env: object) -> bool:
    """Return whether the games of an environment can be played separately.

    The class itself must define `make_single_game`: an inherited method would return an instance of the base class. An
    environment whose episodes depend on the index of their game sets `separable` to False.
    """
    return "make_single_game" in vars(type(env)) and isinstance(env, Separable) and getattr(env, "separable", True)


@runtime_checkable
class LanguageModelPolicy(StepObserver, Protocol):
    """Protocol of policies of a language model whose caller sends the requests; `episodes`: episode number by game."""

    llm: Any
    channels: tuple[str, ...]
    episodes: Sequence[int] | None

    def make_single_game(self) -> LanguageModelPolicy: ...

    def act_as_conversation(self, observation: Observation) -> ConversationGenerator[PolicyOutput]: ...

    def values(self, observation: Observation, state: Any = None) -> Any: ...

    def take_counts(self) -> Any: ...

    def add_counts(self, other_counts: Any) -> None: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


ObserverFactory = Callable[[VecEnv, Sequence[State] | None], Sequence[Observer]]
"""Function that makes the observers of a game (`VecEnv`) from their saved states; None: new observers. Each observer
needs an attribute `first_episode`, which is set to the number of an episode before its start."""


@dataclass
class _Game:
    """One of the parallel games, with its player.

    Attributes:
        index: index of the game.
        policy: player of the game.
        precomputed_policy: policy of the collector, which returns the output that `policy` has computed in advance.
        episode: number of the episode in progress; None: the game has played all its episodes.
        decision: generator of the requests for the pending decision; None: no decision is pending.
        pre_decision_state: state of the player before the pending decision.
        pending_replies: replies for the pending decision; the client counts them once the decision is complete.
        observers: observers of this game only.
        episode_start_state: state of the player before the episode, for games that cannot be restored.
    """

    index: int
    env: VecEnv
    policy: LanguageModelPolicy
    precomputed_policy: _PrecomputedPolicy
    collector: Collector
    observers: Sequence[Observer]
    episode: int | None = None
    decision: ConversationGenerator[PolicyOutput] | None = None
    pre_decision_state: State = field(default_factory=dict)
    pending_replies: list[FetchedReplies] = field(default_factory=list)
    episode_start_state: State = field(default_factory=dict)


class _PrecomputedPolicy:
    """Policy whose `act` returns the output that was assigned to `output` before."""

    def __init__(self, policy: LanguageModelPolicy) -> None:
        self._policy, self.channels = policy, policy.channels
        self.output: PolicyOutput | None = None

    def act(
        self, observation: Observation, state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        output, self.output = self.output, None
        assert output is not None
        return output

    def values(self, observation: Observation, state: Any = None) -> Any:
        return self._policy.values(observation, state)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        self._policy.on_reset(games, observation)

    def on_step(self, transition: Transition) -> None:
        self._policy.on_step(transition)


class IndependentGames:
    """Parallel games, as many as the environment has, in which episodes 0 to `n_episodes` - 1 are played.

    When an episode of a game ends, the game starts the episode with the lowest number that has not started. If the
    player keeps a state between episodes, game i instead plays the episodes i, i + n_games, i + 2 n_games, ..., so that
    the sequence of episodes does not depend on the speed of replies. The agents of a game decide simultaneously, so a
    game waits for the replies of all its agents.

    On resume an episode continues from the state of its game; in games that cannot be restored, it starts again.

    Args:
        env: environment whose games are played, each as a separate environment with one game.
        policy: policy that is copied for each game.
        device: torch device of the policy.
        n_episodes: number of episodes.
        get_seed: function from the number of an episode to its seed.
        carries_state: whether the player keeps a state between episodes.
        make_observers: function that makes the observers of each game.
        shared_observers: observers that receive the transitions of all games, each transition with a single game.
        state: `state_dict()` to resume from; None: start with episode 0.
    """

    def __init__(
        self,
        env: Separable,
        policy: LanguageModelPolicy,
        device: str,
        n_episodes: int,
        get_seed: Callable[[int], int],
        carries_state: bool = False,
        make_observers: ObserverFactory = lambda env, states: (),
        shared_observers: Sequence[Observer] = (),
        state: State | None = None,
    ) -> None:
        assert isinstance(policy.llm, ChatClient)
        self.client: ChatClient = policy.llm
        self._n_episodes, self._get_seed, self._carries_state = n_episodes, get_seed, carries_state
        self._dispatcher: RequestDispatcher[_Game] = RequestDispatcher(self.client)
        self._error: LLMError | None = None
        self.n_games = min(env.spec.n_envs, n_episodes)  # type: ignore[attr-defined]
        self.steps = 0 if state is None else int(state["steps"])
        self._next_episode = self.n_games if state is None else int(state["next"])
        self._can_restore: bool = env.spec.deterministic  # type: ignore[attr-defined]
        self.games: list[_Game] = []
        try:
            for i in range(self.n_games):
                game_state = None if state is None else state["lanes"][i]
                observer_states = game_state["observers"] if game_state is not None and self._can_restore else None
                game_env, player = env.make_single_game(), policy.make_single_game()
                if isinstance(player, NeedsCamera):
                    player.camera = make_camera(game_env)
                observers, precomputed_policy = make_observers(game_env, observer_states), _PrecomputedPolicy(player)
                collector = Collector(game_env, precomputed_policy, device, observers=[*observers, *shared_observers])
                self.games.append(_Game(i, game_env, player, precomputed_policy, collector, observers))
                if game_state is not None:
                    self._restore(self.games[-1], game_state)
            if state is None:
                for game in self.games:
                    self._begin_episode(game, game.index)
        except BaseException:
            self.close()
            raise

    def _restore(self, game: _Game, state: State) -> None:
        game.policy.load_state_dict(state["policy"])
        if state["episode"] is None:
            return
        if self._can_restore:
            game.episode = state["episode"]
            game.policy.episodes = [game.episode]
            game.collector.load_state_dict(state["collector"])
        else:
            self._begin_episode(game, state["episode"])

    @staticmethod
    def can_play(env: object, policy: object) -> bool:
        """Return whether the games can be played separately, and the policy's language model is a `ChatClient`."""
        return (
            has_separable_games(env) and isinstance(policy, LanguageModelPolicy) and isinstance(policy.llm, ChatClient)
        )

    @property
    def is_running(self) -> bool:
        """True while an episode is in progress."""
        return any(game.episode is not None for game in self.games)

    @property
    def started_episodes(self) -> set[int]:
        """Numbers of all episodes that have started."""
        if not self._carries_state:
            return set(range(min(self._next_episode, self._n_episodes)))
        last_episodes = [self._n_episodes - 1 if game.episode is None else game.episode for game in self.games]
        return {k for i, last in enumerate(last_episodes) for k in range(i, last + 1, self.n_games)}

    def advance(self) -> dict[int, Any]:
        """Start the decision of each game without one; if no game takes a step thereby, wait for replies and use them.

        Returns:
            The player's counts (`LanguageModelPolicy.take_counts`) by number of the episodes that ended.

        Raises:
            LLMError: the model could not be reached, or the budget is used up. No request is pending then. The saved
                state of games with incomplete decisions is that before the decision.
        """
        if self._error is not None:
            raise self._error
        self.client.check_invalid_rate()
        steps, finished_counts = self.steps, dict[int, Any]()
        try:
            for game in self.games:
                if game.episode is not None and game.decision is None:
                    game.pre_decision_state = game.policy.state_dict()
                    game.decision = game.policy.act_as_conversation(game.collector.observation)
                    self._advance_decision(game, None, finished_counts)
            if self.steps == steps:
                for game, replies in self._dispatcher.receive():
                    game.pending_replies.append(replies)
                    self._advance_decision(game, replies, finished_counts)
        except LLMError as error:
            self._dispatcher.drain()
            if self.steps == steps:
                raise
            self._error = error  # raised by the next call, so that this one can return the counts
        return finished_counts

    def state_dict(self) -> State:
        """Return the state before pending decisions or, in games that cannot be restored, before their episodes."""
        return {
            "lanes": [
                {
                    "episode": game.episode,
                    "policy": self._get_player_state(game),
                    "collector": game.collector.state_dict(),
                    "observers": [observer.state_dict() for observer in game.observers],  # type: ignore[attr-defined]
                }
                for game in self.games
            ],
            "next": self._next_episode,
            "steps": self.steps,
        }

    def close(self) -> None:
        """Close the games."""
        for game in self.games:
            if callable(close := getattr(game.env, "close", None)):
                close()

    def _get_player_state(self, game: _Game) -> State:
        """Return the state from which a game's player would resume."""
        if not self._can_restore:
            return game.episode_start_state
        return game.policy.state_dict() if game.decision is None else game.pre_decision_state

    def _begin_episode(self, game: _Game, episode: int) -> None:
        if episode >= self._n_episodes:
            game.episode = None
            return
        game.episode = episode
        game.policy.episodes = [episode]
        for observer in game.observers:
            observer.first_episode = episode  # type: ignore[attr-defined]
        if not self._can_restore:
            game.episode_start_state = game.policy.state_dict()
        seed = self._get_seed(episode)
        if isinstance(game.env, PerGameSeeding):
            game.env.seed_games(np.array([seed], dtype=np.int64))
        game.collector.reset(seed, reseed=True)

    def _advance_decision(self, game: _Game, replies: FetchedReplies | None, finished_counts: dict[int, Any]) -> None:
        """Advance a decision with `replies` (None: start it) until it sends requests or the game takes a step."""
        assert game.decision is not None
        try:
            requests = (
                next(game.decision) if replies is None else game.decision.send(self.client.unwrap_replies(replies))
            )
        except StopIteration as end:
            self._play_step(game, end.value, finished_counts)
        else:
            self._dispatcher.send(game, requests)

    def _play_step(self, game: _Game, output: PolicyOutput, finished_counts: dict[int, Any]) -> None:
        for replies in game.pending_replies:
            self.client.record_replies(replies)
        game.pending_replies, game.decision, game.pre_decision_state = [], None, {}
        game.precomputed_policy.output = output
        [generator] = make_generators([0])  # the player draws no random numbers
        rollout = game.collector.collect(1, generator, learn=False, restart=False)
        self.steps += 1
        if not rollout.episodes:
            return
        assert game.episode is not None
        finished_counts[game.episode] = game.policy.take_counts()
        next_episode = game.episode + self.n_games if self._carries_state else self._next_episode
        self._next_episode = max(self._next_episode, next_episode + 1)
        self._begin_episode(game, next_episode)
