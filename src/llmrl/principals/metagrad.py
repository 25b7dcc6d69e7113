"""Principal that follows the derivative of its objective through the agents' learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import MetaSettings, Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.principals.observation import ObserveSettings, PrincipalObservation

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class MetaGradSettings:
    """Options of `MetaGradPrincipal`; meanings, units and ranges are in `conf/principal/_network.yaml`."""

    hidden: list[PositiveInt]
    learning_rate: PositiveFloat
    adam_eps: PositiveFloat
    max_grad_norm: PositiveFloat
    gamma: UnitInterval
    baseline: Literal["others", "past"]
    observation_gradient: bool
    differentiate_targets: bool
    observe: ObserveSettings


class MetaGradPrincipal(StateFields):
    """Adaptive incentive design by meta-gradients (Yang et al. 2021, arXiv 2112.10859).

    A network of the observation proposes the vector and is updated along d objective / d vector, which the loop obtains
    from the agents.

    The initial weights are orthogonal, drawn from the run's own stream, and small in the last layer, so that the first
    vector is the center of the box. The published network uses torch's default initialization, also near the center.

    Args:
        settings: options.
        spec: spec of the environment.
        seeds: seed tree of the weights.

    Raises:
        ConfigError: an observed metric does not exist.
    """

    _state_fields = ("network", "updater", "observed", "asked", "counts", "means")

    parallel = False
    needs_gradient = True

    def __init__(self, settings: MetaGradSettings, spec: EnvSpec, seeds: Seeds) -> None:
        import torch

        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.mlp import BoxHead

        self.space = spec.proposals
        self.observed = PrincipalObservation(spec, settings.observe)
        self._meta_settings = MetaSettings(
            gamma=settings.gamma,
            baseline=settings.baseline,
            observation_gradient=settings.observation_gradient,
            differentiate_targets=settings.differentiate_targets,
        )
        low, high = torch.tensor(self.space.low), torch.tensor(self.space.high)
        self.network = BoxHead(self.observed.size, settings.hidden, low, high, seeds.torch("weights"))
        self.updater = OptimizerStep(self.network, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        self.asked: State | None = None  # observation and context of the last `ask`
        # Number and mean of the objectives so far, by context.
        self.counts = np.zeros(self.space.n_rows, dtype=np.int64)
        self.means = np.zeros(self.space.n_rows)

    @property
    def meta_settings(self) -> MetaSettings:
        """Settings of the gradient for the vector of the last `ask`."""
        if self.asked is None:
            return self._meta_settings
        return replace(self._meta_settings, past_return=float(self.means[self.asked["row"]]))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        observation = torch.as_tensor(self.observed.vector(context))
        self.asked = {"observed": observation, "row": self.space.row(context)}
        return self._output(observation)[None]

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the network's present output in a context, [1, d]; [0, d] before the first outcome."""
        import torch

        vectors = [self._output(torch.as_tensor(self.observed.vector(context)))] if self.counts.any() else []
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _output(self, observation: torch.Tensor) -> np.ndarray:
        """Return the vector that the network proposes, [d]."""
        import torch

        with torch.no_grad():
            vector = self.network(observation).numpy()
        inside: np.ndarray = np.clip(vector, self.space.low, self.space.high)  # rounding of a saturated sigmoid
        return inside

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the network with the gradient of an outcome and return metrics.

        They are gradient_norm (of the objective by the vector), weights_gradient_norm (by the weights, before clipping)
        and past_return (mean objective so far in the context).

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        import torch

        [outcome] = outcomes
        assert self.asked is not None and outcome.gradient is not None, "the loop passes a gradient after each ask()"
        if not np.isfinite(outcome.gradient).all():
            raise FloatingPointError(
                f"d objective / d {self.space.name} is {outcome.gradient.tolist()}, which is not finite; use a smaller "
                "agent.ppo.learning_rate or a larger agent.ppo.adam_eps"
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
