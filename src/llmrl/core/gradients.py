"""What a proposer that learns through the agents' learning wants of the other parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from llmrl.core.objectives import Objective
from llmrl.core.protocols import Proposer
from llmrl.core.records import MetaSettings, Outcome

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


@runtime_checkable
class GradientProposer(Proposer, Protocol):
    """A proposer that learns from `Outcome.gradient`, for which the agents' learning must be differentiable."""

    needs_gradient: bool
    """True."""

    @property
    def meta_settings(self) -> MetaSettings:
        """How it wants the gradient of the vector of the last `ask` estimated."""
        ...


@runtime_checkable
class MetaLearner(Protocol):
    """The learning of agents during one principal step, as a differentiable function of the mechanism's values."""

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """What `Agent.update` does, keeping how the new weights depend on the values."""
        ...

    def gradient(
        self, rollouts: Sequence[Rollout], objective: Objective, spending_cost: float, outcome: Outcome
    ) -> np.ndarray:
        """Estimated derivative, [d], of the objective of validation `rollouts` by the values; `outcome` is theirs."""
        ...


@runtime_checkable
class DifferentiableAgent(Protocol):
    """An agent whose learning can be differentiated."""

    def meta_learner(self, values: np.ndarray, settings: MetaSettings) -> MetaLearner:
        """The agent's learner for one principal step under mechanism values [d]; it changes the agent's weights."""
        ...
