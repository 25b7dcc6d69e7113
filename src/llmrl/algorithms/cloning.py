"""Behavioral cloning: supervised learning of recorded actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from llmrl.algorithms.adam import Adam
from llmrl.algorithms.minibatches import select_samples
from llmrl.algorithms.optimizer_step import Batch, GradientAccumulation, LossRecord, OptimizerStep
from llmrl.core.errors import Diverged
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.seeding import Seeds


@dataclass(frozen=True)
class CloningSettings:
    """Hyperparameters of cloning; meanings, units and ranges are in `conf/agent/bc.yaml`."""

    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat
    adam_eps: PositiveFloat
    batch_size: PositiveInt
    warmup: UnitInterval
    schedule: Literal["cosine", "constant"]
    max_grad_norm: PositiveFloat | None


class BehavioralCloning:
    """Learner that minimizes the cross-entropy between a network's policy and recorded actions.

    Args:
        network: network from a batch to logits [batch, n_actions] and values [batch]; the value head is not trained.
        settings: hyperparameters.
        train_samples: training samples: `action` [n] and the network's inputs, each [n, ...].
        validation_samples: samples for `validate`; may be empty.
        seeds: seed tree; stream `i` of its child `order` shuffles the samples in epoch i.
        epochs: number of passes over the training samples.

    Attributes:
        n_updates, n_updates_per_epoch: number of updates in all epochs, and in one.
        n_train, n_validation: number of training and of held-out samples.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: CloningSettings,
        train_samples: Batch,
        validation_samples: Batch,
        seeds: Seeds,
        epochs: int,
    ) -> None:
        self.network, self.settings = network, settings
        self.n_train, self.n_validation = len(train_samples["action"]), len(validation_samples["action"])
        self.n_updates_per_epoch = -(-self.n_train // settings.batch_size)
        self.n_updates = epochs * self.n_updates_per_epoch
        self._train_samples, self._validation_samples, self._seeds = train_samples, validation_samples, seeds
        self._updater = OptimizerStep(
            network, settings.learning_rate, settings.adam_eps, settings.max_grad_norm or math.inf
        )
        self._updater.optimizer = Adam(
            self._updater.parameters,
            lr=settings.learning_rate,
            eps=settings.adam_eps,
            weight_decay=settings.weight_decay,
            decoupled_weight_decay=True,
        )
        self._epoch_permutation: tuple[int, torch.Tensor] | None = None

    def update(self, update_index: int) -> dict[str, float]:
        """Compute update `update_index`, from 0; return its loss, accuracy, gradient norm and learning rate.

        Raises:
            Diverged: the loss or the gradient is not finite.
        """
        for group in self._updater.optimizer.param_groups:
            group["lr"] = self.compute_learning_rate(update_index)
        record = self._updater.step(
            select_samples(self._train_samples, self._select_minibatch(update_index)), self._compute_loss
        )
        metrics = {name: float(x) for name, x in record.items()}
        if not all(math.isfinite(x) for x in metrics.values()):
            raise Diverged(
                f"update {update_index + 1}: not finite (loss {metrics['loss']:g}, gradient norm "
                f"{metrics['grad_norm']:g}). Earlier checkpoints are intact: resume from one with a smaller "
                "agent.cloning.learning_rate or agent.cloning.max_grad_norm"
            )
        return {**metrics, "learning_rate": self.compute_learning_rate(update_index)}

    def compute_learning_rate(self, update_index: int) -> float:
        """Return the learning rate of an update: a linear warm-up, then constant or a half cosine to 0 (`schedule`)."""
        s = self.settings
        n_warmup_updates = math.ceil(s.warmup * self.n_updates)
        if update_index < n_warmup_updates:
            return s.learning_rate * (update_index + 1) / n_warmup_updates
        if s.schedule == "constant":
            return s.learning_rate
        progress = (update_index - n_warmup_updates) / max(self.n_updates - n_warmup_updates, 1)
        return s.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return mean loss and accuracy on the held-out samples; {} if there are none."""
        size, n = self.settings.batch_size, self.n_validation
        totals: dict[str, float] = {}
        for start in range(0, n, size):
            indices = torch.arange(start, min(start + size, n))
            for name, x in self._evaluate_batch(select_samples(self._validation_samples, indices)).items():
                totals[name] = totals.get(name, 0.0) + float(x) * len(indices) / n
        return totals

    def state_dict(self) -> State:
        return {"optimizer": self._updater.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._updater.load_state_dict(state["optimizer"])

    def _select_minibatch(self, update_index: int) -> torch.Tensor:
        """Return the indices of an update's samples; every sample occurs once per epoch."""
        epoch, batch_index = divmod(update_index, self.n_updates_per_epoch)
        if self._epoch_permutation is None or self._epoch_permutation[0] != epoch:
            permutation = torch.randperm(self.n_train, generator=self._seeds.child("order").torch(epoch))
            self._epoch_permutation = (epoch, permutation)
        start = batch_index * self.settings.batch_size
        return self._epoch_permutation[1][start : start + self.settings.batch_size]

    def _compute_loss(self, batch: Batch) -> tuple[torch.Tensor, LossRecord]:
        logits, _ = self.network(batch)
        loss = nn.functional.cross_entropy(logits, batch["action"])
        accuracy = (logits.argmax(1) == batch["action"]).float().mean()
        return loss, {"loss": loss.detach(), "accuracy": accuracy.detach()}

    def _evaluate_batch(self, batch: Batch) -> LossRecord:
        """Return the record of a batch, averaged over all processes, without training."""
        if not isinstance(self.network, GradientAccumulation):
            return self._compute_loss(batch)[1]
        record: LossRecord = {}
        for piece, share in self.network.split_into_pieces(batch):
            record = {name: x * share + record.get(name, 0.0) for name, x in self._compute_loss(piece)[1].items()}
        self.network.processes.all_reduce(list(record.values()))
        return record
