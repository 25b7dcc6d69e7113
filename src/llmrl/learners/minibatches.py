"""How the samples of a rollout are dealt into minibatches: one by one, or as whole stretches of episodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from llmrl.core.errors import ConfigError

Batch = dict[str, Any]
"""Samples by name, each a tensor (of texts: `Texts`) [n, ...]."""


def dealt(order: torch.Tensor, size: int | None, drop_last: bool) -> tuple[torch.Tensor, ...]:
    """Cut orders of n samples, [..., n], into minibatches [..., size], the last of them smaller.

    Args:
        order: of the samples.
        size: samples of a minibatch; None: all.
        drop_last: leave the last out if it is smaller, as torch's `BatchSampler` does on request.

    Raises:
        ConfigError: nothing would be left.
    """
    n = order.shape[-1]
    size = size or n
    if drop_last and size > n:
        raise ConfigError(
            f"agent.ppo.drop_last leaves nothing to learn from: an update has {n} samples for a network, fewer than "
            f"agent.ppo.minibatch_size={size}; play more games or steps, or take smaller minibatches"
        )
    return torch.split(order[..., : n - n % size] if drop_last else order, size, dim=-1)


class Samples:
    """Minibatches of independent samples.

    Args:
        data: by name, each [n, ...].
        size: samples of a minibatch; None: all.
        drop_last: leave the last minibatch of an epoch out if it is smaller.
    """

    def __init__(self, data: Batch, size: int | None, drop_last: bool = False) -> None:
        self.data, self.size, self.drop_last = data, size, drop_last
        self.n = data["action"].shape[0]

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """All samples (but those left out), in a random order.

        Raises:
            ConfigError: as `dealt`.
        """
        order = torch.randperm(self.n, generator=generator, device=generator.device).to(self.data["action"].device)
        for indices in dealt(order, self.size, self.drop_last):
            yield {name: x[indices] for name, x in self.data.items()}


class Sequences:
    """Minibatches of stretches of episodes, for networks that remember: nothing is remembered across an episode's end.

    A stretch begins with an episode, or with the rollout, then from what was remembered there. A minibatch is made of
    whole stretches, one after another, and holds at least `size` samples (but the last, which is never left out): there
    is no padding that a mean could count.

    Args:
        data: by name, each [n, ...], with n = T * n_rows and time slowest.
        size: samples of a minibatch; None: all.
        first: where episodes begin, [T, n_rows] bool; a row is one agent of one game.
        state: what was remembered before the first step, [n_rows, state_size].
    """

    def __init__(self, data: Batch, size: int | None, first: torch.Tensor, state: torch.Tensor) -> None:
        self.data, self.size = data, size
        steps, rows = first.shape
        starts = first.cpu().clone()
        starts[0] = True
        found = starts.T.nonzero()  # by row, then by time
        row, start = found[:, 0], found[:, 1]
        last = torch.ones(len(row), dtype=torch.bool)
        last[:-1] = row[1:] != row[:-1]
        end = torch.where(last, steps, torch.roll(start, -1))
        self.lengths = end - start
        self.indices = [
            torch.arange(a, b) * rows + r for r, a, b in zip(row.tolist(), start.tolist(), end.tolist(), strict=True)
        ]
        began = first[0].to(state.device)[:, None]
        carried = torch.where(began, 0, state)[row.to(state.device)]
        self.state = torch.where((start == 0).to(state.device)[:, None], carried, 0)

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """All samples, stretches in a random order."""
        order = torch.randperm(len(self.indices), generator=generator, device=generator.device).cpu()
        until = self.lengths[order].cumsum(0)
        size = self.size or int(until[-1])
        device = self.data["action"].device
        begin = 0
        while begin < len(order):
            so_far = 0 if begin == 0 else int(until[begin - 1])
            end = int(torch.searchsorted(until, so_far + size)) + 1
            chosen = order[begin:end]
            begin = end
            indices = torch.cat([self.indices[i] for i in chosen.tolist()]).to(device)
            batch = {name: x[indices] for name, x in self.data.items()}
            yield batch | {"lengths": self.lengths[chosen], "state": self.state[chosen.to(self.state.device)]}
