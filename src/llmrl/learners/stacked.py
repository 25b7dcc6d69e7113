"""Gradient steps of several networks at once, each on samples and with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from llmrl.learners.minibatches import Batch, dealt
from llmrl.learners.updaters import InPlace, Loss, Record
from llmrl.networks.stacked import StackedNetwork


class Stacked:
    """The steps that `InPlace` updaters would make one after the other, to float tolerance.

    A loss is a vector [k], one number a network. As Adam works number by number, one of torch's over the stacked
    parameters is one for each network; a gradient is scaled down by the norm of its own network's part alone.

    Between `read` and `write_back` the ordinary updaters and their networks stay as they were.

    Args:
        stack: the networks.
    """

    def __init__(self, stack: StackedNetwork) -> None:
        self.stack = stack
        named = {name: p for name, p in stack.network.named_parameters() if p.requires_grad}
        self._named = named
        self.parameters = list(named.values())
        self._members = [members for p, members in stack.parameters if p.requires_grad]
        self._ordinary: Sequence[InPlace] = ()

    def read(self, ordinary: Sequence[InPlace]) -> None:
        """Begin with the weights, moments and step size of `ordinary`, an `alike` updater for each network."""
        self.stack.read()
        self._ordinary = ordinary
        group = ordinary[0].optimizer.param_groups[0]
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=group["lr"], eps=group["eps"], betas=group["betas"], fused=True
        )
        for p, members in zip(self.parameters, self._members, strict=True):
            states = [each.optimizer.state.get(own) for each, own in zip(ordinary, members, strict=True)]
            found = [state for state in states if state]
            if found:
                self.optimizer.state[p] = {
                    "step": found[0]["step"].clone(),
                    **{name: torch.stack([state[name] for state in found]) for name in ("exp_avg", "exp_avg_sq")},
                }

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits, value = self.stack.network(batch)
        return logits, value

    def step(self, batch: Batch, loss: Loss) -> Record:
        value, record = loss(batch)
        self.optimizer.zero_grad()
        value.sum().backward()  # type: ignore[no-untyped-call]
        norms = []
        for part in self._ordinary[0].parts:
            gradients = [g for name in part if (g := self._named[name].grad) is not None]
            if gradients:
                norms.append(self._clip(gradients))
        self.optimizer.step()
        return record | {"grad_norm": torch.linalg.vector_norm(torch.stack(norms), dim=0)}

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Scale each network's gradients down together; returns the norms before, [k]."""
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
        norm: torch.Tensor = torch.linalg.vector_norm(norms, dim=0)
        scale = (self._ordinary[0].max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, [scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients])
        return norm

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the networks their weights, and the ordinary optimizers their moments and steps."""
        self.stack.write()
        new: list[torch.Tensor] = []
        places: list[torch.Tensor] = []
        for p, members in zip(self.parameters, self._members, strict=True):
            if not (state := self.optimizer.state.get(p)):
                continue
            for i, (each, own) in enumerate(zip(self._ordinary, members, strict=True)):
                kept = each.optimizer.state[own]
                kept["step"] = state["step"].clone()
                for name in ("exp_avg", "exp_avg_sq"):
                    new.append(state[name][i])
                    places.append(kept.setdefault(name, torch.empty_like(own)))
        if new:
            torch._foreach_copy_(places, new)


def alike(updaters: Sequence[InPlace]) -> bool:
    """Whether the updaters are at the same step with the same settings, and none is divided among processes."""
    if any(type(each) is not InPlace or each.divided for each in updaters):
        return False
    first = _place(updaters[0])
    return all(_place(each) == first for each in updaters[1:])


class Dealt:
    """Minibatches of several networks at once: [k, b, ...], as `Samples` would deal them to each.

    Args:
        data: samples of all networks by name, each [n_all, ...].
        where: which of them are each network's own, [k, n] int64.
        orders: of each network's own, [k, epochs, n] int64: a permutation an epoch.
        size: samples of a minibatch and network; None: all.
        drop_last: leave the last minibatch of an epoch out if it is smaller.
    """

    def __init__(
        self, data: Batch, where: torch.Tensor, orders: torch.Tensor, size: int | None, drop_last: bool = False
    ) -> None:
        self.data, self.where, self.orders = data, where, orders
        self.size, self.drop_last = size, drop_last

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """The minibatches of each epoch.

        Raises:
            ConfigError: as `dealt`.
        """
        for order in self.orders.unbind(1):
            yield self._epoch(self.where.gather(1, order))

    def _epoch(self, order: torch.Tensor) -> Iterator[Batch]:
        for chosen in dealt(order, self.size, self.drop_last):
            yield {name: x[chosen] for name, x in self.data.items()}


def _place(updater: InPlace) -> list[object]:
    """Settings, and the steps that each parameter has made."""
    [group] = updater.optimizer.param_groups
    states = [updater.optimizer.state.get(p) for p in updater.parameters]
    steps = [float(state["step"]) if state else None for state in states]
    return [updater.max_grad_norm, updater.parts, group["lr"], group["eps"], group["betas"], steps]
