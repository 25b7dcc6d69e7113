"""Gradient steps of networks: protocols, and `OptimizerStep`, which updates parameters in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from llmrl.algorithms.adam import Adam
from llmrl.core.processes import ProcessGroup
from llmrl.core.records import State
from llmrl.networks.action_distributions import ActionDistribution

Batch = dict[str, Any]
"""Name -> samples, each a tensor [n, ...] or a `TextArray` of n texts."""
LossRecord = dict[str, torch.Tensor]
"""Name -> scalar diagnostics of a loss, detached from the graph."""
LossFunction = Callable[[Batch], tuple[torch.Tensor, LossRecord]]
"""Function from samples to their mean loss and the record of the loss."""


class Updater(Protocol):
    """Protocol of gradient steps of one network."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [batch, n_outputs] and values [batch] of samples (see `ActorCritic.forward`)."""
        ...

    def step(self, batch: Batch, loss: LossFunction) -> LossRecord:
        """Take one step of Adam on the loss of a minibatch with a clipped gradient norm.

        Return the record of the loss with `grad_norm`, the gradient's norm before clipping.
        """
        ...


@runtime_checkable
class GradientAccumulation(Protocol):
    """Network that processes a minibatch in several pieces, whose gradients are summed."""

    processes: ProcessGroup

    def split_into_pieces(self, batch: Batch) -> Iterable[tuple[Batch, float]]:
        """Yield this process's pieces of a minibatch, at least one, each with its fraction of the samples.

        The fractions of all processes sum to 1. Samples of one joint action (`joint_action_index`) are in one piece,
        because the loss of a joint action needs the probabilities of all its agents.
        """
        ...


class TrainedPolicy(Protocol):
    """Policy that PPO can train: `SocietyPolicy`, or a language model as the policy.

    `channels`: names of the observation channels that it reads; `recurrent`: whether the networks have a memory.
    """

    channels: tuple[str, ...]
    recurrent: bool

    @property
    def distribution(self) -> ActionDistribution:
        """Distribution of actions that the networks' outputs parameterize."""
        ...

    def list_networks(self) -> Sequence[tuple[nn.Module, slice]]:
        """Return each network with its agents, as a slice of the agent axis.

        Called with a batch, a network returns outputs [batch, n_outputs] and values [batch]; see `GradientAccumulation`
        for large networks.
        """
        ...

    def extend_observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation [n, n_agents, ...] with the other channels that the networks read."""
        ...


class OptimizerStep:
    """Updater that takes in-place steps of torch's Adam.

    The gradient is that of the minibatch's mean loss, up to rounding, for any number of pieces and processes
    (`GradientAccumulation`).

    Args:
        network: network to train; parameters that require no gradient are not changed.
        learning_rate, eps: hyperparameters of Adam.
        max_grad_norm: norm to which the gradient of all parameters together is clipped.
        separate_clipping: whether the gradients of the module `critic` and of other parameters are clipped separately.

    Attributes:
        clipping_groups: names of the parameters in each group whose gradients are clipped together.
    """

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        eps: float,
        max_grad_norm: float,
        separate_clipping: bool = False,
    ) -> None:
        self.network, self.max_grad_norm = network, max_grad_norm
        trainable = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.parameters = list(trainable.values())
        critic_names = [name for name in trainable if separate_clipping and name.startswith("critic.")]
        name_groups = (critic_names, [name for name in trainable if name not in critic_names])
        self.clipping_groups = [names for names in name_groups if names]
        self._parameters_by_group = [[trainable[name] for name in names] for names in self.clipping_groups]
        # Fused: one kernel for all parameters instead of several for each parameter.
        self.optimizer = Adam(self.parameters, lr=learning_rate, eps=eps, fused=True)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, value = self.network(batch)
        return outputs, value

    def step(self, batch: Batch, loss: LossFunction) -> LossRecord:
        if not isinstance(self.network, GradientAccumulation):
            mean_loss, record = loss(batch)
            return record | {"grad_norm": self.step_on_loss(mean_loss)}
        self.optimizer.zero_grad()
        record = {}
        for piece, share in self.network.split_into_pieces(batch):
            mean_loss, piece_record = loss(piece)
            (mean_loss * share).backward()  # type: ignore[no-untyped-call]
            record = {name: x * share + record.get(name, 0.0) for name, x in piece_record.items()}
        self.network.processes.all_reduce_gradients(self.parameters)
        self.network.processes.all_reduce(list(record.values()))
        return record | {"grad_norm": self._clip_and_step()}

    def step_on_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Take one step on a computed loss; return the norm of its gradient before clipping."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._clip_and_step()

    def state_dict(self) -> State:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state)

    def _clip_and_step(self) -> torch.Tensor:
        groups = [parameters for parameters in self._parameters_by_group if any(p.grad is not None for p in parameters)]
        norms = [nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).detach() for parameters in groups]
        self.optimizer.step()
        return torch.linalg.vector_norm(torch.stack(norms))
