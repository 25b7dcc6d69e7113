"""The core that looks at facts about the cells of a map, and where the mechanism's values join it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmrl.algorithms.societies.stacked_networks import StackedNetwork, stackable
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import Incentives
from llmrl.envs.melting_pot.env_spec import SubstrateSettings, describe
from llmrl.envs.melting_pot.grid_text import FACINGS, THINGS
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings


def spec(channels=("grid",), substrate="cleanup"):
    game = SubstrateSettings(substrate, 2, 3, horizon=100, mechanism=Incentives())
    return describe(game, channels, "native")


def network(seed=0, channels=("grid",), features=16, head_hidden=(8,), **options):
    generator = Seeds(seed).torch("weights")
    return ActorCritic(spec(channels), generator, NetworkSettings(features, [8], list(head_hidden), **options))


def samples(n=5, seed=0):
    rng = np.random.default_rng(seed)
    grid = np.stack([rng.integers(0, high, (n, 11, 11)) for high in (len(THINGS), 5, len(FACINGS), 3)], -1)
    return {
        "grid": torch.from_numpy(grid.astype(np.uint8)),
        "mechanism": torch.from_numpy(rng.random((n, 3)).astype(np.float32)),
        "player": torch.eye(3)[rng.integers(0, 3, n)],
    }


def test_facts_are_those_of_the_cells():
    built, seen = network(core="planes", planes=["apple", "others", "zap_beam"]), samples()
    facts = []
    grid = seen["grid"].numpy()
    for number, codes in ((0, [THINGS.index("apple")]), (1, [2, 3, 4]), (3, [2])):
        facts.append(np.isin(grid[..., number], codes).reshape(len(grid), -1))
    layer = built.core.linear[0]
    expected = np.maximum(np.concatenate(facts, 1) @ layer.weight.detach().numpy().T + layer.bias.detach().numpy(), 0)
    np.testing.assert_allclose(built.core(seen["grid"]).detach().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert layer.in_features == 3 * 121


def test_all_facts_of_a_game_are_looked_at_unless_some_are_named():
    assert network(core="planes").core.linear[0].in_features == 9 * 121
    planes = spec(substrate="harvest").observation["grid"].planes
    assert list(planes) == ["floor", "grass", "wall", "apple", "others", "clean_beam", "zap_beam"]


@pytest.mark.parametrize("options", [{"core": "planes"}, {"core": "auto", "map_channels": (2, 3)}])
def test_values_that_join_at_the_core_reach_every_layer(options):
    """At the heads, linear ones, they only shift what is chosen; before the core's last layer they change features."""
    seen = samples()
    other = {**seen, "mechanism": seen["mechanism"] + 1}
    at_heads, at_core = network(**options), network(**options, join="core")
    assert torch.equal(at_heads.encode(seen)[:, :16], at_heads.encode(other)[:, :16])
    assert not torch.equal(at_core.encode(seen), at_core.encode(other))
    assert at_core.encode(seen).shape == (5, 16) and at_heads.encode(seen).shape == (5, 16 + 3 + 3)
    assert at_core.mechanism_columns is None and at_heads.mechanism_columns == slice(16, 19)


@pytest.mark.parametrize("join", ["heads", "core"])
def test_stacked_it_is_what_it_is_alone(join):
    members = [network(seed, core="planes", join=join) for seed in range(3)]
    assert stackable(members)
    assert not stackable([members[0], network(core="planes", planes=["apple"], join=join)])
    stacked, seen = StackedNetwork(members), [samples(seed=seed) for seed in range(3)]
    logits, values = stacked.network({name: torch.stack([each[name] for each in seen]) for name in seen[0]})
    for i, (member, own) in enumerate(zip(members, seen, strict=True)):
        alone = member(own)
        torch.testing.assert_close(logits[i], alone[0])
        torch.testing.assert_close(values[i], alone[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"core": "planes", "planes": ["gold"]}, "agent.planes: 'grid' has no plane 'gold', but floor, grass, river"),
        ({"core": "planes", "planes": []}, "agent.planes is empty; 'grid' offers"),
        ({"core": "planes", "channels": ("vector",)}, "agent.core=planes looks at a map, and env=cleanup offers"),
        ({"core": "planes", "channels": ("pixels",)}, "'pixels' of env=cleanup names no facts about its cells"),
        ({"join": "core", "features": None}, "agent.join=core needs a last layer of the core: set agent.features"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        network(**options)
