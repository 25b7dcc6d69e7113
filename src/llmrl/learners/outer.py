"""What a principal's objective owes to each step of validation episodes: the score-function estimator's weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from llmrl.core.objectives import Objective
from llmrl.core.records import Array, MetaSettings, Outcome
from llmrl.core.rollouts import Rollout
from llmrl.learners.advantages import generalized_advantages


def step_credits(
    rollouts: Sequence[Rollout],
    objective: Objective,
    spending_cost: float,
    outcome: Outcome,
    settings: MetaSettings,
) -> list[torch.Tensor]:
    """For each rollout c_t, [T, n_envs] float64, such that grad E[sum_t c_t sum_agents log pi(a_t)] estimates the
    derivative of the objective by the policies (Williams 1992; Sutton et al. 2000).

    c_t = (G_t - b_t) / episodes. For an objective that is a sum over steps G_t is what it gains from step t on, less
    what the mechanism pays out; for the others it is the episode's whole welfare. b_t is the mean G of the other
    episodes at the same step of theirs, so it does not depend on the actions it is compared with, and the estimate is
    unbiased. Steps of episodes that did not finish count nothing, as in the objective.
    """
    ended = [rollout.terminated | rollout.truncated for rollout in rollouts]
    if objective.step is not None:
        returns = [
            _to_go(rollout, end, objective.step, spending_cost, settings.gamma)
            for rollout, end in zip(rollouts, ended, strict=True)
        ]
    else:
        returns = _welfare(rollouts, ended, outcome)
    gain, end = torch.cat(returns, dim=1), torch.cat(ended, dim=1)
    finished = _finished(end)
    place = _steps_since_start(end)
    baseline = torch.full_like(gain, settings.past_return)
    if settings.baseline == "others":
        if objective.step is not None:
            # An episode that pays evenly still has this much of its return ahead.
            baseline *= 1 - place / len(place)
        total, count = gain.new_zeros(len(place)), gain.new_zeros(len(place))
        total.index_add_(0, place.flatten(), (gain * finished).flatten())
        count.index_add_(0, place.flatten(), finished.to(gain.dtype).flatten())
        others = count[place] - 1
        baseline = torch.where(others > 0, (total[place] - gain) / others.clamp_min(1), baseline)
    credit = torch.where(finished, gain - baseline, 0.0) / end.sum().clamp_min(1)
    return list(torch.split(credit, [each.shape[1] for each in returns], dim=1))


def direct_derivative(rollouts: Sequence[Rollout], spending_cost: float) -> torch.Tensor:
    """How the objective depends on the mechanism's values when nobody acts differently, [d] float64: its cost."""
    total, episodes = torch.zeros((), dtype=torch.float64), 0
    for rollout in rollouts:
        assert rollout.exposure is not None
        ended = rollout.terminated | rollout.truncated
        counted = rollout.exposure.double() * _finished(ended)[..., None, None]
        total, episodes = total - spending_cost * counted.sum((0, 1, 2)), episodes + int(ended.sum())
    return total / max(episodes, 1)


def _to_go(
    rollout: Rollout, ended: torch.Tensor, step: Callable[[Array], Array], spending_cost: float, gamma: float
) -> torch.Tensor:
    """Discounted sum of the objective's payoffs from each step to the end of its episode, [T, n_envs] float64."""
    base, reward = rollout.base_reward.double(), rollout.reward.double()
    payoff = step(base) - spending_cost * (reward - base).sum(-1)
    nothing = torch.zeros_like(payoff)
    return generalized_advantages(payoff, nothing, nothing, ended, gamma, 1.0)


def _welfare(rollouts: Sequence[Rollout], ended: Sequence[torch.Tensor], outcome: Outcome) -> list[torch.Tensor]:
    """The welfare of the episode that each step belongs to, [T, n_envs] float64; 0 where it did not finish."""
    values = iter(outcome.values.tolist())
    result = []
    for rollout, end in zip(rollouts, ended, strict=True):
        steps, n_envs = end.shape
        table = torch.zeros((steps + 1, n_envs), dtype=torch.float64, device=end.device)  # k-th episode of each game
        seen = [0] * n_envs
        for episode in rollout.episodes:
            table[seen[episode.game], episode.game] = next(values)
            seen[episode.game] += 1
        before = end.long().cumsum(0) - end.long()
        result.append(table.gather(0, before))
    return result


def _finished(ended: torch.Tensor) -> torch.Tensor:
    """Whether the episode of each step ends within the rollout, [T, n_envs] bool."""
    return ended.flip(0).cumsum(0).flip(0) > 0


def _steps_since_start(ended: torch.Tensor) -> torch.Tensor:
    """The index of each step within its episode, [T, n_envs] int64; a rollout begins with new episodes."""
    time = torch.arange(len(ended), device=ended.device)[:, None].expand(ended.shape)
    begins = torch.cat([torch.ones_like(ended[:1]), ended[:-1]])
    start = torch.where(begins, time, 0).cummax(0).values
    return time - start
