"""Minibatches of a rollout's samples: independent samples, or parts of episodes (stretches) for recurrent networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.errors import ConfigError


def split_minibatches(permutations: torch.Tensor, size: int | None, drop_last: bool) -> tuple[torch.Tensor, ...]:
    """Split permutations of n samples, [..., n], into minibatches [..., size], of which the last may be smaller.

    Args:
        permutations: permutations of the samples.
        size: number of samples of a minibatch; None: all.
        drop_last: whether the last minibatch is omitted if it is smaller, as in torch's `BatchSampler`.

    Raises:
        ConfigError: no minibatch would be left.
    """
    n = permutations.shape[-1]
    size = size or n
    if drop_last and size > n:
        raise ConfigError(
            f"agent.ppo.drop_last=true drops all samples: an update has {n} samples for a network, fewer than "
            f"agent.ppo.minibatch_size={size}; increase env.n_envs or learn.rollout_steps, or use smaller minibatches"
        )
    return torch.split(permutations[..., : n - n % size] if drop_last else permutations, size, dim=-1)


def index_network_samples(shape: Sequence[int], n_learners: int, n_networks: int) -> torch.Tensor:
    """Return the indices of each network's samples in a flattened rollout, [n_learners * n_networks, n] int64.

    Learner i has the i-th of equal groups of games; each of its networks has n_agents / n_networks agents. The samples
    of a network have the same order as in a rollout of only its games and agents.

    Args:
        shape: shape of the rollout, [T, n_envs, n_agents].
        n_learners: number of learners.
        n_networks: number of networks of each learner.
    """
    n_steps, n_games, n_agents = shape
    indices = torch.arange(n_steps * n_games * n_agents)
    indices = indices.view(n_steps, n_learners, n_games // n_learners, n_networks, n_agents // n_networks)
    return indices.permute(1, 3, 0, 2, 4).reshape(n_learners * n_networks, -1)


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

    def iterate_batches(self, permutation: torch.Tensor) -> Iterator[Batch]:
        """Yield the minibatches of an epoch, each [size, ...] or [k, size, ...].

        With teams, they contain `joint_action_index` [n], the index within the minibatch of a sample's joint action.

        Args:
            permutation: permutation of the units of each network, [n_units] or [k, n_units] int64.

        Raises:
            ConfigError: see `split_minibatches`.
        """
        permutation = permutation.to(self.indices.device)
        size = None if self.size is None else max(1, self.size // self.team_size)
        for units in split_minibatches(permutation, size, self.drop_last):
            positions, joint_action_field = units, {}
            if self.team_size > 1:
                offsets = torch.arange(self.team_size, device=units.device)
                positions = (units[:, None] * self.team_size + offsets).flatten()
                joint_indices = torch.arange(len(units), device=units.device)
                joint_action_field["joint_action_index"] = joint_indices.repeat_interleave(self.team_size)
            yield select_samples(self.samples, self.indices.gather(-1, positions)) | joint_action_field


def select_samples(samples: Batch, indices: torch.Tensor) -> Batch:
    """Return the samples at `indices` [...], each tensor [..., *shape of a sample]."""
    flat = indices.flatten()  # indexing with a flat tensor takes half the time
    return {
        name: x.index_select(0, flat.to(x.device)).reshape(*indices.shape, *x.shape[1:]) for name, x in samples.items()
    }


class SequenceMinibatches:
    """Minibatches of stretches, for recurrent networks.

    A stretch is the part of an episode within the rollout, for one agent of one game. Its initial
    memory state is `state` if its episode began before the rollout, else 0. A minibatch is the concatenation of whole
    stretches without padding, with at least `size` samples. The last one, which may be smaller, is never omitted.

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
        stretch_starts = episode_starts.cpu().clone()
        stretch_starts[0] = True
        rows, begins = stretch_starts.T.nonzero().unbind(1)  # sorted by row, then by time
        is_last_in_row = torch.ones(len(rows), dtype=torch.bool)
        is_last_in_row[:-1] = rows[1:] != rows[:-1]
        ends = torch.where(is_last_in_row, n_steps, torch.roll(begins, -1))
        self.lengths = ends - begins
        stretch_bounds = zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True)
        index_grid = indices.cpu().view(n_steps, n_rows)  # many short slices, which a GPU would launch one by one
        self.indices = [index_grid[begin:stop, r] for r, begin, stop in stretch_bounds]
        initial_state = torch.where(episode_starts[0].to(state.device)[:, None], 0, state)[rows.to(state.device)]
        self.state = torch.where((begins == 0).to(state.device)[:, None], initial_state, 0)
        # Unit of a team: the stretches with the same index within their rows.
        stretch_indices = torch.cat([torch.arange(int(n)) for n in torch.bincount(rows, minlength=n_rows)])
        keys = list(zip((rows // team_size).tolist(), stretch_indices.tolist(), rows.tolist(), strict=True))
        self.units = torch.tensor(sorted(range(len(rows)), key=keys.__getitem__)).view(-1, team_size)
        self.n_units = len(self.units)

    def iterate_batches(self, permutation: torch.Tensor) -> Iterator[Batch]:
        """Yield minibatches of all samples, with `lengths` and `state` of each stretch.

        With teams, they contain `joint_action_index` (see `Minibatches`).

        Args:
            permutation: permutation of the units, [n_units] int64.
        """
        permutation = permutation.cpu()
        cumulative_sizes = (self.lengths[self.units[permutation, 0]] * self.team_size).cumsum(0)
        size = self.size or int(cumulative_sizes[-1])
        device = self.samples["action"].device
        begin = 0
        while begin < len(permutation):
            previous_end = 0 if begin == 0 else int(cumulative_sizes[begin - 1])
            end = int(torch.searchsorted(cumulative_sizes, previous_end + size)) + 1
            units = self.units[permutation[begin:end]]
            begin, stretches = end, units.flatten()
            batch = select_samples(self.samples, torch.cat([self.indices[i] for i in stretches.tolist()]).to(device))
            batch |= {"lengths": self.lengths[stretches], "state": self.state[stretches.to(self.state.device)]}
            if self.team_size > 1:
                batch["joint_action_index"] = self._index_joint_actions(self.lengths[units[:, 0]]).to(device)
            yield batch

    def _index_joint_actions(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the index of each sample's joint action, for teams of stretches with `lengths` [n_units]."""
        starts = lengths.cumsum(0) - lengths
        stretches = zip(starts.tolist(), lengths.tolist(), strict=True)
        return torch.cat([torch.arange(offset, offset + n).repeat(self.team_size) for offset, n in stretches])
