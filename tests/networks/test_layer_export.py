"""Exported layers, computed by the program of the documentation, against the networks that they describe."""

import json

import pytest
import torch
from safetensors.torch import save_file

from llmrl.core.errors import Incompatible
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.layer_export import ActorLayers
from pages import load_agent_program

CODES = (7, 9, 5, 3)
MAP = Channel((7, 5, 4), "uint8", 0, 8, codes=CODES, planes={"wall": (0, 2, 2), "high": (1, 3, 8)})
NUMBERS = {"vector": Channel((2,), "float32"), "state": Channel((1,), "int64"), "flags": Channel((2, 2), "bool", 0, 1)}
REAL = ContinuousActions(("x", "y"), (-2.0, -float("inf")), (1.0, float("inf")))
BOUNDED = ContinuousActions(("x", "y"), (-2.0, 0.0), (1.0, 5.0))


def make_network(channels, continuous_actions=None, n_players=3, **settings):
    names = () if continuous_actions else tuple("abcd")
    spec = EnvSpec("toy", 2, n_players, channels, len(names), names, 5, continuous_actions=continuous_actions)
    network = ActorCritic(spec, Seeds(0).torch("weights"), NetworkSettings(features=8, **settings))
    with torch.no_grad():  # the initial actor is close to uniform
        for parameter in network.actor.parameters():
            parameter.normal_(0, 0.3)
    return network, spec


def draw(spec, n):
    generator, samples = torch.Generator().manual_seed(1), {}
    for name, channel in spec.observation.items():
        shape = (n, *channel.shape)
        if channel.codes:
            samples[name] = torch.stack([torch.randint(k, shape[:-1], generator=generator) for k in channel.codes], -1)
        elif channel.dtype == "float32":
            samples[name] = torch.randn(shape, generator=generator)
        else:
            samples[name] = torch.randint(2 if channel.dtype == "bool" else 200, shape, generator=generator)
        samples[name] = samples[name].to(getattr(torch, channel.dtype))
    if spec.n_players > 1:
        samples["player"] = torch.eye(spec.n_players)[torch.full((n,), 1)]
    return samples


def load_exported(network, spec, folder):
    """Write the files of a network, and return agent `b` of the documentation's program."""
    actor = ActorLayers(network)
    identity = [0.0, 1.0, 0.0] if spec.n_players > 1 else []
    agents = {"b": {"prefix": "0/", "identity": identity}}
    network_file = {"agents": agents, "map": network.spatial_channel, "layers": actor.layers}
    (folder / "agent.json").write_text(json.dumps(network_file))
    save_file({f"0/{name}": x.contiguous() for name, x in actor.tensors.items()}, folder / "agent.safetensors")
    program: dict = {}
    exec(load_agent_program(), program)
    return program["Agent"](folder, "b")


@pytest.mark.parametrize(
    ("channels", "settings"),
    [
        (NUMBERS, {"core_hidden": (6,), "head_hidden": (5,), "activation": "tanh"}),
        (NUMBERS, {"normalize_observations": True, "critic": "separate"}),
        (NUMBERS, {"n_players": 1, "memory": 6, "memory_layers": 2}),
        (NUMBERS, {"continuous_actions": REAL}),
        (NUMBERS, {"continuous_actions": BOUNDED}),
        ({"grid": MAP}, {"map_channels": (4, 5)}),
        ({"grid": MAP, **NUMBERS}, {"map_channels": (4,), "encoding": "codes", "normalize_observations": True}),
        ({"grid": MAP, **NUMBERS}, {"map_channels": (4, 5), "memory": 6}),
        ({"grid": MAP, **NUMBERS}, {"core": "planes", "planes": ["high", "wall"]}),
        ({"grid": MAP, **NUMBERS}, {"core": "mlp"}),
        ({"pixels": Channel((40, 36, 3), "uint8", 0, 255), **NUMBERS}, {}),
    ],
)
def test_program_matches_network(channels, settings, tmp_path):
    network, spec = make_network(channels, **settings)
    samples = draw(spec, 6)
    if network.has_normalizers:
        network.update_normalizers(samples)
    agent, state = load_exported(network, spec, tmp_path), None
    for i in range(6):
        one = {name: x[i : i + 1] for name, x in samples.items()}
        with torch.inference_mode():
            features = network.encode(one)
            if network.memory is not None:
                features, state = network.memory.step(features, state)
            expected = network.outputs(features)
            if spec.continuous_actions is not None:
                expected = network.distribution.mode(expected)
        torch.testing.assert_close(agent({name: x[0].numpy() for name, x in one.items()}), expected[0])


def test_rejects_integers_and_instructions():
    mixed = ContinuousActions(("x", "n"), (0.0, 0.0), (1.0, 3.0), (False, True))
    with pytest.raises(Incompatible, match="integers"):
        ActorLayers(make_network(NUMBERS, mixed)[0])
    mission = Channel((5,), "int64", 0, 9, codes=(10,))
    with pytest.raises(Incompatible, match="film"):
        ActorLayers(make_network({"grid": MAP, "mission": mission}, core="film")[0])
