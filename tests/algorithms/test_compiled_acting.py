"""Societies that act compiled give the outputs of torch, whatever societies they share the computation with."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from llmrl.agents.ppo_agent import PPOAgent, PPOAgentSettings
from llmrl.algorithms.societies.compiled_acting import MAX_SAMPLES, CompiledSocieties, is_compilable
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from ppo_settings import PLAIN

GAMES, AGENTS, ACTIONS = 2, 3, 4
MAP = Channel((5, 5, 2), "uint8", 0, 6, planes={"apple": (0, 6, 6), "wall": (0, 2, 2), "agents": (1, 2, 5)})
VECTOR = Channel((4,), "float32", -1, 1)
KINDS = {
    "planes": ({"map": MAP, "vector": VECTOR}, {"core": "planes", "features": 16, "head_hidden": [8]}),
    "planes with linear heads": ({"map": MAP}, {"core": "planes", "features": 7}),
    "mlp": ({"map": MAP, "vector": VECTOR}, {"core": "mlp", "features": 16, "core_hidden": [9], "head_hidden": [8, 5]}),
    "tanh": ({"vector": VECTOR}, {"features": 8, "core_hidden": [9], "activation": "tanh"}),
}


def make_policy(kind, seed=0, share=True, channels=None):
    observation, options = KINDS[kind]
    names = tuple(f"do_{i}" for i in range(ACTIONS))
    spec = EnvSpec("toy", GAMES, AGENTS, channels or observation, ACTIONS, names, horizon=5)
    settings = PPOAgentSettings(
        **{"core_hidden": [], "freeze": "none", "init_from": None, "init_parts": "all", **options},
        share_parameters=share,
        keep_optimizer=False,
        ppo=replace(PLAIN),
    )
    policy = PPOAgent(spec, settings, Seeds(seed), "cpu", has_principal=True).policy
    with torch.no_grad():  # the initial biases are zero, and the initial policy is close to uniform
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) / 3)
    return policy


def observe(kind, n_envs, seed=0):
    rng = np.random.default_rng(seed)
    values = {"map": rng.integers(7, size=(n_envs, AGENTS, *MAP.shape)).astype(np.uint8)}
    values["vector"] = rng.uniform(-1, 1, (n_envs, AGENTS, 4)).astype(np.float32)
    return {name: torch.as_tensor(values[name]) for name in KINDS[kind][0]}


@pytest.mark.parametrize("share", [True, False], ids=["shared", "per agent"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_equal_torch(kind, share):
    policies = [make_policy(kind, seed, share) for seed in range(3)]
    assert is_compilable(policies[0], GAMES)
    observation = observe(kind, 3 * GAMES)
    uniform = torch.rand((3 * GAMES, AGENTS, ACTIONS), generator=torch.Generator().manual_seed(0))
    for draws in (uniform, None):
        output = CompiledSocieties(policies, GAMES, observation).act(observation, draws)
        for i, policy in enumerate(policies):
            games = slice(i * GAMES, (i + 1) * GAMES)
            expected = policy.act({name: x[games] for name, x in observation.items()}, greedy=True)
            distribution = policy.distribution
            action = (
                expected.action if draws is None else distribution.sample_from_uniform(expected.logits, uniform[games])
            )
            assert torch.equal(output.action[games], action)
            torch.testing.assert_close(output.logits[games], expected.logits, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(output.value[games], expected.value, rtol=1e-5, atol=1e-6)
            log_prob, _ = distribution.log_prob_entropy(expected.logits, action)
            torch.testing.assert_close(output.log_prob[games], log_prob, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["planes", "mlp"])
def test_outputs_are_independent_of_number_of_societies(kind):
    policies, observation = [make_policy(kind, seed) for seed in range(16)], observe(kind, 16 * GAMES)

    def act(n):
        generators = [torch.Generator().manual_seed(seed) for seed in range(n)]
        games = {name: x[: n * GAMES] for name, x in observation.items()}
        return PartitionedPolicy(policies[:n], GAMES).act(games, generator=generators)

    def values(n):
        return PartitionedPolicy(policies[:n], GAMES).values({name: x[: n * GAMES] for name, x in observation.items()})

    reference = act(16)
    assert torch.equal(values(16), reference.value)
    for n in (1, 2, 7):
        output = act(n)
        assert torch.equal(values(n), output.value)
        for name in ("action", "log_prob", "value", "logits"):
            assert torch.equal(getattr(output, name), getattr(reference, name)[: n * GAMES])


def test_trained_weights_are_read_again():
    policy, observation = make_policy("planes"), observe("planes", GAMES)
    player = PartitionedPolicy([policy], GAMES)
    before = player.act(observation, generator=torch.Generator().manual_seed(0)).value
    with torch.no_grad():
        policy.members[0].critic[-1].bias += 1
    after = player.act(observation, generator=torch.Generator().manual_seed(0)).value
    torch.testing.assert_close(after, before + 1)


def test_masked_actions_are_left_to_torch():
    masked = {**KINDS["planes"][0], "action_mask": Channel((ACTIONS,), "bool", 0, 1)}
    assert not is_compilable(make_policy("planes", channels=masked), GAMES)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "per agent"])
def test_large_batches_use_torch(share):
    policy, max_games = make_policy("mlp", share=share), MAX_SAMPLES // (AGENTS if share else 1)
    assert is_compilable(policy, max_games) and not is_compilable(policy, max_games + 1)
