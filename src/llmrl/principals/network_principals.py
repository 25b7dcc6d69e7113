"""Principals that are networks: `DualRLPrincipal` learns by PPO, `MetaGradPrincipal` by meta-gradients.

The inputs of both are the context, and metrics of the game in the previous principal step (`ObservationEncoder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import MetaSettings, Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.principals.grid import FINE_GRID_POINTS, find_default_grid_points

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ObserveSettings:
    """Settings of the observation of a network principal.

    Attributes:
        metrics: names of metrics in `spec.principal_metrics`; None: all.
        moments: number of windows, of almost equal length, over which a metric's trajectory is averaged; at most its
            number of steps. None: no averaging, every step is an input.
        interval: subsampling: only steps 0, `interval`, 2 `interval`, ... of a trajectory are used.
        scale: divisor of the window means; None: the largest magnitude of a metric's window means so far.
        history: whether outcomes are observed; if not, the context is the only information.
    """

    metrics: list[str] | None = None
    moments: PositiveInt | None = 10
    interval: PositiveInt = 1
    scale: PositiveFloat | None = None
    history: bool = True


class ObservationEncoder(StateFields):
    """Encoder of the context and of the outcomes of the previous step as one vector.

    The vector is the one-hot context, followed by the window means of each metric. A metric's trajectory (mean over
    validation episodes, and over the proposals of the step) is subsampled, averaged over windows and divided by a
    scale. Before the first outcome, or without history, all of these features are 1.

    Args:
        spec: specification of the environment.
        settings: settings of the observation.

    Raises:
        ConfigError: a metric does not exist, or the environment has no horizon.
    """

    _state_fields = ("last", "largest")

    def __init__(self, spec: EnvSpec, settings: ObserveSettings) -> None:
        metrics, moments, interval = settings.metrics, settings.moments, settings.interval
        self.metrics = list(spec.principal_metrics if metrics is None else metrics)
        unknown_metrics = [name for name in self.metrics if name not in spec.principal_metrics]
        if unknown_metrics:
            raise ConfigError(
                f"principal.observe.metrics: env={spec.name} has no metric '{unknown_metrics[0]}' for principals; "
                f"available: {', '.join(spec.principal_metrics)}"
            )
        if spec.horizon is None:
            raise ConfigError(
                f"env.horizon=null for env={spec.name}, but this principal needs episodes of one length; set "
                "env.horizon"
            )
        n_steps = -(-spec.horizon // interval)
        self.n_windows = n_steps if moments is None else min(moments, n_steps)
        self.space, self.interval = spec.proposal_space, interval
        self.scale, self.history = settings.scale, settings.history
        self.largest = np.zeros(len(self.metrics))  # largest magnitude of each metric's window means so far
        self.last: np.ndarray | None = None  # window means of the previous step, [n_metrics, n_windows], not scaled

    @property
    def size(self) -> int:
        return len(self.space.contexts) + len(self.metrics) * self.n_windows

    def encode(self, context: int | None) -> np.ndarray:
        """Return the observation before a proposal in `context`, [size] float32."""
        one_hot = np.zeros(len(self.space.contexts))
        if self.space.contexts:
            one_hot[self.space.find_context_row(context)] = 1.0
        else:
            self.space.find_context_row(context)
        features = np.ones((len(self.metrics), self.n_windows))
        if self.last is not None:
            scale = np.where(self.largest > 0, self.largest, 1.0)[:, None] if self.scale is None else self.scale
            features = self.last / scale
        return np.concatenate([one_hot, features.ravel()]).astype(np.float32)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Store the window means of the outcomes of a step."""
        if not self.history or not self.metrics:
            return
        self.last = np.mean([self._compute_window_means(outcome) for outcome in outcomes], axis=0)
        self.largest = np.maximum(self.largest, np.abs(self.last).max(1))

    def _compute_window_means(self, outcome: Outcome) -> np.ndarray:
        trajectories = [outcome.trajectories[name][:: self.interval] for name in self.metrics]
        return np.array(
            [[window.mean() for window in np.array_split(x, self.n_windows)] for x in trajectories], dtype=np.float64
        )


@dataclass(frozen=True)
class DualRLSettings:
    """Options of `DualRLPrincipal`; meanings, units and ranges are in `conf/principal/dual_rl.yaml`.

    Attributes:
        entropy_coefficient: weight of the entropy in the loss. Its unit is the standard deviation of payoffs, or with
            `scale_payoffs=false` the unit of payoffs, for which the published value is 0.2.
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
    """Social planner of Zheng et al. (The AI Economist, 2020, arXiv 2004.13332), as a bandit with one action per step.

    The network is a multilayer perceptron with an independent softmax head for each parameter. A head selects one of
    `points` evenly spaced values, or keeps the parameter's value of the previous step (at the first step: 0, clipped to
    the bounds). Each step is an episode of length one: PPO with the payoff as return, and one sample per proposal.

    By default payoffs are standardized by the mean and standard deviation of all payoffs so far. Without this, the
    critic approaches the mean payoff by at most one value clip per step. Until then advantages are dominated by the
    mean payoff, so an update raises the probability of all proposals, or lowers that of all.

    Args:
        settings: options.
        spec: specification of the environment.
        seeds: seed tree of the initial weights and of the sampled actions.

    Raises:
        ConfigError: fewer than two points, or an observed metric does not exist.
    """

    _state_fields = ("network", "updater", "encoder", "last_proposal", "previous", "count", "mean", "squares")

    parallel = True

    def __init__(self, settings: DualRLSettings, spec: EnvSpec, seeds: Seeds) -> None:
        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.layers import IndependentHeads

        self.space = spec.proposal_space
        self.settings = settings
        self.encoder = ObservationEncoder(spec, settings.observe)
        points = settings.points
        self.points = find_default_grid_points(self.space, FINE_GRID_POINTS) if points is None else points
        if self.points < 2:
            raise ConfigError(f"principal.points must be at least 2 (both bounds), got {self.points}")
        generator = seeds.torch("weights")
        self.network = IndependentHeads(self.encoder.size, settings.hidden, self.space.dim, self.points + 1, generator)
        self.updater = OptimizerStep(self.network, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        self.generator = seeds.torch("principal")
        self.previous = np.zeros((0, self.space.dim))  # vectors of the last `ask`, [n, d]
        self.last_proposal: State | None = None  # observation, choices and network outputs of the last `ask`
        self.count, self.mean, self.squares = 0, 0.0, 0.0  # payoffs: number, mean, sum of squared deviations

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        from llmrl.networks.action_distributions import CategoricalDistribution, sample_categorical

        observation = torch.as_tensor(self.encoder.encode(context))
        with torch.no_grad():
            logits, value = self.network(observation)
            logits = logits.expand(n, -1, -1)
            choice = sample_categorical(logits, self.generator)
            log_prob, _ = CategoricalDistribution.log_prob_entropy(logits, choice)
        self.last_proposal = {
            "observation": observation,
            "choice": choice,
            "log_prob": log_prob.sum(-1),
            "value": value,
        }
        self.previous = self._choices_to_vectors(choice.numpy())
        return self.previous.copy()

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the network and return metrics with the prefix `principal/`.

        They are entropy (nats, mean over heads), value (the critic's prediction of the payoff), advantage (mean over
        proposals) and weights_gradient_norm (before clipping, mean over epochs).
        """
        import torch

        from llmrl.algorithms.advantages_and_losses import surrogate_objectives, value_losses
        from llmrl.networks.action_distributions import CategoricalDistribution

        assert self.last_proposal is not None, "call ask() before tell()"
        settings, proposal, n = self.settings, self.last_proposal, len(outcomes)
        center, scale = self._update_moments([outcome.value for outcome in outcomes])
        payoff = torch.tensor([(outcome.value - center) / scale for outcome in outcomes], dtype=torch.float32)
        advantage, gradient_norms = payoff - proposal["value"], []
        for _ in range(settings.epochs):
            logits, value = self.network(proposal["observation"])
            log_prob, entropy = CategoricalDistribution.log_prob_entropy(logits.expand(n, -1, -1), proposal["choice"])
            ratio = (log_prob.sum(-1) - proposal["log_prob"]).exp()
            squared_error = value_losses(value.expand(n), proposal["value"], payoff, settings.value_clip)
            loss = (
                -surrogate_objectives(ratio, advantage, settings.clip).mean()
                + settings.value_coefficient * 0.5 * squared_error.mean()
                - settings.entropy_coefficient * entropy.sum(-1).mean()
            )
            gradient_norms.append(float(self.updater.step_on_loss(loss)))
        self.encoder.tell(outcomes)
        return {
            "principal/entropy": float(entropy.detach().mean()),
            "principal/value": float(proposal["value"]) * scale + center,
            "principal/advantage": float(advantage.mean()),
            "principal/weights_gradient_norm": float(np.mean(gradient_norms)),
        }

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of the most probable choice of each head, [1, d]; [0, d] before the first update.

        A head whose most probable choice is to keep the previous value gives that of the first proposal of the last
        step.
        """
        import torch

        vectors = []
        if self.count:
            with torch.no_grad():
                logits, _ = self.network(torch.as_tensor(self.encoder.encode(context)))
            vectors = [self._choices_to_vectors(logits.argmax(-1).numpy()[None])[0]]
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _choices_to_vectors(self, choice: np.ndarray) -> np.ndarray:
        """Return the vectors that choices select, both [n, d]. Choice `points` keeps the value of the previous step."""
        low, high = self.space.low, self.space.high
        n = len(choice)
        previous_vectors = np.tile(np.clip(0.0, low, high), (n, 1))
        previous_vectors[: len(self.previous)] = self.previous[:n]
        # A weighted mean of the bounds, so that the last point is the upper bound without rounding error.
        weight = np.minimum(choice, self.points - 1) / (self.points - 1)
        return np.where(choice == self.points, previous_vectors, low * (1.0 - weight) + high * weight)

    def _update_moments(self, payoffs: Sequence[float]) -> tuple[float, float]:
        """Update the moments of payoffs (Welford's algorithm); return their mean and standard deviation.

        Without `scale_payoffs`, return 0 and 1. A standard deviation of 0 is returned as 1.
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


@dataclass(frozen=True)
class MetaGradSettings:
    """Options of `MetaGradPrincipal`; meanings, units and ranges are in `conf/principal/metagrad.yaml`."""

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

    The output of a network is the proposed vector. Its weights are updated by backpropagation of the gradient of the
    objective with respect to the vector, which the loop estimates through the agents' learning.

    The initial weights are orthogonal, and small in the last layer, so that the first vector is about the center of the
    bounds. The published network uses torch's default initialization, which also starts near the center.

    Args:
        settings: options.
        spec: specification of the environment.
        seeds: seed tree of the initial weights.

    Raises:
        ConfigError: an observed metric does not exist.
    """

    _state_fields = ("network", "updater", "encoder", "last_proposal", "counts", "means")

    parallel = False
    needs_gradient = True

    def __init__(self, settings: MetaGradSettings, spec: EnvSpec, seeds: Seeds) -> None:
        import torch

        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.layers import BoxHead

        self.space = spec.proposal_space
        self.encoder = ObservationEncoder(spec, settings.observe)
        self._meta_settings = MetaSettings(
            gamma=settings.gamma,
            baseline=settings.baseline,
            observation_gradient=settings.observation_gradient,
            differentiate_targets=settings.differentiate_targets,
        )
        low, high = torch.tensor(self.space.low), torch.tensor(self.space.high)
        self.network = BoxHead(self.encoder.size, settings.hidden, low, high, seeds.torch("weights"))
        self.updater = OptimizerStep(self.network, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        self.last_proposal: State | None = None  # observation and context row of the last `ask`
        # Number and mean of the objectives so far in each context, [n_contexts or 1].
        self.counts = np.zeros(self.space.n_context_rows, dtype=np.int64)
        self.means = np.zeros(self.space.n_context_rows)

    @property
    def meta_settings(self) -> MetaSettings:
        """Settings of the gradient; `past_return` is the mean objective in the context of the last `ask`."""
        if self.last_proposal is None:
            return self._meta_settings
        return replace(self._meta_settings, past_return=float(self.means[self.last_proposal["row"]]))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        observation = torch.as_tensor(self.encoder.encode(context))
        self.last_proposal = {"observation": observation, "row": self.space.find_context_row(context)}
        return self._compute_vector(observation)[None]

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the output of the network in a context, [1, d]; [0, d] before the first update."""
        import torch

        vectors = [self._compute_vector(torch.as_tensor(self.encoder.encode(context)))] if self.counts.any() else []
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _compute_vector(self, observation: torch.Tensor) -> np.ndarray:
        """Return the vector that the network proposes, [d]."""
        import torch

        with torch.no_grad():
            vector = self.network(observation).numpy()
        return np.clip(vector, self.space.low, self.space.high)  # removes rounding errors

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the network with the gradient of the outcome and return metrics with the prefix `principal/`.

        They are gradient_norm (gradient of the objective with respect to the vector), weights_gradient_norm (with
        respect to the weights, before clipping) and past_return (mean objective so far in the context).

        Raises:
            FloatingPointError: the gradient is not finite.
        """
        import torch

        [outcome] = outcomes
        assert self.last_proposal is not None and outcome.gradient is not None, (
            "the loop passes a gradient after each ask()"
        )
        if not np.isfinite(outcome.gradient).all():
            raise FloatingPointError(
                f"d objective / d {self.space.name} is {outcome.gradient.tolist()}, which is not finite; use a smaller "
                "agent.ppo.learning_rate or a larger agent.ppo.adam_eps"
            )
        vector = self.network(self.last_proposal["observation"])
        norm = self.updater.step_on_loss(-(torch.as_tensor(outcome.gradient) * vector).sum())
        row = self.last_proposal["row"]
        self.counts[row] += 1
        self.means[row] += (outcome.value - self.means[row]) / self.counts[row]
        self.encoder.tell(outcomes)
        return {
            "principal/gradient_norm": float(np.linalg.norm(outcome.gradient)),
            "principal/weights_gradient_norm": float(norm),
            "principal/past_return": float(self.means[row]),
        }
