"""Minibatches of a rollout's samples: independent samples, or parts of episodes (stretches) for recurrent networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.errors import ConfigError


def split_minibatches(order: torch.Tensor, size: int | None, drop_last: bool) -> tuple[torch.Tensor, ...]:
    """Split permutations of n samples, [..., n], into minibatches [..., size], of which the last may be smaller.

    Args:
        order: permutations of the samples.
        size: number of samples of a minibatch; None: all.
        drop_last: whether the last minibatch is omitted if it is smaller, as in torch's `BatchSampler`.

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

    Learner i has the i-th of equal groups of games; each of its networks has n_agents / groups agents. The samples of a
    network have the same order as in a rollout of only its games and agents.

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
        samples: name -> samples of all networks, each [n_all, ...].
        indices: indices of the samples of the network, [n] int64, or of each network, [k, n].
        size: number of samples of a minibatch and network; None: all.
        drop_last: whether the last minibatch of an epoch is omitted if it is smaller.
        team_size: number of consecutive samples (those of a team of agents in one step) that are in the same minibatch.

    Attributes:
        n_units: number of units that are permuted: samples of a network, or teams of samples.
    """

    def __init__(
        self, samples: Batch, indices: torch.Tensor, size: int | None, drop_last: bool = False, team_size: int = 1
    ) -> None:
        self.samples, self.indices, self.size, self.drop_last = samples, indices, size, drop_last
        self.team_size = team_size
        self.n_units = indices.shape[-1] // team_size

    def batches(self, order: torch.Tensor) -> Iterator[Batch]:
        """Yield the minibatches of an epoch, each [size, ...] or [k, size, ...].

        With teams, they contain `joint_action_index` [n], the index within the minibatch of a sample's joint action.

        Args:
            order: permutation of the units of each network, [n_units] or [k, n_units] int64.

        Raises:
            ConfigError: see `split_minibatches`.
        """
        order = order.to(self.indices.device)
        size = None if self.size is None else max(1, self.size // self.team_size)
        for units in split_minibatches(order, size, self.drop_last):
            positions, joint_actions = units, {}
            if self.team_size > 1:
                members = torch.arange(self.team_size, device=units.device)
                positions = (units[:, None] * self.team_size + members).flatten()
                joint_actions["joint_action_index"] = torch.arange(len(units), device=units.device).repeat_interleave(
                    self.team_size
                )
            yield select_samples(self.samples, self.indices.gather(-1, positions)) | joint_actions


def select_samples(samples: Batch, indices: torch.Tensor) -> Batch:
    """Return the samples `indices` [...] of data by name, each [..., *shape of a sample]."""
    flat = indices.flatten()  # indexing with a flat tensor takes half the time
    return {
        name: x.index_select(0, flat.to(x.device)).reshape(*indices.shape, *x.shape[1:]) for name, x in samples.items()
    }


class SequenceMinibatches:
    """Minibatches of stretches, for recurrent networks.

    A stretch is the part of an episode within the rollout, for one agent of one game. At the start of the rollout, its
    initial memory state is that of the rollout. A minibatch is the concatenation of whole stretches without padding,
    with at least `size` samples. The last one, which may be smaller, is never omitted.

    Args:
        samples: name -> samples of all networks, each [n_all, ...].
        indices: indices of the samples of the network, [n] int64, with n = T * n_rows and time slowest.
        size: minimum number of samples of a minibatch; None: all.
        episode_starts: whether an episode starts, [T, n_rows] bool; a row is one agent of one game.
        state: memory state before the first step, [n_rows, state_size].
        team_size: number of consecutive rows (those of a team of agents in one game) whose stretches are in the same
            minibatch.

    Attributes:
        n_units: number of units that are permuted: stretches, or teams of stretches.
    """

    def __init__(
        self,
        samples: Batch,
        indices: torch.Tensor,
        size: int | None,
        episode_starts: torch.Tensor,
        state: torch.Tensor,
        team_size: int = 1,
    ) -> None:
        self.samples, self.size, self.team_size = samples, size, team_size
        n_steps, n_rows = episode_starts.shape
        starts = episode_starts.cpu().clone()
        starts[0] = True
        positions = starts.T.nonzero()  # sorted by row, then by time
        rows, begins = positions[:, 0], positions[:, 1]
        is_last_in_row = torch.ones(len(rows), dtype=torch.bool)
        is_last_in_row[:-1] = rows[1:] != rows[:-1]
        ends = torch.where(is_last_in_row, n_steps, torch.roll(begins, -1))
        self.lengths = ends - begins
        row_start_ends = zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True)
        grid = indices.cpu().view(n_steps, n_rows)  # many short slices, which a GPU would launch one by one
        self.indices = [grid[begin:stop, r] for r, begin, stop in row_start_ends]
        is_start = episode_starts[0].to(state.device)[:, None]
        initial_state = torch.where(is_start, 0, state)[rows.to(state.device)]
        self.state = torch.where((begins == 0).to(state.device)[:, None], initial_state, 0)
        # Unit of a team: the stretches with the same index within their rows.
        stretch_indices = torch.cat([torch.arange(int(n_units)) for n_units in torch.bincount(rows, minlength=n_rows)])
        order = sorted(
            range(len(rows)),
            key=lambda i: (int(rows[i]) // team_size, int(stretch_indices[i]), int(rows[i])),
        )
        self.units = torch.tensor(order).view(-1, team_size)
        self.n_units = len(self.units)

    def batches(self, order: torch.Tensor) -> Iterator[Batch]:
        """Yield minibatches of all samples, with `lengths` and `state` of each stretch.

        With teams, they contain `joint_action_index` (see `Minibatches`).

        Args:
            order: permutation of the units, [n_units] int64.
        """
        order = order.cpu()
        ends = (self.lengths[self.units[order, 0]] * self.team_size).cumsum(0)
        size = self.size or int(ends[-1])
        device = self.samples["action"].device
        begin = 0
        while begin < len(order):
            previous_end = 0 if begin == 0 else int(ends[begin - 1])
            end = int(torch.searchsorted(ends, previous_end + size)) + 1
            units = self.units[order[begin:end]]
            begin, selection = end, units.flatten()
            batch = select_samples(self.samples, torch.cat([self.indices[i] for i in selection.tolist()]).to(device))
            batch |= {"lengths": self.lengths[selection], "state": self.state[selection.to(self.state.device)]}
            if self.team_size > 1:
                batch["joint_action_index"] = self._index_joint_actions(self.lengths[units[:, 0]]).to(device)
            yield batch

    def _index_joint_actions(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the index of each sample's joint action, for teams of stretches with `lengths` [n_units]."""
        starts = lengths.cumsum(0) - lengths
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        return torch.cat([torch.arange(offset, offset + n).repeat(self.team_size) for offset, n in pairs])
