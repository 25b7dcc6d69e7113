"""A player in a loop of one's own: the same player as in a run."""

import json

import gymnasium
import numpy as np
import pytest

from experiments import only_run_folder, run
from llmrl.agents.llm_player import Player, make_player
from llmrl.core.errors import ConfigError, LLMError
from llmrl.llms.by_name import chat_model
from llmrl.llms.client import ChatClient
from llmrl.run.episode_files import read_lines
from models import scripted
from road_game import Model, reply


def play(env, player, seed):
    """The loop of the documentation; what was done, and the sum of rewards."""
    observation, info = env.reset(seed=seed)
    player.reset()
    actions, total, over = [], 0.0, False
    while not over:
        action = player.act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        player.on_step(reward, terminated, truncated)
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


class TestWithoutBeingTold:
    """The shortest loop: reset, act, step, and nobody says what an action led to."""

    def asked(self, steps, **options):
        """What the model was told, message by message, in an episode of so many steps after one that ended."""
        model = Model(lambda messages: reply("north"))
        env = gymnasium.make("Taxi-v4")
        player = make_player(env, "taxi", ChatClient(model), legal_only=False, **options)
        for told in (True, False):
            observation, info = env.reset(seed=0)
            player.reset()
            for _ in range(steps):
                observation, reward, *_, info = env.step(player.act(observation, info))
                if told:
                    player.on_step(reward)
            if told:
                player.on_step(reward, True)
                model.requests.clear()
        assert player.note["asked"] == (options.get("action_every", 1) == 1)
        return [json.loads(request.messages[-1]["content"]) for request in model.requests]

    def test_each_observation_is_asked_about(self):
        told = self.asked(4, show=["step", "reward", "return", "last_episode"])
        assert [frame["step"] for frame in told] == [0, 1, 2, 3]
        assert len({json.dumps(frame["observation"]) for frame in told}) > 1
        # Rewards that nobody knows are not made up, and the episode before is that of before.
        assert not any("reward" in frame or "return" in frame for frame in told[1:])
        assert [("last_episode" in frame, "start" in frame) for frame in told] == [(True, True)] + [(False, False)] * 3

    def test_an_action_is_kept_as_long_as_it_should_be(self):
        told = self.asked(5, action_every=3)
        assert [frame["step"] for frame in told] == [0, 3]
        assert [frame["step"] for frame in told[1]["since_your_last_action"]] == [1, 2]

    def test_an_end_that_nobody_told(self):
        """The next episode is told nothing of the last one, and no lesson is asked for."""
        model = Model(lambda messages: reply("north"))
        env = gymnasium.make("Taxi-v4")
        player = make_player(env, "taxi", ChatClient(model), lessons=1, legal_only=False)
        for seed in range(2):
            observation, info = env.reset(seed=seed)
            player.reset()
            for _ in range(2):
                observation, *_, info = env.step(player.act(observation, info))
        assert [request.purpose for request in model.requests] == ["player"] * 4
        assert "last_episode" not in model.requests[2].messages[-1]["content"]

    def test_what_is_told_in_between_counts(self):
        model = Model(lambda messages: reply("north"))
        player = make_player(gymnasium.make("Taxi-v4"), "taxi", ChatClient(model))
        player.reset()
        for reward in (-1, None, -10):
            player.act(0)
            if reward is not None:
                player.on_step(reward)
        player.act(0)
        told = [json.loads(request.messages[-1]["content"]) for request in model.requests]
        assert [frame.get("reward") for frame in told] == [None, -1, None, -10]
        assert [frame.get("return") for frame in told] == [0, -1, None, None]


def test_what_a_success_is_can_be_told():
    env = gymnasium.make("Taxi-v4")
    told = make_player(env, "taxi", success="terminated").policy.system[0].text
    assert "An episode is a success if the passenger is delivered." in told
    assert "success" not in make_player(env, "taxi").policy.system[0].text


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
            ("gtp4o", {}, "there is no llm=gtp4o; there are claude_haiku, "),
            ("none", {}, "llm=none is no model"),
            ("local_scorer_causal", {}, "scores texts and does not chat"),
            ("scripted", {"top_p": 0}, "llm=scripted has no setting 'top_p'; it has malformed, "),
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


@pytest.mark.parametrize(
    "given",
    [
        {"history": -1},
        {"history": 2.5},
        {"action_every": 0},
        {"lessons": -1},
        {"repair_turns": -1},
        {"decimals": -1},
        {"answer_with": "letters"},
        {"show": ["foo"]},
        {"show": "step"},
        {"success": "luck"},
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_when_it_is_made(given):
    [name] = given
    with pytest.raises(ConfigError, match=f"^{name}"):
        make_player(gymnasium.make("Taxi-v4"), "taxi", **given)


def test_an_id_is_no_environment():
    with pytest.raises(ConfigError, match=r"pass gymnasium\.make\('Taxi-v4'\)"):
        make_player("Taxi-v4", "taxi")
