"""PPO with actions of real numbers, whole numbers, and both."""

import numpy as np
import pytest

import llmrl
from llmrl.core.errors import ConfigError

TRUST = "trusted_modules=[mixed_actions_game]"
GAME = (TRUST, "env=gymnasium", "env.id=mixed_actions_game:MixedActions-v0", "env.n_envs=32")
LEARN = ("learn.rollout_steps=8", "learn.evaluate_episodes=500", "agent.ppo.learning_rate=3e-3", "agent.ppo.gamma=0")


def train(tmp_path, *overrides, steps=15_000):
    run = llmrl.train(*GAME, "agent=ppo", *LEARN, f"learn.env_steps={steps}", f"output_root={tmp_path}", *overrides)
    assert run.state == "finished"
    return run.result


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param((), marks=pytest.mark.long),
        ("agent.initial_std=0.5", "agent.critic=separate", "agent.activation=tanh"),
        pytest.param(
            ("agent.normalize_observations=true", "agent.ppo.scale_rewards=true", "agent.ppo.normalize_values=true"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["shared", "separate", "normalized"],
)
def test_agent_learns_number_and_choice(tmp_path, algorithm):
    """Compare with random play, which loses 1.3 per step; the remaining spread costs little."""
    assert train(tmp_path, *algorithm) > -0.25


def test_mixed_actions_match_space(tmp_path):
    """Pass dicts and tuples in the format of the game's action space, also without learning."""
    for name in ("MixedActions-v0", "MixedTuple-v0"):
        common = (
            TRUST,
            "env=gymnasium",
            f"env.id=mixed_actions_game:{name}",
            "play.episodes=4",
            f"output_root={tmp_path}/{name}",
        )
        run = llmrl.train(*common, "agent=random")
        assert -3 < run.result < 0
    run = llmrl.train(*common, "agent=llm_player", "llm=scripted", "env.text=auto", "env.n_envs=2")
    assert run.state == "finished"
    with pytest.raises(ConfigError, match="2 real"):
        llmrl.train(*common, "agent=sb3", "search.iterations=1", "search.episodes=2")


def test_parameter_search_handles_mixed_actions(tmp_path):
    run = llmrl.train(
        *GAME,
        "agent=linear",
        "principal=cmaes",
        "search.iterations=3",
        "search.candidates=4",
        f"output_root={tmp_path}",
    )
    assert run.state == "finished" and np.isfinite(run.result)
