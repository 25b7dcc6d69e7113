"""How a network takes gradient steps: in place, or as a differentiable function of what the loss depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from llmrl.algorithms.sharded import any_divided, clip_gradients, divided, gathered, groups
from llmrl.core.processes import Processes
from llmrl.core.records import State

Batch = dict[str, Any]
"""Samples by name, each a tensor (of texts: `Texts`) [n, ...]."""
Record = dict[str, torch.Tensor]
"""Scalars that say how a loss came about, without a graph."""
Loss = Callable[[Batch], tuple[torch.Tensor, Record]]
"""The mean loss of samples, and its record."""


class Updater(Protocol):
    """Evaluates a network on samples and steps down a loss of what came out."""

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [batch, n_actions] and values [batch] of samples (see `ActorCritic.forward`)."""
        ...

    def step(self, batch: Batch, loss: Loss) -> Record:
        """One step of Adam on the loss of a minibatch, after scaling the gradient down to a norm; returns the loss's
        record with `grad_norm`, the norm before that."""
        ...


@runtime_checkable
class GradientAccumulation(Protocol):
    """A network too large to compute a minibatch at once: gradients of its pieces are added up."""

    processes: Processes

    def pieces(self, batch: Batch) -> Iterable[tuple[Batch, float]]:
        """What this process computes of a minibatch, piece by piece, each with its share of the minibatch's samples;
        at least one piece, and the shares of all processes together are 1."""
        ...


class OptimizerStep:
    """Steps of torch's Adam.

    The gradient of a minibatch is that of its mean loss, in however many pieces and processes it is computed
    (`GradientAccumulation`), to float tolerance.

    Args:
        network: what is trained; parameters that require no gradient stay as they are.
        learning_rate, eps: of Adam.
        max_grad_norm: the gradient of all parameters together is scaled down to this norm.
        clip_apart: the gradient of what `critic` names is scaled down by itself, and that of all else, too.

    Attributes:
        divided: whether processes have divided the parameters among them.
        parts: names of the parameters whose gradients are scaled down together.
    """

    def __init__(
        self, network: nn.Module, learning_rate: float, eps: float, max_grad_norm: float, clip_apart: bool = False
    ) -> None:
        self.network, self.max_grad_norm = network, max_grad_norm
        named = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.parameters = list(named.values())
        critic = [name for name in named if clip_apart and name.startswith("critic.")]
        parts = (critic, [name for name in named if name not in critic])
        self.parts = [part for part in parts if part]
        self._clipped = [[named[name] for name in part] for part in self.parts]
        self.divided = any_divided(self.parameters)
        # Fused: one kernel for all parameters instead of several for each.
        self.optimizer = torch.optim.Adam(groups(self.parameters), lr=learning_rate, eps=eps, fused=True)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits, value = self.network(batch)
        return logits, value

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
        self.network.processes.sum_gradients(self.parameters)
        self.network.processes.sum_(list(record.values()))
        return record | {"grad_norm": self._descend()}

    def descend(self, loss: torch.Tensor) -> torch.Tensor:
        """One step on a loss that is computed already; returns the norm of its gradient."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._descend()

    def state_dict(self) -> State:
        """Of the optimiser, as of one that has all parameters whole and in one group: what several processes have
        divided among them, one can go on with, and the other way round."""
        saved: State = gathered(self.optimizer.state_dict())
        if not self.divided:
            return saved
        order = self._order()
        group = {**saved["param_groups"][0], "params": list(range(len(order)))}
        return {"state": {order[i]: x for i, x in saved["state"].items()}, "param_groups": [group]}

    def load_state_dict(self, state: State) -> None:
        if self.divided:
            own: State = self.optimizer.state_dict()
            order = self._order()
            parts = {
                i: divided(state["state"][k], _like(state["state"][k], self.parameters[k]))
                for i, k in enumerate(order)
                if k in state["state"]
            }
            group = state["param_groups"][0]
            groups = [{**group, "params": each["params"]} for each in own["param_groups"]]
            state = {"state": parts, "param_groups": groups}
        self.optimizer.load_state_dict(state)

    def _order(self) -> list[int]:
        """Which of `parameters` each of the optimiser's is."""
        places = {id(parameter): i for i, parameter in enumerate(self.parameters)}
        return [places[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def _descend(self) -> torch.Tensor:
        norms = [self._clip(part) for part in self._clipped if any(p.grad is not None for p in part)]
        self.optimizer.step()
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    def _clip(self, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
        if self.divided:
            assert isinstance(self.network, GradientAccumulation)
            return clip_gradients(parameters, self.max_grad_norm, self.network.processes)
        return nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).detach()


def _like(state: dict[str, torch.Tensor], parameter: nn.Parameter) -> dict[str, torch.Tensor | None]:
    """Of what form each entry of a parameter's optimiser state is: that of the parameter, if it is of its shape."""
    return {name: parameter if x.shape == parameter.shape else None for name, x in state.items()}
