"""How a network takes gradient steps: in place, or as a differentiable function of what the loss depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn
from torch.func import functional_call

from llmrl.core.processes import Processes
from llmrl.core.records import State
from llmrl.learners.divided import any_divided, clip_gradients, divided, gathered, groups
from llmrl.learners.functional_adam import Moments, adam_step, clip_by_norm
from llmrl.learners.minibatches import Batch
from llmrl.networks.actor_critic import JOINT, MECHANISM

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
class InPieces(Protocol):
    """A network too large to compute a minibatch at once: gradients of its pieces are added up."""

    processes: Processes

    def pieces(self, batch: Batch) -> Iterable[tuple[Batch, float]]:
        """What this process computes of a minibatch, piece by piece, each with its share of the minibatch's samples;
        at least one piece, and the shares of all processes together are 1."""
        ...


class InPlace:
    """Steps of torch's Adam.

    The gradient of a minibatch is that of its mean loss, in however many pieces and processes it is computed
    (`InPieces`), to float tolerance.

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
        if not isinstance(self.network, InPieces):
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
            assert isinstance(self.network, InPieces)
            return clip_gradients(parameters, self.max_grad_norm, self.network.processes)
        return nn.utils.clip_grad_norm_(parameters, self.max_grad_norm).detach()


class Differentiable:
    """The steps `InPlace` would make, keeping how the new weights depend on everything the losses depended on.

    It begins with the weights and moments of an `InPlace` and leaves them alone until `write_back`.

    Args:
        ordinary: the updater whose steps these are.
        shift: zeros [d] whose derivative by the mechanism's values is one; added to what the network sees of them.
            None: what it sees counts as given.
        columns: where features hold these values (`ActorCritic.mechanism_columns`).
        joint: where a central critic's channel holds them (`ActorCritic.joint_columns`).
    """

    def __init__(
        self,
        ordinary: InPlace,
        shift: torch.Tensor | None = None,
        columns: slice | None = None,
        joint: Sequence[int] = (),
    ) -> None:
        self.ordinary, self.shift, self.columns, self.joint = ordinary, shift, columns, joint
        self.network = ordinary.network
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.weights = {name: p.detach().clone().requires_grad_() for name, p in trained.items()}
        self.moments = {name: _moments(ordinary.optimizer, p) for name, p in trained.items()}

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if self.shift is not None:
            batch = _shifted(batch, self.shift, self.columns, self.joint)
        logits, value = functional_call(self.network, self.weights, (batch,))
        return logits, value

    def step(self, batch: Batch, loss: Loss) -> Record:
        group = self.ordinary.optimizer.param_groups[0]
        value, record = loss(batch)
        found = torch.autograd.grad(value, list(self.weights.values()), create_graph=True, allow_unused=True)
        gradients = {name: g for name, g in zip(self.weights, found, strict=True) if g is not None}
        norms = []
        for part in self.ordinary.parts:
            own = {name: gradients[name] for name in part if name in gradients}
            if not own:
                continue
            clipped, norm = clip_by_norm(own, self.ordinary.max_grad_norm)
            norms.append(norm.detach())
            for name, gradient in clipped.items():
                self.weights[name], self.moments[name] = adam_step(
                    self.weights[name], gradient, self.moments[name], group["lr"], group["eps"], group["betas"]
                )
        return record | {"grad_norm": torch.linalg.vector_norm(torch.stack(norms))}

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the network the weights, and the optimizer the moments, as plain numbers."""
        optimizer = self.ordinary.optimizer
        for name, parameter in self.network.named_parameters():
            if name in self.weights and self.moments[name].steps:
                moments = self.moments[name]
                parameter.copy_(self.weights[name])
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(moments.steps), device=parameter.device),
                    "exp_avg": moments.first.detach().clone(),
                    "exp_avg_sq": moments.second.detach().clone(),
                }


def _like(state: dict[str, torch.Tensor], parameter: nn.Parameter) -> dict[str, torch.Tensor | None]:
    """Of what form each entry of a parameter's optimiser state is: that of the parameter, if it is of its shape."""
    return {name: parameter if x.shape == parameter.shape else None for name, x in state.items()}


def _shifted(batch: Batch, shift: torch.Tensor, columns: slice | None, joint: Sequence[int]) -> Batch:
    """Samples with `shift` [d] added to what they say of the mechanism's values: in the channel (and in that of a
    central critic), or in the features."""
    if MECHANISM in batch:
        moved = {MECHANISM: batch[MECHANISM] + shift}
        if joint:
            seen = batch[JOINT]
            places = torch.tensor(joint, device=seen.device)
            moved[JOINT] = seen.index_add(1, places, shift.repeat(len(joint) // len(shift)).expand(len(seen), -1))
        return {**batch, **moved}
    if "features" in batch and columns is not None:
        padding = (columns.start, batch["features"].shape[-1] - columns.stop)
        return {**batch, "features": batch["features"] + nn.functional.pad(shift, padding)}
    return batch


def _moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Moments:
    state = optimizer.state.get(parameter)
    if not state:
        return Moments(0, torch.zeros_like(parameter), torch.zeros_like(parameter))
    return Moments(int(state["step"]), state["exp_avg"].clone(), state["exp_avg_sq"].clone())
