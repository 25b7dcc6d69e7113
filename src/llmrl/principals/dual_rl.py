"""Policy-gradient principal, whose network proposes each number from a list of values and learns by PPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.principals.grid import FINE, default_points
from llmrl.principals.observation import ObserveSettings, PrincipalObservation


@dataclass(frozen=True)
class DualRLSettings:
    """Options of `DualRLPrincipal`; meanings, units and ranges are in `conf/principal/_network.yaml`.

    Attributes:
        entropy_coefficient: weight of the entropy, in the units of the learned payoffs: standard deviations, or with
            `scale_payoffs=false` the payoffs' own units, where 0.2 is published.
    """

    points: PositiveInt | None
    hidden: list[PositiveInt]
    learning_rate: PositiveFloat
    adam_eps: PositiveFloat
    epochs: PositiveInt
    clip: PositiveFloat | None
    value_clip: PositiveFloat | None
    entropy_coefficient: NonNegativeFloat
    value_coefficient: NonNegativeFloat
    max_grad_norm: PositiveFloat
    scale_payoffs: bool
    observe: ObserveSettings


class DualRLPrincipal(StateFields):
    """Social planner of Zheng et al. (The AI Economist, 2020, arXiv 2004.13332) for one proposal per step.

    The network is a multilayer perceptron with an independent softmax head for each number. A head chooses among
    `points` evenly spaced values, or keeps the number of the previous step (the lower bound, or 0, at the first). Each
    step is an episode of length one: PPO with the payoff as return, on as many samples as there are proposals in the
    step.

    By default payoffs are standardized by the mean and standard deviation of all payoffs so far. Otherwise advantages
    are as large as payoffs until the critic has learned their level, by one value clip per step, and until then all
    proposals are reinforced (or punished) alike.

    Args:
        settings: options.
        spec: spec of the environment.
        seeds: seed tree of weights and choices.

    Raises:
        ConfigError: fewer than two points, or an observed metric does not exist.
    """

    _state_fields = ("network", "updater", "observed", "asked", "previous", "count", "mean", "squares")

    parallel = True

    def __init__(self, settings: DualRLSettings, spec: EnvSpec, seeds: Seeds) -> None:
        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.mlp import IndependentHeads

        self.space = spec.proposals
        self.settings = settings
        self.observed = PrincipalObservation(spec, settings.observe)
        self.points = default_points(self.space, FINE) if settings.points is None else settings.points
        if self.points < 2:
            raise ConfigError(f"principal.points must be at least 2 (both bounds), got {self.points}")
        weights = seeds.torch("weights")
        self.network = IndependentHeads(self.observed.size, settings.hidden, self.space.dim, self.points + 1, weights)
        self.updater = OptimizerStep(self.network, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        self.generator = seeds.torch("principal")
        self.previous = np.zeros((0, self.space.dim))  # the last vectors, one for each proposal of a step
        self.asked: State | None = None  # observation, choices and network outputs of the last `ask`
        self.count, self.mean, self.squares = (
            0,
            0.0,
            0.0,
        )  # moments of all payoffs

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        from llmrl.networks import categorical

        observation = torch.as_tensor(self.observed.vector(context))
        with torch.no_grad():
            logits, value = self.network(observation)
            logits = logits.expand(n, -1, -1)
            choice = categorical.sample(logits, self.generator)
            log_prob, _ = categorical.log_prob_entropy(logits, choice)
        self.asked = {"observed": observation, "choice": choice, "log_prob": log_prob.sum(-1), "value": value}
        self.previous = self._vectors(choice.numpy())
        return self.previous.copy()

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the network and return metrics.

        They are entropy (of a head, mean, nats), value (expected payoff, in payoff units), advantage (mean) and
        weights_gradient_norm (before clipping, mean over epochs).
        """
        import torch

        from llmrl.algorithms.losses import surrogate, value_error
        from llmrl.networks import categorical

        assert self.asked is not None, "call ask() before tell()"
        settings, proposal, n = self.settings, self.asked, len(outcomes)
        center, scale = self._update_moments([outcome.value for outcome in outcomes])
        payoff = torch.tensor([(outcome.value - center) / scale for outcome in outcomes], dtype=torch.float32)
        advantage, norms = payoff - proposal["value"], []
        for _ in range(settings.epochs):
            logits, value = self.network(proposal["observed"])
            log_prob, entropy = categorical.log_prob_entropy(logits.expand(n, -1, -1), proposal["choice"])
            ratio = (log_prob.sum(-1) - proposal["log_prob"]).exp()
            error = value_error(value.expand(n), proposal["value"], payoff, settings.value_clip)
            loss = (
                -surrogate(ratio, advantage, settings.clip).mean()
                + settings.value_coefficient * 0.5 * error.mean()
                - settings.entropy_coefficient * entropy.sum(-1).mean()
            )
            norms.append(float(self.updater.descend(loss)))
        self.observed.tell(outcomes)
        return {
            "principal/entropy": float(entropy.detach().mean()),
            "principal/value": float(proposal["value"]) * scale + center,
            "principal/advantage": float(advantage.mean()),
            "principal/weights_gradient_norm": float(np.mean(norms)),
        }

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of the most likely choice of each head in a context, [1, d]; [0, d] before an outcome.

        Before the first outcome the network is untrained. A head whose most likely choice is to keep the previous
        number keeps that of the last step's first proposal.
        """
        import torch

        vectors = []
        if self.count:
            with torch.no_grad():
                logits, _ = self.network(torch.as_tensor(self.observed.vector(context)))
            vectors = [self._vectors(logits.argmax(-1).numpy()[None])[0]]
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _vectors(self, choice: np.ndarray) -> np.ndarray:
        """Return the vectors [n, d] of choices [n, d]; the last choice of a head keeps the previous number."""
        low, high = self.space.low, self.space.high
        n = len(choice)
        previous = np.tile(np.clip(0.0, low, high), (n, 1))
        previous[: len(self.previous)] = self.previous[:n]
        # With these weights the last point is exactly the upper bound, without rounding errors.
        weight = np.minimum(choice, self.points - 1) / (self.points - 1)
        return np.where(choice == self.points, previous, low * (1.0 - weight) + high * weight)

    def _update_moments(self, payoffs: Sequence[float]) -> tuple[float, float]:
        """Add payoffs to the moments (Welford's update) and return their mean and standard deviation.

        Without `scale_payoffs`, they are 0 and 1.
        """
        for payoff in payoffs:
            self.count += 1
            delta = payoff - self.mean
            self.mean += delta / self.count
            self.squares += delta * (payoff - self.mean)
        if not self.settings.scale_payoffs:
            return 0.0, 1.0
        deviation = (self.squares / self.count) ** 0.5
        return self.mean, deviation if deviation > 0 else 1.0

    def state_dict(self) -> State:
        return super().state_dict() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.generator.set_state(state["generator"])
