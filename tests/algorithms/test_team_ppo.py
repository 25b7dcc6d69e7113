"""Additions of multi-agent PPO: normalized values, a robust value loss, and one ratio for a team."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_ppo import make, train

from llmrl.algorithms.advantages_and_losses import combine_joint_actions, surrogate_objectives, value_losses
from llmrl.algorithms.minibatches import Minibatches, SequenceMinibatches
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.floats(0.1, 20))
def test_huber_matches_torch(errors, delta):
    value, target = torch.tensor(errors), torch.zeros(len(errors))
    library = torch.nn.functional.huber_loss(value, target, reduction="none", delta=delta)
    torch.testing.assert_close(0.5 * value_losses(value, target, target, None, delta), library)
    # Clipped values are judged by the same loss.
    clipped = torch.nn.functional.huber_loss(value.clamp(-0.2, 0.2), target, reduction="none", delta=delta)
    found = 0.5 * value_losses(value, target, target, 0.2, delta)
    torch.testing.assert_close(found, torch.maximum(library, clipped))


def test_value_loss_uses_target_units(signal_game):
    """Multiply rewards by 1000: the loss keeps its order, so the critic does not dominate a shared core."""
    losses = {}
    for normalized in (True, False):
        _, ppo, collector = make(signal_game(n_envs=8), normalize_values=normalized, value_clip=None)
        collect = collector.collect

        def scale_rewards(*args, collect=collect, **kwargs):
            rollout = collect(*args, **kwargs)
            return dataclasses.replace(rollout, reward=rollout.reward * 1000)

        collector.collect = scale_rewards
        losses[normalized] = train(ppo, collector, 2)["loss/value"]
    assert 0.01 < losses[True] < 3 and losses[False] > 1000


def test_estimates_use_denormalized_values(signal_game):
    _, ppo, collector = make(signal_game(n_envs=4), normalize_values=True)
    train(ppo, collector, 1)
    rollout = collector.collect(8, Seeds(1).torch("actions"))
    mean, deviation = float(ppo.value_moments.mean), float(ppo.value_moments.deviation)
    assert mean != 0 and deviation != 1
    plain = make(signal_game(n_envs=4))[1]
    denormalized = dataclasses.replace(
        rollout,
        value=rollout.value * deviation + mean,
        next_value=torch.where(rollout.terminated[..., None], 0.0, rollout.next_value * deviation + mean),
    )
    for found, expected in zip(ppo.estimate_advantages(rollout), plain.estimate_advantages(denormalized), strict=True):
        torch.testing.assert_close(found, expected)


def test_moment_state_is_copy(signal_game):
    _, ppo, _ = make(signal_game(), normalize_values=True)
    ppo.value_moments.update(torch.tensor([1.0, 3.0]))
    scales = ppo.state_dict()["scales"]
    assert ppo.value_moments.normalize(torch.tensor(3.0)) == 1 and ppo.value_moments.denormalize(torch.tensor(1.0)) == 3
    ppo.value_moments.update(torch.tensor([100.0]))
    assert float(scales["value"]["mean"]) == 2 and float(scales["value"]["count"]) == 2
    ppo.set_initial_scales(scales)
    assert ppo.value_moments.denormalize(torch.tensor(0.0)) == 2


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_joint_action_ratio_is_product(team, n, seed):
    rng = np.random.default_rng(seed)
    log_ratio, advantage = (torch.from_numpy(rng.normal(size=(n, team))) for _ in range(2))
    joint = torch.arange(n).repeat_interleave(team)
    found, mean = combine_joint_actions(log_ratio.flatten(), advantage.flatten(), joint)
    torch.testing.assert_close(found.exp(), log_ratio.exp().prod(1))
    torch.testing.assert_close(mean, advantage.mean(1))
    order = torch.from_numpy(rng.permutation(n * team))
    permuted = combine_joint_actions(log_ratio.flatten()[order], advantage.flatten()[order], joint[order])
    torch.testing.assert_close(permuted, (found, mean))


def test_minibatches_preserve_teams():
    data = {"action": torch.arange(12)}
    batches = list(Minibatches(data, torch.arange(12), 6, team_size=3).iterate_batches(torch.tensor([2, 0, 3, 1])))
    assert [len(batch["action"]) for batch in batches] == [6, 6]
    assert torch.equal(torch.cat([batch["action"] for batch in batches]).sort().values, torch.arange(12))
    for batch in batches:
        assert (batch["action"] // 3).view(-1, 3).unique(dim=1).shape == (2, 1)
        assert batch["joint_action_index"].tolist() == [0, 0, 0, 1, 1, 1]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 30))
def test_sequences_preserve_teams(seed, team, size):
    """Check that each joint action of a minibatch has all players of one step of one game, in order."""
    rng, steps, games = np.random.default_rng(seed), 5, 3
    first = torch.from_numpy(rng.random((steps, games)) < 0.4).repeat_interleave(team, dim=1)
    place = torch.arange(steps * games * team)  # step, game, player; the player fastest
    state = torch.arange(games * team, dtype=torch.float32)[:, None]
    minibatches = SequenceMinibatches({"action": place}, place, size, first, state, team)
    teams = []
    for batch in minibatches.iterate_batches(torch.randperm(minibatches.n_units, generator=Seeds(seed).torch("order"))):
        teams += batch["action"].tolist()
        assert int(batch["lengths"].sum()) == len(batch["action"])
        if team == 1:
            assert "joint_action_index" not in batch
            continue
        for number in batch["joint_action_index"].unique():
            team_actions = batch["action"][batch["joint_action_index"] == number]
            assert (team_actions // team).unique().numel() == 1
            assert sorted((team_actions % team).tolist()) == list(range(team))
    assert sorted(teams) == place.tolist()


def test_team_loss_matches_formula(signal_game):
    """Use one epoch and one batch with changed probabilities: the clipped surrogate of the product of two ratios."""
    env = signal_game(n_envs=4, horizon=4)
    settings = {"epochs": 1, "minibatch_size": None, "max_grad_norm": 1e9, "normalize_advantage": False}
    policy, ppo, collector = make(env, joint_ratio=True, **settings)
    rollout = collector.collect(8, Seeds(1).torch("actions"))
    rollout = dataclasses.replace(rollout, log_prob=rollout.log_prob - 0.15)
    advantage, _ = ppo.estimate_advantages(rollout)
    ratio = math.exp(0.15 * policy.n_agents)
    expected = -surrogate_objectives(torch.full_like(advantage[..., 0], ratio), advantage.mean(-1), 0.2).mean()
    metrics = ppo.update(rollout, Seeds(0).torch("minibatches"))
    assert metrics["loss/policy"] == pytest.approx(float(expected), rel=1e-4)
    assert metrics["loss/clip_fraction"] == 1.0
    with pytest.raises(ConfigError, match="share_parameters=true"):
        make(env, share=False, joint_ratio=True)
