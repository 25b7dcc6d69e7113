"""Advantages of the turns of trajectories, as functions of arrays.

All functions number the turns of all trajectories consecutively and describe them by arrays [n_turns]: `trajectory`
(index of the trajectory, non-decreasing), `group` (index of the group of episodes that are compared) and rewards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def returns_to_go(reward: Floats, trajectory: Ints, gamma: float) -> Floats:
    """Return the discounted sum of rewards from each turn to the end of its trajectory, [n_turns].

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        gamma: discount per turn, [0, 1].
    """
    returns = np.array(reward, dtype=np.float64)
    for i in range(len(returns) - 2, -1, -1):
        if trajectory[i] == trajectory[i + 1]:
            returns[i] += gamma * returns[i + 1]
    return returns


def episode_advantages(reward: Floats, trajectory: Ints, group: Ints) -> Floats:
    """Return the return of each turn's episode minus the mean return of the episodes of its group, [n_turns].

    All turns of an episode have the same advantage (Shao et al. 2024, arXiv 2402.03300, outcome supervision).

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        group: index of the group of each turn, [n_turns].
    """
    episodes, first, episode = np.unique(trajectory, return_index=True, return_inverse=True)
    returns: Floats = np.bincount(episode, reward, minlength=len(episodes)).astype(np.float64)
    return _centered(returns, group[first])[episode]


def turn_advantages(reward: Floats, trajectory: Ints, group: Ints, gamma: float) -> Floats:
    """Return the return to go of each turn minus the mean of the turns of its group with the same index, [n_turns].

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        group: index of the group of each turn, [n_turns].
        gamma: discount per turn, [0, 1].
    """
    return _centered(returns_to_go(reward, trajectory, gamma), group, turn_index(trajectory))


def anchor_advantages(
    reward: Floats, trajectory: Ints, group: Ints, observation: Sequence[str], gamma: float, weight: float
) -> Floats:
    """Return `episode_advantages` plus `weight` times the advantages among turns with equal observations, [n_turns].

    The latter are returns to go minus the mean of the turns of the group with the same observation (GiGPO, Feng et al.
    2025, arXiv 2505.10978, eq. 7 and 8, without normalization).

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        group: index of the group of each turn, [n_turns].
        observation: text of the observation of each turn, [n_turns].
        gamma: discount per turn, [0, 1].
        weight: weight of the advantages among turns with equal observations, >= 0.
    """
    numbers = {text: i for i, text in enumerate(dict.fromkeys(observation))}
    anchor = np.array([numbers[text] for text in observation], dtype=np.int64)
    steps = _centered(returns_to_go(reward, trajectory, gamma), group, anchor)
    return episode_advantages(reward, trajectory, group) + weight * steps


def replay_advantages(reward: Floats, trajectory: Ints, value: Floats, gamma: float) -> Floats:
    """Return r_t + gamma V(s_{t+1}) - V(s_t) of each turn, [n_turns]; V is 0 at the end of a trajectory.

    Values are means over independent continuations from the states of the turns (Kazemnejad et al. 2024, arXiv
    2410.01679, eq. 6, where states are prefixes of a reply).

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        value: value of the state in which each turn begins, [n_turns].
        gamma: discount per turn, [0, 1].
    """
    following = np.zeros_like(value)
    continues = trajectory[:-1] == trajectory[1:]
    following[:-1][continues] = value[1:][continues]
    return reward + gamma * following - value


def turn_index(trajectory: Ints) -> Ints:
    """Return the index of each turn in its trajectory, [n_turns]."""
    _, first, counts = np.unique(trajectory, return_index=True, return_counts=True)
    return np.arange(len(trajectory)) - np.repeat(first, counts)


def scale_advantages(advantage: Floats, group: Ints, scale: str, eps: float = 1e-6) -> Floats:
    """Divide advantages by a standard deviation plus `eps`.

    Args:
        advantage: advantage of each turn, [n_turns].
        group: index of the group of each turn, [n_turns].
        scale: `batch`: the standard deviation of all turns; `group`: that of each group; `none`: nothing is divided.
        eps: lower limit of the divisor, > 0.
    """
    if scale == "none" or not len(advantage):
        return advantage
    member = np.zeros(len(group), dtype=np.int64) if scale == "batch" else np.unique(group, return_inverse=True)[1]
    counts = np.bincount(member)
    mean = np.bincount(member, advantage) / counts
    variance = np.bincount(member, (advantage - mean[member]) ** 2) / counts
    scaled: Floats = advantage / (np.sqrt(variance)[member] + eps)
    return scaled


def _centered(values: Floats, *keys: Ints) -> Floats:
    """Return values minus the mean of the values whose `keys` are all equal, [n]."""
    _, cell = np.unique(np.stack(keys), axis=1, return_inverse=True)
    cell = cell.reshape(-1)
    means = np.bincount(cell, values) / np.bincount(cell)
    centered: Floats = values - means[cell]
    return centered
