"""Distributions of actions as functions of a network's outputs: one of several choices, or several numbers.

An action of several numbers is a product of independent distributions: a Gaussian for each real number, and a
categorical one for each whole number. So mixed actions need nothing of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ContinuousActions, EnvSpec
from llmrl.networks import categorical

MOST_CHOICES = 256
"""Whole numbers with more values are drawn as real numbers, which the environment rounds."""
LOG_STD = (-5.0, 2.0)
"""Bounds of the logarithm of a Gaussian's standard deviation, in units of half the range of a number."""
INSIDE = 1.0 - 1e-6
"""Largest absolute value, in those units, at which the density of a squashed number is taken."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)


class ActionDistribution(Protocol):
    """Distribution of an action, given a network's outputs [..., n_outputs].

    Attributes:
        n_outputs: numbers that describe the distribution in a state.
        n_draws: uniform random numbers that one draw takes.
        logits: whether the outputs are log-probabilities of all actions, up to a constant.
    """

    logits: ClassVar[bool]

    @property
    def n_outputs(self) -> int: ...

    @property
    def n_draws(self) -> int: ...

    def choose(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return the actions that numbers `uniform` [..., n_draws], drawn from [0, 1), stand for."""
        ...

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the most probable actions; of Gaussians, the means."""
        ...

    def log_prob_entropy(self, outputs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log pi(action) and the entropy in nats, each [...]."""
        ...


@dataclass(frozen=True)
class Choice:
    """One of `n_outputs` actions [...] int64, by softmax of the outputs."""

    n_outputs: int
    logits: ClassVar[bool] = True

    @property
    def n_draws(self) -> int:
        return self.n_outputs

    def choose(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        return categorical.choose(outputs, uniform)

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(-1)

    def log_prob_entropy(self, outputs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return categorical.log_prob_entropy(outputs, action)


@dataclass
class Numbers:
    """An action of several numbers [..., a] float32, each independent of the others.

    Real numbers are Gaussian in units in which their bounds are -1 and 1 (as they are, if they have none).
    An environment clips what is outside. If `squashed`, they are the tanh of a Gaussian, and always inside (Haarnoja et
    al. 2018, arXiv 1801.01290, appendix C). Densities and entropies are in the same units. The entropy of a squashed
    number is a Gauss-Hermite quadrature with 9 nodes. Whole numbers of up to `MOST_CHOICES` values are choices.

    The outputs are the means of the real numbers, the logits of the whole ones, one after the other, and the logarithms
    of the Gaussians' standard deviations.

    Args:
        numbers: the action's numbers and their bounds.
        squashed: whether real numbers are squashed.

    Raises:
        ConfigError: a number without bounds is to be squashed.
    """

    numbers: ContinuousActions
    squashed: bool = False
    logits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers = self.numbers
        low, high = np.array(numbers.low), np.array(numbers.high)
        counts = high - low + 1
        self.real = [i for i in range(numbers.dim) if not numbers.whole[i] or counts[i] > MOST_CHOICES]
        self.choices = [(i, int(counts[i])) for i in range(numbers.dim) if i not in self.real]
        bounded = np.isfinite(low) & np.isfinite(high)
        if self.squashed and not bounded[self.real].all():
            name = numbers.names[next(i for i in self.real if not bounded[i])]
            raise ConfigError(
                f"agent.squash_actions: {name} has no bounds to be squashed into; use squash_actions=false"
            )
        self._low = low
        # Where the real numbers are in an action; a slice costs no index on the device.
        self._real: slice | list[int] = self.real if self.choices else slice(None)
        self._kept: dict[object, torch.Tensor] = {}
        inner, outer = np.where(bounded, low, -1.0)[self.real], np.where(bounded, high, 1.0)[self.real]
        self._constants = {
            "centre": (inner + outer) / 2,
            "half": (outer - inner) / 2,
            "nodes": _NODES,
            "shares": _WEIGHTS / _WEIGHTS.sum(),
        }
        self.n_real = len(self.real)
        self.n_outputs = 2 * self.n_real + sum(n for _, n in self.choices)
        self.n_draws = self.n_real + sum(n for _, n in self.choices)

    def choose(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        mean, log_std, logits = self._split(outputs)
        limits = torch.finfo(uniform.dtype)
        inner = uniform[..., : self.n_real].clamp(limits.eps, 1 - limits.eps)
        noise = torch.erfinv(2 * inner - 1) * math.sqrt(2)
        whole, at = [], self.n_real
        for (_, n), own in zip(self.choices, logits, strict=True):
            whole.append(categorical.choose(own, uniform[..., at : at + n]))
            at += n
        return self._action(mean + log_std.exp() * noise, whole)

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        mean, _, logits = self._split(outputs)
        return self._action(mean, [own.argmax(-1) for own in logits])

    def log_prob_entropy(self, outputs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std, logits = self._split(outputs)
        log_prob = entropy = outputs.new_zeros(outputs.shape[:-1])
        if self.n_real:
            x = (action[..., self._real].to(mean.dtype) - self._like(mean, "centre")) / self._like(mean, "half")
            slope = torch.zeros_like(x)
            if self.squashed:
                x = x.clamp(-INSIDE, INSIDE)
                x = 0.5 * (torch.log1p(x) - torch.log1p(-x))
                slope = _log_slope(x)
            deviation = (x - mean) * (-log_std).exp()
            density = -0.5 * deviation.square() - log_std - 0.5 * math.log(2 * math.pi) - slope
            own = log_std + 0.5 * (1 + math.log(2 * math.pi))
            if self.squashed:
                nodes, weights = (self._like(mean, name) for name in ("nodes", "shares"))
                points = mean[..., None] + log_std.exp()[..., None] * nodes
                own = own + (_log_slope(points) * weights).sum(-1)
            log_prob, entropy = log_prob + density.sum(-1), entropy + own.sum(-1)
        for (i, n), each in zip(self.choices, logits, strict=True):
            chosen = (action[..., i] - self._low[i]).round().long().clamp(0, n - 1)
            found = categorical.log_prob_entropy(each, chosen)
            log_prob, entropy = log_prob + found[0], entropy + found[1]
        return log_prob, entropy

    def _split(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return means and log standard deviations, each [..., n_real], and the logits of each whole number."""
        sizes = [self.n_real, *(n for _, n in self.choices), self.n_real]
        mean, *logits, log_std = torch.split(outputs, sizes, dim=-1)
        return mean, log_std.clamp(*LOG_STD), logits

    def _action(self, x: torch.Tensor, whole: list[torch.Tensor]) -> torch.Tensor:
        """Return actions [..., a] float32 of numbers `x` [..., n_real] in own units and of choices [...] each."""
        if self.squashed:
            x = torch.tanh(x)
        action = x.new_empty((*x.shape[:-1], self.numbers.dim), dtype=torch.float32)
        action[..., self._real] = (self._like(x, "centre") + self._like(x, "half") * x).float()
        for (i, _), chosen in zip(self.choices, whole, strict=True):
            action[..., i] = chosen + self._low[i]
        return action

    def _like(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Return one of the constants as a tensor like `x`; moved once, as a GPU would wait for each copy."""
        key = name, x.dtype, x.device
        if key not in self._kept:
            with torch.inference_mode(False):  # they are used where gradients are taken, too
                self._kept[key] = torch.as_tensor(self._constants[name], dtype=x.dtype, device=x.device)
        return self._kept[key]


def _log_slope(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 - tanh(x)^2), the logarithm of tanh's slope, without cancellation.

    Neither softplus nor atanh is used: on a processor their last bit depends on the samples beside a number.
    """
    away = x.abs()
    return 2 * (math.log(2) - away - torch.log1p(torch.exp(-2 * away)))


def distribution(spec: EnvSpec, squashed: bool) -> Choice | Numbers:
    """Return the distribution of an agent's actions in an environment.

    Raises:
        ConfigError: as `Numbers`.
    """
    if spec.continuous_actions is None:
        return Choice(spec.n_actions)
    return Numbers(spec.continuous_actions, squashed)


def sample(actions: ActionDistribution, outputs: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw actions for outputs [..., n_outputs]."""
    return actions.choose(outputs, categorical.uniform(outputs, actions.n_draws, generator))
