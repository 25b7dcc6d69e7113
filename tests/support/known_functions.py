"""Benchmark functions with known maxima, with the interface of societies.

The outcome of a proposal contains values of validation episodes, with optional noise, and the exact gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import shipped
from llmrl.core.protocols import Proposer
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec, Parameter, ParameterSpace
from llmrl.principals.bandits import EpsilonGreedyPrincipal
from llmrl.principals.evolution import CMAESPrincipal
from llmrl.principals.gp import GaussianProcessPrincipal
from llmrl.principals.nonadaptive import RandomPrincipal
from llmrl.statistics.estimators import standard_error_of_mean
from shipped import build_principal
from societies import make_spec

Evaluate = Callable[[np.ndarray, int], tuple[float, np.ndarray]]
"""Function from a vector in the unit cube [d] and a context to the value and its gradient [d]."""


@dataclass(frozen=True)
class BenchmarkFunction:
    """Function on a box, defined on the unit cube.

    Attributes:
        low, high: bounds of the box.
        evaluate: function on the unit cube.
        best: position of the maximum in the unit cube, [n_contexts or 1, d].
        range: maximum minus minimum, the same in every context.
        contexts: names of the contexts.
        noise: standard deviation of the value of an episode, relative to `range`.
        episodes: number of validation episodes per outcome.
    """

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    evaluate: Evaluate
    best: np.ndarray
    range: float
    contexts: tuple[str, ...] = ()
    noise: float = 0.0
    episodes: int = 2

    @property
    def spec(self) -> EnvSpec:
        bounds = zip(self.low, self.high, strict=True)
        numbers = tuple(Parameter(f"x{i}", *pair, "units", f"knob number {i}") for i, pair in enumerate(bounds))
        return make_spec(ParameterSpace("knobs", numbers), name=self.name, contexts=self.contexts)

    def unit(self, vector: np.ndarray) -> np.ndarray:
        return (np.asarray(vector) - self.low) / (np.array(self.high) - self.low)

    def regret(self, vector: np.ndarray, context: int | None = None) -> float:
        """Return the simple regret of a vector without noise, relative to the range."""
        row = context or 0
        return (self.evaluate(self.best[row], row)[0] - self.evaluate(self.unit(vector), row)[0]) / self.range

    def outcome(self, vector: np.ndarray, context: int | None, rng: np.random.Generator) -> Outcome:
        true, gradient = self.evaluate(self.unit(vector), context or 0)
        values = true + self.noise * self.range * rng.standard_normal(self.episodes)
        return Outcome(
            vector=np.array(vector),
            value=float(values.mean()),
            values=values,
            standard_error=standard_error_of_mean(values),
            context=context,
            returns=np.full(3, values.mean()),
            gradient=gradient / (np.array(self.high) - self.low),
        )


def optimize(function: BenchmarkFunction, proposer: Proposer, seed: int, evaluations: int, n: int = 1) -> np.ndarray:
    """Run a proposer on a function and return the noise-free regret of each proposal, [evaluations].

    Each step has `n` proposals; contexts alternate between steps.
    """
    rng, regrets = Seeds(seed).numpy("noise"), list[float]()
    for step in range(evaluations // n):
        context = step % len(function.contexts) if function.contexts else None
        vectors = function.spec.proposal_space.check(proposer.ask(context, n))
        proposer.tell([function.outcome(vector, context, rng) for vector in vectors])
        regrets += [function.regret(vector, context) for vector in vectors]
    return np.array(regrets)


def find_lowest_regret(function: BenchmarkFunction, regrets: np.ndarray, n: int = 1) -> float:
    """Return the lowest regret among the proposals of `optimize`, mean over contexts."""
    contexts = max(len(function.contexts), 1)
    turn = np.arange(len(regrets)) // n % contexts
    return float(np.mean([regrets[turn == c].min() for c in range(contexts)]))


def make_quadratic(best: np.ndarray, weights: np.ndarray, **kwargs) -> BenchmarkFunction:
    """Return the function 10 - 10 sum_i w_i (x_i - best_i)^2 / sum_i w_i.

    Args:
        best: position of the maximum, [n_contexts or 1, d]; the range of the function must be equal in all contexts.
        weights: weights of the coordinates, [d].
        kwargs: other attributes of the function.
    """
    weights = 10 * weights / weights.sum()

    def evaluate(x: np.ndarray, row: int) -> tuple[float, np.ndarray]:
        off = x - best[row]
        return 10 - float(weights @ off**2), -2 * weights * off

    span = weights @ np.maximum(best, 1 - best).T ** 2
    assert np.allclose(span, span[0])
    d = best.shape[1]
    return BenchmarkFunction(
        low=(-1.0,) * d, high=(3.0,) * d, evaluate=evaluate, best=best, range=float(span[0]), **kwargs
    )


def _rastrigin(x: np.ndarray, row: int) -> tuple[float, np.ndarray]:
    """Return the value and gradient of a Rastrigin function with 3 local maxima along each coordinate."""
    off, waves = x - 0.3, 2 * np.pi * 3
    value = -float((off**2 + 0.1 * (1 - np.cos(waves * off))).sum())
    return value, -(2 * off + 0.1 * waves * np.sin(waves * off))


# Hartmann's function of three variables (Dixon & Szego 1978), four hills, as usually tabulated.
_HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_STEEPNESS = np.array([[3.0, 10, 30], [0.1, 10, 35], [3.0, 10, 30], [0.1, 10, 35]])
_TOPS = 1e-4 * np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]])


def _hartmann(x: np.ndarray, row: int) -> tuple[float, np.ndarray]:
    hills = _HEIGHTS * np.exp(-(_STEEPNESS * (x - _TOPS) ** 2).sum(1))
    return float(hills.sum()), -2 * hills @ (_STEEPNESS * (x - _TOPS))


QUADRATIC = make_quadratic(np.array([[0.7, 0.2, 0.45]]), np.array([1.0, 3.0, 0.5]), name="quadratic")
NOISY = make_quadratic(QUADRATIC.best, np.array([1.0, 3.0, 0.5]), name="noisy", noise=0.1)
SMOOTH = BenchmarkFunction(
    "smooth", (0.0, 0.0, -5.0), (1.0, 20.0, 5.0), _hartmann, np.array([[0.114614, 0.555649, 0.852547]]), 3.8628
)
MULTIMODAL = BenchmarkFunction("multimodal", (0.0, 0.0), (5.0, 5.0), _rastrigin, np.array([[0.3, 0.3]]), 1.0182)
CONTEXTUAL = make_quadratic(
    np.array([[0.2, 0.7], [0.8, 0.7], [0.2, 0.3]]), np.ones(2), name="contextual", contexts=("a", "b", "c"), noise=0.02
)
WIDE = make_quadratic(np.linspace(0.25, 0.75, 20)[None], np.ones(20), name="wide", noise=0.02)

RIVER_NOISE = 15.0
"""Standard deviation of the reported value of a proposal on the function of `make_river`."""


def make_river(
    order: tuple[int, int, int] = (0, 1, 2), mirrored: tuple[bool, bool, bool] = (False,) * 3
) -> BenchmarkFunction:
    """Return a rough model of incentives in Clean Up (docs/regimes.md), with permuted and mirrored parameters.

    In the original model `eat` has no effect, `clean` lowers the value up to 1 and raises it from 1.5 on, and `other`
    reduces the effect of `clean`.

    Args:
        order: index in (eat, clean, other) of the role of each parameter.
        mirrored: whether the range of each parameter is reversed.
    """

    def evaluate(x: np.ndarray, row: int) -> tuple[float, np.ndarray]:
        parts = np.empty(3)
        parts[list(order)] = 3 * np.where(mirrored, 1 - x, x)
        _, clean, second = parts
        worth = np.interp(clean, [0, 0.5, 1, 1.25, 1.5, 2], [0, -10, -15, 30, 60, 85])
        alive = np.interp(second, [0, 0.25, 1, 1.5], [1, 0.7, 0.3, 0])
        if clean > 1:
            worth = alive * worth - 20 * (1 - alive)
        return float(worth), np.full(3, np.nan)  # the function is not used with gradient-based principals

    best = np.where(mirrored, 0.0, 1.0)
    free = list(order).index(2)
    best[free] = 1.0 - best[free]
    low, high, episodes = (0.0,) * 3, (3.0,) * 3, 2
    noise = RIVER_NOISE * episodes**0.5 / 105
    return BenchmarkFunction("river", low, high, evaluate, best[None], 105.0, (), noise, episodes)


FUNCTIONS = {f.name: f for f in (QUADRATIC, NOISY, SMOOTH, MULTIMODAL, CONTEXTUAL, WIDE)}

PRINCIPALS: dict[str, Callable[[EnvSpec, Seeds], Proposer]] = {
    "random": lambda spec, seeds: RandomPrincipal(spec.proposal_space, seeds),
    # Grids that a short search can cover partly.
    "egreedy": lambda spec, seeds: EpsilonGreedyPrincipal(spec.proposal_space, seeds, points=6),
    "ucb": lambda spec, seeds: shipped.build_ucb(spec.proposal_space, seeds, points=4),
    "thompson": lambda spec, seeds: shipped.build_thompson(spec.proposal_space, seeds, points=4, prior_rate=0.05),
    "gp": lambda spec, seeds: GaussianProcessPrincipal(spec.proposal_space, seeds),
    "cem": lambda spec, seeds: shipped.build_cem(spec.proposal_space, seeds),
    "cmaes": lambda spec, seeds: CMAESPrincipal(spec.proposal_space, seeds),
    # Networks that learn within a few hundred steps.
    "dual_rl": lambda spec, seeds: build_principal("dual_rl", spec, seeds, points=6, hidden=[32], learning_rate=5e-3),
    "metagrad": lambda spec, seeds: build_principal("metagrad", spec, seeds, hidden=[32], learning_rate=1e-2),
}
"""Factories of principals by option name, with settings for these small functions."""


def is_applicable(principal: str, function: BenchmarkFunction, n: int = 1) -> bool:
    """Return whether a principal can be run on a function.

    Principals with grids support at most 5 parameters, and gradient ascent supports one proposal per step.
    """
    if principal in ("egreedy", "ucb", "thompson") and len(function.low) > 5:
        return False
    return n == 1 or principal != "metagrad"
