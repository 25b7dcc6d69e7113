"""What a principal is judged on, from the base returns of a society."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.spaces import Objective
from llmrl.learners.rollout import Episode


def episode_welfare(base_returns: np.ndarray, objective: Objective) -> np.ndarray:
    """Welfare of episodes: mean or sum over agents of base returns [n_episodes, n_agents] -> [n_episodes]."""
    welfare: np.ndarray = base_returns.mean(-1) if objective == "mean" else base_returns.sum(-1)
    return welfare


def summarize(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Mean over episodes of returns, length and environment metrics, as `prefix/name`; empty without episodes."""
    if not episodes:
        return {}
    metrics = {
        f"{prefix}/return": float(np.mean([e.returns.mean() for e in episodes])),
        f"{prefix}/base_return": float(np.mean([e.base_returns.mean() for e in episodes])),
        f"{prefix}/length": float(np.mean([e.length for e in episodes])),
    }
    for name in episodes[0].summaries:
        metrics[f"{prefix}/{name}"] = float(np.mean([e.summaries[name] for e in episodes]))
    return metrics
