"""Rewards in units of how much returns vary, so that hyperparameters do not depend on the units of a game's rewards."""

from __future__ import annotations

import math

import torch

from llmrl.core.records import State


class RewardScale:
    """Divides rewards by the running standard deviation of the discounted return so far.

    The return so far is R_t = r_t + gamma R_(t-1), 0 before an episode or a rollout begins; its moments are over all
    steps, games and agents seen. As in Engstrom et al. (2020, arXiv 2005.12729, section 3), rewards are not centred.

    Args:
        gamma: discount per step, [0, 1].
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the return so far; 1 where nothing varied yet."""
        deviation = math.sqrt(self._squares / self._count) if self._count else 0.0
        return deviation if deviation > 1e-8 else 1.0

    def see(self, reward: torch.Tensor, done: torch.Tensor) -> None:
        """Take in a rollout: reward [T, n_envs, n_agents], and whether the episode ended in a step, [T, n_envs]."""
        running, returns = torch.zeros_like(reward[0]), []
        for step, ended in zip(reward, done, strict=True):
            running = step + self.gamma * running
            returns.append(running)
            running = torch.where(ended[:, None], 0.0, running)
        seen = torch.stack(returns).double()
        n, mean = seen.numel(), float(seen.mean())
        squares = float((seen - mean).square().sum())
        # Chan, Golub & LeVeque (1983): moments of two samples together.
        total, shift = self._count + n, mean - self._mean
        self._squares += squares + shift**2 * self._count * n / total
        self._mean += shift * n / total
        self._count = total

    def state_dict(self) -> State:
        return {"count": self._count, "mean": self._mean, "squares": self._squares}

    def load_state_dict(self, state: State) -> None:
        self._count, self._mean, self._squares = state["count"], state["mean"], state["squares"]
