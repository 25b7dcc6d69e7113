"""Vectors of a space as arms of a bandit: the points of a grid, or a list that fits a short run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import count_values, from_unit

FINE_GRID_POINTS = {3: 21, 5: 6}
"""Points per number by dimension in the published epsilon-greedy principal (9261 and 7776 arms); default maximum."""
COARSE_GRID_POINTS = {3: 11, 5: 3}
"""Points per number by dimension in the published UCB and Thompson principals (1331 and 243 arms)."""

MIN_PLAYS = 3
"""Minimum number of measurements per arm, on average, with the default arms of a run."""

MAX_ARMS = 4_000_000
"""Maximum number of arms of a grid; their tables then take some hundred MB."""


def grid_vectors(space: ParameterSpace, points: int) -> np.ndarray:
    """Return the vectors of an evenly spaced grid over the box of a space, both bounds included, [points^d, d].

    The digits of an index in base `points` are the coordinates, the first the most significant: vector 1 differs from
    vector 0 in the last coordinate. Numbers are rounded to the decimals of the space.

    Raises:
        ConfigError: fewer than 2 points, more points than a number has values, or more arms than a table can hold.
    """
    n_arms: int = points**space.dim
    if points < 2:
        raise ConfigError(f"principal.points must be at least 2 (both bounds), got {points}")
    if n_arms > MAX_ARMS:
        max_points = max_points_per_axis(space.dim, MAX_ARMS)
        hint = f"set principal.points to {max_points} or less, or " if max_points >= 2 else ""
        raise ConfigError(
            f"principal.points={points} results in {n_arms:,} arms for the {space.dim} numbers of {space.name}, "
            f"more than {MAX_ARMS:,}; {hint}choose a principal without a grid (cem, cmaes, gp, llm)"
        )
    min_values = count_values(space).min()
    if points > min_values:
        raise ConfigError(
            f"principal.points={points}: a number of {space.name} has only {min_values:g} values; "
            f"set principal.points to {min_values:g} or less"
        )
    digits = np.stack(np.unravel_index(np.arange(n_arms), (points,) * space.dim), axis=1)
    # With these weights the last point is exactly the upper bound, without rounding errors.
    weight = digits / (points - 1)
    return space.round_values(space.low * (1.0 - weight) + space.high * weight)


def default_points(space: ParameterSpace, published: Mapping[int, int]) -> int:
    """Return the published number of points for the space's dimension.

    For other dimensions: the largest number that gives no more arms than the largest published grid, at most 101. For
    integers with k values each: k, since all values are tried.
    """
    if has_only_integers(space):
        return int(count_values(space)[0])
    if space.dim in published:
        return published[space.dim]
    max_arms = max(points**dim for dim, points in published.items())
    return max(2, min(101, max_points_per_axis(space.dim, max_arms)))


def choose_grid_points(space: ParameterSpace, published: Mapping[int, int], proposals: int | None) -> int:
    """Return the largest number of points, from 2 to `default_points`, that leaves `MIN_PLAYS` measurements per arm.

    For integers it is always the number of their values; if that gives too many arms, `choose_arms` selects vectors.

    Args:
        space: parameter space of the proposals.
        published: points per number by dimension.
        proposals: number of a run's proposals in all contexts together; None: unknown, so no grid is too large.
    """
    max_points = default_points(space, published)
    if proposals is None or has_only_integers(space):
        return max_points
    return max(2, min(max_points, max_points_per_axis(space.dim, proposals // space.n_context_rows // MIN_PLAYS)))


def choose_arms(
    space: ParameterSpace, points: int | None, published: Mapping[int, int], proposals: int | None
) -> np.ndarray:
    """Return the vectors of the arms of a bandit, [n_arms, d].

    With `points`, this is the grid with that number of values per number. Otherwise it is the grid of
    `choose_grid_points`, if that has three values per number or more, and its arms get `MIN_PLAYS` measurements on
    average in a context. Else it is a list of vectors (`representative_vectors`), each with twice as many measurements,
    or with `MIN_PLAYS` if that leaves fewer than 2 (d + 1) vectors for d numbers; at least 2 vectors. A grid with two
    values per number is not used, because it has only the corners of the box.

    Args:
        space: parameter space of the proposals.
        points: values per number of a grid; None: the arms that fit `proposals`.
        published: points per number by dimension.
        proposals: number of a run's proposals in all contexts together; None: unknown, so no grid is too large.

    Raises:
        ConfigError: a grid that `grid_vectors` refuses.
    """
    if points is not None:
        return grid_vectors(space, points)
    n_points = choose_grid_points(space, published, proposals)
    if proposals is not None:
        n_plays = proposals // space.n_context_rows
        if n_points**space.dim > n_plays // MIN_PLAYS or (n_points < 3 and not has_only_integers(space)):
            n_arms = min(n_plays // MIN_PLAYS, max(2 * (space.dim + 1), n_plays // (2 * MIN_PLAYS)))
            return representative_vectors(space, max(2, n_arms))
    return grid_vectors(space, n_points)


def representative_vectors(space: ParameterSpace, n: int) -> np.ndarray:
    """Return `n` distinct vectors that represent a space, [n, d]; fewer if the space has fewer.

    First come those of `ParameterSpace.probe_vectors`: neutral, center, all numbers at their upper bounds, each number
    alone at its upper bound (the last ones only if `n` >= d + 3). Points of a Sobol sequence that is not scrambled
    (Joe & Kuo, Constructing Sobol sequences with better two-dimensional projections, 2008) follow, so the vectors are
    the same for all seeds.

    Raises:
        ConfigError: more than 21,201 numbers, for which there is no Sobol sequence.
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
    sequence.fast_forward(1)  # the first point is the lower bounds
    size = float(count_values(space).prod())
    # Rounding may map many points to one vector.
    for _ in range(100 * n):
        if len(vectors) >= min(n, size):
            break
        point = sequence.draw(1, dtype=torch.float64)[0].numpy()
        vectors[tuple(from_unit(space, point).tolist())] = None
    return np.array(list(vectors)[:n])


def has_only_integers(space: ParameterSpace) -> bool:
    """Return whether all numbers of the space are integers with equally many values each."""
    values = count_values(space)
    return all(p.decimals == 0 for p in space.parameters) and bool((values == values[0]).all())


def max_points_per_axis(dim: int, arms: int) -> int:
    """Return the largest n with n^dim <= arms."""
    n = int(arms ** (1.0 / dim)) + 1
    while n**dim > arms:
        n -= 1
    return n
