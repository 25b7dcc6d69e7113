"""Advantage estimation and reward scaling, used by every learner."""

from __future__ import annotations

import torch

from llmrl.core.records import State
from llmrl.networks.running_moments import RunningMoments


def normalize_advantages(advantage: torch.Tensor, eps: float) -> torch.Tensor:
    """Center advantages [..., n] over the last axis and scale them to a standard deviation of 1.

    They are divided by the sample standard deviation (n - 1 degrees of freedom) plus `eps`; a single advantage is
    returned unchanged.
    """
    if advantage.shape[-1] == 1:
        return advantage
    centered = advantage - advantage.mean(-1, keepdim=True)
    return centered / (advantage.std(-1, keepdim=True) + eps)


def generalized_advantages(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Return generalized advantage estimates (Schulman et al. 2016, eq. 16) for tensors [T, ...].

    Args:
        reward: r_t, [T, ...].
        value: V(s_t), [T, ...].
        next_value: V of the state reached by step t, before any reset, [T, ...]: 0 where the episode terminated,
            V(s_{t+1}) everywhere else, also where it was truncated.
        done: whether the episode terminated or was truncated in step t, where the sum stops, [T, ...] bool.
        gamma: discount in [0, 1].
        lam: exponential weight in [0, 1]; 1 gives Monte-Carlo advantages, 0 one-step advantages.

    Returns:
        A_t, [T, ...], differentiable with respect to the arguments; the value target is A_t + V(s_t). For V = 0 and
        lam = 1 it is the discounted reward to go.
    """
    delta = reward + gamma * next_value - value
    carry = gamma * lam * (~done).to(reward.dtype)
    advantage = []
    running = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        running = delta[t] + carry[t] * running
        advantage.append(running)
    return torch.stack(advantage[::-1])


class RewardScale:
    """Running standard deviation of the discounted return so far, by which learners divide rewards.

    Hyperparameters then do not depend on the units of a game's rewards. The return so far is
    R_t = r_t + gamma R_(t-1), 0 before an episode or a rollout begins. Its moments are over all steps, games and agents
    seen. As in Engstrom et al. (2020, arXiv 2005.12729, section 3), rewards are not centered.

    Args:
        gamma: discount per step, [0, 1].
    """

    def __init__(self, gamma: float) -> None:
        self.gamma, self._moments = gamma, RunningMoments()

    @property
    def deviation(self) -> float:
        """Standard deviation of the return so far; 1 as long as it is (almost) zero."""
        return float(self._moments.deviation)

    def update(self, reward: torch.Tensor, done: torch.Tensor) -> None:
        """Update the moments with a rollout: `reward` [T, n_envs, n_agents] and ends of episodes `done` [T, n_envs]."""
        running, returns = torch.zeros_like(reward[0]), []
        for step, end in zip(reward, done, strict=True):
            running = step + self.gamma * running
            returns.append(running)
            running = torch.where(end[:, None], 0.0, running)
        self._moments.update(torch.stack(returns).flatten().cpu())

    def state_dict(self) -> State:
        return {name: x.clone() for name, x in self._moments.state_dict().items()}

    def load_state_dict(self, state: State) -> None:
        self._moments.load_state_dict(state)
