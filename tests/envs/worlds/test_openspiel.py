"""Turn-based games of OpenSpiel."""

import numpy as np
import pytest

from environments import make_env
from llmrl.core.errors import ConfigError

pytest.importorskip("pyspiel")


def games(name, n_envs=6, **kwargs):
    return make_env("pettingzoo", id=name, library="openspiel", n_envs=n_envs, kwargs=kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("kuhn_poker", {}), ("kuhn_poker", {"players": 3}), ("leduc_poker", {}), ("goofspiel", {"num_cards": 4})],
)
def test_rewards_match_returns(name, kwargs):
    """Check that no episode is truncated and no reward is lost between turns."""
    env, rng = games(name, 12, **kwargs), np.random.default_rng(0)
    observation, total, done = env.reset(seed=2), 0.0, np.zeros(12, dtype=bool)
    while not done.all():
        step = env.step((observation["action_mask"] * rng.random(observation["action_mask"].shape)).argmax(-1))
        observation, total, done = step.observation, total + step.reward, step.terminated | step.truncated
    returns = [game.world.game_state.returns() for game in env.games]
    assert total.tolist() == returns and not step.truncated.any()
    assert len({tuple(game_returns) for game_returns in returns}) > 1


def test_player_information_is_in_text():
    env = games("tic_tac_toe", 1)
    observation = env.reset(seed=0)
    assert '"state": "...\\n...\\n...\\nYour legal actions: 0 = x(0,0)' in observation["text"][0, 0]
    assert observation["text"][0, 1] == ""
    observation = env.step(np.array([[4, 0]])).observation
    assert "...\\n.x.\\n..." in observation["text"][0, 1] and "4 = " not in observation["text"][0, 1]


def test_cards_follow_seed():
    def deal_cards(seed):
        return games("leduc_poker").reset(seed=seed)["vector"].tolist()

    assert deal_cards(0) == deal_cards(0) != deal_cards(1)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("kuhn_pokre", {}, "'kuhn_pokre'.*kuhn_poker"),
        ("kuhn_poker", {"decks": 2}, "env.kwargs={'decks': 2}"),
    ],
)
def test_error_gives_reason(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        games(name, 1, **kwargs)
