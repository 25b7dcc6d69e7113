"""Core network for feature planes of a map and the values of the mechanism."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmrl.algorithms.societies.stacked_networks import StackedNetwork, are_stackable
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.substrate.grid_text import CONTENTS, FACINGS
from llmrl.envs.substrate.society_env import SubstrateSettings, build_spec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings


def spec(channels=("grid",), substrate="cleanup"):
    mechanism = Incentives() if substrate == "cleanup" else BracketedTax()
    game = SubstrateSettings(substrate, 2, 3, horizon=100, observe=channels, mechanism=mechanism)
    return build_spec(game, "native")


def network(seed=0, channels=("grid",), features=16, head_hidden=(8,), **options):
    generator = Seeds(seed).torch("weights")
    return ActorCritic(spec(channels), generator, NetworkSettings(features, [8], list(head_hidden), **options))


def samples(n=5, seed=0):
    rng = np.random.default_rng(seed)
    grid = np.stack([rng.integers(0, high, (n, 11, 11)) for high in (len(CONTENTS), 5, len(FACINGS), 3)], -1)
    return {
        "grid": torch.from_numpy(grid.astype(np.uint8)),
        "mechanism": torch.from_numpy(rng.random((n, 3)).astype(np.float32)),
        "player": torch.eye(3)[rng.integers(0, 3, n)],
    }


def test_planes_match_cells():
    net, observation = network(core="planes", planes=["apple", "others", "zap_beam"]), samples()
    facts = []
    grid = observation["grid"].numpy()
    for number, codes in ((0, [CONTENTS.index("apple")]), (1, [2, 3, 4]), (3, [2])):
        facts.append(np.isin(grid[..., number], codes).reshape(len(grid), -1))
    layer = net.core.linear[0]
    reference = np.maximum(np.concatenate(facts, 1) @ layer.weight.detach().numpy().T + layer.bias.detach().numpy(), 0)
    np.testing.assert_allclose(net.core(observation["grid"]).detach().numpy(), reference, rtol=1e-5, atol=1e-5)
    assert layer.in_features == 3 * 121


def test_default_planes_are_all():
    assert network(core="planes").core.linear[0].in_features == 9 * 121
    planes = spec(substrate="harvest").observation["grid"].planes
    assert list(planes) == ["floor", "grass", "wall", "apple", "others", "clean_beam", "zap_beam"]


@pytest.mark.parametrize("options", [{"core": "planes"}, {"core": "auto", "map_channels": (2, 3)}])
def test_numbers_join_at_heads(options):
    observation = samples()
    shifted = {**observation, "mechanism": observation["mechanism"] + 1}
    net = network(**options)
    assert torch.equal(net.encode(observation)[:, :16], net.encode(shifted)[:, :16])
    assert net.encode(observation).shape == (5, 16 + 3 + 3)
    assert net.mechanism_columns == slice(16, 19)


def test_networks_with_different_buffers_are_not_stackable():
    member, different = network(core="planes"), network(core="planes")
    different.core.register_buffer("offset", torch.zeros(2))
    assert not are_stackable([member, different])
    assert not are_stackable([different, member])


def test_stack_matches_single_networks():
    members = [network(seed, core="planes") for seed in range(3)]
    assert are_stackable(members)
    assert not are_stackable([members[0], network(core="planes", planes=["apple"])])
    stacked, observations = StackedNetwork(members), [samples(seed=seed) for seed in range(3)]
    logits, values = stacked.network(
        {name: torch.stack([observation[name] for observation in observations]) for name in observations[0]}
    )
    for i, (member, observation) in enumerate(zip(members, observations, strict=True)):
        single = member(observation)
        torch.testing.assert_close(logits[i], single[0])
        torch.testing.assert_close(values[i], single[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"core": "planes", "planes": ["gold"]}, "'grid' .*'gold'; .*floor, grass, river"),
        ({"core": "planes", "planes": []}, "agent.planes .*floor"),
        ({"core": "planes", "channels": ("vector",)}, "agent.core=planes .*env=cleanup"),
        ({"core": "planes", "channels": ("pixels",)}, "'pixels' .*env=cleanup"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ConfigError, match=message):
        network(**options)
