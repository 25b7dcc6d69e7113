"""The memory of a rollout: what is kept of its steps, on the device where a learner wants it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from llmrl.core.ram import need_memory
from llmrl.core.records import Array, Observation, PolicyOutput, Step, on_host
from llmrl.core.rollouts import Rollout
from llmrl.core.spaces import EnvSpec
from llmrl.core.text_array import TextArray, TextTable
from llmrl.rollout.entropies import Entropies
from llmrl.rollout.episode_accumulator import EpisodeAccumulator


class RolloutBuffer:
    """Takes in the steps of a rollout and makes a `Rollout` of them.

    Large buffers are allocated once and reused: a 1000-step rollout of pixel observations is hundreds of megabytes.
    What is small beside them (rewards, exposure, metrics, ends) is new in every rollout.

    Args:
        spec: of the environment.
        device: of the policy.
        channels: that the policy reads.
        keep: channels that rollouts for learning hold beside these.

    Attributes:
        played: steps of the rollout so far.
    """

    def __init__(self, spec: EnvSpec, device: torch.device, channels: Sequence[str], keep: Sequence[str]) -> None:
        self.spec, self.device = spec, device
        self._env_device = None if spec.device is None else torch.device(spec.device)
        self._keep = tuple(keep)
        self._extra = tuple(name for name in keep if name not in channels)
        self._texts = {name: channel.dtype == "object" for name, channel in spec.observation.items()}
        self._buffers: dict[str, torch.Tensor] = {}

    def begin(self, n_steps: int, learn: bool, keep_reward_jacobian: bool) -> None:
        """Make ready for a rollout of at most `n_steps`; without `learn`, observations and values are not kept.

        Raises:
            ConfigError: there is no memory for what is to be kept.
        """
        shape = (n_steps, self.spec.n_envs, self.spec.n_agents)
        self._shape, self._learn, self._keep_reward_jacobian = shape, learn, keep_reward_jacobian
        self.played = 0
        self._reward, self._base_reward = self._zeros(shape), self._zeros(shape)
        self._reward_jacobian: Array | None = None
        self._terminated, self._truncated, self._first, self._ends = (np.zeros(shape[:2], dtype=bool) for _ in range(4))
        self._per_step = tuple(self.spec.per_step)
        self._info = self._zeros((len(self.spec.rows), *shape[:2]))
        numbers = self.spec.continuous_actions
        self._action = (
            self._buffer("action", shape, torch.int64)
            if numbers is None
            else self._buffer("action", (*shape, numbers.dim), torch.float32)
        )
        self._log_prob = self._buffer("log_prob", shape, torch.float32)
        self._value = self._buffer("value", shape, torch.float32)
        # Zero unless somebody adds a value: an episode that ends leads to nothing.
        self._next_value = self._buffer("next_value", shape, torch.float32)
        if learn:
            self._next_value.zero_()
        self._stored: dict[str, Any] = {}
        self._features: torch.Tensor | None = None
        self._entropies = Entropies(self.spec, self._env_device)
        # Nothing writes over them, and put together at the end they cost less.
        self._told: list[Mapping[str, Any]] = []

    def add_act(
        self,
        fresh: np.ndarray,
        observation: Observation,
        read: Mapping[str, Any],
        state: torch.Tensor | None,
        act: PolicyOutput,
    ) -> None:
        """Keep what was decided in the next step.

        Args:
            fresh: the step is the first of its episode, [n_envs] bool.
            observation: that it was decided on.
            read: its channels that the policy reads, as tensors.
            state: what the policy remembered before.
            act: what was decided.
        """
        t = self.played
        if t == 0:
            self._state = state
        self._first[t] = fresh
        self._entropies.add(observation, act)
        self._action[t] = act.action
        if not self._learn:
            return
        assert act.log_prob is not None and act.value is not None
        self._log_prob[t], self._value[t] = act.log_prob, act.value
        if act.features is not None:
            if self._features is None:
                self._features = self._buffer("features", (*self._shape, act.features.shape[-1]), act.features.dtype)
            self._features[t] = act.features
        kept = {n: x for n, x in read.items() if self._features is None or n in ("action_mask", *self._keep)}
        for name, x in (kept | self.tensors(observation, self._extra)).items():
            self._store(name, t, x)

    def add_step(self, step: Step, waiting: np.ndarray) -> np.ndarray:
        """Keep what the step led to, in games that are not `waiting` [n_envs] bool for their next reset; returns the
        games that are from now on."""
        t = self.played
        self.played += 1
        self._reward[t], self._base_reward[t], self._terminated[t] = step.reward, step.base_reward, step.terminated
        if self._keep_reward_jacobian:
            assert step.reward_jacobian is not None
            if self._reward_jacobian is None:
                self._reward_jacobian = self._zeros((*self._shape, step.reward_jacobian.shape[-1]))
            self._reward_jacobian[t] = step.reward_jacobian
        self._truncated[t] = np.asarray(step.truncated) & ~np.asarray(step.terminated)
        if self._env_device is None:
            for i, name in enumerate(self._per_step):
                self._info[i, t] = step.info[name]
        else:
            self._told.append(step.info)
        self._entropies.write(self._info, self.played)
        self._ends[t] = (self._terminated[t] | self._truncated[t]) & ~waiting
        ended: np.ndarray = self._ends[t] | waiting
        return ended

    @property
    def wants_value(self) -> bool:
        """Whether the state that the newest step led to needs a forward pass of its own: the next does not look at
        it."""
        t = self.played - 1
        return self._learn and bool(self._truncated[t].any() or self.played == self._shape[0])

    def add_value(self, value: torch.Tensor) -> None:
        """Keep V of the state that the newest step led to, [n_envs, n_agents]."""
        t = self.played - 1
        self._next_value[t] = torch.where(self.tensor(self._terminated[t])[:, None], 0.0, value)

    def finish(self, running: EpisodeAccumulator, waiting: np.ndarray, state: torch.Tensor | None) -> Rollout:
        """The rollout of the steps so far.

        Args:
            running: the episodes in progress, which the steps are added to.
            waiting: games that wait for their next reset, [n_envs] bool.
            state: what the policy remembers now.
        """
        n, info = self.played, self._info
        self._entropies.write(info, n, rest=True)
        for i, name in enumerate(self._per_step):
            if self._told:
                told = [each[name] for each in self._told]
                info[i, :n] = torch.from_numpy(np.stack(told)) if isinstance(told[0], np.ndarray) else torch.stack(told)
        self._told = []
        reward, base_reward, info = self._reward[:n], self._base_reward[:n], info[:, :n]
        episodes = running.add(reward, base_reward, info, self._ends[:n], waiting)
        if self._learn:  # where the episode went on, the state reached is the next one acted in
            ended = self.tensor(self._terminated | self._truncated)[:-1, :, None]
            self._next_value[:-1] = torch.where(ended, self._next_value[:-1], self._value[1:])
        before = self._state if n else None
        return Rollout(
            observation=self._stored,
            features=self._features,
            action=self._action[:n],
            log_prob=self._log_prob[:n],
            value=self._value[:n],
            reward=self.tensor(reward),
            base_reward=self.tensor(base_reward),
            terminated=self.tensor(self._terminated[:n]),
            truncated=self.tensor(self._truncated[:n]),
            episode_start=self.tensor(self._first[:n]),
            next_value=self._next_value[:n],
            info=dict(zip(self._per_step, on_host(info[: len(self._per_step)]), strict=True)),
            episodes=episodes,
            reward_jacobian=None if self._reward_jacobian is None else self.tensor(self._reward_jacobian[:n]),
            # A policy that starts from nothing starts from zeros.
            state=torch.zeros_like(state) if before is None and state is not None else before,
        )

    def tensors(self, observation: Observation, channels: Sequence[str]) -> dict[str, Any]:
        """Channels as tensors on the policy's device; texts stay the arrays they are."""
        return {name: observation[name] if self._texts[name] else self.tensor(observation[name]) for name in channels}

    def tensor(self, x: Any) -> torch.Tensor:
        """Numbers as a tensor on the policy's device."""
        return moved(x, self.device)

    def _store(self, name: str, t: int, x: Any) -> None:
        """Keep what was observed in step `t`; of texts, each different one once a rollout."""
        stored, n_steps = self._stored, self._shape[0]
        if not self._texts[name]:
            if name not in stored:
                stored[name] = self._buffer(f"obs/{name}", (n_steps, *x.shape), x.dtype)
            stored[name][t] = x
            return
        if name not in stored:
            stored[name] = TextArray(self._buffer(f"obs/{name}", (n_steps, *x.shape), torch.int64), TextTable())
        stored[name].ids[t] = TextArray.of(x, stored[name].table).to(self.device).ids

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


def moved(x: Any, device: torch.device) -> torch.Tensor:
    """Move numbers without waiting for what a GPU is doing: memory that is not pinned is read before the call
    returns."""
    return torch.as_tensor(x).to(device, non_blocking=device.type == "cuda")
