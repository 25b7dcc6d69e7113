"""Minibatches of a rollout's samples: independent ones, and stretches of episodes for networks with a memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.errors import ConfigError


def split_minibatches(order: torch.Tensor, size: int | None, drop_last: bool) -> tuple[torch.Tensor, ...]:
    """Split permutations of n samples, [..., n], into minibatches [..., size], of which the last may be smaller.

    Args:
        order: permutations of the samples.
        size: samples of a minibatch; None: all.
        drop_last: drop the last minibatch if it is smaller, as torch's `BatchSampler` does.

    Raises:
        ConfigError: no minibatch would be left.
    """
    n = order.shape[-1]
    size = size or n
    if drop_last and size > n:
        raise ConfigError(
            f"agent.ppo.drop_last leaves nothing to learn from: an update has {n} samples for a network, fewer than "
            f"agent.ppo.minibatch_size={size}; play more games or steps, or take smaller minibatches"
        )
    return torch.split(order[..., : n - n % size] if drop_last else order, size, dim=-1)


class Minibatches:
    """Minibatches of independent samples.

    Args:
        data: samples by name, each [n, ...].
        size: samples of a minibatch; None: all.
        drop_last: drop the last minibatch of an epoch if it is smaller.
        team: consecutive samples that stay together, those of a team in one step; 1: none do.
    """

    def __init__(self, data: Batch, size: int | None, drop_last: bool = False, team: int = 1) -> None:
        self.data, self.size, self.drop_last, self.team = data, size, drop_last, team
        self.n = data["action"].shape[0] // team

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """Yield minibatches of all samples (except those dropped) in random order.

        For teams they have `team_step` [n], the number within the minibatch of a sample's joint action.

        Raises:
            ConfigError: as `split_minibatches`.
        """
        order = torch.randperm(self.n, generator=generator, device=generator.device).to(self.data["action"].device)
        size = None if self.size is None else max(1, self.size // self.team)
        for chosen in split_minibatches(order, size, self.drop_last):
            if self.team == 1:
                yield {name: x[chosen] for name, x in self.data.items()}
                continue
            indices = (chosen[:, None] * self.team + torch.arange(self.team, device=chosen.device)).flatten()
            joint = torch.arange(len(chosen), device=chosen.device).repeat_interleave(self.team)
            yield {name: x[indices] for name, x in self.data.items()} | {"team_step": joint}


class SequenceMinibatches:
    """Minibatches of stretches of episodes, for recurrent networks.

    A stretch begins with an episode, or with the rollout and then with the memory at its start. A minibatch is the
    concatenation of whole stretches without padding, and holds at least `size` samples; the last one, which may be
    smaller, is never dropped.

    Args:
        data: samples by name, each [n, ...], with n = T * n_rows and time slowest.
        size: samples of a minibatch; None: all.
        first: starts of episodes, [T, n_rows] bool; a row is one agent of one game.
        state: memory before the first step, [n_rows, state_size].
        team: consecutive rows that stay together, those of a team in one game, whose episodes begin together; 1: none.
    """

    def __init__(self, data: Batch, size: int | None, first: torch.Tensor, state: torch.Tensor, team: int = 1) -> None:
        self.data, self.size, self.team = data, size, team
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
        # Stretches of a team: the same one of each of its rows.
        nth = torch.cat([torch.arange(int(n)) for n in torch.bincount(row, minlength=rows)])
        order = sorted(range(len(row)), key=lambda i: (int(row[i]) // team, int(nth[i]), int(row[i])))
        self.units = torch.tensor(order).view(-1, team)

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """Yield minibatches of all samples, stretches in random order, with `lengths` and `state` of each stretch.

        For teams they have `team_step`, as `Minibatches`."""
        order = torch.randperm(len(self.units), generator=generator, device=generator.device).cpu()
        until = (self.lengths[self.units[order, 0]] * self.team).cumsum(0)
        size = self.size or int(until[-1])
        device = self.data["action"].device
        begin = 0
        while begin < len(order):
            so_far = 0 if begin == 0 else int(until[begin - 1])
            end = int(torch.searchsorted(until, so_far + size)) + 1
            units = self.units[order[begin:end]]
            begin, chosen = end, units.flatten()
            indices = torch.cat([self.indices[i] for i in chosen.tolist()]).to(device)
            batch = {name: x[indices] for name, x in self.data.items()}
            batch |= {"lengths": self.lengths[chosen], "state": self.state[chosen.to(self.state.device)]}
            if self.team > 1:
                batch["team_step"] = self._joint(self.lengths[units[:, 0]]).to(device)
            yield batch

    def _joint(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the numbers of joint actions of stretches of `lengths` [n_units], each repeated for the team."""
        starts = lengths.cumsum(0) - lengths
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        return torch.cat([torch.arange(first, first + n).repeat(self.team) for first, n in pairs])
