"""Games of OpenSpiel, whose players take turns."""

import numpy as np
import pytest

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.pettingzoo.vec_env import PettingZooEnv

pytest.importorskip("pyspiel")


def games(name, n_envs=6, **kwargs):
    return PettingZooEnv(Seeds(0), name, library="openspiel", n_envs=n_envs, kwargs=kwargs)


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("kuhn_poker", {}), ("kuhn_poker", {"players": 3}), ("leduc_poker", {}), ("goofspiel", {"num_cards": 4})],
)
def test_rewards_are_the_returns_of_the_game(name, kwargs):
    """Nothing is cut short, and nothing is lost between turns."""
    env, rng = games(name, 12, **kwargs), np.random.default_rng(0)
    seen, total, over = env.reset(seed=2), 0.0, np.zeros(12, dtype=bool)
    while not over.all():
        step = env.step((seen["action_mask"] * rng.random(seen["action_mask"].shape)).argmax(-1))
        seen, total, over = step.observation, total + step.reward, step.terminated | step.truncated
    returns = [game.world.game_state.returns() for game in env.games]
    assert total.tolist() == returns and not step.truncated.any()
    assert len({tuple(each) for each in returns}) > 1


def test_what_a_player_knows_is_in_the_words_of_the_game():
    env = games("tic_tac_toe", 1)
    seen = env.reset(seed=0)
    assert '"state": "...\\n...\\n...\\nYour legal actions: 0 = x(0,0)' in seen["text"][0, 0]
    assert seen["text"][0, 1] == ""
    seen = env.step(np.array([[4, 0]])).observation
    assert "...\\n.x.\\n..." in seen["text"][0, 1] and "4 = " not in seen["text"][0, 1]


def test_cards_are_dealt_by_the_seed():
    def dealt(seed):
        return games("leduc_poker").reset(seed=seed)["vector"].tolist()

    assert dealt(0) == dealt(0) != dealt(1)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("kuhn_pokre", {}, "knows no game 'kuhn_pokre'; names like it: kuhn_poker"),
        ("kuhn_poker", {"decks": 2}, "cannot be made with env.kwargs={'decks': 2}"),
    ],
)
def test_it_says_why(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        games(name, 1, **kwargs)
