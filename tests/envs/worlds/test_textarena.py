"""Games of TextArena as worlds."""

import random

import numpy as np
import pytest

from environments import make_env
from llmrl.core.errors import ConfigError

pytest.importorskip("textarena")
from llmrl.envs.pettingzoo.text_worlds import MOVES_BY_GAME, TextArenaWorld


def games(name, n_envs=2, **kwargs):
    return make_env("pettingzoo", id=name, library="textarena", n_envs=n_envs, kwargs=kwargs)


def play_randomly(env, seed, max_steps=400):
    """Play one episode of each game with random legal moves; return the texts of game 0 and the sums of rewards."""
    rng, observation, texts = np.random.default_rng(0), env.reset(seed=seed), []
    total, done = np.zeros((env.spec.n_envs, env.spec.n_agents)), np.zeros(env.spec.n_envs, dtype=bool)
    while not done.all() and len(texts) < max_steps:
        texts.append("".join(observation["text"][0]))
        step = env.step((observation["action_mask"] * rng.random(observation["action_mask"].shape)).argmax(-1))
        observation, total, done = step.observation, total + step.reward, step.terminated | step.truncated
    return texts, total, done


@pytest.mark.parametrize("name", MOVES_BY_GAME)
def test_listed_moves_play_game(name):
    texts, total, done = play_randomly(games(f"{name}-v0-train", 1), seed=2)
    assert done.all() and np.isfinite(total).all()
    assert all(texts)


def test_legal_moves_follow_text():
    env = games("TicTacToe-v0", 1)
    observation = env.reset(seed=0)
    assert observation["action_mask"][0, 0].all()
    observation = env.step(np.array([[4, 0]])).observation
    assert np.flatnonzero(~observation["action_mask"][0, 1]).tolist() == [4]
    assert "Current Board" in observation["text"][0, 1] and observation["text"][0, 0] == ""


def test_winner_is_rewarded_at_end():
    env = games("TicTacToe-v0", 1)
    env.reset(seed=0)
    rewards = [env.step(np.array([[cell, cell]])).reward[0].tolist() for cell in (0, 3, 1, 4, 2)]
    assert rewards == [[0, 0]] * 4 + [[1, -1]]


def test_episode_depends_on_seed_only():
    env = games("Blackjack-v0")
    first = play_randomly(env, seed=1)[0]
    random.seed(5)
    np.random.seed(5)
    state = random.getstate()
    assert play_randomly(env, seed=1)[0] == first != play_randomly(env, seed=2)[0]
    assert random.getstate() == state


def test_resumed_game_continues():
    env, other = games("GuessTheNumber-v0"), games("GuessTheNumber-v0")
    env.reset(seed=3)
    env.step(np.array([[4], [5]]))
    other.load_state_dict(env.state_dict())
    steps = [game.step(np.array([[7], [2]])) for game in (env, other)]
    assert steps[0].observation["text"].tolist() == steps[1].observation["text"].tolist()


def test_world_conforms_to_pettingzoo():
    from pettingzoo.test import api_test

    for world in (TextArenaWorld("KuhnPoker-v0"), TextArenaWorld("TicTacToe-v0")):
        api_test(world, num_cycles=20)
        assert world.possible_agents == ["player_0", "player_1"]


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("TicTacTo-v0", {}, "TicTacTo-v0"),
        ("Chess-v0", {}, "moves"),
        ("TicTacToe-v0", {"moves": ["0", "0"]}, "moves"),
        ("TicTacToe-v0", {"size": 4}, "size"),
    ],
)
def test_invalid_games_are_refused(name, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        games(name, **kwargs)
