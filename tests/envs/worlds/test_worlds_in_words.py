"""Worlds for players that read: boards in words, and who is asked."""

import json

import numpy as np
import pytest
import torch
from pettingzoo.classic import rps_v2

from experiments import comparable_metrics, compose, only_run_folder, run
from llmrl.agents.llm_player.agent import LLMPlayer
from llmrl.algorithms.advantages import generalized_advantages
from llmrl.core.seeding import Seeds
from llmrl.envs.pettingzoo.vec_env import PettingZooEnv
from llmrl.experiment.parts import build_parts
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector
from road_game import Model, reply

NAMES = {"tictactoe": "pettingzoo.classic.tictactoe_v3:env", "connect_four": "pettingzoo.classic.connect_four_v3:env"}


def board(name, n_envs=1, **options):
    return PettingZooEnv(Seeds(0), NAMES[name], n_envs=n_envs, text=name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_texts_fit_their_games(name):
    env = board(name)
    text = env.spec.text
    assert [key for key, _ in text.observation] == ["you", "board"] and env.spec.action_names[0] == text.actions[0][0]
    assert len(text.actions) == env.spec.n_actions and all(said for _, said in text.actions)
    assert "{" not in text.goal and "Changed settings" not in text.goal
    assert json.loads(text.example)["board"] == json.loads(env.reset(seed=0)["text"][0, 0])["board"]


def test_tictactoe_looks_as_its_pictures_do():
    """Actions count down the columns."""
    env = board("tictactoe")
    env.reset(seed=0)
    at = env.spec.action_names.index
    env.step(np.array([[at("bottom_left"), 0]]))
    seen = env.step(np.array([[0, at("top")]])).observation["text"]
    assert json.loads(seen[0, 0]) == {"you": "player_1", "board": [".o.", "...", "x.."]}
    frame = board("tictactoe", render=True, kwargs={"screen_height": 300})
    frame.reset(seed=0)
    empty = frame.render().astype(int)
    frame.step(np.array([[at("bottom_left"), 0]]))
    rows, columns = np.nonzero(np.abs(frame.render() - empty).sum(-1))
    assert rows.mean() > 200 and columns.mean() < 100


def test_connect_four_drops_tokens():
    env = board("connect_four")
    env.reset(seed=0)
    env.step(np.array([[2, 0]]))
    seen = env.step(np.array([[0, 2]])).observation["text"]
    assert json.loads(seen[0, 0])["board"][-2:] == ["..o....", "..x...."]


def test_players_are_asked_in_their_turns_alone():
    """Both mark the first empty square, until the first player has a diagonal in its fourth turn."""

    def answer(messages):
        return reply(json.loads(messages[-1]["content"]).get("legal_actions", ["top_left"])[0])

    env, model = board("tictactoe", 3, horizon=9), Model(answer)
    player = LLMPlayer(env.spec, ChatClient(model), None)
    collector = Collector(env, player.policy, "cpu")
    collector.reset(1)
    rollout = collector.collect(9, Seeds(0).torch("actions"), learn=False, restart=False)
    steps = sum(int(episode.length) for episode in rollout.episodes)
    assert len(rollout.episodes) == 3 and len(model.requests) == steps == 3 * 7
    legal = [json.loads(request.messages[-1]["content"]).get("legal_actions", ()) for request in model.requests]
    assert all(len(each) != 1 for each in legal)


def cumulative_rewards(actions):
    """Return what PettingZoo's own loop gives each player of rock-paper-scissors before each of its turns, and at the
    end, for the actions of all turns in their order."""
    env, rewards, turns = rps_v2.env(), {"player_0": [], "player_1": []}, iter(actions)
    env.reset(seed=0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        rewards[agent].append(reward)
        env.step(None if terminated or truncated else next(turns))
    return rewards


def rock_paper_scissors(**options):
    return PettingZooEnv(Seeds(0), "pettingzoo.classic.rps_v2:env", n_envs=1, **options)


class TestRewardsOfTurns:
    def test_observation_shows_rewards_since_the_last_one_of_the_same_player(self):
        rng, actions = np.random.default_rng(0), []

        def answer(messages):
            actions.append(int(rng.integers(3)))
            return reply(str(actions[-1]))

        env, model = rock_paper_scissors(), Model(answer)
        player = LLMPlayer(env.spec, ChatClient(model), None)
        collector = Collector(env, player.policy, "cpu")
        collector.reset(1)
        [episode] = collector.collect(30, Seeds(0).torch("actions"), learn=False, restart=False).episodes
        expected = cumulative_rewards(actions)
        assert any(expected["player_0"]) and any(expected["player_1"])
        for agent, name in enumerate(expected):
            turns = [json.loads(request.messages[-1]["content"]) for request in model.requests]
            turns = [turn for turn in turns if turn["observation"]["you"] == name]
            assert [turn.get("reward", 0) for turn in turns] == expected[name][:-1]
            assert ["start" in turn for turn in turns] == [True] + [False] * 14
            assert episode.returns[agent] == sum(expected[name])
            assert turns[-1]["return"] == sum(expected[name][:-1])
        assert "since your last observation" in model.requests[0].messages[0]["content"]

    def test_payments_add_up_between_observations(self):
        env, rng = rock_paper_scissors(tax=True), np.random.default_rng(1)
        env.set_mechanism([0.5])
        seen, actions, shown = env.reset(seed=0), [], {"player_0": [], "player_1": []}
        for turn in range(30):
            agent = turn % 2
            told = json.loads(seen["text"][0, agent])
            shown[told["you"]].append(told.get("last_reward", {"before_payments": 0, "payments": 0}))
            actions.append(int(rng.integers(3)))
            seen = env.step(np.full((1, 2), actions[-1])).observation
        for name, rewards in cumulative_rewards(actions).items():
            assert [each["before_payments"] for each in shown[name]] == rewards[:-1]
            # The winner of 1 keeps 0.75, and the loser gets 0.25.
            assert [each["payments"] for each in shown[name]] == [-0.25 * reward for reward in rewards[:-1]]

    def test_return_of_an_action_has_the_rewards_of_its_player(self):
        """Rewards that arise in another player's turn count for the player who gets them, from its own action on."""
        parts = build_parts(compose("env=pettingzoo", "env.id=pettingzoo.classic.rps_v2:env", "env.n_envs=1"), None)
        collector = Collector(parts.env, parts.agents[0].policy, "cpu")
        collector.reset(0)
        rollout = collector.collect(30, Seeds(0).torch("actions"))
        zeros, ended = torch.zeros_like(rollout.reward), rollout.terminated | rollout.truncated
        to_go = generalized_advantages(rollout.reward, zeros, zeros, ended[..., None].expand_as(zeros), 1.0, 1.0)
        actions = [int(rollout.action[t, 0, t % 2]) for t in range(30)]
        for agent, rewards in enumerate(cumulative_rewards(actions).values()):
            remaining = np.cumsum(rewards[:0:-1])[::-1]
            assert to_go[agent::2, 0, agent].tolist() == remaining.tolist()
        parts.close()

    def test_transitions_lead_from_a_decision_to_the_next_one_of_the_same_player(self):
        options = ("agent=drrn", "agent.text_channel=text", "agent.q.bootstrap_truncation=false", "env.n_envs=1")
        parts = build_parts(compose("env=pettingzoo", "env.id=pettingzoo.classic.rps_v2:env", *options), None)
        [agent] = parts.agents
        collector = Collector(parts.env, agent.policy, "cpu")
        collector.reset(0)
        rollout = collector.collect(30, Seeds(0).torch("actions"))
        actions = [int(rollout.action[t, 0, t % 2]) for t in range(30)]
        found = agent._transitions(rollout)
        assert found.action.tolist() == actions
        for player, rewards in enumerate(cumulative_rewards(actions).values()):
            assert found.reward[player::2].tolist() == rewards[1:]
            assert found.terminal[player::2].tolist() == [False] * 14 + [True]
            assert found.next_prompt[player:-2:2] == found.prompt[player + 2 :: 2]
        cut = agent._transitions(collector.collect(4, Seeds(1).torch("actions")))
        assert len(cut.action) == 3, "the next decision of the second player is not in the rollout"
        parts.close()


def test_the_last_square_is_no_choice():
    env = board("tictactoe", horizon=9)
    seen = env.reset(seed=0)
    for action in (0, 1, 2, 4, 3, 5, 7, 6):
        seen = env.step(np.full((1, 2), action)).observation
    assert seen["action_mask"].sum(-1).tolist() == [[1, 1]] and seen["action_mask"][0, 0, 8]
    model = Model()
    policy = LLMPlayer(env.spec, ChatClient(model), None).policy
    policy.on_reset(np.ones(1, dtype=bool), seen)
    assert policy.act(seen).action.tolist() == [[8, 0]] and not model.requests
    assert env.step(np.array([[8, 0]])).terminated[0]


def test_who_has_nothing_to_decide_adds_nothing_to_a_gradient():
    """The one action that is legal has probability one, whatever the weights."""
    parts = build_parts(compose("env=tictactoe", "agent=ppo", "env.n_envs=4"), None)
    collector = Collector(parts.env, parts.agents[0].policy, "cpu")
    collector.reset(0)
    rollout = collector.collect(9, Seeds(0).torch("actions"))
    waits = rollout.observation["action_mask"].sum(-1) == 1
    assert waits.any(2).all() and not rollout.log_prob[waits].any() and rollout.log_prob[~waits].all()
    parts.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "world", [("env=pettingzoo", f"env.id={NAMES['tictactoe']}"), ("env=openspiel", "env.id=kuhn_poker")]
)
def test_a_model_plays_any_world(tmp_path, world):
    if "env=openspiel" in world:
        pytest.importorskip("pyspiel")
    run(*world, "env.n_envs=2", "play.episodes=3", "agent=llm_player", "llm=scripted", f"output_root={tmp_path}")
    last = comparable_metrics(only_run_folder(tmp_path))[-1]
    assert last["player/decisions"] > 3 and last["player/invalid_rate"] == 0
