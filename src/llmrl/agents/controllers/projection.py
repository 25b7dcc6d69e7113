"""A policy with many numbers, searched along a few random directions."""

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
    """The numbers of `inner` are theta = z Q^T, and z is searched.

    Q [d, rank] is drawn once. `orthonormal`: the orthogonal factor of a matrix of standard normal numbers. The code of
    ProPS (arXiv 2511.21928) takes the first `rank` columns of a square matrix's, which are those of its first `rank`
    columns; its own start, theta drawn from N(0, s^2) and z = theta Q, is z drawn from N(0, s^2). `normal`: independent
    N(0, 1 / rank) entries, so that theta scatters as z does.

    Args:
        inner: the policy.
        seeds: of Q.
        rank: directions, at most as many as the policy has numbers.
        basis: see above.
        bound: every entry of z lies between -bound and bound; theta may leave the bounds of `inner`.
        decimals: digits after the point of the entries of z; None: all.

    Raises:
        ConfigError: more directions than numbers.
    """

    def __init__(
        self, inner: Controller, seeds: Seeds, rank: int, basis: Basis, bound: float, decimals: int | None
    ) -> None:
        self.inner, self.channel = inner, inner.channel
        self.clip_actions = bool(getattr(inner, "clip_actions", True))
        d = inner.space.dim
        if rank > d:
            raise ConfigError(f"agent.rank={rank}: the {inner.space.name} has only {d} numbers; set agent.rank <= {d}")
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
        """Actions of n games for what is observed in them under z [n, rank]."""
        return self.prepared(parameters)(observation)

    def prepared(self, parameters: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """`act` with these parameters for many steps."""
        theta, inner = self.full(parameters), self.inner
        quicker: Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray]] | None = getattr(inner, "prepared", None)
        return partial(inner.act, parameters=theta) if quicker is None else quicker(theta)

    def full(self, parameters: np.ndarray) -> np.ndarray:
        """theta [n, d] of z [n, rank]; summed direction by direction, so that a row does not depend on the others."""
        theta = np.zeros((len(parameters), len(self.basis)))
        for i in range(self.basis.shape[1]):
            theta = theta + parameters[:, i, None] * self.basis[:, i]
        return theta

    @property
    def invariances(self) -> str:
        """Changes to the numbers that no action depends on, in words; "" where there are none."""
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
