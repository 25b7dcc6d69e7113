"""A player in a loop of one's own: the same player as in a run."""

import gymnasium
import numpy as np
import pytest

from experiments import only_run_folder, run
from llmrl.core.errors import ConfigError, LLMError
from llmrl.llms.by_name import chat_model
from llmrl.players import Player, make_player
from llmrl.run.episodes import read_lines
from models import scripted


def play(env, player, seed):
    """The loop of the documentation; what was done, and the sum of rewards."""
    observation, info = env.reset(seed=seed)
    player.reset()
    actions, total, over = [], 0.0, False
    while not over:
        action = player.act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        player.happened(reward, terminated, truncated)
        actions.append(player.note["action"])
        total, over = total + reward, terminated or truncated
    return actions, total


def test_the_same_as_in_a_run(tmp_path):
    """Observation by observation, reply by reply."""
    run("env=taxi", "env.horizon=15", "env.n_envs=1", "play.episodes=1", "agent=llm_player", f"output_root={tmp_path}")
    lines = read_lines(only_run_folder(tmp_path) / "episodes" / "0" / "replies.jsonl")
    from llmrl.core.seeding import Seeds

    seed = Seeds(0).child("loop").child("episode").integer(0)
    env = gymnasium.make("Taxi-v4", max_episode_steps=15)
    actions, total = play(env, make_player(env, "taxi"), seed)
    assert actions == [line["action"] for line in lines] and total == sum(line["reward"] for line in lines)


@pytest.mark.parametrize(
    ("id", "text"),
    [("Blackjack-v1", "blackjack"), ("MountainCarContinuous-v0", "auto"), ("MountainCar-v0", "mountain_car")],
)
def test_actions_are_the_environments(id, text):
    env = gymnasium.make(id, max_episode_steps=5)
    player = make_player(env, text)
    assert isinstance(player, Player)
    observation, info = env.reset(seed=0)
    player.reset()
    assert env.action_space.contains(player.act(observation, info))
    assert player.note["valid"] and player.note["reflection"]


def test_an_environment_that_speaks_for_itself():
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
    assert set(actions) <= {0, 1} and "Beat the dealer." in player.policy.system[0].text


class Mixed(gymnasium.Env):
    """Everything at once: named, nested, in words; and an action of several whole numbers."""

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


def test_mixed_spaces():
    player = make_player(Mixed(), "auto")
    actions, total = play(Mixed(), player, 0)
    assert set(actions[0]) == {"action_0", "action_1"} and total == sum(actions[0].values())
    asked = player.policy.seats[0][0].turns[0][0]
    assert '"pair": {"part_0": ' in asked and '"lamps": [' in asked


def test_lessons_go_from_episode_to_episode():
    env = gymnasium.make("Taxi-v4", max_episode_steps=4)
    player = make_player(env, "taxi", lessons=2)
    for seed in range(4):
        play(env, player, seed)
    assert len(player.policy.seats[0][0].lessons) == 2


def test_a_model_of_ones_own():
    env = gymnasium.make("Taxi-v4", max_episode_steps=6)
    player = make_player(env, "taxi", scripted(malformed=1.0))
    play(env, player, 0)
    assert player.policy.metrics()["player/fallback_rate"] == 1.0


class TestRefusals:
    def test_acting_out_of_turn(self):
        env = gymnasium.make("Taxi-v4")
        player = make_player(env, "taxi")
        with pytest.raises(ValueError, match="call reset"):
            player.act(0)

    @pytest.mark.parametrize(
        ("llm", "settings", "message"),
        [
            ("gtp4o", {}, "there is no llm=gtp4o; there are claude, "),
            ("none", {}, "llm=none is no model"),
            ("local_scorer_causal", {}, "scores texts and does not chat"),
            ("scripted", {"temperature": 0}, "llm=scripted has no setting 'temperature'; it has malformed, "),
            ("replay", {}, "llm=replay needs calls="),
        ],
    )
    def test_of_models(self, llm, settings, message):
        with pytest.raises(ConfigError, match=message):
            chat_model(llm, **settings)

    def test_a_missing_key(self, monkeypatch):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(LLMError, match="OPENAI_API_KEY"):
            make_player(gymnasium.make("Taxi-v4"), "taxi", "gpt4o_mini", temperature=0.0)

    def test_settings_of_a_model_that_is_there(self):
        with pytest.raises(ConfigError, match="settings are for models that are named"):
            make_player(gymnasium.make("Taxi-v4"), "taxi", scripted(), temperature=0.0)

    def test_an_action_without_bounds(self):
        class Free(gymnasium.Env):
            observation_space = gymnasium.spaces.Discrete(2)
            action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))

        with pytest.raises(ConfigError, match="without bounds"):
            make_player(Free(), "auto")
