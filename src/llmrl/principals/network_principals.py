"""Principals that are networks: `DualRLPrincipal` learns by PPO, `MetaGradPrincipal` by meta-gradients.

Both observe the context, and metrics of the game at the previous step (`ObservationEncoder`).
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
from llmrl.principals.grid import FINE_GRID_POINTS, default_points

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ObserveSettings:
    """Settings of the observation.

    Args:
        metrics: names of metrics in `spec.principal_metrics`; None: all.
        moments: number of windows, of almost equal length, over which a trajectory is averaged; at most its number of
            steps. None: every step is a separate number.
        interval: use only each `interval`-th step, starting with the first, before averaging.
        scale: divisor of trajectories; None: the largest magnitude of each metric's averages so far.
        history: whether outcomes are observed.
    """

    metrics: list[str] | None = None
    moments: PositiveInt | None = 10
    interval: PositiveInt = 1
    scale: PositiveFloat | None = None
    history: bool = True


class ObservationEncoder(StateFields):
    """Encoder of the last outcomes as one vector: context (one-hot), then the chosen metrics one after the other.

    Each metric's trajectory (mean over validation episodes, and over the proposals of the step) is subsampled, averaged
    over windows and divided by a scale. Before the first outcome, or without history, all of these numbers are 1.

    Args:
        spec: spec of the environment.
        settings: settings of the observation.

    Raises:
        ConfigError: a metric does not exist, or the environment has no horizon.
    """

    _state_fields = ("last", "largest")

    def __init__(self, spec: EnvSpec, settings: ObserveSettings) -> None:
        metrics, moments, interval = settings.metrics, settings.moments, settings.interval
        self.metrics = list(spec.principal_metrics if metrics is None else metrics)
        unknown = [name for name in self.metrics if name not in spec.principal_metrics]
        if unknown:
            raise ConfigError(
                f"principal.observe.metrics: env={spec.name} has no metric '{unknown[0]}' for principals; available: "
                f"{', '.join(spec.principal_metrics)}"
            )
        if spec.horizon is None:
            raise ConfigError(
                f"env.horizon=null for env={spec.name}, but this principal needs episodes of one length; set "
                "env.horizon"
            )
        steps = -(-spec.horizon // interval)
        self.n_windows = steps if moments is None else min(moments, steps)
        self.space, self.interval, self.scale, self.history = spec.proposals, interval, settings.scale, settings.history
        self.largest = np.zeros(len(self.metrics))
        self.last: np.ndarray | None = None  # [metrics, windows], not scaled

    @property
    def size(self) -> int:
        return len(self.space.contexts) + len(self.metrics) * self.n_windows

    def vector(self, context: int | None) -> np.ndarray:
        """Return the observation before a proposal in `context`, [size] float32."""
        one_hot = np.zeros(len(self.space.contexts))
        if self.space.contexts:
            one_hot[self.space.find_row(context)] = 1.0
        else:
            self.space.find_row(context)
        features = np.ones((len(self.metrics), self.n_windows))
        if self.last is not None:
            scale = np.where(self.largest > 0, self.largest, 1.0)[:, None] if self.scale is None else self.scale
            features = self.last / scale
        return np.concatenate([one_hot, features.ravel()]).astype(np.float32)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Observe the outcomes of a step."""
        if not self.history or not self.metrics:
            return
        self.last = np.mean([self._window_means(outcome) for outcome in outcomes], axis=0)
        self.largest = np.maximum(self.largest, np.abs(self.last).max(1))

    def _window_means(self, outcome: Outcome) -> np.ndarray:
        subsampled = [outcome.trajectories[name][:: self.interval] for name in self.metrics]
        return np.array(
            [[window.mean() for window in np.array_split(x, self.n_windows)] for x in subsampled], dtype=np.float64
        )


@dataclass(frozen=True)
class DualRLSettings:
    """Options of `DualRLPrincipal`; meanings, units and ranges are in `conf/principal/dual_rl.yaml`.

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
    are as large as payoffs until the critic has learned their mean, at most one value clip per step, and until then all
    proposals are made more likely, or all less likely.

    Args:
        settings: options.
        spec: spec of the environment.
        seeds: seed tree of weights and choices.

    Raises:
        ConfigError: fewer than two points, or an observed metric does not exist.
    """

    _state_fields = ("network", "updater", "encoder", "last_proposal", "previous", "count", "mean", "squares")

    parallel = True

    def __init__(self, settings: DualRLSettings, spec: EnvSpec, seeds: Seeds) -> None:
        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.layers import IndependentHeads

        self.space = spec.proposals
        self.settings = settings
        self.encoder = ObservationEncoder(spec, settings.observe)
        self.points = default_points(self.space, FINE_GRID_POINTS) if settings.points is None else settings.points
        if self.points < 2:
            raise ConfigError(f"principal.points must be at least 2 (both bounds), got {self.points}")
        weights = seeds.torch("weights")
        self.network = IndependentHeads(self.encoder.size, settings.hidden, self.space.dim, self.points + 1, weights)
        self.updater = OptimizerStep(self.network, settings.learning_rate, settings.adam_eps, settings.max_grad_norm)
        self.generator = seeds.torch("principal")
        self.previous = np.zeros((0, self.space.dim))  # the last vectors, one for each proposal of a step
        self.last_proposal: State | None = None  # observation, choices and network outputs of the last `ask`
        self.count, self.mean, self.squares = 0, 0.0, 0.0  # moments of all payoffs

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        from llmrl.networks.action_distributions import CategoricalActions, sample_categorical

        observation = torch.as_tensor(self.encoder.vector(context))
        with torch.no_grad():
            logits, value = self.network(observation)
            logits = logits.expand(n, -1, -1)
            choice = sample_categorical(logits, self.generator)
            log_prob, _ = CategoricalActions.log_prob_entropy(logits, choice)
        self.last_proposal = {
            "observation": observation,
            "choice": choice,
            "log_prob": log_prob.sum(-1),
            "value": value,
        }
        self.previous = self._vectors_of_choices(choice.numpy())
        return self.previous.copy()

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the network and return metrics.

        They are entropy (of a head, mean, nats), value (expected payoff, in payoff units), advantage (mean) and
        weights_gradient_norm (before clipping, mean over epochs).
        """
        import torch

        from llmrl.algorithms.advantages_and_losses import surrogate, value_error
        from llmrl.networks.action_distributions import CategoricalActions

        assert self.last_proposal is not None, "call ask() before tell()"
        settings, proposal, n = self.settings, self.last_proposal, len(outcomes)
        center, scale = self._update_moments([outcome.value for outcome in outcomes])
        payoff = torch.tensor([(outcome.value - center) / scale for outcome in outcomes], dtype=torch.float32)
        advantage, gradient_norms = payoff - proposal["value"], []
        for _ in range(settings.epochs):
            logits, value = self.network(proposal["observation"])
            log_prob, entropy = CategoricalActions.log_prob_entropy(logits.expand(n, -1, -1), proposal["choice"])
            ratio = (log_prob.sum(-1) - proposal["log_prob"]).exp()
            error = value_error(value.expand(n), proposal["value"], payoff, settings.value_clip)
            loss = (
                -surrogate(ratio, advantage, settings.clip).mean()
                + settings.value_coefficient * 0.5 * error.mean()
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
        """Return the vector of the most likely choice of each head in a context, [1, d]; [0, d] before an outcome.

        Before the first outcome the network is untrained. A head whose most likely choice is to keep the previous
        number keeps that of the last step's first proposal.
        """
        import torch

        vectors = []
        if self.count:
            with torch.no_grad():
                logits, _ = self.network(torch.as_tensor(self.encoder.vector(context)))
            vectors = [self._vectors_of_choices(logits.argmax(-1).numpy()[None])[0]]
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _vectors_of_choices(self, choice: np.ndarray) -> np.ndarray:
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

    _state_fields = ("network", "updater", "encoder", "last_proposal", "counts", "means")

    parallel = False
    needs_gradient = True

    def __init__(self, settings: MetaGradSettings, spec: EnvSpec, seeds: Seeds) -> None:
        import torch

        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.layers import BoxHead

        self.space = spec.proposals
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
        self.last_proposal: State | None = None  # observation and context of the last `ask`
        # Number and mean of the objectives so far, by context.
        self.counts = np.zeros(self.space.n_context_rows, dtype=np.int64)
        self.means = np.zeros(self.space.n_context_rows)

    @property
    def meta_settings(self) -> MetaSettings:
        """Settings of the gradient for the vector of the last `ask`."""
        if self.last_proposal is None:
            return self._meta_settings
        return replace(self._meta_settings, past_return=float(self.means[self.last_proposal["row"]]))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        observation = torch.as_tensor(self.encoder.vector(context))
        self.last_proposal = {"observation": observation, "row": self.space.find_row(context)}
        return self._network_vector(observation)[None]

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the network's present output in a context, [1, d]; [0, d] before the first outcome."""
        import torch

        vectors = [self._network_vector(torch.as_tensor(self.encoder.vector(context)))] if self.counts.any() else []
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _network_vector(self, observation: torch.Tensor) -> np.ndarray:
        """Return the vector that the network proposes, [d]."""
        import torch

        with torch.no_grad():
            vector = self.network(observation).numpy()
        clipped_vector: np.ndarray = np.clip(vector, self.space.low, self.space.high)  # rounding of a saturated sigmoid
        return clipped_vector

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update the network with the gradient of an outcome and return metrics.

        They are gradient_norm (of the objective by the vector), weights_gradient_norm (by the weights, before clipping)
        and past_return (mean objective so far in the context).

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
