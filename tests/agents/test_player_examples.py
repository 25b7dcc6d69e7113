"""Episodes of others that a player is shown: whose they are, what is told of them, and which are refused."""

import json
import shutil

import pytest

from experiments import compose, only_run_folder, run
from llmrl.agents.llm_player.agent import LLMPlayer
from llmrl.agents.llm_player.episode_examples import RULE, of_rule, of_run
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.gym.vec_env import GymnasiumEnv
from llmrl.experiment.run_references import resolved
from llmrl.llms.call_log import read_calls
from llmrl.llms.client import ChatClient
from llmrl.run.files import read_lines
from road_game import Model, Table, reply


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of a rule that has written down three episodes."""
    root = tmp_path_factory.mktemp("rule")
    run(
        "env=cartpole",
        "agent=heuristic",
        "seed=7",
        "play.episodes=3",
        "play.records=3",
        "env.horizon=6",
        f"output_root={root}",
    )
    return only_run_folder(root)


def cartpole(**options):
    env = GymnasiumEnv(Seeds(0), "CartPole-v1", n_envs=2, horizon=6, text="cartpole", success="return", success_at=6.0)
    model = ChatClient(Model(lambda messages: reply("left")))
    return LLMPlayer(env.spec, model, None, env_factory=env.env_factory, one_game=env.one_game, **options)


def lines(agent):
    """The lines of all episodes in the system prompt."""
    return [json.loads(line) for line in agent.policy.system[0].text.splitlines() if line.startswith('{"observation"')]


class TestOfARule:
    def test_it_plays_them_itself(self):
        agent = cartpole(examples=2, examples_from=RULE, example_steps=4, seeds=Seeds(5))
        told, text = lines(agent), agent.policy.system[0].text
        assert len(told) == 8 and {line["action"] for line in told} == {"left", "right"}
        assert "Episode 2:" in text and "Episode 3:" not in text and text.count("(2 more steps.)") == 2
        assert text.count("It ended after 6 steps, with a return of 6, a success.") == 2
        assert told[0]["observation"] != told[4]["observation"] and told[0]["reward"] == 1
        assert agent.describe()["examples"] == "2 episodes of a simple rule"

    def test_they_are_a_function_of_the_seed(self):
        one, same, other = (cartpole(examples=1, examples_from=RULE, seeds=Seeds(seed)) for seed in (5, 5, 6))
        assert one.policy.system[0].text == same.policy.system[0].text != other.policy.system[0].text

    def test_each_game_by_itself_has_the_same_ones(self):
        policy = cartpole(examples=1, examples_from=RULE, seeds=Seeds(5)).policy
        assert policy.one_game().system == policy.system

    def test_answers_are_shown_in_the_players_own_form(self):
        agent = cartpole(examples=1, examples_from=RULE, answer_with="number", seeds=Seeds(5))
        assert {line["action"] for line in lines(agent)} == {0, 1}

    def test_where_there_is_no_rule(self):
        with pytest.raises(ConfigError, match="no game of this environment can be played beside the others"):
            of_rule(None, None, Seeds(0), 1)
        env = GymnasiumEnv(Seeds(0), "Pendulum-v1", n_envs=1, text="auto")
        with pytest.raises(ConfigError, match="agent=heuristic knows no rule for env=Pendulum-v1"):
            of_rule(env.one_game, env.env_factory, Seeds(0), 1)


class TestOfARun:
    def test_its_first_episodes(self, recorded):
        agent = cartpole(examples=2, examples_from=str(recorded), seeds=Seeds(0))
        written = [line for k in range(2) for line in read_lines(recorded / "episodes" / str(k) / "replies.jsonl")]
        assert [(t["observation"], t["action"]) for t in lines(agent)] == [
            (w["observation"], w["action"]) for w in written
        ]
        assert "played by another player" in agent.policy.system[0].text

    @pytest.mark.parametrize(
        ("n", "seed", "complaint"),
        [
            (3, 7, "has the seed of this run, 7, so its episodes begin as those"),
            (4, 0, "has written down 3 episodes step by step, and agent.examples=4 are needed"),
        ],
    )
    def test_what_is_refused(self, recorded, n, seed, complaint):
        with pytest.raises(ConfigError, match=complaint):
            of_run(recorded, n, seed)

    def test_without_words(self, recorded, tmp_path):
        folder = shutil.copytree(recorded, tmp_path / "run")
        path = folder / "episodes" / "0" / "replies.jsonl"
        path.write_text("".join(json.dumps({"action": "left", "reward": 1.0}) + "\n" for _ in range(2)))
        with pytest.raises(ConfigError, match="did not see its game in words"):
            of_run(folder, 1, 0)

    def test_of_another_game(self, recorded):
        with pytest.raises(ConfigError, match="'cart_position' was seen, which env=road does not show"):
            Table(Model(), examples=1, examples_from=str(recorded))

    def test_whose_they_are_must_be_said(self):
        with pytest.raises(ConfigError, match=r"agent.examples_from=null says not whose: heuristic, run:<hash>"):
            Table(Model(), examples=1)


def test_what_a_model_did_not_choose_is_named_as_such(recorded, tmp_path):
    """And reflections are shown where the player reflects itself."""
    folder = shutil.copytree(recorded, tmp_path / "run")
    steps = [
        {"observation": {"x": 1}, "reflection": "far", "action": "left", "reward": 0.0, "valid": True},
        {"observation": {"x": 2}, "reflection": "", "action": "stay", "reward": -0.5, "valid": False},
    ]
    path = folder / "episodes" / "0" / "replies.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    for reflection in (True, False):
        table = Table(Model(), examples=1, examples_from=str(folder), reflection=reflection)
        first, second = lines(table.agent)
        assert first == {
            "observation": {"x": 1},
            **({"reflection": "far"} if reflection else {}),
            "action": "left",
            "reward": 0,
        }
        assert second == {"observation": {"x": 2}, "no_usable_reply": 'done instead: "stay"', "reward": -0.5}


def test_a_run_with_examples(recorded, tmp_path):
    """By reference; the run belongs to the hash."""
    root = recorded.parent.parent.parent
    words = ("env=cartpole", "agent=llm_player", "env.horizon=3", "play.episodes=2", "agent.examples=1")
    config = compose(*words, f"agent.examples_from=latest:{recorded.parent.parent.name}", f"output_root={root}")
    found = resolved(config)
    assert found["agent"]["examples_from"] == str(recorded)
    assert list(found["resolved_runs"]) == ["agent.examples_from"]
    run(*words, f"agent.examples_from='{recorded}'", f"output_root={tmp_path}")
    [system] = {call["messages"][0]["content"] for call in read_calls(only_run_folder(tmp_path) / "llm_calls.jsonl")}
    assert "# What others did" in system and system.count('{"observation"') == 6
