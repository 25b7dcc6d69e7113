"""Storage of the steps of a rollout on the policy's device, and running sums over the episodes in progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from llmrl.core.ram import require_memory
from llmrl.core.records import Array, Observation, PolicyOutput, State, Step, to_numpy
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.spaces import EnvSpec
from llmrl.core.text_array import TextArray, TextTable

MAX_SUMMED_ELEMENTS = 2**22
"""Maximum number of elements of a temporary array of summands; longer rollouts are summed in chunks of steps."""


class EpisodeAccumulator:
    """Running sums over the steps of the episodes in progress, updated with complete rollouts.

    The sums stay on the environment's device; only those of finished episodes are copied to the CPU.

    Args:
        spec: specification of the environment.
        state: `state_dict()` to resume from; None: no step was played.
    """

    def __init__(self, spec: EnvSpec, state: State | None = None) -> None:
        self.spec = spec
        self._device = torch.device(spec.device or "cpu")
        # Columns: for each agent the reward, the base reward, the number of steps with a positive base reward ("gains")
        # and the sum of the times of these steps; then `spec.per_step`; then numerator and denominator of each derived
        # metric.
        self._derived = [aggregate for aggregate in spec.metrics.values() if not isinstance(aggregate, str)]
        shape = (spec.n_envs, 4 * spec.n_agents + len(spec.per_step) + 2 * len(self._derived))
        self._is_mean = np.array([aggregate == "mean" for aggregate in spec.per_step.values()], dtype=bool)
        last_columns = [4 * spec.n_agents + i for i, x in enumerate(spec.per_step.values()) if x == "last"]
        self._last_columns = torch.tensor(last_columns, dtype=torch.int64, device=self._device)
        sums = torch.zeros(shape, dtype=torch.float64) if state is None else state["sums"].clone()
        self._sums = sums.to(self._device)
        # Time, as the number of steps played so far, and time at which each game's episode began.
        self._clock = 0 if state is None else int(state["clock"])
        self._begin_times = np.zeros(spec.n_envs, dtype=np.int64) if state is None else np.array(state["begun"])

    def state_dict(self) -> State:
        return {"sums": self._sums.clone(), "clock": self._clock, "begun": self._begin_times.copy()}

    def add(
        self, reward: Array, base_reward: Array, info: Array, ends: np.ndarray, is_waiting: np.ndarray
    ) -> list[Episode]:
        """Add T steps; return the episodes that end in them, ordered by their ends and then by game.

        Args:
            reward, base_reward: rewards after and before the mechanism, [T, n_envs, n_agents], on the environment's
                device.
            info: metrics of `EnvSpec.per_step`, in its order, [n_metrics, T, n_envs].
            ends: whether a step is the last of an episode, [T, n_envs] bool.
            is_waiting: whether a game waits for a reset after these steps, [n_envs] bool; its steps after the end of
                its episode are discarded.
        """
        step_arrays = [torch.as_tensor(x) for x in (reward, base_reward)] + [torch.as_tensor(info).permute(1, 2, 0)]
        step_indices = self._count_episode_steps(ends) if self._derived else None
        end_steps = np.flatnonzero(ends.any(1))
        sums: list[torch.Tensor] = []
        begin_times: list[np.ndarray] = []
        chunk_length = max(1, MAX_SUMMED_ELEMENTS // max(1, self._sums.numel()))
        for start in range(0, len(ends), chunk_length):
            stop = min(start + chunk_length, len(ends))
            indices = None if step_indices is None else torch.from_numpy(step_indices[start:stop]).to(self._device)
            summands = self._summands([x[start:stop] for x in step_arrays], self._clock + start, indices)
            first_step = start
            for t in end_steps[(end_steps >= start) & (end_steps < stop)].tolist():
                self._add_to_sums(summands[first_step - start : t + 1 - start])
                first_step = t + 1
                games = np.flatnonzero(ends[t])
                begin_times.append(self._begin_times[games])
                sums.append(self._pop_sums(games, self._clock + first_step))
            if first_step < stop:
                self._add_to_sums(summands[first_step - start :])
        self._clock += len(ends)
        if is_waiting.any():
            self._pop_sums(np.flatnonzero(is_waiting), self._clock)
        if not sums:
            return []
        final_steps, games = np.nonzero(ends)
        end_times = self._clock - len(ends) + final_steps + 1
        return self._make_episodes(torch.cat(sums).cpu().numpy(), np.concatenate(begin_times), end_times, games)

    def running_episode(self, game: int) -> Episode | None:
        """Return the episode in progress of `game` with its sums so far; None before its first step."""
        if self._clock == self._begin_times[game]:
            return None
        sums, games = self._sums[[game]].cpu().numpy(), np.array([game])
        [episode] = self._make_episodes(sums, self._begin_times[games], np.array([self._clock]), games)
        return episode

    def _count_episode_steps(self, ends: np.ndarray) -> np.ndarray:
        """Return the index of each step within its episode, from 0, [T, n_envs] float64."""
        clock = self._clock + np.arange(len(ends))[:, None]
        begin_times = np.vstack([self._begin_times[None], np.where(ends[:-1], clock[1:], 0)])
        return (clock - np.maximum.accumulate(begin_times)).astype(np.float64)

    def _summands(self, arrays: list[torch.Tensor], start: int, indices: torch.Tensor | None) -> torch.Tensor:
        """Return the summands of t steps from time `start`, [t, n_envs, n_columns] float64.

        Args:
            arrays: reward, base reward (both [t, n_envs, n_agents]) and metrics [t, n_envs, n_metrics].
            start: time of the first step.
            indices: index of each step within its episode, [t, n_envs]; None without derived metrics.
        """
        reward, base_reward, info = arrays
        metric_arrays = dict(zip(self.spec.per_step, info.unbind(-1), strict=True))
        is_gain = base_reward > 0
        # float64, because it represents sums of times (integers) exactly.
        times = torch.arange(start, start + len(reward), dtype=torch.float64, device=self._device)
        summand_blocks = [reward, base_reward, is_gain, is_gain * times[:, None, None], info]
        summand_blocks += [x[..., None] for metric in self._derived for x in metric.summands(metric_arrays, indices)]
        summands = torch.empty((*reward.shape[:2], self._sums.shape[1]), dtype=torch.float64, device=self._device)
        column = 0
        for block in summand_blocks:
            summands[..., column : column + block.shape[-1]] = block
            column += block.shape[-1]
        return summands

    def _add_to_sums(self, summands: torch.Tensor) -> None:
        self._sums += summands.sum(0)
        if len(self._last_columns):
            self._sums[:, self._last_columns] = summands[-1][:, self._last_columns]

    def _pop_sums(self, games: np.ndarray, clock: int) -> torch.Tensor:
        """Return and clear the sums [k, n_columns] of games [k]; their next episodes begin at time `clock`."""
        index = torch.from_numpy(games).to(self._device)
        sums = self._sums[index]
        self._sums.index_fill_(0, index, 0.0)
        self._begin_times[games] = clock
        return sums

    def _make_episodes(
        self, sums: np.ndarray, begin_times: np.ndarray, end_times: np.ndarray, games: np.ndarray
    ) -> list[Episode]:
        """Return k episodes from their sums [k, n_columns], times [k] (`end_times` excluded) and games [k]."""
        spec, length = self.spec, end_times - begin_times
        n_agent_sums, n_metrics = 4 * spec.n_agents, len(self._is_mean)
        returns, base_returns, n_gain_steps, gain_step_sums = np.split(sums[:, :n_agent_sums], 4, axis=1)
        gain_step_sums = gain_step_sums - n_gain_steps * begin_times[:, None]  # times since the episode began
        aggregates = sums[:, n_agent_sums : n_agent_sums + n_metrics] / np.where(self._is_mean, length[:, None], 1)
        derived_sums = sums[:, n_agent_sums + n_metrics :]
        numerators, denominators = derived_sums[:, ::2], derived_sums[:, 1::2]
        quotients = np.divide(numerators, denominators, out=np.full(numerators.shape, np.nan), where=denominators != 0)
        is_aggregated = np.array([isinstance(aggregate, str) for aggregate in spec.metrics.values()], dtype=bool)
        values = np.empty((len(games), len(is_aggregated)))
        values[:, is_aggregated], values[:, ~is_aggregated] = aggregates, quotients
        return [
            Episode(
                returns=returns[i],
                base_returns=base_returns[i],
                length=episode_length,
                summaries=dict(zip(spec.metrics, row, strict=True)) | self._mean_by_kind(returns[i], base_returns[i]),
                n_gain_steps=n_gain_steps[i],
                gain_step_sums=gain_step_sums[i],
                game=game,
                start_step=start,
            )
            for i, (episode_length, row, game, start) in enumerate(
                zip(length.tolist(), values.tolist(), games.tolist(), begin_times.tolist(), strict=True)
            )
        ]

    def _mean_by_kind(self, returns: np.ndarray, base_returns: np.ndarray) -> dict[str, float]:
        """Return the mean returns of each kind of players (`EnvSpec.kinds`); empty without kinds."""
        return {
            f"{prefix}_{name}": float(x[list(seats)].mean())
            for name, seats in self.spec.kinds.items()
            for prefix, x in {"return": returns, "base_return": base_returns}.items()
        }


class RolloutBuffer:
    """Buffer that stores the steps of a rollout and returns them as a `Rollout`.

    Large arrays (observations, actions, policy outputs) are allocated once and reused: a 1000-step rollout of pixel
    observations takes hundreds of megabytes. Small arrays (rewards, metrics, ends) are allocated for every rollout.

    Args:
        spec: specification of the environment.
        device: device of the policy.
        channels: observation channels that the policy reads.
        extra_channels: further channels that rollouts for learning contain.

    Attributes:
        n_played_steps: number of steps of the rollout so far.
        env_device: device of rewards and metrics during the rollout; None: they are NumPy arrays on the CPU.
    """

    def __init__(
        self, spec: EnvSpec, device: torch.device, channels: Sequence[str], extra_channels: Sequence[str]
    ) -> None:
        self.spec, self.device = spec, device
        self.env_device = None if spec.device in (None, "cpu") else torch.device(spec.device)
        self._extra_channels = tuple(extra_channels)
        self._unread_channels = tuple(name for name in extra_channels if name not in channels)
        self._is_text = {name: channel.dtype == "object" for name, channel in spec.observation.items()}
        self._buffers: dict[str, torch.Tensor] = {}

    def begin(self, n_steps: int, learn: bool, keep_reward_jacobian: bool) -> None:
        """Prepare for a rollout of at most `n_steps` steps; without `learn`, observations and values are not stored.

        Raises:
            ConfigError: there is not enough memory for the rollout.
        """
        shape = (n_steps, self.spec.n_envs, self.spec.n_agents)
        self._shape, self._learn, self._keep_reward_jacobian = shape, learn, keep_reward_jacobian
        self.n_played_steps = 0
        self._reward, self._base_reward = self._make_zeros(shape), self._make_zeros(shape)
        self._reward_jacobian: Array | None = None
        self._terminated, self._truncated, self._is_episode_start, self._is_episode_end = (
            np.zeros(shape[:2], dtype=bool) for _ in range(4)
        )
        self._per_step = tuple(self.spec.per_step)
        self._info = self._make_zeros((len(self._per_step), *shape[:2]))
        continuous_actions = self.spec.continuous_actions
        self._action = (
            self._get_buffer("action", shape, torch.int64)
            if continuous_actions is None
            else self._get_buffer("action", (*shape, continuous_actions.dim), torch.float32)
        )
        self._log_prob = self._get_buffer("log_prob", shape, torch.float32)
        self._value = self._get_buffer("value", shape, torch.float32)
        # Zero unless `add_value` sets it, because the value after a terminated episode is 0.
        self._next_value = self._get_buffer("next_value", shape, torch.float32)
        if learn:
            self._next_value.zero_()
        self._stored_channels: dict[str, Any] = {}
        self._features: torch.Tensor | None = None
        # Metrics of each step on the environment's device; stacked once at the end, which is faster than copies.
        self._device_step_infos: list[Mapping[str, Any]] = []

    def add_policy_output(
        self,
        is_episode_start: np.ndarray,
        observation: Observation,
        policy_inputs: dict[str, Any],
        state: torch.Tensor | None,
        output: PolicyOutput,
    ) -> None:
        """Store the policy's inputs and output of the next step.

        Args:
            is_episode_start: whether the step is the first of its episode, [n_envs] bool.
            observation: observation before the step.
            policy_inputs: channels of `observation` that the policy reads, as tensors.
            state: recurrent state of the policy before the step; None: initial state.
            output: output of the policy.
        """
        t = self.n_played_steps
        if t == 0:
            self._state = state
        self._is_episode_start[t] = is_episode_start
        self._action[t] = output.action
        if not self._learn:
            return
        assert output.log_prob is not None and output.value is not None
        self._log_prob[t], self._value[t] = output.log_prob, output.value
        if (features := output.features) is not None:
            if self._features is None:
                self._features = self._get_buffer("features", (*self._shape, features.shape[-1]), features.dtype)
            self._features[t] = features
        for name, x in (policy_inputs | self.to_tensors(observation, self._unread_channels)).items():
            # If the policy returns features, learners use these in place of the channels that only the policy reads.
            if self._features is None or name in ("action_mask", *self._extra_channels):
                self._store(name, t, x)

    def add_step(self, step: Step, is_waiting: np.ndarray) -> np.ndarray:
        """Store a step; return the mask [n_envs] of games that wait after it. `is_waiting`: before it."""
        t = self.n_played_steps
        self.n_played_steps += 1
        self._reward[t], self._base_reward[t], self._terminated[t] = step.reward, step.base_reward, step.terminated
        if self._keep_reward_jacobian:
            assert step.reward_jacobian is not None
            if self._reward_jacobian is None:
                self._reward_jacobian = self._make_zeros((*self._shape, step.reward_jacobian.shape[-1]))
            self._reward_jacobian[t] = step.reward_jacobian
        self._truncated[t] = np.asarray(step.truncated) & ~np.asarray(step.terminated)
        if self.env_device is None:
            for i, name in enumerate(self._per_step):
                self._info[i, t] = step.info[name]
        else:
            self._device_step_infos.append(step.info)
        self._is_episode_end[t] = (self._terminated[t] | self._truncated[t]) & ~is_waiting
        return self._is_episode_end[t] | is_waiting

    @property
    def needs_value(self) -> bool:
        """True if the value after the newest step needs a separate forward pass, because no next step computes it."""
        t = self.n_played_steps - 1
        return self._learn and bool(self._truncated[t].any() or self.n_played_steps == self._shape[0])

    def add_value(self, value: torch.Tensor) -> None:
        """Store the values of the states after the newest step, [n_envs, n_agents]; 0 for terminated episodes."""
        t = self.n_played_steps - 1
        self._next_value[t] = torch.where(self.to_tensor(self._terminated[t])[:, None], 0.0, value)

    def finish(self, accumulator: EpisodeAccumulator, is_waiting: np.ndarray, state: torch.Tensor | None) -> Rollout:
        """Return the rollout of the steps so far.

        Args:
            accumulator: sums of the episodes in progress, to which the steps are added.
            is_waiting: mask of games that wait for a reset, [n_envs] bool.
            state: recurrent state of the policy after the last step; None: the policy has none.
        """
        n_steps, info = self.n_played_steps, self._info
        for i, name in enumerate(self._per_step):
            if self._device_step_infos:
                info[i, :n_steps] = torch.stack([step_info[name] for step_info in self._device_step_infos])
        self._device_step_infos = []
        reward, base_reward, info = self._reward[:n_steps], self._base_reward[:n_steps], info[:, :n_steps]
        episodes = accumulator.add(reward, base_reward, info, self._is_episode_end[:n_steps], is_waiting)
        if self._learn:  # if the episode continues, the next value was computed by the forward pass of the next step
            has_ended = self.to_tensor(self._terminated | self._truncated)[:-1, :, None]
            self._next_value[:-1] = torch.where(has_ended, self._next_value[:-1], self._value[1:])
        initial_state = self._state if n_steps else None
        return Rollout(
            observation=self._stored_channels,
            features=self._features,
            action=self._action[:n_steps],
            log_prob=self._log_prob[:n_steps],
            value=self._value[:n_steps],
            reward=self.to_tensor(reward),
            base_reward=self.to_tensor(base_reward),
            terminated=self.to_tensor(self._terminated[:n_steps]),
            truncated=self.to_tensor(self._truncated[:n_steps]),
            episode_start=self.to_tensor(self._is_episode_start[:n_steps]),
            next_value=self._next_value[:n_steps],
            info=dict(zip(self._per_step, to_numpy(info), strict=True)),
            episodes=episodes,
            reward_jacobian=None if self._reward_jacobian is None else self.to_tensor(self._reward_jacobian[:n_steps]),
            # A state of None before the first step stands for zeros.
            state=torch.zeros_like(state) if initial_state is None and state is not None else initial_state,
        )

    def to_tensors(self, observation: Observation, channels: Sequence[str]) -> dict[str, Any]:
        """Return channels as tensors on the policy's device; texts remain arrays."""
        arrays = {name: observation[name] for name in channels}
        return {name: x if self._is_text[name] else self.to_tensor(x) for name, x in arrays.items()}

    def to_tensor(self, x: Any) -> torch.Tensor:
        """Return numbers as a tensor on the policy's device."""
        return to_device(x, self.device)

    def _store(self, name: str, t: int, x: Any) -> None:
        """Store a channel of step `t`; each distinct text is stored once per rollout."""
        buffers, n_steps = self._stored_channels, self._shape[0]
        if not self._is_text[name]:
            if name not in buffers:
                buffers[name] = self._get_buffer(f"obs/{name}", (n_steps, *x.shape), x.dtype)
            buffers[name][t] = x
            return
        if name not in buffers:
            buffers[name] = TextArray(self._get_buffer(f"obs/{name}", (n_steps, *x.shape), torch.int64), TextTable())
        buffers[name].ids[t] = TextArray.from_texts(x, buffers[name].table).to(self.device).ids

    def _get_buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape or buffer.dtype != dtype:
            self._buffers.pop(name, None)
            require_memory(
                math.prod(shape) * dtype.itemsize,
                str(self.device),
                f"{shape[0]:,} steps of {self.spec.n_envs:,} games of {self.spec.name} (array {name})",
                "use fewer games (env.n_envs), shorter rollouts (learn.rollout_steps), or smaller observations",
            )
            buffer = self._buffers[name] = torch.empty(shape, dtype=dtype, device=self.device)
        return buffer

    def _make_zeros(self, shape: tuple[int, ...]) -> Array:
        """Return a float32 array of zeros on the environment's device."""
        if self.env_device is None:
            return np.zeros(shape, dtype=np.float32)
        return torch.zeros(shape, dtype=torch.float32, device=self.env_device)


def to_device(x: Any, device: torch.device) -> torch.Tensor:
    """Return numbers as a tensor on `device`, without waiting for a GPU; unpinned memory may be changed afterwards."""
    return torch.as_tensor(x).to(device, non_blocking=device.type == "cuda")
