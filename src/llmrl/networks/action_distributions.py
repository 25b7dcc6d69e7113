"""Action distributions, parameterized by the outputs of a network: one discrete choice, or several numbers.

An action of several numbers is a product of independent distributions: a Gaussian for each real number, and a
categorical distribution for each integer with few values. Mixed actions therefore need no separate class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from llmrl.core.spaces import ContinuousActions

MAX_CATEGORIES = 256
"""Maximum number of values of a categorical integer. Integers with larger ranges are sampled as real
numbers, which the environment rounds."""
LOG_STD_BOUNDS = (-5.0, 2.0)
"""Bounds to which the log standard deviation is clamped, in normalized coordinates (half the range of a number = 1)."""


@dataclass(frozen=True)
class CategoricalDistribution:
    """Categorical distribution, softmax(outputs), over `n_outputs` actions; sampled actions are int64 of shape [...].

    Attributes:
        n_outputs: number of outputs that parameterize the distribution in a state.
        n_uniforms: number of uniform random numbers for one sample.
        outputs_are_logits: whether the outputs are log-probabilities of all actions, up to a constant.
    """

    n_outputs: int
    outputs_are_logits: ClassVar[bool] = True

    @property
    def n_uniforms(self) -> int:
        return self.n_outputs

    @staticmethod
    def sample_from_uniform(outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Return sampled actions [...] as functions of uniform random numbers in [0, 1), [..., n_uniforms].

        The sample is computed by the Gumbel-max trick.
        """
        limits = torch.finfo(outputs.dtype)
        exponential_sample = uniform.clamp(limits.tiny, 1 - limits.eps).log_().neg_()
        return (outputs - exponential_sample.log_()).argmax(-1)

    @staticmethod
    def mode(outputs: torch.Tensor) -> torch.Tensor:
        """Return the most probable actions, [...]."""
        return outputs.argmax(-1)

    @staticmethod
    def log_prob_entropy(outputs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log pi(action) and the entropy in nats, each [...]."""
        log_probs = outputs.log_softmax(-1)
        log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return log_prob, -(log_probs.exp() * log_probs).sum(-1)


@dataclass
class NumericDistribution:
    """Independent distributions of the numbers of an action, [..., a] float32.

    Real numbers are normalized so that their bounds become -1 and 1 (unbounded ones are not), and are Gaussian in these
    coordinates. Log-densities and entropies are also those of the normalized numbers. The environment clips numbers
    outside the bounds. Integers with up to `MAX_CATEGORIES` values are categorical.

    The outputs are the means of the real numbers, the logits of each integer, and the logarithms of the Gaussians'
    standard deviations.

    Args:
        action_space: the numbers in an action and their bounds.

    Attributes:
        n_real: how many of the a numbers are sampled as real numbers.
        categorical_integers: index and number of values of each integer that is categorical.
        center, half_range: middle and half the width of the bounds of the real numbers, [n_real].
    """

    action_space: ContinuousActions
    outputs_are_logits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        space = self.action_space
        low, high = np.array(space.low), np.array(space.high)
        n_values = high - low + 1
        self.real_indices = [i for i in range(space.dim) if not space.is_integer[i] or n_values[i] > MAX_CATEGORIES]
        self.categorical_integers = [(i, int(n_values[i])) for i in range(space.dim) if i not in self.real_indices]
        is_bounded = np.isfinite(low) & np.isfinite(high)
        self._low = low
        # Indices of the real numbers in an action; a slice needs no index tensor on the device.
        self._real_selector: slice | list[int] = self.real_indices if self.categorical_integers else slice(None)
        self._range_tensors_by_key: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}
        lower, upper = (
            np.where(is_bounded, low, -1.0)[self.real_indices],
            np.where(is_bounded, high, 1.0)[self.real_indices],
        )
        self.center, self.half_range = (lower + upper) / 2, (upper - lower) / 2
        self.n_real = len(self.real_indices)
        self.n_outputs = 2 * self.n_real + sum(n for _, n in self.categorical_integers)
        self.n_uniforms = self.n_real + sum(n for _, n in self.categorical_integers)

    def sample_from_uniform(self, outputs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        mean, log_std, logits = self._split(outputs)
        limits = torch.finfo(uniform.dtype)
        probability = uniform[..., : self.n_real].clamp(limits.eps, 1 - limits.eps)
        noise = torch.erfinv(2 * probability - 1) * math.sqrt(2)
        integers, offset = [], self.n_real
        for (_, n), choice_logits in zip(self.categorical_integers, logits, strict=True):
            choice_uniform = uniform[..., offset : offset + n]
            integers.append(CategoricalDistribution.sample_from_uniform(choice_logits, choice_uniform))
            offset += n
        return self._build_action(mean + log_std.exp() * noise, integers)

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return actions of the means of real numbers and the most probable values of categorical integers."""
        mean, _, logits = self._split(outputs)
        return self._build_action(mean, [choice_logits.argmax(-1) for choice_logits in logits])

    def log_prob_entropy(self, outputs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std, logits = self._split(outputs)
        log_prob = entropy = outputs.new_zeros(outputs.shape[:-1])
        if self.n_real:
            center, half_range = self._center_and_half_range(mean)
            x = (action[..., self._real_selector].to(mean.dtype) - center) / half_range
            deviation = (x - mean) * (-log_std).exp()
            log_density = -0.5 * deviation.square() - log_std - 0.5 * math.log(2 * math.pi)
            gaussian_entropy = log_std + 0.5 * (1 + math.log(2 * math.pi))
            log_prob, entropy = log_prob + log_density.sum(-1), entropy + gaussian_entropy.sum(-1)
        for (i, n), choice_logits in zip(self.categorical_integers, logits, strict=True):
            choice = (action[..., i] - self._low[i]).round().long().clamp(0, n - 1)
            choice_log_prob, choice_entropy = CategoricalDistribution.log_prob_entropy(choice_logits, choice)
            log_prob, entropy = log_prob + choice_log_prob, entropy + choice_entropy
        return log_prob, entropy

    def _split(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Return means and log standard deviations, each [..., n_real], and the logits of each integer."""
        sizes = [self.n_real, *(n for _, n in self.categorical_integers), self.n_real]
        mean, *logits, log_std = torch.split(outputs, sizes, dim=-1)
        return mean, log_std.clamp(*LOG_STD_BOUNDS), logits

    def _build_action(self, x: torch.Tensor, integers: list[torch.Tensor]) -> torch.Tensor:
        """Return actions [..., a] float32, given normalized real numbers `x` [..., n_real] and integers, each [...]."""
        action = x.new_empty((*x.shape[:-1], self.action_space.dim), dtype=torch.float32)
        center, half_range = self._center_and_half_range(x)
        action[..., self._real_selector] = (center + half_range * x).float()
        for (i, _), integer in zip(self.categorical_integers, integers, strict=True):
            action[..., i] = integer + self._low[i]
        return action

    def _center_and_half_range(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `center` and `half_range` with device and dtype of `x`."""
        # They are cached, because a blocking host-to-device copy synchronizes with the GPU.
        key = x.dtype, x.device
        if key not in self._range_tensors_by_key:
            with torch.inference_mode(False):  # the tensors are also used with gradients
                center, half_range = (
                    torch.as_tensor(array, dtype=x.dtype, device=x.device) for array in (self.center, self.half_range)
                )
            self._range_tensors_by_key[key] = center, half_range
        return self._range_tensors_by_key[key]


ActionDistribution = CategoricalDistribution | NumericDistribution
"""Distribution of an action, given outputs [..., n_outputs] of a network; methods: see `CategoricalDistribution`."""


def sample_actions(
    distribution: ActionDistribution, outputs: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    """Return sampled actions for outputs [..., n_outputs].

    Random numbers are generated on the generator's device (the CPU) and copied, so that a GPU gets the same numbers;
    without a generator, they are generated on the outputs' device.
    """
    device = outputs.device if generator is None else generator.device
    shape = (*outputs.shape[:-1], distribution.n_uniforms)
    uniform = torch.rand(shape, generator=generator, device=device, dtype=outputs.dtype)
    # `non_blocking=True` does not synchronize, and is safe: unpinned memory is staged before the call returns.
    return distribution.sample_from_uniform(outputs, uniform.to(outputs.device, non_blocking=outputs.is_cuda))


def sample_categorical(logits: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Return actions [...] sampled from softmax(logits [..., n_actions])."""
    return sample_actions(CategoricalDistribution(logits.shape[-1]), logits, generator)


def mask_logits(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return logits [..., n_actions] with illegal actions (mask false) at the dtype's minimum."""
    return logits if mask is None else logits.masked_fill(~mask.bool(), torch.finfo(logits.dtype).min)
