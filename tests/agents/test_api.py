"""A player in a custom loop equals the player of a run."""

import json

import gymnasium
import numpy as np
import pytest

from experiments import find_run_folder, run
from llmrl.agents.llm_player.gym_player import Player, make_player
from llmrl.core.errors import ConfigError, LLMError
from llmrl.llms.by_name import chat_model
from llmrl.llms.client import ChatClient
from llmrl.run.episode_files import read_json_lines
from models import make_scripted_client
from road_game import FunctionModel, make_reply


def play(env, player, seed):
    """Play the loop of the documentation; return the actions and the sum of rewards."""
    observation, info = env.reset(seed=seed)
    player.reset()
    actions, total, done = [], 0.0, False
    while not done:
        action = player.act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        player.on_step(reward, terminated, truncated)
        actions.append(player.note["action"])
        total, done = total + reward, terminated or truncated
    return actions, total


def test_player_matches_run(tmp_path):
    """Compare observations and replies one by one."""
    run("env=taxi", "env.horizon=15", "env.n_envs=1", "play.episodes=1", "agent=llm_player", f"output_root={tmp_path}")
    lines = read_json_lines(find_run_folder(tmp_path) / "episodes" / "0" / "replies.jsonl")
    from llmrl.core.seeding import Seeds

    seed = Seeds(0).child("loop").child("episode").integer(0)
    env = gymnasium.make("Taxi-v4", max_episode_steps=15)
    actions, total = play(env, make_player(env, "taxi"), seed)
    assert actions == [line["action"] for line in lines] and total == sum(line["reward"] for line in lines)


@pytest.mark.parametrize(
    ("id", "text"),
    [("Blackjack-v1", "blackjack"), ("MountainCarContinuous-v0", "auto"), ("MountainCar-v0", "mountain_car")],
)
def test_actions_belong_to_environment(id, text):
    env = gymnasium.make(id, max_episode_steps=5)
    player = make_player(env, text)
    assert isinstance(player, Player)
    observation, info = env.reset(seed=0)
    player.reset()
    assert env.action_space.contains(player.act(observation, info))
    assert player.note["valid"] and player.note["reflection"]


def test_environment_text_is_used():
    class Speaking(gymnasium.Wrapper):
        def get_goal_description(self):
            return "Beat the dealer."

        def get_observation_schema(self):
            return {name: {"description": name, "type": "int", "size": 1} for name in ("player_sum", "dealer", "ace")}

        def get_action_schema(self):
            return {0: "stick", 1: "hit"}

    env = Speaking(gymnasium.make("Blackjack-v1"))
    player = make_player(env)
    actions, _ = play(env, player, 3)
    assert set(actions) <= {0, 1} and "Beat the dealer." in player.policy.prompts.render_system(0, ()).text


class MixedEnv(gymnasium.Env):
    """An environment with named, nested and text observations, and an action of several integers."""

    observation_space = gymnasium.spaces.Dict(
        {
            "said": gymnasium.spaces.Text(20),
            "pair": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(0, 1, (2,))]),
            "lamps": gymnasium.spaces.MultiBinary(3),
        }
    )
    action_space = gymnasium.spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), float(action.sum()), True, False, {}


def test_plays_mixed_spaces():
    player = make_player(MixedEnv(), "auto")
    actions, total = play(MixedEnv(), player, 0)
    assert set(actions[0]) == {"action_0", "action_1"} and total == sum(actions[0].values())
    prompts = player.policy.conversations[0][0].turns[0][0]
    assert '"pair": {"part_0": ' in prompts and '"lamps": [' in prompts


class TestImplicitEpisodes:
    """The shortest loop: reset, act and step, without reports of transitions."""

    def first_prompt(self, steps, **options):
        """Return the messages in an episode of `steps` steps that follows a finished episode."""
        model = FunctionModel(lambda messages: make_reply("north"))
        env = gymnasium.make("Taxi-v4")
        player = make_player(env, "taxi", ChatClient(model), require_legal=False, **options)
        for announce in (True, False):
            observation, info = env.reset(seed=0)
            player.reset()
            for _ in range(steps):
                observation, reward, *_, info = env.step(player.act(observation, info))
                if announce:
                    player.on_step(reward)
            if announce:
                player.on_step(reward, True)
                model.requests.clear()
        assert player.note["has_request"] == (options.get("action_interval", 1) == 1)
        return [json.loads(request.messages[-1]["content"]) for request in model.requests]

    def test_new_observation_triggers_request(self):
        prompt = self.first_prompt(4, show=["step", "reward", "return", "last_episode"])
        assert [frame["step"] for frame in prompt] == [0, 1, 2, 3]
        assert len({json.dumps(frame["observation"]) for frame in prompt}) > 1
        # Rewards that nobody knows are not made up, and the episode before is that of before.
        assert not any("reward" in frame or "return" in frame for frame in prompt[1:])
        assert [("last_episode" in frame, "start" in frame) for frame in prompt] == [(True, True)] + [
            (False, False)
        ] * 3

    def test_action_is_repeated_for_interval(self):
        prompt = self.first_prompt(5, action_interval=3)
        assert [frame["step"] for frame in prompt] == [0, 3]
        assert [frame["step"] for frame in prompt[1]["since_your_last_action"]] == [1, 2]

    def test_implicit_episode_end_is_detected(self):
        """Check that no lesson is requested and that the next episode has no summary of the last one."""
        model = FunctionModel(lambda messages: make_reply("north"))
        env = gymnasium.make("Taxi-v4")
        player = make_player(env, "taxi", ChatClient(model), lessons=1, require_legal=False)
        for seed in range(2):
            observation, info = env.reset(seed=seed)
            player.reset()
            for _ in range(2):
                observation, *_, info = env.step(player.act(observation, info))
        assert [request.purpose for request in model.requests] == ["player"] * 4
        assert "last_episode" not in model.requests[2].messages[-1]["content"]

    def test_intermediate_rewards_count(self):
        model = FunctionModel(lambda messages: make_reply("north"))
        player = make_player(gymnasium.make("Taxi-v4"), "taxi", ChatClient(model))
        player.reset()
        for reward in (-1, None, -10):
            player.act(0)
            if reward is not None:
                player.on_step(reward)
        player.act(0)
        observations = [json.loads(request.messages[-1]["content"]) for request in model.requests]
        assert [frame.get("reward") for frame in observations] == [None, -1, None, -10]
        assert [frame.get("return") for frame in observations] == [0, -1, None, None]


def test_success_is_reported_explicitly():
    env = gymnasium.make("Taxi-v4")
    system_text = make_player(env, "taxi", success="terminated").policy.prompts.render_system(0, ()).text
    assert "An episode is a success if the passenger is delivered." in system_text
    assert "success" not in make_player(env, "taxi").policy.prompts.render_system(0, ()).text


def test_lessons_go_from_episode_to_episode():
    env = gymnasium.make("Taxi-v4", max_episode_steps=4)
    player = make_player(env, "taxi", lessons=2)
    for seed in range(4):
        play(env, player, seed)
    assert len(player.policy.conversations[0][0].lessons) == 2


def test_custom_model_is_used():
    env = gymnasium.make("Taxi-v4", max_episode_steps=6)
    player = make_player(env, "taxi", make_scripted_client(malformed=1.0))
    play(env, player, 0)
    assert player.policy.metrics()["player/fallback_rate"] == 1.0


class TestRefusals:
    def test_acting_out_of_turn_raises(self):
        env = gymnasium.make("Taxi-v4")
        player = make_player(env, "taxi")
        with pytest.raises(ValueError, match="call reset"):
            player.act(0)

    @pytest.mark.parametrize(
        ("llm", "settings", "message"),
        [
            ("gtp4o", {}, "llm=gtp4o.*claude_haiku"),
            ("none", {}, "llm=none"),
            ("local_scorer_causal", {}, "llm=local_scorer_causal.*chat"),
            ("scripted", {"top_p": 0}, "llm=scripted.*'top_p'"),
            ("replay", {}, "llm=replay"),
        ],
    )
    def test_model_errors_are_raised(self, llm, settings, message):
        with pytest.raises(ConfigError, match=message):
            chat_model(llm, **settings)

    def test_missing_key_raises(self, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(LLMError, match="OPENAI_API_KEY"):
            make_player(gymnasium.make("Taxi-v4"), "taxi", "gpt4o_mini", temperature=0.0)

    def test_settings_of_model_object_raise(self):
        with pytest.raises(ConfigError, match=r"^temperature.*make_player"):
            make_player(gymnasium.make("Taxi-v4"), "taxi", make_scripted_client(), temperature=0.0)

    def test_unbounded_action_raises(self):
        class Free(gymnasium.Env):
            observation_space = gymnasium.spaces.Discrete(2)
            action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))

        with pytest.raises(ConfigError, match="without bounds"):
            make_player(Free(), "auto")


@pytest.mark.parametrize(
    "arguments",
    [
        {"history": -1},
        {"history": 2.5},
        {"action_interval": 0},
        {"lessons": -1},
        {"repair_turns": -1},
        {"decimals": -1},
        {"action_format": "letters"},
        {"show": ["foo"]},
        {"show": "step"},
        {"success": "luck"},
    ],
    ids=str,
)
def test_invalid_arguments_raise_at_construction(arguments):
    [name] = arguments
    with pytest.raises(ConfigError, match=f"^{name}"):
        make_player(gymnasium.make("Taxi-v4"), "taxi", **arguments)


def test_id_is_not_environment():
    with pytest.raises(ConfigError, match=r"gymnasium\.make\('Taxi-v4'\)"):
        make_player("Taxi-v4", "taxi")
