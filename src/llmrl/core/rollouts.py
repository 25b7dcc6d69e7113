"""Rollouts, the recorded steps from which agents learn, and the episodes that ended in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass
class Episode:
    """One finished episode of one game.

    Attributes:
        returns: return of each agent, [n_agents].
        base_returns: return before the mechanism, [n_agents].
        length: number of steps.
        summaries: `EnvSpec.metrics` of the episode by name; NaN if undefined.
        n_gain_steps: number of steps in which each agent's base reward was positive, [n_agents].
        gain_step_sums: sum of the indices (from 0) of these steps, [n_agents].
        game: index of the game.
        start_step: number of steps of the game before the episode, since the last reset of all games.
    """

    returns: np.ndarray
    base_returns: np.ndarray
    length: int
    summaries: dict[str, float]
    n_gain_steps: np.ndarray
    gain_step_sums: np.ndarray
    game: int = 0
    start_step: int = 0


@dataclass
class Rollout:
    """T steps of all games. Tensors are on the policy's device, with leading axes [T, n_envs, n_agents].

    Attributes:
        observation: channels that the policy reads, unless `features` replaces them, and channels for a teacher. Text
            channels are `TextArray`s of the same shape.
        features: output of the policy's frozen core, [T, n_envs, n_agents, F], or None.
        action, log_prob, value, reward: [T, n_envs, n_agents]; continuous actions: [T, n_envs, n_agents, a].
        base_reward: reward before the mechanism, [T, n_envs, n_agents].
        terminated, truncated: [T, n_envs] bool.
        episode_start: whether the step is the first of its episode, [T, n_envs] bool.
        next_value: value of the state after each step, 0 if this is terminal, [T, n_envs, n_agents].
        info: `EnvSpec.per_step` entries, each [T, n_envs] (NumPy).
        episodes: episodes that ended in these steps.
        reward_jacobian: derivative of `reward` by the mechanism's values, [T, n_envs, n_agents, d], if requested.
        state: state of the policy before the first step, [n_envs, n_agents, k]; None for policies without memory.
    """

    observation: dict[str, Any]
    features: torch.Tensor | None
    action: torch.Tensor
    log_prob: torch.Tensor
    value: torch.Tensor
    reward: torch.Tensor
    base_reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    episode_start: torch.Tensor
    next_value: torch.Tensor
    info: dict[str, np.ndarray]
    episodes: list[Episode]
    reward_jacobian: torch.Tensor | None = None
    state: torch.Tensor | None = None

    def copy(self) -> Rollout:
        """Return this rollout with copies of the tensors that the collector overwrites in the next one."""
        return replace(
            self,
            observation={name: x.clone() for name, x in self.observation.items()},
            features=None if self.features is None else self.features.clone(),
            action=self.action.clone(),
            log_prob=self.log_prob.clone(),
            value=self.value.clone(),
            next_value=self.next_value.clone(),
        )
