"""Scaling of rewards by the standard deviation of returns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_ppo import make, train

from experiments import compose, find_run_folder, run
from llmrl.algorithms.advantages_and_losses import discounted_returns
from llmrl.algorithms.ppo import PPO
from llmrl.experiment.parts import build_parts
from llmrl.networks.layers import RunningMoments
from llmrl.run.artifacts import load_saved_state


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_scale_is_running_return_deviation(seed, gamma, lengths):
    """Split the rewards into different rollouts; returns restart with a rollout and after an episode."""
    rng, scale, history = np.random.default_rng(seed), RunningMoments(), []
    for steps in lengths:
        reward, done = rng.normal(3, 2, (steps, 2, 3)), rng.random((steps, 2)) < 0.3
        scale.update(discounted_returns(torch.from_numpy(reward), torch.from_numpy(done), gamma).flatten())
        for game in range(2):
            running = np.zeros(3)
            for t in range(steps):
                running = reward[t, game] + gamma * running
                history.append(running)
                running = running * (not done[t, game])
    assert scale.deviation == pytest.approx(np.std(history), rel=1e-6)


def test_constant_rewards_are_unchanged():
    scale = RunningMoments()
    assert scale.deviation == 1
    scale.update(discounted_returns(torch.zeros(4, 2, 1), torch.zeros(4, 2, dtype=torch.bool), 0.9).flatten())
    assert scale.deviation == 1


@pytest.mark.parametrize(("scaled", "is_equal"), [(True, True), (False, False)])
def test_reward_units_have_no_effect(signal_game, scaled, is_equal):
    """Multiply rewards by 100: value clipping, step sizes and gradient clipping are unaffected."""
    weights = []
    for unit in (1.0, 100.0):
        policy, ppo, collector = make(signal_game(n_envs=8), scale_rewards=scaled)
        collect = collector.collect

        def scale_rewards(*args, unit=unit, collect=collect, **kwargs):
            rollout = collect(*args, **kwargs)
            return dataclasses.replace(rollout, reward=rollout.reward * unit)

        collector.collect = scale_rewards
        train(ppo, collector, 4)
        weights.append(torch.nn.utils.parameters_to_vector(policy.parameters()).detach())
    assert torch.allclose(*weights, rtol=1e-3, atol=1e-5) == is_equal


def test_reset_restores_initial_units(signal_game):
    _, ppo, collector = make(signal_game(n_envs=8), scale_rewards=True)
    train(ppo, collector, 2)
    scales = ppo.state_dict()["scales"]
    second_ppo = PPO(ppo.policy, ppo.settings)
    second_ppo.load_state_dict(ppo.state_dict())
    assert second_ppo.reward_moments.state_dict() == scales["reward"]
    ppo.reset()
    assert ppo.reward_moments.deviation == 1
    ppo.set_initial_scales(scales)
    train(ppo, collector, 1)
    assert ppo.reward_moments.state_dict() != scales["reward"]
    ppo.reset()
    assert ppo.reward_moments.state_dict() == scales["reward"]


def test_weights_include_value_units(tmp_path):
    room = ("env=escape_room", "env.n_envs=4", "learn.env_steps=100", "learn.evaluate_episodes=4")
    run(*room, "agent.ppo.scale_rewards=true", f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    scale = load_saved_state(folder)[1]["agents"][0]["learner"]["scales"]["reward"]
    parts = build_parts(compose(*room, "agent.ppo.scale_rewards=true", f"agent.init_from='{folder}'"), None)
    assert parts.agents[0].learner.reward_moments.state_dict() == scale and scale["count"] > 0
    parts.close()
