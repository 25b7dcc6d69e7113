"""A policy-gradient principal: a network proposes each number from a list of values, and learns by PPO."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.principals.grid import FINE, default_points
from llmrl.principals.observation import USUAL, ObserveSettings, PrincipalObservation


class DualRLPrincipal:
    """The social planner of Zheng et al. (The AI Economist, 2020, arXiv 2004.13332) for proposals made once a step.

    A multilayer perceptron with an independent softmax head for each number. A head chooses among `points` evenly
    spaced values, or leaves the number as it was at the previous step (the lower bound, or 0, at the first). Each step
    is an episode of length one: PPO with the payoff as return, on as many samples as there are proposals in the step.

    By default payoffs are standardised by the mean and standard deviation of all so far. Without that, advantages are
    as large as payoffs until the critic has learned their level, one value clip a step, and in that time whatever is
    tried is reinforced (or punished) alike.

    Args:
        spec: of the environment.
        seeds: of weights and choices.
        points: values a number; None is 21 for three numbers, 6 for five.
        hidden: widths of the perceptron.
        learning_rate, adam_eps: of Adam.
        epochs: updates from the samples of a step.
        clip: of the probability ratio; None does not clip.
        value_clip: most that the value may usefully change in a step; None does not clip. The published value is 0.2.
        entropy_coefficient: weight of the entropy, summed over heads, in the units payoffs are learned in: standard
            deviations, or with `scale_payoffs=false` their own, where 0.2 is published.
        value_coefficient: weight of the value loss.
        max_grad_norm: gradients are scaled down to this norm.
        scale_payoffs: standardise payoffs; false is published.
        observe: what the network sees of the previous step.

    Raises:
        ConfigError: fewer than two points, or what is to be observed does not exist.
    """

    parallel = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        points: PositiveInt | None = None,
        hidden: Sequence[PositiveInt] = (128, 128),
        learning_rate: PositiveFloat = 2e-4,
        adam_eps: PositiveFloat = 1e-5,
        epochs: PositiveInt = 4,
        clip: PositiveFloat | None = 0.2,
        value_clip: PositiveFloat | None = None,
        entropy_coefficient: NonNegativeFloat = 0.05,
        value_coefficient: NonNegativeFloat = 0.5,
        max_grad_norm: PositiveFloat = 0.5,
        scale_payoffs: bool = True,
        observe: ObserveSettings = USUAL,
    ) -> None:
        from llmrl.algorithms.optimizer_step import OptimizerStep
        from llmrl.networks.mlp import IndependentHeads

        self.space = spec.proposals
        self.observed = PrincipalObservation(spec, observe)
        self.points = default_points(self.space, FINE) if points is None else points
        if self.points < 2:
            raise ConfigError(f"principal.points must be at least 2 (both bounds), got {self.points}")
        self.epochs, self.clip, self.value_clip = epochs, clip, value_clip
        self.entropy_coefficient, self.value_coefficient = entropy_coefficient, value_coefficient
        self.scale_payoffs = scale_payoffs
        weights = seeds.torch("weights")
        self.network = IndependentHeads(self.observed.size, hidden, self.space.dim, self.points + 1, weights)
        self.updater = OptimizerStep(self.network, learning_rate, adam_eps, max_grad_norm)
        self.generator = seeds.torch("principal")
        self.previous = np.zeros((0, self.space.dim))  # the last vector of each place in a step
        self.asked: State | None = None  # what the choices of the last `ask` were made from
        self.count, self.mean, self.squares = 0, 0.0, 0.0  # of all payoffs; squared deviations from their mean

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        import torch

        from llmrl.networks import categorical

        observed = torch.as_tensor(self.observed.vector(context))
        with torch.no_grad():
            logits, value = self.network(observed)
            logits = logits.expand(n, -1, -1)
            choice = categorical.sample(logits, self.generator)
            log_prob, _ = categorical.log_prob_entropy(logits, choice)
        self.asked = {"observed": observed, "choice": choice, "log_prob": log_prob.sum(-1), "value": value}
        self.previous = self._vectors(choice.numpy())
        return self.previous.copy()

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Metrics: entropy (of a head, mean, nats), value (expected payoff, in payoff units), advantage (mean),
        weights_gradient_norm (before clipping, mean over epochs)."""
        import torch

        from llmrl.algorithms.ppo import surrogate, value_error
        from llmrl.networks import categorical

        assert self.asked is not None, "ask() comes before tell()"
        asked, n = self.asked, len(outcomes)
        centre, scale = self._standardise([outcome.value for outcome in outcomes])
        payoff = torch.tensor([(outcome.value - centre) / scale for outcome in outcomes], dtype=torch.float32)
        advantage, norms = payoff - asked["value"], []
        for _ in range(self.epochs):
            logits, value = self.network(asked["observed"])
            log_prob, entropy = categorical.log_prob_entropy(logits.expand(n, -1, -1), asked["choice"])
            ratio = (log_prob.sum(-1) - asked["log_prob"]).exp()
            error = value_error(value.expand(n), asked["value"], payoff, self.value_clip)
            loss = (
                -surrogate(ratio, advantage, self.clip).mean()
                + self.value_coefficient * 0.5 * error.mean()
                - self.entropy_coefficient * entropy.sum(-1).mean()
            )
            norms.append(float(self.updater.descend(loss)))
        self.observed.tell(outcomes)
        return {
            "principal/entropy": float(entropy.detach().mean()),
            "principal/value": float(asked["value"]) * scale + centre,
            "principal/advantage": float(advantage.mean()),
            "principal/weights_gradient_norm": float(np.mean(norms)),
        }

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of the most likely choice of each head in a context, [1, d]; [0, d] before an outcome.

        Before the first outcome the network knows nothing. A head whose most likely
        choice is to keep the previous number keeps that of the last step's first proposal.
        """
        import torch

        first = []
        if self.count:
            with torch.no_grad():
                logits, _ = self.network(torch.as_tensor(self.observed.vector(context)))
            first = [self._vectors(logits.argmax(-1).numpy()[None])[0]]
        return np.array(first[:n], dtype=np.float64).reshape(-1, self.space.dim)

    def _vectors(self, choice: np.ndarray) -> np.ndarray:
        """The vectors [n, d] of choices [n, d]; the last choice of a head keeps the previous number."""
        low, high = self.space.low, self.space.high
        n = len(choice)
        previous = np.tile(np.clip(0.0, low, high), (n, 1))
        previous[: len(self.previous)] = self.previous[:n]
        # Weighted so that the last point is the upper bound itself, not a rounding error beside it.
        weight = np.minimum(choice, self.points - 1) / (self.points - 1)
        return np.where(choice == self.points, previous, low * (1.0 - weight) + high * weight)

    def _standardise(self, payoffs: Sequence[float]) -> tuple[float, float]:
        """Mean and standard deviation of all payoffs, after adding some (Welford's update); 0 and 1 if not wanted."""
        for payoff in payoffs:
            self.count += 1
            before = payoff - self.mean
            self.mean += before / self.count
            self.squares += before * (payoff - self.mean)
        if not self.scale_payoffs:
            return 0.0, 1.0
        deviation = (self.squares / self.count) ** 0.5
        return self.mean, deviation if deviation > 0 else 1.0

    def state_dict(self) -> State:
        return copy.deepcopy(
            {
                "network": dict(self.network.state_dict()),
                "optimizer": self.updater.optimizer.state_dict(),
                "generator": self.generator.get_state(),
                "observed": self.observed.state_dict(),
                "asked": self.asked,
                "previous": self.previous,
                "payoffs": [self.count, self.mean, self.squares],
            }
        )

    def load_state_dict(self, state: State) -> None:
        state = copy.deepcopy(state)
        self.network.load_state_dict(state["network"])
        self.updater.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.observed.load_state_dict(state["observed"])
        self.asked, self.previous = state["asked"], state["previous"]
        self.count, self.mean, self.squares = state["payoffs"]
