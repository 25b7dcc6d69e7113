"""A principal that follows the derivative of its objective through the agents' learning."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import MetaSettings, Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.principals.observation import USUAL, ObserveSettings, PrincipalObservation

if TYPE_CHECKING:
    import torch


class MetaGradPrincipal:
    """Adaptive incentive design by meta-gradients (Yang et al. 2021, arXiv 2112.10859): a network of what was observed
    proposes the vector, and steps along d objective / d vector, which the loop obtains from the agents.

    The weights are orthogonal, drawn from the run's own stream, and the last layer small, so that the first vector is
    the middle of the box. The published network begins with torch's own initialisation, also near the middle.

    Args:
        spec: of the environment.
        seeds: of the weights.
        hidden: widths of the network.
        learning_rate, adam_eps: of Adam.
        max_grad_norm: gradients by the weights are scaled down to this norm.
        gamma: discount per step of the objective in the estimate; 1 is the objective itself, 0.998 published.
        baseline: what returns are compared with, `others` or `past` (published); see `MetaSettings`.
        through_observation: count that agents who see the vector act on it; false is published.
        differentiate_targets: count that the agents' value targets depend on the vector; false is published.
        observe: what the network sees of the previous step.

    Raises:
        ConfigError: what is to be observed does not exist.
    """

    parallel = False
    needs_gradient = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        hidden: Sequence[PositiveInt] = (256, 256),
        learning_rate: PositiveFloat = 2e-4,
        adam_eps: PositiveFloat = 1e-5,
        max_grad_norm: PositiveFloat = 0.5,
        gamma: UnitInterval = 1.0,
        baseline: Literal["others", "past"] = "others",
        through_observation: bool = True,
        differentiate_targets: bool = False,
        observe: ObserveSettings = USUAL,
    ) -> None:
        import torch

        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.mlp import BoxHead

        self.space = spec.proposals
        self.observed = PrincipalObservation(spec, observe)
        self._settings = MetaSettings(
            gamma=gamma,
            baseline=baseline,
            through_observation=through_observation,
            differentiate_targets=differentiate_targets,
        )
        low, high = torch.tensor(self.space.low), torch.tensor(self.space.high)
        self.network = BoxHead(self.observed.size, hidden, low, high, seeds.torch("weights"))
        self.updater = OptimizerStep(self.network, learning_rate, adam_eps, max_grad_norm)
        self.asked: State | None = None  # what the vector of the last `ask` was made from
        # Objectives so far, by context: how many, and their mean.
        self.counts = np.zeros(self.space.n_rows, dtype=np.int64)
        self.means = np.zeros(self.space.n_rows)

    @property
    def meta_settings(self) -> MetaSettings:
        """For the vector of the last `ask`."""
        if self.asked is None:
            return self._settings
        return replace(self._settings, past_return=float(self.means[self.asked["row"]]))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        observed = torch.as_tensor(self.observed.vector(context))
        self.asked = {"observed": observed, "row": self.space.row(context)}
        return self._output(observed)[None]

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the network's present output in a context, [1, d]; [0, d] before the first outcome."""
        import torch

        first = [self._output(torch.as_tensor(self.observed.vector(context)))] if self.counts.any() else []
        return np.array(first[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _output(self, observed: torch.Tensor) -> np.ndarray:
        """Return the vector that the network proposes, [d]."""
        import torch

        with torch.no_grad():
            vector = self.network(observed).numpy()
        inside: np.ndarray = np.clip(vector, self.space.low, self.space.high)  # rounding of a saturated sigmoid
        return inside

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Metrics: gradient_norm (of the objective, by the vector), weights_gradient_norm (by the weights, before
        clipping), past_return (mean objective so far in the context).

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        import torch

        [outcome] = outcomes
        assert self.asked is not None and outcome.gradient is not None, "the loop gives a gradient after each ask()"
        if not np.isfinite(outcome.gradient).all():
            raise FloatingPointError(
                f"d objective / d {self.space.name} is {outcome.gradient.tolist()}; a smaller agent.ppo.learning_rate "
                "or a larger agent.ppo.adam_eps keeps it finite"
            )
        vector = self.network(self.asked["observed"])
        norm = self.updater.descend(-(torch.as_tensor(outcome.gradient) * vector).sum())
        row = self.asked["row"]
        self.counts[row] += 1
        self.means[row] += (outcome.value - self.means[row]) / self.counts[row]
        self.observed.tell(outcomes)
        return {
            "principal/gradient_norm": float(np.linalg.norm(outcome.gradient)),
            "principal/weights_gradient_norm": float(norm),
            "principal/past_return": float(self.means[row]),
        }

    def state_dict(self) -> State:
        return copy.deepcopy(
            {
                "network": dict(self.network.state_dict()),
                "optimizer": self.updater.optimizer.state_dict(),
                "observed": self.observed.state_dict(),
                "asked": self.asked,
                "counts": self.counts,
                "means": self.means,
            }
        )

    def load_state_dict(self, state: State) -> None:
        state = copy.deepcopy(state)
        self.network.load_state_dict(state["network"])
        self.updater.optimizer.load_state_dict(state["optimizer"])
        self.observed.load_state_dict(state["observed"])
        self.asked, self.counts, self.means = state["asked"], state["counts"], state["means"]
