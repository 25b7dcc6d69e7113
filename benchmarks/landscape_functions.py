"""Landscapes: functions from the vector of a principal to the value of a society, with known truth and noise.

Two sources: `measured_landscape` interpolates a grid that a study has measured (docs/results/data), and
`random_landscape` draws a function of one of `RANDOM_FAMILIES`. `Landscape` adds what a principal needs to search it.
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
"""Points [n, d] of the unit cube -> numbers [n]."""

SCALE = 100.0
"""Range of a random landscape, in units of the payoff."""


@dataclass(frozen=True)
class Landscape:
    """A function with a known maximum, measured with noise.

    Attributes:
        name: name of the landscape or of its family.
        space: vectors that a principal proposes.
        mean: true value of points of the unit cube.
        noise: standard deviation of one measurement at points of the unit cube, in units of the value.
        floor: value of score 0: that of the neutral vector if there is one, else the lowest value.
        best: value of score 1, the highest of the box.
        episodes: independent numbers that a measurement is the mean of, >= 2.
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
        # Not the name of an environment, whose prompt needs facts of its games.
        return make_spec(self.space, name=f"landscape_{self.name}")

    def value(self, vector: np.ndarray) -> float:
        """Return the true value of a vector [d]."""
        return float(self.mean(to_unit(self.space, np.asarray(vector))[None])[0])

    def score(self, vector: np.ndarray) -> float:
        """Return the true value of a vector [d] as a share of the range from `floor` to `best`."""
        return (self.value(vector) - self.floor) / (self.best - self.floor)

    def measure(self, vector: np.ndarray, rng: np.random.Generator) -> Outcome:
        """Return a noisy measurement of a vector [d], with the standard error that its episodes show."""
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
    """A grid that a study has measured.

    Attributes:
        path: table with a column for each number, then mean, low, high (95 % interval over replicates).
        replicates: independent replicates of the interval: societies, or seeds.
        episodes: independent numbers of a measurement in a run of the environment's defaults.
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
    """Return the multilinear interpolation of a measured grid, over the numbers that vary in it.

    The noise is the standard deviation over replicates at each setting, interpolated likewise. It is recovered from the
    width of the interval, a percentile bootstrap, whose variance is (n - 1) / n of that of the mean.
    """
    grid = GRIDS[name]
    with grid.path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    table = np.array(rows, dtype=np.float64)
    settings, means, lows, highs = table[:, :-3], *table[:, -3:].T
    varied = [i for i in range(settings.shape[1]) if len(np.unique(settings[:, i])) > 1]
    axes = [np.unique(settings[:, i]) for i in varied]
    shape = [len(axis) for axis in axes]
    assert len(table) == math.prod(shape), f"{grid.path} is not a complete grid"
    order = np.lexsort(settings[:, varied[::-1]].T)
    n = grid.replicates
    deviations = (highs - lows) / (2 * 1.96) * n / math.sqrt(n - 1)
    unit_axes = [(axis - axis[0]) / (axis[-1] - axis[0]) for axis in axes]
    bounds = zip([header[i] for i in varied], axes, strict=True)
    numbers = tuple(Parameter(p, float(axis[0]), float(axis[-1]), "units", f"number {p}") for p, axis in bounds)
    neutral = (settings == 0).all(axis=1)
    return Landscape(
        name,
        ParameterSpace("knobs", numbers),
        RegularGridInterpolator(unit_axes, means[order].reshape(shape)),
        RegularGridInterpolator(unit_axes, deviations[order].reshape(shape)),
        floor=float(means[neutral][0]),
        best=float(means.max()),
        episodes=grid.episodes,
    )


def gaussian_field(d: int, rng: np.random.Generator) -> Function:
    """Return a draw of a Gaussian process with a squared exponential kernel.

    It is approximated by 256 random Fourier features (Rahimi & Recht 2007, Random features for large-scale kernel
    machines). Each number has a length scale between 0.15 and 0.6 of its range.
    """
    scales = np.exp(rng.uniform(np.log(0.15), np.log(0.6), d))
    frequencies, phases = rng.standard_normal((d, 256)) / scales[:, None], rng.uniform(0, 2 * np.pi, 256)
    weights = rng.standard_normal(256)
    return lambda x: np.asarray(np.cos(x @ frequencies + phases) @ weights)


def ridge(d: int, rng: np.random.Generator) -> Function:
    """Return a ridge of Gaussian profile, through a random point in a random direction, that rises along its length."""
    across, along = rng.standard_normal((2, d))
    across /= np.linalg.norm(across)
    along /= np.linalg.norm(along)
    center, width = rng.uniform(0.2, 0.8, d), rng.uniform(0.05, 0.2)
    return lambda x: np.exp(-(((x - center) @ across / width) ** 2) / 2) * (1 + 0.4 * (x - center) @ along)


def plateau(d: int, rng: np.random.Generator) -> Function:
    """Return an ellipsoid of equal values with a linear slope of half its radius around it, and nothing outside."""
    center = rng.uniform(0.1, 0.9, d)
    # The radius grows with d, so that the plateau does not vanish.
    radii = rng.uniform(0.1, 0.3, d) * math.sqrt(d)
    return lambda x: np.clip(3 - 2 * np.linalg.norm((x - center) / radii, axis=1), 0, 1)


def gate(d: int, rng: np.random.Generator) -> Function:
    """Return a function that falls by up to a tenth below a threshold of one number, and is rewarding only above it.

    Above it the value rises with that number and falls with the distance of the others from a random point, as in Clean
    Up, where pay for cleaning must exceed its cost and other payments do harm.
    """
    gated, threshold = int(rng.integers(d)), rng.uniform(0.3, 0.7)
    center, width = rng.random(d), rng.uniform(0.3, 0.8)

    def value(x: np.ndarray) -> np.ndarray:
        others = np.delete(x - center, gated, axis=1)
        harm = np.exp(-((others / width) ** 2).sum(axis=1) / 2)
        height = (x[:, gated] - threshold) / (1 - threshold)
        return np.where(height < 0, -0.1 * x[:, gated] / threshold, harm * (0.3 + 0.7 * height))

    return value


RANDOM_FAMILIES: dict[str, Callable[[int, np.random.Generator], Function]] = {
    "gaussian": gaussian_field,
    "ridge": ridge,
    "plateau": plateau,
    "gate": gate,
}
FAMILIES = (*GRIDS, *RANDOM_FAMILIES)


def extrema(function: Function, d: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the lowest and highest value in the unit cube, by a Sobol scan and random refinement of its extremes."""
    scan = qmc.Sobol(d, seed=rng).random_base2(12)
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * d), axis=-1).reshape(-1, d)
    found = []
    for sign in (-1.0, 1.0):
        points = np.concatenate([scan, corners])
        points = points[np.argsort(-sign * function(points))[:8]]
        for width in 0.1 * 0.5 ** np.arange(8):
            steps = np.clip(points[:, None] + width * rng.standard_normal((8, 16, d)), 0, 1).reshape(-1, d)
            points = np.concatenate([points, steps])
            points = points[np.argsort(-sign * function(points))[:8]]
        found.append(float(function(points[:1])[0]))
    return found[0], found[1]


def random_landscape(family: str, seed: int) -> Landscape:
    """Return landscape number `seed` of a family.

    It has 1 to 4 numbers, in turn, and noise between 2 and 15 % of its range, which is `SCALE`; its lowest value is
    between -SCALE and 0.
    """
    d = 1 + seed % 4
    rng = Seeds(seed).numpy(f"landscape/{family}")
    function = RANDOM_FAMILIES[family](d, rng)
    lowest, highest = extrema(function, d, rng)
    slope, floor, noise = SCALE / (highest - lowest), -SCALE * rng.random(), SCALE * rng.uniform(0.02, 0.15)
    numbers = tuple(Parameter(f"x{i}", 0.0, 1.0, "units", f"knob number {i}") for i in range(d))
    return Landscape(
        family,
        ParameterSpace("knobs", numbers),
        lambda x: floor + slope * (function(x) - lowest),
        lambda x: np.full(len(x), noise),
        floor=floor,
        best=floor + SCALE,
    )


@functools.lru_cache(maxsize=len(FAMILIES))
def landscape(family: str, seed: int) -> Landscape:
    """Return the landscape of run `seed` in a family: always the same for a measured grid."""
    return measured_landscape(family) if family in GRIDS else random_landscape(family, seed)
