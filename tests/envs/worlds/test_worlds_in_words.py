"""Worlds for language models: boards as text, and the order of requests."""

import json

import numpy as np
import pytest
import torch
from pettingzoo.classic import rps_v2

from environments import make_env
from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.algorithms.advantages_and_losses import generalized_advantages
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import build_parts
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector
from players import make_llm_player
from road_game import FunctionModel, make_reply

NAMES = {"tictactoe": "pettingzoo.classic.tictactoe_v3:env", "connect_four": "pettingzoo.classic.connect_four_v3:env"}


def board(name, n_envs=1, **options):
    return make_env("pettingzoo", id=NAMES[name], n_envs=n_envs, text=name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_package_texts_match_games(name):
    env = board(name)
    text = env.spec.text
    assert [key for key, _ in text.observation] == ["you", "board"] and env.spec.action_names[0] == text.actions[0][0]
    assert len(text.actions) == env.spec.n_actions and all(text_of_action for _, text_of_action in text.actions)
    assert "{" not in text.goal and "Changed settings" not in text.goal
    assert json.loads(text.example)["board"] == json.loads(env.reset(seed=0)["text"][0, 0])["board"]


def test_tictactoe_text_matches_picture():
    """Number the actions down the columns."""
    env = board("tictactoe")
    env.reset(seed=0)
    at = env.spec.action_names.index
    env.step(np.array([[at("bottom_left"), 0]]))
    observation = env.step(np.array([[0, at("top")]])).observation["text"]
    assert json.loads(observation[0, 0]) == {"you": "player_1", "board": [".o.", "...", "x.."]}
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
    observation = env.step(np.array([[0, 2]])).observation["text"]
    assert json.loads(observation[0, 0])["board"][-2:] == ["..o....", "..x...."]


def test_players_are_prompted_in_turn():
    """Mark the first empty square in each turn, until the first player has a diagonal in its fourth turn."""

    def answer(messages):
        return make_reply(json.loads(messages[-1]["content"]).get("legal_actions", ["top_left"])[0])

    env, model = board("tictactoe", 3, horizon=9), FunctionModel(answer)
    player = make_llm_player(env.spec, ChatClient(model), None)
    collector = Collector(env, player.policy, "cpu")
    collector.reset(1)
    rollout = collector.collect(9, Seeds(0).torch("actions"), learn=False, restart=False)
    steps = sum(int(episode.length) for episode in rollout.episodes)
    assert len(rollout.episodes) == 3 and len(model.requests) == steps == 3 * 7
    legal = [json.loads(request.messages[-1]["content"]).get("legal_actions", ()) for request in model.requests]
    assert all(len(legal_actions) != 1 for legal_actions in legal)


def cumulative_rewards(actions):
    """Return the rewards of each player in PettingZoo's own loop of rock-paper-scissors.

    They are read before each turn and at the end, for the actions of all turns in order.
    """
    env, rewards, turns = rps_v2.env(), {"player_0": [], "player_1": []}, iter(actions)
    env.reset(seed=0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        rewards[agent].append(reward)
        env.step(None if terminated or truncated else next(turns))
    return rewards


def rock_paper_scissors(**options):
    return make_env("pettingzoo", id="pettingzoo.classic.rps_v2:env", n_envs=1, **options)


class TestTurnRewards:
    def test_observation_shows_rewards_since_last_turn(self):
        rng, actions = np.random.default_rng(0), []

        def answer(messages):
            actions.append(int(rng.integers(3)))
            return make_reply(str(actions[-1]))

        env, model = rock_paper_scissors(), FunctionModel(answer)
        player = make_llm_player(env.spec, ChatClient(model), None)
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

    def test_payments_accumulate_between_observations(self):
        env, rng = rock_paper_scissors(tax=True), np.random.default_rng(1)
        env.set_mechanism([0.5])
        observation, actions, rewards_shown = env.reset(seed=0), [], {"player_0": [], "player_1": []}
        for turn in range(30):
            agent = turn % 2
            facts = json.loads(observation["text"][0, agent])
            rewards_shown[facts["you"]].append(facts.get("last_reward", {"before_payments": 0, "payments": 0}))
            actions.append(int(rng.integers(3)))
            observation = env.step(np.full((1, 2), actions[-1])).observation
        for name, rewards in cumulative_rewards(actions).items():
            assert [facts_of_turn["before_payments"] for facts_of_turn in rewards_shown[name]] == rewards[:-1]
            # The winner of 1 keeps 0.75, and the loser gets 0.25.
            assert [facts_of_turn["payments"] for facts_of_turn in rewards_shown[name]] == [
                -0.25 * reward for reward in rewards[:-1]
            ]

    def test_action_return_contains_player_rewards(self):
        """Add rewards of another player's turn to the return of the player who receives them."""
        parts = build_parts(compose("env=pettingzoo", "env.id=pettingzoo.classic.rps_v2:env", "env.n_envs=1"), None)
        collector = Collector(parts.env, parts.agents[0].policy, "cpu")
        collector.reset(0)
        rollout = collector.collect(30, Seeds(0).torch("actions"))
        zeros, done = torch.zeros_like(rollout.reward), rollout.terminated | rollout.truncated
        to_go = generalized_advantages(rollout.reward, zeros, zeros, done[..., None].expand_as(zeros), 1.0, 1.0)
        actions = [int(rollout.action[t, 0, t % 2]) for t in range(30)]
        for agent, rewards in enumerate(cumulative_rewards(actions).values()):
            remaining = np.cumsum(rewards[:0:-1])[::-1]
            assert to_go[agent::2, 0, agent].tolist() == remaining.tolist()
        parts.close()

    def test_transitions_connect_decisions_of_player(self):
        options = ("agent=drrn", "agent.text_channel=text", "agent.q.bootstrap_truncation=false", "env.n_envs=1")
        parts = build_parts(compose("env=pettingzoo", "env.id=pettingzoo.classic.rps_v2:env", *options), None)
        [agent] = parts.agents
        collector = Collector(parts.env, agent.policy, "cpu")
        collector.reset(0)
        rollout = collector.collect(30, Seeds(0).torch("actions"))
        actions = [int(rollout.action[t, 0, t % 2]) for t in range(30)]
        transitions = agent._build_transitions(rollout)
        assert transitions.action.tolist() == actions
        for player, rewards in enumerate(cumulative_rewards(actions).values()):
            assert transitions.reward[player::2].tolist() == rewards[1:]
            assert transitions.terminal[player::2].tolist() == [False] * 14 + [True]
            assert transitions.next_prompt[player:-2:2] == transitions.prompt[player + 2 :: 2]
        truncated_transitions = agent._build_transitions(collector.collect(4, Seeds(1).torch("actions")))
        assert len(truncated_transitions.action) == 3, "the next decision of the second player is not in the rollout"
        parts.close()


def test_last_square_is_forced():
    env = board("tictactoe", horizon=9)
    observation = env.reset(seed=0)
    for action in (0, 1, 2, 4, 3, 5, 7, 6):
        observation = env.step(np.full((1, 2), action)).observation
    assert observation["action_mask"].sum(-1).tolist() == [[1, 1]] and observation["action_mask"][0, 0, 8]
    model = FunctionModel()
    policy = make_llm_player(env.spec, ChatClient(model), None).policy
    policy.on_reset(np.ones(1, dtype=bool), observation)
    assert policy.act(observation).action.tolist() == [[8, 0]] and not model.requests
    assert env.step(np.array([[8, 0]])).terminated[0]


def test_forced_actions_add_no_gradient():
    """Check that the only legal action has probability one for any weights."""
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
def test_model_plays_any_world(tmp_path, world):
    if "env=openspiel" in world:
        pytest.importorskip("pyspiel")
    run(*world, "env.n_envs=2", "play.episodes=3", "agent=llm_player", "llm=scripted", f"output_root={tmp_path}")
    last = load_comparable_metrics(find_run_folder(tmp_path))[-1]
    assert last["player/decisions"] > 3 and last["player/invalid_rate"] == 0
