"""Minibatches of a rollout's samples: independent samples, and stretches of episodes for recurrent networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
            f"agent.ppo.drop_last=true drops all samples: an update has {n} samples for a network, fewer than "
            f"agent.ppo.minibatch_size={size}; increase env.n_envs or learn.rollout_steps, or use smaller minibatches"
        )
    return torch.split(order[..., : n - n % size] if drop_last else order, size, dim=-1)


def sample_indices(shape: Sequence[int], learners: int, groups: int) -> torch.Tensor:
    """Return the indices of each network's samples in a flattened rollout, [learners * groups, n] int64.

    Learners play equal groups of games, in order; each of a learner's networks plays n_agents / groups agents. The
    samples of a network are in the order of its own rollout.

    Args:
        shape: shape of the rollout, [T, n_envs, n_agents].
        learners: number of learners.
        groups: number of networks of each learner.
    """
    steps, games, agents = shape
    index = torch.arange(steps * games * agents).view(steps, learners, games // learners, groups, agents // groups)
    return index.permute(1, 3, 0, 2, 4).reshape(learners * groups, -1)


class Minibatches:
    """Minibatches of independent samples of one network, or of k networks with equally many samples.

    Args:
        data: samples of all networks by name, each [n_all, ...].
        indices: samples of the network, [n] int64, or of each network, [k, n].
        size: samples of a minibatch and network; None: all.
        drop_last: drop the last minibatch of an epoch if it is smaller.
        team: consecutive samples that stay together, those of a team in one step; 1: none do.

    Attributes:
        n: samples of a network, or those of teams, that are permuted.
    """

    def __init__(
        self, data: Batch, indices: torch.Tensor, size: int | None, drop_last: bool = False, team: int = 1
    ) -> None:
        self.data, self.indices, self.size, self.drop_last, self.team = data, indices, size, drop_last, team
        self.n = indices.shape[-1] // team

    def batches(self, order: torch.Tensor) -> Iterator[Batch]:
        """Yield the minibatches of an epoch, each [size, ...] or [k, size, ...].

        For teams they have `team_step` [n], the number within the minibatch of a sample's joint action.

        Args:
            order: permutation of the samples of each network, [n] or [k, n] int64.

        Raises:
            ConfigError: as `split_minibatches`.
        """
        order = order.to(self.indices.device)
        size = None if self.size is None else max(1, self.size // self.team)
        for samples in split_minibatches(order, size, self.drop_last):
            team_steps = {}
            if self.team > 1:
                members = torch.arange(self.team, device=samples.device)
                team_steps["team_step"] = torch.arange(len(samples), device=samples.device).repeat_interleave(self.team)
                samples = (samples[:, None] * self.team + members).flatten()
            batch_indices = self.indices.gather(-1, samples)
            yield select(self.data, batch_indices) | team_steps


def select(data: Batch, indices: torch.Tensor) -> Batch:
    """Return the samples `indices` [...] of data by name, each [..., *shape of a sample]."""
    flat = indices.flatten()  # indexing with a flat tensor takes half the time of a table
    return {name: x.index_select(0, flat).reshape(*indices.shape, *x.shape[1:]) for name, x in data.items()}


class SequenceMinibatches:
    """Minibatches of stretches of episodes, for recurrent networks.

    A stretch begins with an episode, or with the rollout and then with the memory at its start. A minibatch is the
    concatenation of whole stretches without padding, and holds at least `size` samples; the last one, which may be
    smaller, is never dropped.

    Args:
        data: samples of all networks by name, each [n_all, ...].
        indices: samples of the network, [n] int64, with n = T * n_rows and time slowest.
        size: samples of a minibatch; None: all.
        first: starts of episodes, [T, n_rows] bool; a row is one agent of one game.
        state: memory before the first step, [n_rows, state_size].
        team: consecutive rows that stay together, those of a team in one game, whose episodes begin together; 1: none.

    Attributes:
        n: stretches, or those of teams, that are permuted.
    """

    def __init__(
        self,
        data: Batch,
        indices: torch.Tensor,
        size: int | None,
        first: torch.Tensor,
        state: torch.Tensor,
        team: int = 1,
    ) -> None:
        self.data, self.size, self.team = data, size, team
        steps, rows = first.shape
        starts = first.cpu().clone()
        starts[0] = True
        positions = starts.T.nonzero()  # sorted by row, then by time
        row, start = positions[:, 0], positions[:, 1]
        last = torch.ones(len(row), dtype=torch.bool)
        last[:-1] = row[1:] != row[:-1]
        end = torch.where(last, steps, torch.roll(start, -1))
        self.lengths = end - start
        stretches = zip(row.tolist(), start.tolist(), end.tolist(), strict=True)
        grid = indices.cpu().view(steps, rows)  # many short slices, which a GPU would launch one by one
        self.indices = [grid[begin:stop, r] for r, begin, stop in stretches]
        is_start = first[0].to(state.device)[:, None]
        initial_state = torch.where(is_start, 0, state)[row.to(state.device)]
        self.state = torch.where((start == 0).to(state.device)[:, None], initial_state, 0)
        # A team's unit: stretches with the same number within their rows.
        stretch_numbers = torch.cat([torch.arange(int(n)) for n in torch.bincount(row, minlength=rows)])
        order = sorted(range(len(row)), key=lambda i: (int(row[i]) // team, int(stretch_numbers[i]), int(row[i])))
        self.units = torch.tensor(order).view(-1, team)
        self.n = len(self.units)

    def batches(self, order: torch.Tensor) -> Iterator[Batch]:
        """Yield minibatches of all samples, with `lengths` and `state` of each stretch.

        For teams they have `team_step`, as `Minibatches`.

        Args:
            order: permutation of the stretches (of teams), [n] int64.
        """
        order = order.cpu()
        ends = (self.lengths[self.units[order, 0]] * self.team).cumsum(0)
        size = self.size or int(ends[-1])
        device = self.data["action"].device
        begin = 0
        while begin < len(order):
            previous_end = 0 if begin == 0 else int(ends[begin - 1])
            end = int(torch.searchsorted(ends, previous_end + size)) + 1
            units = self.units[order[begin:end]]
            begin, selection = end, units.flatten()
            batch = select(self.data, torch.cat([self.indices[i] for i in selection.tolist()]).to(device))
            batch |= {"lengths": self.lengths[selection], "state": self.state[selection.to(self.state.device)]}
            if self.team > 1:
                batch["team_step"] = self._team_steps(self.lengths[units[:, 0]]).to(device)
            yield batch

    def _team_steps(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the numbers of joint actions of stretches of `lengths` [n_units], each repeated for the team."""
        starts = lengths.cumsum(0) - lengths
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        return torch.cat([torch.arange(offset, offset + n).repeat(self.team) for offset, n in pairs])
