"""What multi-agent PPO adds: normalised values, a loss that large errors do not rule, one ratio for a team."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_ppo import make, train

from llmrl.algorithms.minibatches import Minibatches, SequenceMinibatches
from llmrl.algorithms.ppo import joint_actions, surrogate, value_error
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.floats(0.1, 20))
def test_huber_is_the_library_s(errors, delta):
    value, target = torch.tensor(errors), torch.zeros(len(errors))
    library = torch.nn.functional.huber_loss(value, target, reduction="none", delta=delta)
    torch.testing.assert_close(0.5 * value_error(value, target, target, None, delta), library)
    # Clipped values are judged by the same loss.
    clipped = torch.nn.functional.huber_loss(value.clamp(-0.2, 0.2), target, reduction="none", delta=delta)
    found = 0.5 * value_error(value, target, target, 0.2, delta)
    torch.testing.assert_close(found, torch.maximum(library, clipped))


def test_the_value_loss_is_in_units_of_the_targets(signal_game):
    """Rewards a thousand times as large give a loss of order one, so the critic does not rule a shared core."""
    losses = {}
    for normalized in (True, False):
        _, ppo, collector = make(signal_game(n_envs=8), normalize_values=normalized, value_clip=None)
        collect = collector.collect

        def paid(*args, collect=collect, **kwargs):
            rollout = collect(*args, **kwargs)
            return dataclasses.replace(rollout, reward=rollout.reward * 1000)

        collector.collect = paid
        losses[normalized] = train(ppo, collector, 2)["loss/value"]
    assert 0.01 < losses[True] < 3 and losses[False] > 1000


def test_estimates_are_made_with_restored_values(signal_game):
    _, ppo, collector = make(signal_game(n_envs=4), normalize_values=True)
    train(ppo, collector, 1)
    rollout = collector.collect(8, Seeds(1).torch("actions"))
    mean, deviation = float(ppo.value_moments.mean), float(ppo.value_moments.deviation)
    assert mean != 0 and deviation != 1
    plain = make(signal_game(n_envs=4))[1]
    restored = dataclasses.replace(
        rollout,
        value=rollout.value * deviation + mean,
        next_value=torch.where(rollout.terminated[..., None], 0.0, rollout.next_value * deviation + mean),
    )
    for found, expected in zip(ppo.estimate(rollout), plain.estimate(restored), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_state_of_the_moments_is_a_copy(signal_game):
    _, ppo, _ = make(signal_game(), normalize_values=True)
    ppo.value_moments.see(torch.tensor([1.0, 3.0]))
    before = ppo.state_dict()["scales"]
    assert ppo.value_moments.normalized(torch.tensor(3.0)) == 1 and ppo.value_moments.restored(torch.tensor(1.0)) == 3
    ppo.value_moments.see(torch.tensor([100.0]))
    assert float(before["value"]["mean"]) == 2 and float(before["value"]["count"]) == 2
    ppo.begin_with(before)
    assert ppo.value_moments.restored(torch.tensor(0.0)) == 2


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_the_ratio_of_a_joint_action_is_the_product(team, n, seed):
    rng = np.random.default_rng(seed)
    log_ratio, advantage = (torch.from_numpy(rng.normal(size=(n, team))) for _ in range(2))
    joint = torch.arange(n).repeat_interleave(team)
    found, mean = joint_actions(log_ratio.flatten(), advantage.flatten(), joint)
    torch.testing.assert_close(found.exp(), log_ratio.exp().prod(1))
    torch.testing.assert_close(mean, advantage.mean(1))
    order = torch.from_numpy(rng.permutation(n * team))
    again = joint_actions(log_ratio.flatten()[order], advantage.flatten()[order], joint[order])
    torch.testing.assert_close(again, (found, mean))


def test_teams_stay_together():
    data = {"action": torch.arange(12)}
    batches = list(Minibatches(data, 6, team=3).epoch(Seeds(0).torch("order")))
    assert [len(batch["action"]) for batch in batches] == [6, 6]
    assert torch.equal(torch.cat([batch["action"] for batch in batches]).sort().values, torch.arange(12))
    for batch in batches:
        assert (batch["action"] // 3).view(-1, 3).unique(dim=1).shape == (2, 1)
        assert batch["team_step"].tolist() == [0, 0, 0, 1, 1, 1]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 30))
def test_stretches_of_teams_stay_together(seed, team, size):
    """Each joint action of a minibatch is one step of one game, of every player of it, in the players' own order."""
    rng, steps, games = np.random.default_rng(seed), 5, 3
    first = torch.from_numpy(rng.random((steps, games)) < 0.4).repeat_interleave(team, dim=1)
    place = torch.arange(steps * games * team)  # step, game, player; the player fastest
    state = torch.arange(games * team, dtype=torch.float32)[:, None]
    dealt = SequenceMinibatches({"action": place}, size, first, state, team)
    seen = []
    for batch in dealt.epoch(Seeds(seed).torch("order")):
        seen += batch["action"].tolist()
        assert int(batch["lengths"].sum()) == len(batch["action"])
        if team == 1:
            assert "team_step" not in batch
            continue
        for number in batch["team_step"].unique():
            own = batch["action"][batch["team_step"] == number]
            assert (own // team).unique().numel() == 1
            assert sorted((own % team).tolist()) == list(range(team))
    assert sorted(seen) == place.tolist()


def test_the_loss_of_a_team_is_the_one_stated(signal_game):
    """One epoch, one batch, probabilities that have moved: clipped surrogate of the product of two players' ratios."""
    env = signal_game(n_envs=4, horizon=4)
    settings = {"epochs": 1, "minibatch_size": None, "max_grad_norm": 1e9, "normalize_advantage": False}
    policy, ppo, collector = make(env, joint_ratio=True, **settings)
    rollout = collector.collect(8, Seeds(1).torch("actions"))
    rollout = dataclasses.replace(rollout, log_prob=rollout.log_prob - 0.15)
    advantage, _ = ppo.estimate(rollout)
    ratio = math.exp(0.15 * policy.n_agents)
    expected = -surrogate(torch.full_like(advantage[..., 0], ratio), advantage.mean(-1), 0.2).mean()
    metrics = ppo.update(rollout, Seeds(0).torch("minibatches"))
    assert metrics["loss/policy"] == pytest.approx(float(expected), rel=1e-4)
    assert metrics["loss/clip_fraction"] == 1.0
    with pytest.raises(ConfigError, match="share_parameters=true"):
        make(env, share=False, joint_ratio=True)
