"""Collector of rollouts: plays a policy in a `VecEnv`, stores the steps for learners, and returns finished episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer, StepObserver, Transition
from llmrl.core.protocols import Camera, ChannelsOnRequest, Forkable, NeedsCamera, Policy, VecEnv, fixed_weights
from llmrl.core.records import Observation, PolicyOutput, State
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.seeding import Seeds
from llmrl.rollout.rollout_buffer import EpisodeAccumulator, RolloutBuffer, to_device

UNKNOWN_HORIZON = 1000
"""Assumed horizon, in steps, of environments without one; it determines the length of rollouts in evaluations."""
PROGRESS_INTERVAL_S = 0.2
"""Minimum time in seconds between two calls of `Observer.on_progress`."""


class Collector:
    """Collector of rollouts that keeps the state of the games between them.

    A rollout is stored in a `RolloutBuffer`, whose large arrays the next rollout overwrites.

    Observations and rewards of an environment on a GPU stay there, and no step synchronizes with the GPU: control flow
    depends only on the ends of episodes, which are NumPy arrays.

    A policy that is a `StepObserver` is notified of episode starts and of every step. A policy that is `Memoizing` is
    notified that its weights do not change during a rollout. The observers are notified after the policy, in their
    order.

    Args:
        env: environment.
        policy: policy that acts in it.
        device: torch device of the policy.
        extra_channels: further observation channels, not read by the policy, that rollouts for learning contain.
        before_reset: function that is called with the mask [n_envs] of the games before they are reset, for example to
            set their mechanism; None: no function.
        observers: observers of steps, episodes and rollouts.

    Raises:
        ConfigError: the environment has no channel of a requested name; in `collect`: there is not enough memory.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        device: str,
        extra_channels: Sequence[str] = (),
        before_reset: Callable[[np.ndarray], None] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._before_reset = before_reset or (lambda games: None)
        self.env, self.policy, self.device = env, policy, torch.device(device)
        self.spec = env.spec
        if isinstance(policy, NeedsCamera):
            policy.camera = make_camera(env)
        observer_channels = (name for observer in observers for name in observer.channels)
        self._request_channels((*policy.channels, *extra_channels, *observer_channels))
        self._observers = list(observers)
        self._buffer = RolloutBuffer(self.spec, self.device, policy.channels, extra_channels)
        self._env_device = self._buffer.env_device
        self._observation: Observation | None = None
        self._policy_state: torch.Tensor | None = None
        self._is_episode_start = np.ones(self.spec.n_envs, dtype=bool)
        self._has_ended = np.zeros(self.spec.n_envs, dtype=bool)
        self._accumulator = EpisodeAccumulator(self.spec)
        self._is_text = {name: channel.dtype == "object" for name, channel in self.spec.observation.items()}

    def reset(self, seed: int | Sequence[int], games: np.ndarray | None = None, reseed: bool = False) -> None:
        """Start new episodes and discard those in progress.

        Args:
            seed: seed of the games, or one seed for each equal group of them (`VecEnv.reset`).
            games: mask of the games to play, [n_envs] bool; the others wait as if they had ended. None: all.
            reseed: whether to seed also a non-deterministic engine again. By default it is seeded at the first reset
                only, because a new seed discards the games that it has prepared.
        """
        reseed = reseed or self.spec.deterministic or self._observation is None
        self._before_reset(np.ones(self.spec.n_envs, dtype=bool))
        self._observation = self.env.reset(seed=seed if reseed else None)
        self._policy_state = None
        self._is_episode_start = np.ones(self.spec.n_envs, dtype=bool) if games is None else games.copy()
        self._has_ended = ~self._is_episode_start
        self._accumulator = EpisodeAccumulator(self.spec)
        for observer in self._list_step_observers():
            observer.on_reset(self._is_episode_start.copy(), self._observation)

    def add_observers(self, *observers: Observer) -> AbstractContextManager[None]:
        """Return a context in which `observers` are appended to the observers.

        Raises:
            ConfigError: an observer reads a channel that the environment does not have.
        """
        self._request_channels(tuple(name for observer in observers for name in observer.channels))
        return self._with_observers([*self._observers, *observers])

    def disable_observers(self) -> AbstractContextManager[None]:
        """Return a context without observers, for example for an evaluation between training rollouts."""
        return self._with_observers([])

    @contextmanager
    def _with_observers(self, observers: list[Observer]) -> Iterator[None]:
        previous_observers, self._observers = self._observers, observers
        try:
            yield
        finally:
            self._observers = previous_observers

    def collect(
        self,
        n_steps: int,
        generator: torch.Generator | Sequence[torch.Generator],
        learn: bool = True,
        keep_reward_jacobian: bool = False,
        greedy: bool = False,
        restart: bool = True,
    ) -> Rollout:
        """Play `n_steps` steps in every game and return the rollout.

        Args:
            n_steps: maximum number of steps of each game; the rollout ends earlier when all games wait.
            generator: generator of the actions of all games, or one for each society.
            learn: whether to store observations, log-probabilities and values.
            keep_reward_jacobian: whether to store `Step.reward_jacobian` (needs `EnvSpec.has_reward_jacobian`).
            greedy: whether to take the most probable actions instead of sampling.
            restart: whether to reset games that end. If not, they wait for the next `reset`; their further steps have
                meaningless actions and rewards.

        Raises:
            RuntimeError: `reset` was never called.
            ValueError: `learn` without `restart`.
        """
        if self._observation is None:
            raise RuntimeError("no episode has started; call Collector.reset(seed) before collect()")
        if learn and not restart:
            raise ValueError("learn=True requires restart=True, since a learner needs rollouts of games that continue")
        buffer, env_device, step_observers = self._buffer, self._env_device, self._list_step_observers()
        n_reported_steps, last_report_time = 0, time.monotonic()
        buffer.begin(n_steps, learn, keep_reward_jacobian)
        with fixed_weights(self.policy):
            for _ in range(n_steps):
                is_waiting = self._reset_ended_games(step_observers) if restart else self._has_ended
                if is_waiting.all():
                    break
                output = self._act(generator, greedy)
                action = output.action
                step = self.env.step(action.cpu().numpy() if env_device is None else to_device(action, env_device))
                observation, self._observation = self._observation, step.observation
                self._has_ended = buffer.add_step(step, is_waiting)
                if step_observers:
                    transition = Transition(observation, output, step, self._has_ended)
                    for step_observer in step_observers:
                        step_observer.on_step(transition)
                    if (now := time.monotonic()) - last_report_time > PROGRESS_INTERVAL_S:
                        self._report_progress(buffer.n_played_steps - n_reported_steps)
                        n_reported_steps, last_report_time = buffer.n_played_steps, now
                if buffer.needs_value:
                    next_channels = buffer.to_tensors(step.observation, self.policy.channels)
                    buffer.add_value(self.policy.values(next_channels, self._policy_state))
        if buffer.n_played_steps > n_reported_steps:
            self._report_progress(buffer.n_played_steps - n_reported_steps)
        rollout = buffer.finish(self._accumulator, self._has_ended, self._policy_state)
        for observer in self._observers:
            for episode in rollout.episodes:
                observer.on_episode_end(episode)
            observer.on_rollout(rollout)
        return rollout

    def _report_progress(self, steps: int) -> None:
        for observer in self._observers:
            observer.on_progress(steps)

    def _reset_ended_games(self, step_observers: Sequence[StepObserver]) -> np.ndarray:
        """Reset the games whose episodes have ended; return the mask [n_envs] of games that still wait: all False."""
        has_ended = self._has_ended
        if has_ended.any():
            assert self._observation is not None
            self._before_reset(has_ended)
            self._observation = self.env.reset(mask=has_ended)
            self._is_episode_start |= has_ended
            for observer in step_observers:
                observer.on_reset(has_ended, self._observation)
        return np.zeros_like(has_ended)

    def _act(self, generator: torch.Generator | Sequence[torch.Generator], greedy: bool) -> PolicyOutput:
        """Return the policy's output for all games and store it; recurrent states of new episodes are zeros."""
        assert self._observation is not None
        is_episode_start, self._is_episode_start = self._is_episode_start, np.zeros_like(self._is_episode_start)
        if self._policy_state is not None and is_episode_start.any():
            starts = self._buffer.to_tensor(is_episode_start)[:, None, None]
            self._policy_state = torch.where(starts, 0, self._policy_state)
        state, policy_inputs = self._policy_state, self._buffer.to_tensors(self._observation, self.policy.channels)
        output = self.policy.act(policy_inputs, state, generator, greedy)  # type: ignore[arg-type]
        # Learners differentiate through the recurrent state, and autograd rejects inference tensors.
        next_state = output.state
        self._policy_state = next_state.clone() if next_state is not None and next_state.is_inference() else next_state
        self._buffer.add_policy_output(is_episode_start, self._observation, policy_inputs, state, output)
        return output

    @property
    def observation(self) -> Observation:
        """Observation before the next action.

        Raises:
            RuntimeError: `reset` was never called.
        """
        if self._observation is None:
            raise RuntimeError("there is no observation yet; call Collector.reset(seed) first")
        return self._observation

    @property
    def observers(self) -> Sequence[Observer]:
        return self._observers

    def state_dict(self) -> State:
        """Return the state of the games; empty if the engine cannot be restored, so that a resumed run must `reset`."""
        if not self.spec.deterministic:
            return {}
        return {
            "env": self.env.state_dict(),
            "observation": _to_plain_observation(self._observation),
            "state": self._policy_state,
            "is_episode_start": self._is_episode_start.copy(),
            "ended": self._has_ended.copy(),
            "running": self._accumulator.state_dict(),
        }

    def load_state_dict(self, state: State, fork_seed: int | None = None) -> None:
        """Restore the games; with `fork_seed`, they continue with new random numbers (`Forkable.fork`)."""
        if not state:
            return
        if fork_seed is None:
            self.env.load_state_dict(state["env"])
        else:
            assert isinstance(self.env, Forkable)
            self.env.fork(state["env"], fork_seed)
        # Checkpoints are loaded onto the CPU, so tensors must be moved.
        self._observation = None if state["observation"] is None else self._to_env_observation(state["observation"])
        self._policy_state = None if state["state"] is None else self._buffer.to_tensor(state["state"])
        self._is_episode_start = np.array(state["is_episode_start"])
        self._has_ended = np.array(state["ended"])
        self._accumulator = EpisodeAccumulator(self.spec, state["running"])

    def close(self) -> None:
        """Close the observers."""
        for observer in self._observers:
            observer.close()

    def _list_step_observers(self) -> list[StepObserver]:
        """Return the observers of steps: the policy, if it is a `StepObserver`, then the other observers."""
        return [*([self.policy] if isinstance(self.policy, StepObserver) else []), *self._observers]

    def _request_channels(self, channels: Sequence[str]) -> None:
        """Enable observation channels that the environment computes on request only.

        Raises:
            ConfigError: the environment has no such channel.
        """
        if missing := [name for name in channels if name not in self.spec.observation]:
            raise ConfigError(
                f"env={self.spec.name} has no observation channel {missing[0]!r}; "
                f"available: {', '.join(self.spec.observation)} (see env.observe)"
            )
        if isinstance(self.env, ChannelsOnRequest):
            self.env.provide(channels)

    def _to_env_observation(self, stored: Mapping[str, Any]) -> Observation:
        """Invert `_to_plain_observation`; return arrays of texts, and numbers on the environment's device."""
        arrays = {name: np.array(x, dtype=object) if isinstance(x, list) else x for name, x in stored.items()}
        if self._env_device is None:
            return arrays
        return {name: x if self._is_text[name] else to_device(x, self._env_device) for name, x in arrays.items()}


def evaluate_policy(
    collector: Collector,
    n: int,
    seeds: Seeds,
    greedy: bool = False,
    prepare: Callable[[], None] = lambda: None,
    exactly: bool = False,
) -> list[Episode]:
    """Play rounds of one episode in each game until there are `n` episodes; return all of them, ordered by round.

    A game plays one episode per round and then waits for the others. If it started another one instead, short episodes
    would be overrepresented.

    Args:
        collector: collector of environment and policy; it must be reset before any other use.
        n: minimum number of episodes, >= 1; rounded up to a multiple of the games unless `exactly`.
        seeds: seed tree; round i is seeded with `env i` and draws actions from `actions i`, so that all policies play
            the same games.
        greedy: whether to take the most probable actions instead of sampling.
        prepare: function that is called before each round, for example to set mechanism and context.
        exactly: whether the last round has only as many games as are missing, for players that cost money.
    """
    spec = collector.spec
    horizon = spec.horizon or UNKNOWN_HORIZON
    # Most episodes end before the horizon, so a round is played in short rollouts until all its games have ended.
    n_chunk_steps = max(1, horizon // 8)
    episodes: list[Episode] = []
    round_index = 0
    while len(episodes) < n:
        prepare()
        games = np.arange(spec.n_envs) < (n - len(episodes) if exactly else spec.n_envs)
        collector.reset(seeds.integer(f"env {round_index}"), games)
        generator = seeds.torch(f"actions {round_index}")
        episodes_by_game: dict[int, Episode] = {}
        with fixed_weights(collector.policy):  # so that memoized outputs remain valid between the rollouts
            while len(episodes_by_game) < games.sum():
                rollout = collector.collect(n_chunk_steps, generator, learn=False, greedy=greedy, restart=False)
                episodes_by_game |= {episode.game: episode for episode in rollout.episodes}
        episodes += [episodes_by_game[game] for game in sorted(episodes_by_game)]
        round_index += 1
    return episodes


def make_camera(env: VecEnv) -> Camera:
    """Return a function from a game's index to one image per agent: its own view (`render_players`), else the game."""
    render_players = getattr(env, "render_players", None)
    if callable(render_players):
        return lambda game: list(render_players(game))
    return lambda game: [np.asarray(env.render(game))] * env.spec.n_agents


def _to_plain_observation(observation: Observation | None) -> dict[str, Any] | None:
    """Return an observation for a checkpoint, with arrays of texts converted to lists."""
    if observation is None:
        return None
    return {name: x.tolist() if str(getattr(x, "dtype", "")) == "object" else x for name, x in observation.items()}
