"""Optimizer settings that all training methods share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval


@dataclass(frozen=True)
class Optimizer:
    """Settings of AdamW and of the batch size.

    Attributes:
        steps: number of optimizer steps.
        learning_rate: peak learning rate.
        schedule: learning rate after the warm-up; `linear` and `cosine` end at 0.
        warmup: fraction of the steps in which the learning rate rises from 0.
        weight_decay: weight decay of AdamW.
        max_grad_norm: norm to which larger gradients are scaled.
        batch: number of texts per forward pass; the texts of a step are a multiple of it. Decrease it if memory runs
            out.
        recompute: recompute activations in the backward pass instead of storing them (gradient checkpointing); this
            needs less memory and about a fifth more time.
    """

    steps: PositiveInt = 100
    learning_rate: PositiveFloat = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: UnitInterval = 0.0
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    batch: PositiveInt = 4
    recompute: bool = False

    def check_step(self, texts: int, subject: str) -> None:
        """Raise ConfigError unless a step of `texts` texts, described by `subject`, is a multiple of `batch`."""
        if texts % self.batch:
            raise ConfigError(
                f"{subject} is {texts} texts per step, which must be a multiple of method.optimizer.batch={self.batch}"
            )
