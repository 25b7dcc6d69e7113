"""Arms of bandits: the points of a grid, or, for runs with few proposals, a list of representative vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import count_values, from_unit

FINE_GRID_POINTS = {3: 21, 5: 6}
"""From the number of parameters to the number of grid points per parameter in the published epsilon-greedy principal
(9261 and 7776 arms)."""
COARSE_GRID_POINTS = {3: 11, 5: 3}
"""The same mapping for the published UCB and Thompson principals (1331 and 243 arms)."""
MIN_PLAYS = 3
"""Minimum mean number of measurements per arm if the arms are chosen by default."""
MAX_ARMS = 4_000_000
"""Maximum number of arms of a grid, whose tables take several hundred MB of memory."""


def make_grid_vectors(space: ParameterSpace, n_points: int) -> np.ndarray:
    """Return the vectors of an evenly spaced grid over a space, both bounds included, [n_points^d, d].

    The vectors are in the order of `itertools.product`: the last coordinate changes fastest. Numbers are rounded to the
    decimals of the space.

    Raises:
        ConfigError: fewer than 2 points, more points than a parameter has values, or more than `MAX_ARMS` arms.
    """
    n_arms: int = n_points**space.dim
    if n_points < 2:
        raise ConfigError(f"principal.points must be at least 2 (both bounds), got {n_points}")
    if n_arms > MAX_ARMS:
        max_points = compute_max_points_per_axis(space.dim, MAX_ARMS)
        hint = f"set principal.points to {max_points} or less, or " if max_points >= 2 else ""
        raise ConfigError(
            f"principal.points={n_points} results in {n_arms:,} arms for the {space.dim} numbers of {space.name}, "
            f"more than {MAX_ARMS:,}; {hint}choose a principal without a grid (cem, cmaes, gp, llm)"
        )
    min_n_values = count_values(space).min()
    if n_points > min_n_values:
        raise ConfigError(
            f"principal.points={n_points}: a number of {space.name} has only {min_n_values:g} values; "
            f"set principal.points to {min_n_values:g} or less"
        )
    grid_indices = np.stack(np.unravel_index(np.arange(n_arms), (n_points,) * space.dim), axis=1)
    # A weighted mean of the bounds, so that the last point is the upper bound without rounding error.
    weight = grid_indices / (n_points - 1)
    return space.round_values(space.low * (1.0 - weight) + space.high * weight)


def find_default_grid_points(space: ParameterSpace, published_points: Mapping[int, int]) -> int:
    """Return the default number of grid points per parameter.

    If all parameters are integers with k values each, it is k. For published dimensions it is the published number. For
    other dimensions it is the largest number, at most 101, that gives no more arms than the largest published grid.
    """
    if has_equal_integer_parameters(space):
        return int(count_values(space)[0])
    if space.dim in published_points:
        return published_points[space.dim]
    max_arms = max(points**dim for dim, points in published_points.items())
    return max(2, min(101, compute_max_points_per_axis(space.dim, max_arms)))


def choose_grid_points(space: ParameterSpace, published_points: Mapping[int, int], proposals: int | None) -> int:
    """Return the largest number of points, from 2 to `find_default_grid_points`, with `MIN_PLAYS` measurements per arm.

    If all parameters are integers with equally many values, it is the number of values, even if there are fewer
    measurements; `choose_arms` then selects some of the vectors.

    Args:
        space: parameter space of the proposals.
        published_points: from the number of parameters to the published number of points per parameter.
        proposals: number of proposals of the run, in all contexts together; None: unknown, the grid is not limited.
    """
    max_points = find_default_grid_points(space, published_points)
    if proposals is None or has_equal_integer_parameters(space):
        return max_points
    max_arms = proposals // space.n_context_rows // MIN_PLAYS
    return max(2, min(max_points, compute_max_points_per_axis(space.dim, max_arms)))


def choose_arms(
    space: ParameterSpace, points: int | None, published_points: Mapping[int, int], proposals: int | None
) -> np.ndarray:
    """Return the vectors of the arms of a bandit, [n_arms, d].

    With `points`, the arms are the grid with this number of points per parameter. Otherwise they are the grid of
    `choose_grid_points`, if it has at least three points per parameter (two would be only the corners of the box) and
    `MIN_PLAYS` measurements per arm in each context. Else they are `list_representative_vectors`: as many as give
    2 `MIN_PLAYS` measurements per arm, but at least 2 (d + 1) if `MIN_PLAYS` measurements remain, and at least 2.

    Args:
        space: parameter space of the proposals.
        points: number of grid points per parameter; None: depends on `proposals`.
        published_points: from the number of parameters to the published number of points per parameter.
        proposals: number of proposals of the run, in all contexts together; None: unknown, the grid is not limited.

    Raises:
        ConfigError: the grid is invalid (`make_grid_vectors`).
    """
    if points is not None:
        return make_grid_vectors(space, points)
    n_points = choose_grid_points(space, published_points, proposals)
    if proposals is not None:
        n_plays = proposals // space.n_context_rows
        if n_points**space.dim > n_plays // MIN_PLAYS or (n_points < 3 and not has_equal_integer_parameters(space)):
            n_arms = min(n_plays // MIN_PLAYS, max(2 * (space.dim + 1), n_plays // (2 * MIN_PLAYS)))
            return list_representative_vectors(space, max(2, n_arms))
    return make_grid_vectors(space, n_points)


def list_representative_vectors(space: ParameterSpace, n: int) -> np.ndarray:
    """Return `n` different vectors that cover a space, [n, d]; fewer if the space has fewer.

    The first are those of `ParameterSpace.probe_vectors`: the neutral vector, the center, all upper bounds, and each
    parameter alone at its upper bound (these d only if `n` >= d + 3). The others are points of an unscrambled Sobol
    sequence (Joe & Kuo, Constructing Sobol sequences with better two-dimensional projections, 2008), so the vectors are
    the same for all seeds.

    Raises:
        ConfigError: the space has more than 21,201 parameters, for which there is no Sobol sequence.
    """
    import torch
    from torch.quasirandom import SobolEngine

    if n >= space.dim + 3:
        first_vectors = space.probe_vectors
    else:
        first_vectors = space.round_values(np.array([space.neutral, (space.low + space.high) / 2, space.high]))
    if space.dim > SobolEngine.MAXDIM:
        raise ConfigError(
            f"{space.name} has {space.dim:,} numbers, but arms can be listed for at most {SobolEngine.MAXDIM:,}; "
            "choose a principal without arms (cem, cmaes, gp, llm)"
        )
    vectors = dict.fromkeys(tuple(vector) for vector in first_vectors.tolist())
    sequence: Any = SobolEngine(space.dim)  # type: ignore[no-untyped-call]
    sequence.fast_forward(1)  # the first point is the vector of lower bounds
    n_space_vectors = float(count_values(space).prod())
    # More than n points, because rounding may map several points to one vector.
    for _ in range(100 * n):
        if len(vectors) >= min(n, n_space_vectors):
            break
        point = sequence.draw(1, dtype=torch.float64)[0].numpy()
        vectors[tuple(from_unit(space, point).tolist())] = None
    return np.array(list(vectors)[:n])


def has_equal_integer_parameters(space: ParameterSpace) -> bool:
    """Return whether all parameters of the space are integers with equally many values each."""
    n_values = count_values(space)
    return all(p.decimals == 0 for p in space.parameters) and bool((n_values == n_values[0]).all())


def compute_max_points_per_axis(dim: int, max_arms: int) -> int:
    """Return the largest integer n with n^dim <= max_arms."""
    n = int(max_arms ** (1.0 / dim)) + 1
    while n**dim > max_arms:
        n -= 1
    return n
