"""Compiled settlements of `BracketedTax` and `Incentives`: one pass over the players of all games of a step.

With few games, the many small operations of NumPy for a settlement take longer than the step of the games. Sums run in
the order of NumPy's and torch's, so all three give the same results for whole apples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.numba_cache import JIT_OPTIONS, compile_for_types, get_cache_folder, use_numba_cache


def settle_tax(
    raw_reward: np.ndarray,
    values: np.ndarray,
    edges: np.ndarray,
    multiplier: np.ndarray,
    past_rewards: np.ndarray,
    reward: np.ndarray,
    jacobian: np.ndarray,
    metrics: np.ndarray,
    recent_income: np.ndarray,
) -> None:
    """Write the settlement of a step under `BracketedTax`. All arrays are float32.

    Args:
        raw_reward: [n_envs, n_agents].
        values: rate of each bracket, [n_envs, n_brackets].
        edges: edges of the brackets, [n_brackets + 1]; the last is infinite.
        multiplier: tax per unit of rate and reward, [1].
        past_rewards: raw rewards of the last steps, newest first, [window, n_envs, n_agents]; this step is added.
        reward, jacobian: results, [n_envs, n_agents] and [n_envs, n_agents, n_brackets].
        metrics: tax collected and reward in each bracket, [1 + n_brackets, n_envs].
        recent_income: sum of `past_rewards` after the step, [n_envs, n_agents].
    """
    n_players, n_brackets, window = raw_reward.shape[1], values.shape[1], past_rewards.shape[0]
    factor = multiplier[0]
    for b in range(raw_reward.shape[0]):
        for k in range(metrics.shape[0]):
            metrics[k, b] = 0
        for i in range(n_players):
            step_reward, past_sum = raw_reward[b, i], np.float32(0)
            for t in range(window):
                past_sum += past_rewards[t, b, i]
            income, recent_sum = step_reward + past_sum, np.float32(0)
            for t in range(window - 1, 0, -1):
                past_rewards[t, b, i] = past_rewards[t - 1, b, i]
            if window > 0:
                past_rewards[0, b, i] = step_reward
            for t in range(window):
                recent_sum += past_rewards[t, b, i]
            recent_income[b, i] = recent_sum
            for k in range(n_brackets):
                jacobian[b, i, k] = step_reward if edges[k] <= income < edges[k + 1] else np.float32(0)
                metrics[1 + k, b] += jacobian[b, i, k]
        taxed_reward = np.float32(0)
        for k in range(n_brackets):
            taxed_reward += values[b, k] * metrics[1 + k, b]
        metrics[0, b] = factor * taxed_reward
        for i in range(n_players):
            payment = np.float32(0)
            for k in range(n_brackets):
                mean = metrics[1 + k, b] / np.float32(n_players)
                jacobian[b, i, k] = factor * mean - factor * jacobian[b, i, k]
                payment += jacobian[b, i, k] * values[b, k]
            reward[b, i] = raw_reward[b, i] + payment


def settle_incentives(
    raw_reward: np.ndarray,
    n_cleaned: np.ndarray,
    is_present: np.ndarray,
    values: np.ndarray,
    base_amounts: np.ndarray,
    settings: np.ndarray,
    base_reward: np.ndarray,
    reward: np.ndarray,
    jacobian: np.ndarray,
    metrics: np.ndarray,
) -> None:
    """Write the settlement of a step under `Incentives`. Arrays are float32, except `settings`.

    Args:
        raw_reward, n_cleaned, is_present: as in `SocietyEvents`, [n_envs, n_agents].
        values: payments for eating, cleaning and other behavior, [n_envs, 3].
        base_amounts: base reward of an apple and of a step of cleaning, [2].
        settings: the options `exactly_one`, `reward_removed` and `budget_balanced`, [3] bool.
        base_reward, reward, jacobian: results, [n_envs, n_agents] and [n_envs, n_agents, 3].
        metrics: all payments, number of paid steps of cleaning, and payments for each behavior, [5, n_envs].
    """
    exactly_one, reward_removed, is_balanced = settings[0], settings[1], settings[2]
    n_players = raw_reward.shape[1]
    for b in range(raw_reward.shape[0]):
        for k in range(metrics.shape[0]):
            metrics[k, b] = 0
        for i in range(n_players):
            x, n_cells = raw_reward[b, i], n_cleaned[b, i]
            has_eaten = (x == 1) if exactly_one else (x > 0)
            has_cleaned = not has_eaten and x == 0 and ((n_cells == 1) if exactly_one else (n_cells >= 1))
            behavior = 0 if has_eaten else 1 if has_cleaned else 2
            base_reward[b, i] = x * base_amounts[0] if has_eaten else base_amounts[1] if has_cleaned else x
            for k in range(3):
                jacobian[b, i, k] = k == behavior and (k < 2 or reward_removed or is_present[b, i] != 0)
                metrics[2 + k, b] += jacobian[b, i, k]  # number of players with this behavior; below it becomes a sum
        metrics[1, b] = metrics[3, b]
        for k in range(3):
            mean = metrics[2 + k, b] / np.float32(n_players)
            for i in range(n_players):
                if is_balanced:
                    jacobian[b, i, k] -= mean
            metrics[2 + k, b] *= values[b, k]
            metrics[0, b] += metrics[2 + k, b]
        for i in range(n_players):
            payment = np.float32(0)
            for k in range(3):
                payment += jacobian[b, i, k] * values[b, k]
            reward[b, i] = base_reward[b, i] + payment


@functools.cache
def compile_tax() -> Callable[..., None]:
    """Return `settle_tax`, compiled."""
    vector, matrix, cube = (np.zeros((1,) * n, np.float32) for n in (1, 2, 3))
    return _compile(settle_tax, (matrix, matrix, vector, vector, cube, matrix, cube, matrix, matrix))


@functools.cache
def compile_incentives() -> Callable[..., None]:
    """Return `settle_incentives`, compiled."""
    vector, matrix, cube = (np.zeros((1,) * n, np.float32) for n in (1, 2, 3))
    return _compile(
        settle_incentives, (matrix, matrix, matrix, matrix, vector, vector > 0, matrix, matrix, cube, matrix)
    )


def _compile(function: Callable[..., None], arguments: tuple[Any, ...]) -> Callable[..., None]:
    import numba

    with use_numba_cache(get_cache_folder("mechanisms", (Path(__file__),))) as cache:
        return compile_for_types(numba.njit(cache=cache, **JIT_OPTIONS)(function), arguments)
