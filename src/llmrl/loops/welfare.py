"""How well a society does: what a principal is judged on, and what is reported beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.core.spaces import Objective
from llmrl.learners.rollout import Episode

PRESENT = "players_present"
"""Entry of `EnvSpec.metrics` with the number of players in the game, where an engine can remove them."""


def gini(returns: np.ndarray) -> np.ndarray:
    """Inequality of returns [..., n_agents]: 0 where all are equal, 1 where one agent has everything.

    sum_ij |x_i - x_j| / (2 (n - 1) sum_i |x_i|): the Gini coefficient times n / (n - 1) where no return is negative,
    and still within [0, 1] where some are (Raffinetti, Siletti & Vernizzi 2015). 0 where all returns are zero.
    """
    n = returns.shape[-1]
    differences = np.abs(returns[..., :, None] - returns[..., None, :]).sum((-1, -2))
    total = 2 * max(n - 1, 1) * np.abs(returns).sum(-1)
    result = np.divide(differences, total, out=np.zeros_like(total), where=total > 0)
    bounded: np.ndarray = np.minimum(result, 1.0)  # sums of many terms round
    return bounded


def measures(episodes: Sequence[Episode]) -> dict[str, np.ndarray]:
    """The welfare of each of some episodes of a society, by measure, each [n_episodes].

    Returns are base returns, what the game pays before the mechanism, unless said otherwise; n agents, T steps.

    - mean, sum, minimum: over agents, of returns. The sum is Perolat et al.'s efficiency U times T.
    - gini, equality = 1 - gini: of returns, see `gini`, in [0, 1]. Where no return is negative this is the equality of
      Zheng et al.; that of Perolat et al. takes Gini's coefficient as it is, so that it ends at 1 / n instead of 0.
    - equality_productivity: equality x sum (Zheng et al.). Where the sum is negative, less equality makes it higher.
    - sustainability: for each agent the mean of the steps, counted from 1, in which its base reward is positive; of
      these the mean over the agents that have one. In [1, T], 0 where no agent has any (S of Perolat et al., which
      says nothing of agents that gain nothing). It counts when agents gain, not how much.
    - peace: mean over steps of the players in the game, in [0, n] (P of Perolat et al.); only where the engine tells.
    - spending: sum over agents and steps of what the mechanism pays out beyond what it takes.

    Sources: Perolat et al. 2017 (arXiv 1707.06600), Zheng et al. 2020 (arXiv 2004.13332).
    """
    base = np.array([episode.base_returns for episode in episodes], dtype=np.float64)
    returns = np.array([episode.returns for episode in episodes], dtype=np.float64)
    equality = 1.0 - gini(base)
    result = {
        "mean": base.mean(-1),
        "sum": base.sum(-1),
        "minimum": base.min(-1),
        "gini": 1.0 - equality,
        "equality": equality,
        "equality_productivity": equality * base.sum(-1),
        "sustainability": np.array([_mean_gain_time(episode) for episode in episodes]),
        "spending": (returns - base).sum(-1),
    }
    if episodes and PRESENT in episodes[0].summaries:
        result["peace"] = np.array([episode.summaries[PRESENT] for episode in episodes])
    return result


def episode_welfare(episodes: Sequence[Episode], objective: Objective, spending_cost: float = 0.0) -> np.ndarray:
    """What a principal is judged on in each episode: a measure, less `spending_cost` times `spending`; [n_episodes]."""
    return judged(measures(episodes), objective, spending_cost)


def judged(found: Mapping[str, np.ndarray], objective: Objective, spending_cost: float = 0.0) -> np.ndarray:
    """`episode_welfare` of episodes whose `measures` are known."""
    scores: np.ndarray = found[objective]
    return scores - spending_cost * found["spending"] if spending_cost else scores


def summarize(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Mean over episodes of returns, length and environment metrics, as `prefix/name`; empty without episodes.

    Episodes whose metric is NaN, of which it says nothing, are left out of its mean.
    """
    if not episodes:
        return {}
    metrics = {
        f"{prefix}/return": float(np.mean([e.returns.mean() for e in episodes])),
        f"{prefix}/base_return": float(np.mean([e.base_returns.mean() for e in episodes])),
        f"{prefix}/length": float(np.mean([e.length for e in episodes])),
    }
    for name in episodes[0].summaries:
        known = [e.summaries[name] for e in episodes if not np.isnan(e.summaries[name])]
        if known:
            metrics[f"{prefix}/{name}"] = float(np.mean(known))
    return metrics


def summarize_welfare(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean over episodes of every welfare measure, as `welfare/name`; empty without episodes."""
    if not episodes:
        return {}
    return {f"welfare/{name}": float(values.mean()) for name, values in measures(episodes).items()}


def _mean_gain_time(episode: Episode) -> float:
    gained = episode.gains > 0
    if not gained.any():
        return 0.0
    # Episodes count steps from 0, the measure counts them from 1.
    return float((episode.gain_times[gained] / episode.gains[gained]).mean()) + 1.0
