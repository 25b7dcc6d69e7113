"""Policy with many parameters that is searched along a few random directions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace

Basis = Literal["orthonormal", "normal"]


class ProjectedController:
    """Controller whose parameters z determine those of `inner`, theta = z Q^T.

    Q [d, rank] is drawn once. `orthonormal`: the orthogonal factor of a matrix of standard normal numbers. The code of
    ProPS (arXiv 2511.21928) uses the first `rank` columns of the factor of a square matrix, which equal the factor of
    its first `rank` columns; its initial theta from N(0, s^2) with z = theta Q corresponds to z from N(0, s^2).
    `normal`: independent N(0, 1 / rank) elements, so that theta has the variance of z.

    Args:
        inner: the policy.
        seeds: seed tree from which Q is drawn.
        rank: number of directions, at most the number of the policy's parameters.
        basis: distribution of Q, see above.
        bound: each element of z is between -bound and bound; theta may exceed the bounds of `inner`.
        decimals: digits after the decimal point of the elements of z; None: all.

    Raises:
        ConfigError: `rank` exceeds the number of parameters.
    """

    def __init__(
        self, inner: Controller, seeds: Seeds, rank: int, basis: Basis, bound: float, decimals: int | None
    ) -> None:
        self.inner, self.channel = inner, inner.channel
        self.clip_actions = bool(getattr(inner, "clip_actions", True))
        d = inner.space.dim
        if rank > d:
            raise ConfigError(
                f"agent.rank={rank} exceeds the {d} parameters of the {inner.space.name}; use agent.rank<={d}"
            )
        rng = seeds.numpy("projection")
        if basis == "orthonormal":
            self.basis = np.linalg.qr(rng.standard_normal((d, rank)))[0]
        else:
            self.basis = rng.standard_normal((d, rank)) / np.sqrt(rank)
        name = f"projection of a {inner.space.name}"
        entries = (
            Parameter(f"params[{i}]", -bound, bound, "weight", f"amount of direction {i}", decimals)
            for i in range(rank)
        )
        self.space = ParameterSpace(name, tuple(entries))

    def act(self, observation: np.ndarray, parameters: np.ndarray) -> np.ndarray:
        """Return the actions of n games for their observations under z [n, rank]."""
        return self.prepared(parameters)(observation)

    def prepared(self, parameters: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return `act` with fixed parameters for many steps."""
        theta, inner = self.full(parameters), self.inner
        prepare: Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]] | None = getattr(inner, "prepared", None)
        return partial(inner.act, parameters=theta) if prepare is None else prepare(theta)

    def full(self, parameters: np.ndarray) -> np.ndarray:
        """Return theta [n, d] for z [n, rank].

        Sums run direction by direction, so that results of a game do not depend on the others.
        """
        theta = np.zeros((len(parameters), len(self.basis)))
        for i in range(self.basis.shape[1]):
            theta = theta + parameters[:, i, None] * self.basis[:, i]
        return theta

    @property
    def invariances(self) -> str:
        """Description of the changes to the parameters that affect no action, for prompts; "" if there are none."""
        if not getattr(self.inner, "invariances", "") or len(getattr(self.inner, "layers", ())) > 1:
            return ""
        return (
            "Only which output of the policy is largest counts. So nothing changes where all numbers are multiplied by "
            "the same positive factor, up to what rounding does."
        )

    @property
    def layout(self) -> str:
        d, rank = self.basis.shape
        return (
            f"The policy is a {self.inner.space.name} of {d} weights. They are the sum of {rank} fixed random "
            f"directions, and params[i] is how much of direction i goes into it, for i from 0 to {rank - 1}. Which "
            "weights a direction changes is not told."
        )
