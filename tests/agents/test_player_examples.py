"""Example episodes in the prompt of a player: their sources, texts and errors."""

import json
import shutil

import pytest

from environments import make_env
from experiments import compose, only_run_folder, run
from llmrl.agents.llm_player.episode_examples import RULE, play_rule_episodes, read_run_episodes
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.experiment.run_references import resolve_references
from llmrl.llms.call_log import read_calls
from llmrl.llms.client import ChatClient
from llmrl.run.files import read_lines
from players import llm_player
from road_game import Model, Table, reply


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Return a run of a rule with three stored episodes."""
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
    env = make_env("cartpole", n_envs=2, horizon=6, engine="stock", success_threshold=6.0)
    model = ChatClient(Model(lambda messages: reply("left")))
    return llm_player(env.spec, model, None, env_factory=env.env_factory, one_game=env.one_game, **options)


def lines(agent):
    """Return the lines of all episodes in the system prompt."""
    text = agent.policy.prompts.system(0, ()).text
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"observation"')]


class TestRuleExamples:
    def test_rule_plays_examples(self):
        agent = cartpole(examples=2, examples_path=RULE, example_steps=4, seeds=Seeds(5))
        example_lines, text = lines(agent), agent.policy.prompts.system(0, ()).text
        assert len(example_lines) == 8 and {line["action"] for line in example_lines} == {"left", "right"}
        assert "Episode 2:" in text and "Episode 3:" not in text and text.count("(2 more steps.)") == 2
        assert text.count("It ended after 6 steps, with a return of 6, a success.") == 2
        assert example_lines[0]["observation"] != example_lines[4]["observation"] and example_lines[0]["reward"] == 1
        assert agent.describe()["examples"] == "2 episodes of a simple rule"

    def test_examples_follow_seed(self):
        first_agent, repeated_agent, different_agent = (
            cartpole(examples=1, examples_path=RULE, seeds=Seeds(seed)) for seed in (5, 5, 6)
        )
        assert (
            first_agent.policy.prompts.system(0, ()).text
            == repeated_agent.policy.prompts.system(0, ()).text
            != different_agent.policy.prompts.system(0, ()).text
        )

    def test_parallel_games_share_examples(self):
        policy = cartpole(examples=1, examples_path=RULE, seeds=Seeds(5)).policy
        assert policy.one_game().prompts.system(0, ()) == policy.prompts.system(0, ())

    def test_answers_use_player_format(self):
        agent = cartpole(examples=1, examples_path=RULE, action_format="number", seeds=Seeds(5))
        assert {line["action"] for line in lines(agent)} == {0, 1}

    def test_rejects_missing_rule(self):
        with pytest.raises(ConfigError, match="single games"):
            play_rule_episodes(None, None, Seeds(0), 1)
        env = make_env("gymnasium", id="Pendulum-v1", n_envs=1, text="auto")
        with pytest.raises(ConfigError, match="agent=heuristic has no rule for env=Pendulum-v1"):
            play_rule_episodes(env.one_game, env.env_factory, Seeds(0), 1)


class TestRunExamples:
    def test_first_episodes_are_used(self, recording):
        agent = cartpole(examples=2, examples_path=str(recording), seeds=Seeds(0))
        log_lines = [line for k in range(2) for line in read_lines(recording / "episodes" / str(k) / "replies.jsonl")]
        assert [(t["observation"], t["action"]) for t in lines(agent)] == [
            (w["observation"], w["action"]) for w in log_lines
        ]
        assert "played by another player" in agent.policy.prompts.system(0, ()).text

    @pytest.mark.parametrize(
        ("n", "seed", "complaint"),
        [
            (3, 7, "has the seed of this run, 7"),
            (4, 0, "3.*agent.examples=4"),
        ],
    )
    def test_rejects_invalid_runs(self, recording, n, seed, complaint):
        with pytest.raises(ConfigError, match=complaint):
            read_run_episodes(recording, n, seed)

    def test_text_is_required(self, recording, tmp_path):
        folder = shutil.copytree(recording, tmp_path / "run")
        path = folder / "episodes" / "0" / "replies.jsonl"
        path.write_text("".join(json.dumps({"action": "left", "reward": 1.0}) + "\n" for _ in range(2)))
        with pytest.raises(ConfigError, match="in words"):
            read_run_episodes(folder, 1, 0)

    def test_rejects_different_game(self, recording):
        with pytest.raises(ConfigError, match=r"'cart_position'.*env=road"):
            Table(Model(), examples=1, examples_path=str(recording))

    def test_player_must_be_specified(self):
        with pytest.raises(ConfigError, match=r"agent\.examples=1 needs a source"):
            Table(Model(), examples=1)


def test_default_actions_are_marked(recording, tmp_path):
    """Show reflections if the player itself writes reflections."""
    folder = shutil.copytree(recording, tmp_path / "run")
    steps = [
        {"observation": {"x": 1}, "reflection": "far", "action": "left", "reward": 0.0, "valid": True},
        {"observation": {"x": 2}, "reflection": "", "action": "stay", "reward": -0.5, "valid": False},
    ]
    path = folder / "episodes" / "0" / "replies.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    for reflection in (True, False):
        table = Table(Model(), examples=1, examples_path=str(folder), reflection=reflection)
        first, second = lines(table.agent)
        assert first == {
            "observation": {"x": 1},
            **({"reflection": "far"} if reflection else {}),
            "action": "left",
            "reward": 0,
        }
        assert second == {"observation": {"x": 2}, "no_usable_reply": 'done instead: "stay"', "reward": -0.5}


def test_run_with_examples(recording, tmp_path):
    """Resolve a reference to a run, which is part of the hash."""
    root = recording.parent.parent.parent
    words = ("env=cartpole", "agent=llm_player", "env.horizon=3", "play.episodes=2", "agent.examples=1")
    config = compose(*words, f"agent.examples_path=latest:{recording.parent.parent.name}", f"output_root={root}")
    examples = resolve_references(config)
    assert examples["agent"]["examples_path"] == str(recording)
    assert list(examples["resolved_runs"]) == ["agent.examples_path"]
    run(*words, f"agent.examples_path='{recording}'", f"output_root={tmp_path}")
    [system] = {call["messages"][0]["content"] for call in read_calls(only_run_folder(tmp_path) / "llm_calls.jsonl")}
    assert "# What others did" in system and system.count('{"observation"') == 6
