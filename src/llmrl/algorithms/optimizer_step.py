"""Gradient steps of a network: the protocol `Updater`, and `OptimizerStep`, which updates parameters in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from llmrl.algorithms.sharded import any_sharded, clip_gradients, divided, gathered, groups
from llmrl.core.processes import ProcessGroup
from llmrl.core.records import State

Batch = dict[str, Any]
"""Samples by name, each a tensor [n, ...] or a `TextArray` of n texts."""
Record = dict[str, torch.Tensor]
"""Scalar diagnostics of a loss, detached from the graph."""
Loss = Callable[[Batch], tuple[torch.Tensor, Record]]
"""Function from samples to their mean loss and its record."""


class Updater(Protocol):
    """Protocol of gradient steps of one network."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [batch, n_outputs] and values [batch] of samples (see `ActorCritic.forward`)."""
        ...

    def step(self, batch: Batch, loss: Loss) -> Record:
        """Take one step of Adam on the loss of a minibatch with a clipped gradient norm.

        Return the loss's record with `grad_norm`, the norm before clipping.
        """
        ...


@runtime_checkable
class GradientAccumulation(Protocol):
    """Network too large to process a whole minibatch at once; gradients are summed over pieces."""

    processes: ProcessGroup

    def pieces(self, batch: Batch) -> Iterable[tuple[Batch, float]]:
        """Yield this process's pieces of a minibatch, at least one, each with its share of the minibatch's samples.

        The shares of all processes sum to 1. Samples of one joint action (`team_step`) are in one piece, because the
        loss of a joint action needs the probabilities of all its agents.
        """
        ...


class OptimizerStep:
    """Updater that takes in-place steps of torch's Adam.

    The gradient is that of the minibatch's mean loss, up to rounding, for any number of pieces and processes
    (`GradientAccumulation`).

    Args:
        network: network to train; parameters that require no gradient stay unchanged.
        learning_rate, eps: hyperparameters of Adam.
        max_grad_norm: clipping norm of the gradient of all parameters together.
        separate_clipping: clip the gradients of the module `critic` and of all other parameters separately.

    Attributes:
        is_sharded: whether the parameters are sharded over processes.
        parts: names of the parameters in each group whose gradients are clipped together.
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
        critic = [name for name in trainable if separate_clipping and name.startswith("critic.")]
        parts = (critic, [name for name in trainable if name not in critic])
        self.parts = [part for part in parts if part]
        self._clipped = [[trainable[name] for name in part] for part in self.parts]
        self.is_sharded = any_sharded(self.parameters)
        # Fused: one kernel for all parameters instead of several for each parameter.
        self.optimizer = torch.optim.Adam(groups(self.parameters), lr=learning_rate, eps=eps, fused=True)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, value = self.network(batch)
        return outputs, value

    def step(self, batch: Batch, loss: Loss) -> Record:
        if not isinstance(self.network, GradientAccumulation):
            value, record = loss(batch)
            return record | {"grad_norm": self.descend(value)}
        self.optimizer.zero_grad()
        record = {}
        for piece, share in self.network.pieces(batch):
            value, parts = loss(piece)
            (value * share).backward()  # type: ignore[no-untyped-call]
            record = {name: x * share + record.get(name, 0.0) for name, x in parts.items()}
        self.network.processes.all_reduce_gradients(self.parameters)
        self.network.processes.all_reduce(list(record.values()))
        return record | {"grad_norm": self._descend()}

    def descend(self, loss: torch.Tensor) -> torch.Tensor:
        """Take one step on a computed loss; return the norm of its gradient before clipping."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._descend()

    def state_dict(self) -> State:
        """Return the state of the optimizer.

        Its parameters are unsharded and in one group, so that a run can resume with another number of processes.
        """
        state: State = gathered(self.optimizer.state_dict())
        if not self.is_sharded:
            return state
        order = self._order()
        group = {**state["param_groups"][0], "params": list(range(len(order)))}
        return {"state": {order[i]: x for i, x in state["state"].items()}, "param_groups": [group]}

    def load_state_dict(self, state: State) -> None:
        if self.is_sharded:
            local_state: State = self.optimizer.state_dict()
            order = self._order()
            parts = {
                i: divided(state["state"][k], _like(state["state"][k], self.parameters[k]))
                for i, k in enumerate(order)
                if k in state["state"]
            }
            group = state["param_groups"][0]
            groups = [{**group, "params": local_group["params"]} for local_group in local_state["param_groups"]]
            state = {"state": parts, "param_groups": groups}
        self.optimizer.load_state_dict(state)

    def _order(self) -> list[int]:
        """Return the index into `parameters` of each of the optimizer's parameters."""
        places = {id(parameter): i for i, parameter in enumerate(self.parameters)}
        return [places[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def _descend(self) -> torch.Tensor:
        norms = [self._clip(part) for part in self._clipped if any(p.grad is not None for p in part)]
        self.optimizer.step()
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    def _clip(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        if self.is_sharded:
            assert isinstance(self.network, GradientAccumulation)
            return clip_gradients(parameters, self.max_grad_norm, self.network.processes)
        return nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).detach()


def _like(state: dict[str, torch.Tensor], parameter: nn.Parameter) -> dict[str, torch.Tensor | None]:
    """Map each tensor of a parameter's optimizer state to the parameter if it has its shape, else to None."""
    return {name: parameter if x.shape == parameter.shape else None for name, x in state.items()}
