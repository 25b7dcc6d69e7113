"""The one rollout: plays a policy in a `VecEnv`, keeps what a learner needs, and reports finished episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer, StepObserver, Transition
from llmrl.core.protocols import Camera, ChannelsOnRequest, LooksAtFrames, Policy, VecEnv, unchanged
from llmrl.core.records import Act, Array, Observation, State
from llmrl.core.rollouts import Rollout
from llmrl.rollout.episode_accumulator import EpisodeAccumulator
from llmrl.rollout.rollout_buffer import RolloutBuffer, moved

PROGRESS_S = 0.05
"""Least seconds between two times that observers are told how many steps were made."""


class Collector:
    """Steps the games and remembers where they stand between rollouts.

    What a rollout is made of is kept in a `RolloutBuffer`, whose large arrays the next rollout writes over.

    Where the environment keeps its numbers on a device, they stay there, and no step waits for it: what is decided
    while games go on is decided by what has ended, which the processor knows.

    A policy that is a `StepObserver` is told of the starts of episodes and of every step; one that is `Memoizing` is
    told that it stays as it is for a rollout. Whoever else wants to know of them is one of the `observers`, which are
    told in their order, after the policy.

    Args:
        env, policy: what plays.
        device: of the policy.
        keep: channels that rollouts for learning hold beside those the policy reads.
        before_reset: called with the games [n_envs] that are about to be reset, e.g. to set their mechanism; None:
            nothing is to be done.
        observers: who watches; without any, nothing is done for them.

    Raises:
        ConfigError: the environment has no such channel; later: there is no memory for what is to be kept.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        device: str,
        keep: Sequence[str] = (),
        before_reset: Callable[[np.ndarray], None] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._before_reset = before_reset or (lambda games: None)
        self.env, self.policy, self.device = env, policy, torch.device(device)
        self.spec = env.spec
        if isinstance(policy, LooksAtFrames):
            policy.camera = camera(env)
        self._env_device = None if self.spec.device is None else torch.device(self.spec.device)
        self._request((*policy.channels, *keep, *(name for each in observers for name in each.channels)))
        self._observers = list(observers)
        self._buffer = RolloutBuffer(self.spec, self.device, policy.channels, keep)
        self._observation: Observation | None = None
        self._state: torch.Tensor | None = None
        self._fresh = np.ones(self.spec.n_envs, dtype=bool)
        self._ended = np.zeros(self.spec.n_envs, dtype=bool)
        self._running = EpisodeAccumulator(self.spec)
        self._texts = {name: channel.dtype == "object" for name, channel in self.spec.observation.items()}

    def reset(self, seed: int | Sequence[int], games: np.ndarray | None = None) -> None:
        """Start new episodes from `seed`, forgetting those in progress; in `games` [n_envs] alone, if they are given:
        the others wait as if they had ended.

        An engine that no seed makes reproducible is seeded once, the first time: after that it keeps the games it has
        built ahead, which another seed would throw away.
        """
        reseed = self.spec.deterministic or self._observation is None
        self._before_reset(np.ones(self.spec.n_envs, dtype=bool))
        self._observation = self.env.reset(seed=seed if reseed else None)
        self._state = None
        self._fresh = np.ones(self.spec.n_envs, dtype=bool) if games is None else games.copy()
        self._ended = ~self._fresh
        self._running = EpisodeAccumulator(self.spec)
        for each in self._told():
            each.on_reset(self._fresh.copy(), self._observation)

    @contextmanager
    def observed(self, *observers: Observer) -> Iterator[None]:
        """A span in which these observe, too, after those there are.

        Raises:
            ConfigError: the environment has no such channel as one of them reads.
        """
        self._request(tuple(name for each in observers for name in each.channels))
        before, self._observers = self._observers, [*self._observers, *observers]
        try:
            yield
        finally:
            self._observers = before

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """A span in which no observer is told anything: of an evaluation between rollouts that are learned from."""
        before, self._observers = self._observers, []
        try:
            yield
        finally:
            self._observers = before

    def collect(
        self,
        n_steps: int,
        generator: torch.Generator | Sequence[torch.Generator],
        learn: bool = True,
        keep_exposure: bool = False,
        greedy: bool = False,
        restart: bool = True,
    ) -> Rollout:
        """Play `n_steps` steps in every game; without `learn`, observations and values are not kept.

        `keep_exposure` keeps what the environment tells about the mechanism's effect (`EnvSpec.exposure`). `greedy`
        takes likeliest actions. Without `restart`, games that end wait for the next `reset`, and what they are shown as
        doing meanwhile means nothing; the rollout is shorter where all games wait.
        """
        if self._observation is None:
            raise RuntimeError("Collector.reset(seed) must come before the first collect()")
        if learn and not restart:
            raise ValueError("a learner needs rollouts of games that go on: restart=True")
        buffer, watching = self._buffer, self._told()
        counted, counted_at = 0, time.monotonic()
        buffer.begin(n_steps, learn, keep_exposure)
        with unchanged(self.policy):
            for _ in range(n_steps):
                waiting = self._restart(watching) if restart else self._ended
                if waiting.all():
                    break
                act = self._act(generator, greedy)
                step = self.env.step(self._for_env(act.action))
                seen, self._observation = self._observation, step.observation
                self._ended = buffer.add_step(step, waiting)
                if watching:
                    transition = Transition(seen, act, step, self._ended)
                    for each in watching:
                        each.on_step(transition)
                    if (now := time.monotonic()) - counted_at > PROGRESS_S:
                        self._count(buffer.played - counted)
                        counted, counted_at = buffer.played, now
                if buffer.wants_value:
                    reached = buffer.tensors(step.observation, self.policy.channels)
                    buffer.add_value(self.policy.values(reached, self._state))
        if buffer.played > counted:
            self._count(buffer.played - counted)
        rollout = buffer.finish(self._running, self._ended, self._state)
        for observer in self._observers:
            for episode in rollout.episodes:
                observer.on_episode_end(episode)
            observer.on_rollout(rollout)
        return rollout

    def _count(self, steps: int) -> None:
        for observer in self._observers:
            observer.on_progress(steps)

    def _restart(self, watching: Sequence[StepObserver]) -> np.ndarray:
        """Begin new episodes in the games that have ended; returns the games that wait after that, none, [n_envs]."""
        waiting = self._ended
        if waiting.any():
            assert self._observation is not None
            self._before_reset(waiting)
            self._observation = self.env.reset(mask=waiting)
            self._fresh |= waiting
            for each in watching:
                each.on_reset(waiting, self._observation)
        return np.zeros_like(waiting)

    def _act(self, generator: torch.Generator | Sequence[torch.Generator], greedy: bool) -> Act:
        """Let the policy decide in all games, with no memory in those whose episode begins; it is kept."""
        assert self._observation is not None
        fresh, self._fresh = self._fresh, np.zeros_like(self._fresh)
        if self._state is not None and fresh.any():
            self._state = torch.where(self._buffer.tensor(fresh)[:, None, None], 0, self._state)
        before, read = self._state, self._buffer.tensors(self._observation, self.policy.channels)
        act = self.policy.act(read, before, generator, greedy)  # type: ignore[arg-type]
        # Learners go back through what is remembered, which autograd allows of ordinary tensors alone.
        self._state = None if act.state is None else act.state.clone() if act.state.is_inference() else act.state
        self._buffer.add_act(fresh, self._observation, read, before, act)
        return act

    @property
    def observation(self) -> Observation:
        """What is decided on next. Raises RuntimeError before the first `reset`."""
        if self._observation is None:
            raise RuntimeError("Collector.reset(seed) must come before there is anything to observe")
        return self._observation

    @property
    def observers(self) -> Sequence[Observer]:
        """Who watches."""
        return self._observers

    def state_dict(self) -> State:
        """Where the games stand. Empty where the engine cannot be restored: then `reset` follows a resume."""
        if not self.spec.deterministic:
            return {}
        return {
            "env": self.env.state_dict(),
            "observation": _plain_texts(self._observation),
            "state": self._state,
            "fresh": self._fresh.copy(),
            "ended": self._ended.copy(),
            "running": self._running.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        if not state:
            return
        self.env.load_state_dict(state["env"])
        # Checkpoints are read onto the processor.
        self._observation = self._at_env(_with_texts(state["observation"]))
        self._state = None if state["state"] is None else self._buffer.tensor(state["state"])
        self._fresh = np.array(state["fresh"])
        self._ended = np.array(state["ended"])
        self._running = EpisodeAccumulator(self.spec, state["running"])

    def close(self) -> None:
        """Tell the observers that nothing more is to come."""
        for observer in self._observers:
            observer.close()

    def _told(self) -> list[StepObserver]:
        """Who is told of steps: the policy, if it wants to know, then the observers."""
        return [*([self.policy] if isinstance(self.policy, StepObserver) else []), *self._observers]

    def _request(self, channels: Sequence[str]) -> None:
        """See to it that the environment observes `channels`.

        Raises:
            ConfigError: it has no such channel.
        """
        if missing := [name for name in channels if name not in self.spec.observation]:
            raise ConfigError(
                f"env={self.spec.name} offers no channel {missing[0]!r}, but {', '.join(self.spec.observation)}; "
                "see env.observe"
            )
        if isinstance(self.env, ChannelsOnRequest):
            self.env.provide(channels)

    def _for_env(self, action: torch.Tensor) -> Array:
        return action.cpu().numpy() if self._env_device is None else moved(action, self._env_device)

    def _at_env(self, observation: Observation | None) -> Observation | None:
        if observation is None or self._env_device is None:
            return observation
        return {name: x if self._texts[name] else moved(x, self._env_device) for name, x in observation.items()}


def camera(env: VecEnv) -> Camera:
    """What agents are shown of their game: each its own view, where the environment can draw it, else all the world."""
    views = getattr(env, "render_players", None)
    if callable(views):
        return lambda game: list(views(game))
    return lambda game: [np.asarray(env.render(game))] * env.spec.n_agents


def _plain_texts(observation: Observation | None) -> dict[str, Any] | None:
    """An observation as checkpoints hold it: texts as lists."""
    if observation is None:
        return None
    return {name: x.tolist() if str(getattr(x, "dtype", "")) == "object" else x for name, x in observation.items()}


def _with_texts(observation: dict[str, Any] | None) -> Observation | None:
    """What `_plain_texts` was made of."""
    if observation is None:
        return None
    return {name: np.array(x, dtype=object) if isinstance(x, list) else x for name, x in observation.items()}
