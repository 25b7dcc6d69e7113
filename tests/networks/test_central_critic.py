"""Centralized critic of MAPPO, which reads the observations of all agents, and channels of networks."""

import numpy as np
import pytest
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy


def spec(n_agents=3, **channels):
    observation = {"vector": Channel((4,), "float32")} | channels
    return EnvSpec("toy", 2, n_agents, observation, 5, tuple("abcde"), 10)


def policy(spec, critic="own", share=True, **shape):
    generator = Seeds(0).torch("weights")
    n = 1 if share else spec.n_agents
    networks = [ActorCritic(spec, generator, NetworkSettings(None, [8], [8], critic=critic, **shape)) for _ in range(n)]
    return SocietyPolicy(spec, networks, core_frozen=False)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "separate"])
@pytest.mark.parametrize("critic", ["own", "central"])
def test_critic_inputs(critic, share):
    society = policy(spec(), critic, share)
    observation = {"vector": torch.randn(2, 3, 4, generator=Seeds(1).torch("x"))}
    after = {"vector": observation["vector"].clone()}
    after["vector"][:, 2] += 1.0  # what the last agent sees
    logits = [society.act(x, generator=Seeds(0).torch("a")).logits for x in (observation, after)]
    values = [society.values(x) for x in (observation, after)]
    assert torch.equal(logits[0][:, :2], logits[1][:, :2]) and not torch.equal(logits[0][:, 2], logits[1][:, 2])
    assert torch.equal(values[0][:, :2], values[1][:, :2]) == (critic == "own")


def test_greedy_takes_the_likeliest_action():
    society = policy(spec())
    observation = {"vector": torch.randn(2, 3, 4, generator=Seeds(1).torch("x"))}
    act = society.act(observation, generator=Seeds(0).torch("a"), greedy=True)
    assert torch.equal(act.action, act.logits.argmax(-1))


def test_reference_student_parameter_count():
    spec_ = spec(1, grid=Channel((10, 10, 4), "uint8", 0, 255))
    generator = Seeds(0).torch("weights")
    mlp = ActorCritic(spec_, generator, NetworkSettings(None, [], [64], observation_channels=["grid"]))
    assert _actions(7, mlp) == 843_576
    lstm = ActorCritic(
        spec_, generator, NetworkSettings(256, [], [64], observation_channels=["grid"], memory=256, memory_layers=2)
    )
    assert _actions(7, lstm) == 2_748_472


def _actions(n, network):
    """Parameters if there were `n` actions instead of 5."""
    return sum(p.numel() for p in network.parameters()) + (n - 5) * 65


def test_codes_enter_as_one_hots():
    spec_ = spec(1, grid=Channel((3, 2, 2), "uint8", 0, 4, codes=(5, 3)))
    core = ActorCritic(
        spec_, Seeds(0).torch("weights"), NetworkSettings(None, [], [], observation_channels=["grid"])
    ).core
    head_inputs = []
    core.convolutions[0].register_forward_pre_hook(lambda _, inputs: head_inputs.append(inputs[0]))
    codes = torch.tensor([[4, 2], [0, 1]], dtype=torch.uint8).expand(1, 3, 2, 2)
    core(codes)
    assert head_inputs[0].shape == (1, 8, 3, 2)
    assert head_inputs[0][0, :, 1, 0].tolist() == [0, 0, 0, 0, 1, 0, 0, 1]
    assert head_inputs[0][0, :, 1, 1].tolist() == [1, 0, 0, 0, 0, 0, 1, 0]


def test_map_joins_vector_at_heads():
    spec_ = spec(1, grid=Channel((6, 5, 4), "uint8", 0, 255))
    network = ActorCritic(spec_, Seeds(0).torch("weights"), NetworkSettings(None, [], []))
    assert network.n_features == 64 * 6 * 5 + 4
    observation = {"vector": torch.ones(2, 4), "grid": torch.zeros(2, 6, 5, 4, dtype=torch.uint8)}
    assert network.encode(observation).shape == (2, network.n_features)


@pytest.mark.parametrize(
    ("channels", "reads", "says"),
    [
        ({}, ["pixels"], "'pixels'"),
        ({}, [], "agent.observation_channels"),
        (
            {"grid": Channel((5, 5, 4), "uint8"), "view": Channel((7, 7, 3), "uint8")},
            None,
            "observation_channels=\\[grid\\]",
        ),
    ],
)
def test_unreadable_channels(channels, reads, says):
    with pytest.raises(ConfigError, match=says):
        ActorCritic(
            spec(1, **channels), Seeds(0).torch("weights"), NetworkSettings(None, [], [], observation_channels=reads)
        )


def test_central_critic_ignores_maps():
    spec_ = spec(1, grid=Channel((5, 5, 4), "uint8"))
    with pytest.raises(ConfigError, match=r"agent\.critic=own"):
        policy(spec_, "central")


def test_unread_channels_are_ignored():
    spec_ = spec(1, other=Channel((3,), "float32"))
    society = policy(spec_, observation_channels=["vector"])
    assert society.channels == ("vector",)
    act = society.act({"vector": torch.ones(2, 1, 4)}, generator=Seeds(0).torch("a"))
    assert act.action.shape == (2, 1) and np.isfinite(act.value.numpy()).all()
