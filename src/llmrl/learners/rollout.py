"""The one rollout: plays a policy in a `VecEnv`, keeps what a learner needs, and reports finished episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.memory import need_memory
from llmrl.core.observers import Observer, StepObserver, Transition
from llmrl.core.protocols import ChannelsOnRequest, Policy, VecEnv, unchanged
from llmrl.core.records import Array, Observation, State, on_host
from llmrl.core.rollouts import Rollout
from llmrl.core.texts import Texts, TextTable
from llmrl.learners.entropies import Entropies
from llmrl.learners.episodes import Running


class Collector:
    """Steps the games and remembers where they stand between rollouts.

    Buffers are allocated once and reused: a 1000-step rollout of pixel observations is hundreds of megabytes. What is
    small beside them (rewards, exposure, metrics, ends) is new in every rollout.

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
        self._env_device = None if self.spec.device is None else torch.device(self.spec.device)
        self._request((*policy.channels, *keep, *(name for each in observers for name in each.channels)))
        self._observers = list(observers)
        self._keep = tuple(keep)
        self._extra = tuple(name for name in keep if name not in policy.channels)
        self._observation: Observation | None = None
        self._state: torch.Tensor | None = None
        self._fresh = np.ones(self.spec.n_envs, dtype=bool)
        self._ended = np.zeros(self.spec.n_envs, dtype=bool)
        self._running = Running(self.spec)
        self._texts = {name: channel.dtype == "object" for name, channel in self.spec.observation.items()}
        self._buffers: dict[str, torch.Tensor] = {}

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
        self._running = Running(self.spec)
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
        shape = (n_steps, self.spec.n_envs, self.spec.n_agents)
        played = 0
        reward, base_reward = self._zeros(shape), self._zeros(shape)
        exposure: Array | None = None
        terminated = np.zeros(shape[:2], dtype=bool)
        truncated = np.zeros(shape[:2], dtype=bool)
        first = np.zeros(shape[:2], dtype=bool)
        ends = np.zeros(shape[:2], dtype=bool)
        per_step = tuple(self.spec.per_step)
        info = self._zeros((len(self.spec.rows), *shape[:2]))
        numbers = self.spec.numbers
        action = (
            self._buffer("action", shape, torch.int64)
            if numbers is None
            else self._buffer("action", (*shape, numbers.dim), torch.float32)
        )
        log_prob = self._buffer("log_prob", shape, torch.float32)
        value = self._buffer("value", shape, torch.float32)
        next_value = self._buffer("next_value", shape, torch.float32)
        stored: dict[str, Any] = {}
        features: torch.Tensor | None = None
        before: torch.Tensor | None = None
        entropies = Entropies(self.spec, self._env_device)
        watching = self._told()
        told: list[Mapping[str, Any]] = []  # nothing writes over them, and put together at the end they cost less

        with unchanged(self.policy):
            for t in range(n_steps):
                waiting = self._ended
                if restart and waiting.any():
                    self._before_reset(waiting)
                    self._observation = self.env.reset(mask=waiting)
                    self._fresh |= waiting
                    for each in watching:
                        each.on_reset(waiting, self._observation)
                    waiting = np.zeros_like(waiting)
                if waiting.all():
                    break
                first[t] = self._fresh
                if self._state is not None and self._fresh.any():
                    self._state = torch.where(self._tensor(self._fresh)[:, None, None], 0, self._state)
                if t == 0:
                    before = self._state
                self._fresh = np.zeros_like(self._fresh)
                observation = self._to_tensors(self._observation, self.policy.channels)
                act = self.policy.act(observation, self._state, generator, greedy)  # type: ignore[arg-type]
                self._state = act.state
                entropies.add(self._observation, act)
                action[t] = act.action
                if learn:
                    assert act.log_prob is not None and act.value is not None
                    log_prob[t], value[t] = act.log_prob, act.value
                    if act.features is not None:
                        if features is None:
                            features = self._buffer("features", (*shape, act.features.shape[-1]), act.features.dtype)
                        features[t] = act.features
                    kept = {
                        n: x for n, x in observation.items() if features is None or n in ("action_mask", *self._keep)
                    }
                    for name, x in (kept | self._to_tensors(self._observation, self._extra)).items():
                        self._store(stored, name, t, n_steps, x)
                step = self.env.step(self._for_env(act.action))
                played += 1
                seen, self._observation = self._observation, step.observation
                reward[t], base_reward[t], terminated[t] = step.reward, step.base_reward, step.terminated
                if keep_exposure:
                    assert step.exposure is not None
                    exposure = self._zeros((*shape, step.exposure.shape[-1])) if exposure is None else exposure
                    exposure[t] = step.exposure
                truncated[t] = np.asarray(step.truncated) & ~np.asarray(step.terminated)
                if self._env_device is None:
                    for i, name in enumerate(per_step):
                        info[i, t] = step.info[name]
                else:
                    told.append(step.info)
                entropies.write(info, played)
                ends[t] = (terminated[t] | truncated[t]) & ~waiting
                self._ended = ends[t] | waiting
                if watching:
                    transition = Transition(seen, act, step, self._ended)
                    for each in watching:
                        each.on_step(transition)
                if learn:
                    next_value[t] = 0.0
                    # Only states the next step does not look at need a forward pass of their own.
                    if truncated[t].any() or t == n_steps - 1:
                        after = self.policy.values(
                            self._to_tensors(step.observation, self.policy.channels), self._state
                        )
                        next_value[t] = torch.where(self._tensor(terminated[t])[:, None], 0.0, after)

        entropies.write(info, played, rest=True)
        for i, name in enumerate(per_step):
            if told:
                info[i, :played] = torch.stack([each[name] for each in told])
        reward, base_reward, info = reward[:played], base_reward[:played], info[:, :played]
        episodes = self._running.add(reward, base_reward, info, ends[:played], self._ended)
        if learn:  # where the episode went on, the state reached is the next one acted in
            ended = self._tensor(terminated | truncated)[:-1, :, None]
            next_value[:-1] = torch.where(ended, next_value[:-1], value[1:])
        rollout = Rollout(
            observation=stored,
            features=features,
            action=action[:played],
            log_prob=log_prob[:played],
            value=value[:played],
            reward=self._tensor(reward),
            base_reward=self._tensor(base_reward),
            terminated=self._tensor(terminated[:played]),
            truncated=self._tensor(truncated[:played]),
            first=self._tensor(first[:played]),
            next_value=next_value[:played],
            info=dict(zip(per_step, on_host(info[: len(per_step)]), strict=True)),
            episodes=episodes,
            exposure=None if exposure is None else self._tensor(exposure[:played]),
            # A policy that starts from nothing starts from zeros.
            state=torch.zeros_like(self._state) if before is None and self._state is not None else before,
        )
        for observer in self._observers:
            for episode in episodes:
                observer.on_episode_end(episode)
            observer.on_rollout(rollout)
        return rollout

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
        self._state = None if state["state"] is None else self._tensor(state["state"])
        self._fresh = np.array(state["fresh"])
        self._ended = np.array(state["ended"])
        self._running = Running(self.spec, state["running"])

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

    def _store(self, stored: dict[str, Any], name: str, t: int, n_steps: int, x: Any) -> None:
        """Keep what was observed in step `t`; of texts, each different one once a rollout."""
        if not self._texts[name]:
            if name not in stored:
                stored[name] = self._buffer(f"obs/{name}", (n_steps, *x.shape), x.dtype)
            stored[name][t] = x
            return
        if name not in stored:
            stored[name] = Texts(self._buffer(f"obs/{name}", (n_steps, *x.shape), torch.int64), TextTable())
        stored[name].ids[t] = Texts.of(x, stored[name].table).to(self.device).ids

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape or buffer.dtype != dtype:
            self._buffers.pop(name, None)
            need_memory(
                math.prod(shape) * dtype.itemsize,
                str(self.device),
                f"{shape[0]:,} steps of {self.spec.n_envs:,} games of {self.spec.name} (what is kept: {name})",
                "use fewer games (env.n_envs), shorter rollouts (learn.rollout_steps), or something smaller to observe",
            )
            buffer = self._buffers[name] = torch.empty(shape, dtype=dtype, device=self.device)
        return buffer

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        """Room for float32 numbers as the environment gives them."""
        if self._env_device is None:
            return np.zeros(shape, dtype=np.float32)
        return torch.zeros(shape, dtype=torch.float32, device=self._env_device)

    def _for_env(self, action: torch.Tensor) -> Array:
        return action.cpu().numpy() if self._env_device is None else _moved(action, self._env_device)

    def _at_env(self, observation: Observation | None) -> Observation | None:
        if observation is None or self._env_device is None:
            return observation
        return {name: x if self._texts[name] else _moved(x, self._env_device) for name, x in observation.items()}

    def _to_tensors(self, observation: Observation, channels: Sequence[str]) -> dict[str, Any]:
        """Tensors; texts stay the arrays they are."""
        return {name: observation[name] if self._texts[name] else self._tensor(observation[name]) for name in channels}

    def _tensor(self, x: Any) -> torch.Tensor:
        return _moved(x, self.device)


def _moved(x: Any, device: torch.device) -> torch.Tensor:
    """Without waiting for what a GPU is doing: memory that is not pinned is read before the call returns."""
    return torch.as_tensor(x).to(device, non_blocking=device.type == "cuda")


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
