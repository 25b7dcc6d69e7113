"""Landscapes: functions from the vector of a principal to the value of a society, with known true values and noise.

`measured_landscape` interpolates a grid that a study has measured (docs/results/data). `random_landscape` samples a
function of a family of `RANDOM_FAMILIES`. Both return a `Landscape`, on which a principal can be evaluated.
"""

from __future__ import annotations

import csv
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.interpolate import RegularGridInterpolator
from scipy.stats import qmc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace
from llmrl.core.unit_cube import to_unit
from llmrl.statistics.estimators import standard_error_of_mean
from societies import make_spec

Function = Callable[[np.ndarray], np.ndarray]
"""Function from points [n, d] of the unit cube to values [n]."""

SCALE = 100.0
"""Range of the values of a random landscape, in units of the payoff."""


@dataclass(frozen=True)
class Landscape:
    """Function with a known maximum and noisy measurements.

    Attributes:
        name: name of the landscape or of its family.
        space: space of proposed vectors.
        mean: true values of points of the unit cube.
        noise: standard deviation of a measurement at points of the unit cube, in units of the value.
        floor: value with score 0: that of the neutral vector, or the minimum if there is no neutral vector.
        best: value with score 1, the maximum.
        episodes: number of independent values in a measurement, which is their mean; >= 2.
    """

    name: str
    space: ParameterSpace
    mean: Function
    noise: Function
    floor: float
    best: float
    episodes: int = 2

    @property
    def spec(self) -> EnvSpec:
        # The name differs from all environments, because their prompts require facts about the games.
        return make_spec(self.space, name=f"landscape_{self.name}")

    def value(self, vector: np.ndarray) -> float:
        """Return the true value of a vector [d]."""
        return float(self.mean(to_unit(self.space, np.asarray(vector))[None])[0])

    def score(self, vector: np.ndarray) -> float:
        """Return the true value of a vector [d], scaled so that `floor` is 0 and `best` is 1."""
        return (self.value(vector) - self.floor) / (self.best - self.floor)

    def measure(self, vector: np.ndarray, rng: np.random.Generator) -> Outcome:
        """Return a noisy measurement of a vector [d], with the standard error over episodes."""
        unit = to_unit(self.space, np.asarray(vector))[None]
        noise = float(self.noise(unit)[0]) * math.sqrt(self.episodes)
        values = float(self.mean(unit)[0]) + noise * rng.standard_normal(self.episodes)
        return Outcome(
            vector=np.array(vector),
            value=float(values.mean()),
            values=values,
            standard_error=standard_error_of_mean(values),
            returns=np.full(3, values.mean()),
        )


@dataclass(frozen=True)
class Grid:
    """Grid of measurements of a study.

    Attributes:
        path: CSV file with a column for each parameter, then mean, low, high (95 % interval over replicates).
        replicates: number of independent societies or seeds of the interval.
        episodes: number of independent values in a measurement with the default options of the environment.
    """

    path: Path
    replicates: int
    episodes: int


DATA = Path(__file__).parents[1] / "docs" / "results" / "data"
GRIDS = {
    "harvest": Grid(DATA / "landscape_harvest_landscape.csv", 5, 2),
    "cleanup": Grid(DATA / "landscape_cleanup_landscape.csv", 5, 2),
    "escape_room": Grid(DATA / "landscape_escape_room_landscape.csv", 10, 32),
}


def measured_landscape(name: str) -> Landscape:
    """Return the multilinear interpolation of a measured grid over its varying parameters.

    The noise is the interpolated standard deviation over replicates. It is computed from the width of the bootstrap
    percentile interval, whose variance is (n - 1) / n of the variance of the mean.
    """
    grid = GRIDS[name]
    with grid.path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    table = np.array(rows, dtype=np.float64)
    settings, means, lows, highs = table[:, :-3], *table[:, -3:].T
    varying = [i for i in range(settings.shape[1]) if len(np.unique(settings[:, i])) > 1]
    axes = [np.unique(settings[:, i]) for i in varying]
    shape = [len(axis) for axis in axes]
    assert len(table) == math.prod(shape), f"{grid.path} is not a complete grid"
    order = np.lexsort(settings[:, varying[::-1]].T)
    n = grid.replicates
    deviations = (highs - lows) / (2 * 1.96) * n / math.sqrt(n - 1)
    unit_axes = [(axis - axis[0]) / (axis[-1] - axis[0]) for axis in axes]
    bounds = zip([header[i] for i in varying], axes, strict=True)
    parameters = tuple(Parameter(p, float(axis[0]), float(axis[-1]), "units", f"number {p}") for p, axis in bounds)
    neutral = (settings == 0).all(axis=1)
    return Landscape(
        name,
        ParameterSpace("knobs", parameters),
        RegularGridInterpolator(unit_axes, means[order].reshape(shape)),
        RegularGridInterpolator(unit_axes, deviations[order].reshape(shape)),
        floor=float(means[neutral][0]),
        best=float(means.max()),
        episodes=grid.episodes,
    )


def gaussian_field(d: int, rng: np.random.Generator) -> Function:
    """Return a sample of a Gaussian process with a squared exponential kernel.

    The sample is approximated by 256 random Fourier features (Rahimi & Recht 2007, Random features for large-scale
    kernel machines). Each parameter has a length scale between 0.15 and 0.6 of its range.
    """
    scales = np.exp(rng.uniform(np.log(0.15), np.log(0.6), d))
    frequencies, phases = rng.standard_normal((d, 256)) / scales[:, None], rng.uniform(0, 2 * np.pi, 256)
    weights = rng.standard_normal(256)
    return lambda x: np.asarray(np.cos(x @ frequencies + phases) @ weights)


def ridge(d: int, rng: np.random.Generator) -> Function:
    """Return a ridge with a Gaussian profile through a random point, with a linear slope in a random direction."""
    normal, slope = rng.standard_normal((2, d))
    normal /= np.linalg.norm(normal)
    slope /= np.linalg.norm(slope)
    center, width = rng.uniform(0.2, 0.8, d), rng.uniform(0.05, 0.2)
    return lambda x: np.exp(-(((x - center) @ normal / width) ** 2) / 2) * (1 + 0.4 * (x - center) @ slope)


def plateau(d: int, rng: np.random.Generator) -> Function:
    """Return a function that is 1 in an ellipsoid, and decreases linearly to 0 within half a radius around it."""
    center = rng.uniform(0.1, 0.9, d)
    # The radius grows with d, so that the volume of the plateau does not vanish.
    radii = rng.uniform(0.1, 0.3, d) * math.sqrt(d)
    return lambda x: np.clip(3 - 2 * np.linalg.norm((x - center) / radii, axis=1), 0, 1)


def gate(d: int, rng: np.random.Generator) -> Function:
    """Return a function that is positive only above a threshold of one parameter, and at least -0.1 below it.

    Above the threshold, the value increases with this parameter and decreases with the distance of the other parameters
    from a random point, as in Clean Up, where payments for cleaning must exceed its cost and other payments are
    harmful.
    """
    index, threshold = int(rng.integers(d)), rng.uniform(0.3, 0.7)
    center, width = rng.random(d), rng.uniform(0.3, 0.8)

    def value(x: np.ndarray) -> np.ndarray:
        deviations = np.delete(x - center, index, axis=1)
        penalty = np.exp(-((deviations / width) ** 2).sum(axis=1) / 2)
        height = (x[:, index] - threshold) / (1 - threshold)
        return np.where(height < 0, -0.1 * x[:, index] / threshold, penalty * (0.3 + 0.7 * height))

    return value


RANDOM_FAMILIES: dict[str, Callable[[int, np.random.Generator], Function]] = {
    "gaussian": gaussian_field,
    "ridge": ridge,
    "plateau": plateau,
    "gate": gate,
}
FAMILIES = (*GRIDS, *RANDOM_FAMILIES)


def find_extrema(function: Function, d: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the minimum and maximum in the unit cube, found by a Sobol scan and random refinement."""
    scan = qmc.Sobol(d, seed=rng).random_base2(12)
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * d), axis=-1).reshape(-1, d)
    values = []
    for sign in (-1.0, 1.0):
        points = np.concatenate([scan, corners])
        points = points[np.argsort(-sign * function(points))[:8]]
        for width in 0.1 * 0.5 ** np.arange(8):
            steps = np.clip(points[:, None] + width * rng.standard_normal((8, 16, d)), 0, 1).reshape(-1, d)
            points = np.concatenate([points, steps])
            points = points[np.argsort(-sign * function(points))[:8]]
        values.append(float(function(points[:1])[0]))
    return values[0], values[1]


def random_landscape(family: str, seed: int) -> Landscape:
    """Return landscape number `seed` of a family.

    The number of parameters cycles through 1 to 4. The range of values is `SCALE`, the noise is between 2 and 15 % of
    the range, and the minimum is between -SCALE and 0.
    """
    d = 1 + seed % 4
    rng = Seeds(seed).numpy(f"landscape/{family}")
    function = RANDOM_FAMILIES[family](d, rng)
    lowest, highest = find_extrema(function, d, rng)
    slope, floor, noise = SCALE / (highest - lowest), -SCALE * rng.random(), SCALE * rng.uniform(0.02, 0.15)
    parameters = tuple(Parameter(f"x{i}", 0.0, 1.0, "units", f"knob number {i}") for i in range(d))
    return Landscape(
        family,
        ParameterSpace("knobs", parameters),
        lambda x: floor + slope * (function(x) - lowest),
        lambda x: np.full(len(x), noise),
        floor=floor,
        best=floor + SCALE,
    )


@functools.lru_cache(maxsize=len(FAMILIES))
def landscape(family: str, seed: int) -> Landscape:
    """Return the landscape of run `seed` in a family; measured landscapes do not depend on the seed."""
    return measured_landscape(family) if family in GRIDS else random_landscape(family, seed)
