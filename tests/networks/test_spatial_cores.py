"""Cores for maps of codes: tables of what a cell shows, and convolutions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from llmrl.algorithms.societies.stacked_networks import StackedNetwork, are_stackable, count_cells
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.spatial_cores import OneHots

CODES = (7, 9, 5, 3)
LARGE_MAP = (300, 300, 20)
"""Codes of too many kinds of cells for a table."""


def random_codes(shape, codes=CODES, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, codes, (*shape, len(codes))))


def network(seed=0, size=(7, 5), **options):
    channels = {"grid": Channel((*size, 4), "uint8", 0, 8, codes=CODES), "vector": Channel((2,), "float32", 0, 1)}
    spec = EnvSpec("toy", 2, 3, channels, 4, tuple("abcd"), horizon=5)
    return ActorCritic(spec, Seeds(seed).torch("weights"), NetworkSettings(features=16, **options))


def samples(n=6, size=(7, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    grid = random_codes((n, *size), seed=seed).to(torch.uint8)
    return {"grid": grid, "vector": torch.rand(n, 2, generator=generator), "player": torch.eye(3)[torch.arange(n) % 3]}


@pytest.mark.parametrize(("codes", "has_table"), [(CODES, True), ((4,), True), (LARGE_MAP, False)])
def test_one_hots_concatenate_codes(codes, has_table):
    codes_, encoder = random_codes((2, 3, 4), codes), OneHots(codes)
    reference = torch.cat([functional.one_hot(x, n) for x, n in zip(codes_.unbind(-1), codes, strict=True)], -1)
    assert bool(encoder.n_kinds) == has_table
    assert torch.equal(encoder(codes_), reference.float())


@pytest.mark.parametrize("channels", [(8,), (8, 4)])
@pytest.mark.parametrize("encoding", ["onehot", "codes"])
def test_stack_matches_single_networks(channels, encoding):
    members = [network(seed, map_channels=channels, encoding=encoding) for seed in range(3)]
    assert are_stackable(members)
    different = network(0, map_channels=(4, 4), encoding=encoding)
    assert not are_stackable([members[0], different])
    observations = [samples(seed=seed) for seed in range(3)]
    assert count_cells(members[0], observations[0]) == 35
    logits, values = StackedNetwork(members).network(
        {n: torch.stack([observation[n] for observation in observations]) for n in observations[0]}
    )
    for i, (member, observation) in enumerate(zip(members, observations, strict=True)):
        single = member(observation)
        torch.testing.assert_close(logits[i], single[0])
        torch.testing.assert_close(values[i], single[1])


def test_chunks_match_full_batch():
    net, observation = network(map_channels=(8, 4)), samples(23)
    batched = net(observation)
    net._max_samples_per_pass = 5
    with torch.no_grad():
        in_pieces = net(observation)
    for full, chunk in zip(batched, in_pieces, strict=True):
        torch.testing.assert_close(full, chunk)
    stacked = StackedNetwork([net, net])
    stacked.network._max_samples_per_pass = 6  # of both networks
    with torch.no_grad():
        repeated = stacked.network({name: torch.stack([x, x]) for name, x in observation.items()})
    for full, chunk in zip(batched, repeated, strict=True):
        torch.testing.assert_close(torch.stack([full, full]), chunk)
