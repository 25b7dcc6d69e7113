"""What playing gives: rollouts, with the steps that a learner learns from, and the episodes that ended in them."""

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
        returns: sum of rewards of each agent, [n_agents].
        base_returns: the same before the mechanism, [n_agents].
        length: steps.
        summaries: `EnvSpec.metrics` entries, aggregated as the environment says; NaN where one says nothing of it.
        gains: steps in which each agent's base reward was positive, [n_agents].
        gain_times: sum of the indices (from 0) of these steps, [n_agents].
        game: index of the game.
        start: steps of the game before it, since all games were last begun anew.
    """

    returns: np.ndarray
    base_returns: np.ndarray
    length: int
    summaries: dict[str, float]
    gains: np.ndarray
    gain_times: np.ndarray
    game: int = 0
    start: int = 0


@dataclass
class Rollout:
    """T steps of all games. Tensors are on the policy's device, leading axes [T, n_envs, n_agents].

    Attributes:
        observation: channels the policy reads, unless `features` replaces them, and those kept for a teacher; those
            of texts are `Texts` of the same shape.
        features: frozen-core features [T, n_envs, n_agents, F], or None.
        action, log_prob, value, reward: [T, n_envs, n_agents]; action [T, n_envs, n_agents, a] where it is several
            numbers.
        base_reward: reward before the mechanism, [T, n_envs, n_agents].
        terminated, truncated: [T, n_envs] bool.
        first: the step is the first of its episode, [T, n_envs] bool.
        next_value: V of the state each step reached (0 where it terminated), [T, n_envs, n_agents].
        info: `EnvSpec.per_step`, each [T, n_envs] (NumPy).
        episodes: those that finished in these steps.
        exposure: derivative of `reward` by the mechanism's values, [T, n_envs, n_agents, d], if it was asked for.
        state: what the policy remembered before the first step, [n_envs, n_agents, k]; None if it remembers nothing.
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
    first: torch.Tensor
    next_value: torch.Tensor
    info: dict[str, np.ndarray]
    episodes: list[Episode]
    exposure: torch.Tensor | None = None
    state: torch.Tensor | None = None

    def copy(self) -> Rollout:
        """The same in memory of its own: the collector's next rollout overwrites what it handed out before."""
        return replace(
            self,
            observation={name: x.clone() for name, x in self.observation.items()},
            features=None if self.features is None else self.features.clone(),
            action=self.action.clone(),
            log_prob=self.log_prob.clone(),
            value=self.value.clone(),
            next_value=self.next_value.clone(),
        )
