"""Cores for maps of codes: tables of what a cell shows, and a first convolution with a stride."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from llmrl.algorithms.societies.stacked_networks import StackedNetwork, cells_of, stackable
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.grid_cores import GridCore, OneHots, StridedConvolution

CODES = (7, 9, 5, 3)
MANY = (300, 300, 20)
"""Codes of too many kinds of cells for a table."""


def drawn(shape, codes=CODES, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, codes, (*shape, len(codes))))


def network(seed=0, size=(7, 5), **options):
    channels = {"grid": Channel((*size, 4), "uint8", 0, 8, codes=CODES), "vector": Channel((2,), "float32", 0, 1)}
    spec = EnvSpec("toy", 2, 3, channels, 4, tuple("abcd"), horizon=5)
    return ActorCritic(spec, Seeds(seed).torch("weights"), NetworkSettings(features=16, **options))


def samples(n=6, size=(7, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    grid = drawn((n, *size), seed=seed).to(torch.uint8)
    return {"grid": grid, "vector": torch.rand(n, 2, generator=generator), "player": torch.eye(3)[torch.arange(n) % 3]}


@pytest.mark.parametrize(("codes", "has_table"), [(CODES, True), ((4,), True), (MANY, False)])
def test_one_hots_are_those_of_each_number_side_by_side(codes, has_table):
    seen, one_hots = drawn((2, 3, 4), codes), OneHots(codes)
    expected = torch.cat([functional.one_hot(x, n) for x, n in zip(seen.unbind(-1), codes, strict=True)], -1)
    assert bool(one_hots.n_kinds) == has_table
    assert torch.equal(one_hots(seen), expected.float())


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("size", [(11, 11), (7, 5), (12, 9), (2, 1)])
@pytest.mark.parametrize("codes", [CODES, (), MANY])
def test_the_strided_convolution_is_a_convolution_of_one_hots(stride, size, codes):
    """With its gradient; what the map lacks beside its last cells is padded by zeros."""
    seen = drawn((3, *size), codes or CODES)
    layer = StridedConvolution((*size, seen.shape[-1]), codes, 6, stride, torch.Generator()).double()
    planes = OneHots(codes)(seen).double().movedim(-1, 1)
    weight = layer.linear[0].weight.detach().unflatten(1, (3, 3, -1)).movedim(-1, 1).requires_grad_()
    padded = functional.pad(planes, (1, 3, 1, 3))
    expected = functional.conv2d(padded, weight, layer.linear[0].bias.detach(), stride)
    expected = expected[:, :, : layer.size[0], : layer.size[1]].relu()
    found = layer(seen).view(3, *layer.size, 6).movedim(-1, 1)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    own = layer.linear[0].weight.grad.unflatten(1, (3, 3, -1)).movedim(-1, 1)
    torch.testing.assert_close(own, weight.grad)


@pytest.mark.parametrize("size", [(11, 11), (12, 12), (5, 7), (3, 2)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_cell_is_seen(size, stride):
    core = GridCore((*size, 4), None, torch.Generator().manual_seed(0), CODES, (64,), stride=stride).double()
    seen = torch.zeros((1 + size[0] * size[1], *size, 4), dtype=torch.uint8)
    for i in range(size[0] * size[1]):
        seen[1 + i, i // size[1], i % size[1], 0] = 1
    features = core(seen)
    assert ((features[1:] - features[0]).abs().amax(1) > 1e-3).all()
    assert features.shape[1] == core.n_features


@pytest.mark.parametrize("channels", [(8,), (8, 4)])
@pytest.mark.parametrize("encoding", ["onehot", "codes"])
def test_stacked_it_is_what_it_is_alone(channels, encoding):
    members = [network(seed, map_channels=channels, map_stride=2, encoding=encoding) for seed in range(3)]
    assert stackable(members)
    other = network(0, map_channels=channels, map_stride=3, encoding=encoding)
    assert not stackable([members[0], other])
    seen = [samples(seed=seed) for seed in range(3)]
    assert cells_of(members[0], seen[0]) == (0 if len(channels) == 1 else 35), "one convolution is a matrix product"
    logits, values = StackedNetwork(members).network({n: torch.stack([each[n] for each in seen]) for n in seen[0]})
    for i, (member, own) in enumerate(zip(members, seen, strict=True)):
        alone = member(own)
        torch.testing.assert_close(logits[i], alone[0])
        torch.testing.assert_close(values[i], alone[1])


@pytest.mark.parametrize(
    "options", [{"map_channels": (8, 4)}, {"map_channels": (8,), "map_stride": 3}, {"join": "core"}]
)
def test_pieces_of_many_samples_are_what_they_are_together(options):
    built, seen = network(**options), samples(23)
    together = built(seen)
    built._piece = 5
    with torch.no_grad():
        in_pieces = built(seen)
    for one, other in zip(together, in_pieces, strict=True):
        torch.testing.assert_close(one, other)
    stacked = StackedNetwork([built, built])
    stacked.network._piece = 6  # of both networks
    with torch.no_grad():
        side_by_side = stacked.network({name: torch.stack([x, x]) for name, x in seen.items()})
    for one, other in zip(together, side_by_side, strict=True):
        torch.testing.assert_close(torch.stack([one, one]), other)


def test_a_stride_that_leaves_cells_out_is_refused():
    with pytest.raises(ConfigError, match=r"agent\.map_stride=4 would leave cells of a map unseen; use 1, 2 or 3"):
        network(map_stride=4)
