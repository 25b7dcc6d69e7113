"""The loop `play`: equal games for all agents, and logs of all steps."""

import json

import imageio.v3 as iio
import numpy as np
import pytest

from experiments import compose, find_run_folder, load_comparable_metrics, run
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.llms.call_log import read_calls
from llmrl.llms.provider import TOKENS_PER_MESSAGE, estimate_tokens
from llmrl.llms.scripted import ScriptedChat
from llmrl.loops.learn import LearnLoop
from llmrl.loops.play import PlayLoop
from llmrl.rollout.episode_logger import EpisodeLogger
from llmrl.run.files import read_json_lines
from some import mark_long_except

READING = sorted(
    name for name, option in load_options("env").items() if option.get("text") and option.get("id") != "???"
)
MUJOCO = ("hopper", "inverted_double_pendulum", "inverted_pendulum", "reacher", "swimmer", "walker2d")
TAXI = ("env=taxi", "env.horizon=12", "env.n_envs=3", "play.episodes=4")


def play(root, *overrides):
    result = run(*overrides, f"output_root={root}")
    return result, find_run_folder(root)


class TestRun:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        root = tmp_path_factory.mktemp("taxi")
        return play(root, *TAXI, "agent=llm_player", "play.videos=1", "llm.malformed=0.2")[1]

    @pytest.mark.slow
    def test_steps_are_logged(self, folder):
        for episode in range(4):
            lines = read_json_lines(folder / "episodes" / str(episode) / "replies.jsonl")
            assert [line["step"] for line in lines] == list(range(12))
            for line in lines:
                assert {"observation", "reflection", "action", "reward", "valid", "reply", "prompt_tokens"} <= set(line)
            assert {"taxi_row", "passenger"} <= set(lines[0]["observation"])
        row = {line["episode"]: line for line in read_json_lines(folder / "episodes.jsonl")}[3]
        assert row["return"] == sum(line["reward"] for line in lines) and row["end"] == "truncated"
        assert row["replies"] == sum(line["replies"] for line in lines)
        assert row["tokens"] == sum(line["prompt_tokens"] + line["completion_tokens"] for line in lines)

    @pytest.mark.slow
    def test_results(self, folder):
        results = json.loads((folder / "results.json").read_text())
        assert (results["episodes"], results["learned"]) == (4, False)
        assert results["llm"] == ScriptedChat.label
        for name in ("success", "return", "length", "tokens", "cost", "invalid_rate"):
            values = results["per_episode"][name]
            assert len(values) == 4
            assert results["table"][name]["mean"] == pytest.approx(np.mean(values))
            assert results["table"][name]["standard_error"] == pytest.approx(np.std(values, ddof=1) / 2)

    def test_metrics_use_evaluation_names(self, folder):
        last = load_comparable_metrics(folder)[-1]
        assert {"evaluation/return", "evaluation/length", "evaluation/success", "evaluation/objective"} <= set(last)
        assert (last["kind"], last["x"], last["episodes"], last["env_steps"]) == ("episode", "episodes", 4, 48)
        calls = last["llm/calls"]
        assert last["player/invalid_rate"] == pytest.approx(last["llm/invalid_replies"] / calls)

    def test_video_is_written(self, folder):
        video = iio.imread(folder / "episodes" / "0" / "episode.mp4")
        animation = iio.imread(folder / "episodes" / "0" / "episode.gif", index=None)
        assert len(video) == len(animation) == 13, "each state that was decided in, and the end"
        assert video.shape[1:] == animation.shape[1:]
        assert not list(folder.glob("episodes/*/frames")) and not (folder / "episodes" / "1" / "episode.gif").exists()


def test_agents_play_equal_games(tmp_path):
    """Compare different agents and different numbers of parallel games."""
    starts = {}
    for n_envs in (2, 3):
        for agent in ("random", "llm_player"):
            root = tmp_path / f"{agent}{n_envs}"
            overrides = ("env=taxi", f"env.n_envs={n_envs}", "env.horizon=2", "play.episodes=5", "play.records=5")
            _, folder = play(root, *overrides, f"agent={agent}")
            observations = [
                read_json_lines(folder / "episodes" / str(k) / "replies.jsonl")[0]["observation"] for k in range(5)
            ]
            starts[agent, n_envs] = json.dumps(observations)
    assert len(set(starts.values())) == 1 and len(set(map(str, json.loads(starts["random", 2])))) > 1


def test_text_is_rendered_on_demand(tmp_path, monkeypatch):
    lines = []
    line = EpisodeLogger._make_step_record
    monkeypatch.setattr(EpisodeLogger, "_make_step_record", lambda self, *args: lines.append(args) or line(self, *args))
    options = ("env=taxi", "env.horizon=3", "env.n_envs=2", "play.episodes=4", "agent=random")
    play(tmp_path / "none", *options, "play.records=0")
    assert not lines
    play(tmp_path / "one", *options, "play.records=1")
    assert len(lines) == 3


def test_surplus_games_need_no_requests(tmp_path):
    """Play four episodes in batches of three: the second batch has one."""
    _, folder = play(tmp_path, *TAXI, "agent=llm_player")
    assert load_comparable_metrics(folder)[-1]["llm/calls"] == 4 * 12


@pytest.mark.parametrize("game", [("env=taxi",), ("env=frozen_lake", "+env.kwargs.desc=[SFFF,FFFF,FFFF,FFFG]")])
def test_estimate_bounds_requests(tmp_path, game):
    """Include legal actions, repeated actions and lessons; the bound is tight to a factor."""
    # Six steps are the fewest in which a passenger is delivered, or this lake crossed: no episode ends before its time.
    overrides = (*game, "env.horizon=5", "env.n_envs=2", "play.episodes=6", "agent=llm_player")
    overrides = (*overrides, "agent.lessons=1", "agent.action_interval=3", "agent.history=4")
    config = compose(*overrides)
    parts = build_parts(config, build_llm(config, None))
    estimate = build_loop(config, parts).estimate()
    parts.close()
    _, folder = play(tmp_path, *overrides)
    calls = list(read_calls(folder / "llm_calls.jsonl"))
    assert load_comparable_metrics(folder)[-1]["env_steps"] == 30
    tokens = sum(estimate_tokens(m["content"]) + TOKENS_PER_MESSAGE for call in calls for m in call["messages"])
    assert len(calls) <= estimate.calls
    assert 0.4 * estimate.prompt_tokens <= tokens <= estimate.prompt_tokens


@pytest.mark.slow
def test_loop_is_derived():
    for agent, loop in (("random", PlayLoop), ("heuristic", PlayLoop), ("llm_player", PlayLoop), ("ppo", LearnLoop)):
        config = compose("env=taxi", f"agent={agent}")
        parts = build_parts(config, build_llm(config, None))
        try:
            assert isinstance(build_loop(config, parts), loop)
        finally:
            parts.close()


def test_learned_agent_plays(tmp_path):
    """Play the same episodes as other agents, with frozen weights."""
    training_options = ("env=cartpole", "env.n_envs=2", "agent=ppo", "learn.env_steps=64", "learn.rollout_steps=32")
    _, learned_folder = play(tmp_path / "learn", *training_options, "learn.evaluate_episodes=2")
    assert json.loads((learned_folder / "results.json").read_text())["learned"]
    frozen_options = (
        *training_options[:3],
        f"agent.init_from='{learned_folder}'",
        "agent.freeze=all",
        "play.episodes=3",
        "play.records=3",
    )
    _, folder = play(tmp_path / "play", *frozen_options)
    _, random = play(tmp_path / "random", "env=cartpole", "env.n_envs=2", "agent=random", *frozen_options[-2:])
    starts = [read_json_lines(f / "episodes" / "2" / "replies.jsonl")[0]["observation"] for f in (folder, random)]
    assert starts[0] == starts[1]
    # Episodes of one run share its weights, whose training might have come out otherwise.
    learned_flags = [json.loads((f / "results.json").read_text())["learned"] for f in (folder, random)]
    assert learned_flags == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("env", mark_long_except(READING[::4], READING))
def test_scripted_model_plays_all_environments(tmp_path, env):
    """Use the prompts and the parser of a real model."""
    if env in MUJOCO:
        pytest.importorskip("mujoco")
    overrides = (f"env={env}", "env.n_envs=2", "env.horizon=8", "play.episodes=2", "agent=llm_player")
    _, folder = play(tmp_path, *overrides, "agent.lessons=1", "agent.action_interval=2")
    last = load_comparable_metrics(folder)[-1]
    assert last["player/decisions"] > 0 and last["player/invalid_rate"] == 0
    assert json.loads((folder / "status.json").read_text())["llm"] == ScriptedChat.label


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("env", mark_long_except(["cleanup"], ["cleanup", "harvest"]))
def test_scripted_model_plays_societies(tmp_path, env):
    overrides = (f"env={env}_pixels", "env.n_envs=1", "env.n_agents=3", "env.horizon=6", "env.observe=[text]")
    _, folder = play(tmp_path, *overrides, "env.mechanism=null", "agent=llm_player", "play.episodes=1")
    lines = read_json_lines(folder / "episodes" / "0" / "replies.jsonl")
    assert [(line["step"], line["agent"]) for line in lines] == [(t, agent) for t in range(6) for agent in range(3)]
    assert all(len(line["observation"]["map"]) == 11 for line in lines)
    systems = {call["messages"][0]["content"] for call in read_calls(folder / "llm_calls.jsonl")}
    assert len(systems) == 3


class TestRefusals:
    """Errors before any cost arises."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (("env=taxi", "env.id=Taxi-v77"), "Taxi-v77"),
            (("env=taxi", "env.text=taksi"), "env.text=taksi"),
            (("env=taxi", "env.text=null"), "env=taxi"),
            (("env=simple_spread",), "env=simple_spread"),
            (("env=taxi", "agent.show=[mood]"), "agent.show"),
            (("env=taxi", "agent.history=-1"), "agent.history=-1"),
            (("env=taxi", "play.episodes=0"), "play.episodes=0"),
            (("env=gymnasium", "env.id=CliffWalking-v1", "env.text=cliff_walking"), "env.horizon"),
        ],
    )
    def test_error_gives_reason(self, tmp_path, overrides, message):
        with pytest.raises(ConfigError) as error:
            run("agent=llm_player", *overrides, f"output_root={tmp_path}")
        assert message in str(error.value)
        assert not any(log.stat().st_size for log in tmp_path.rglob("llm_calls.jsonl"))

    def test_budget_ends_run(self, tmp_path):
        endless = ("env=gymnasium", "env.id=CliffWalking-v1", "env.text=cliff_walking", "agent=llm_player")
        config = compose(*endless, "llm.budget.calls=5")
        parts = build_parts(config, build_llm(config, None))
        try:
            loop = build_loop(config, parts)
            assert loop.estimate() is None and any("unknown" in value for _, value in loop.plan())
        finally:
            parts.close()

    def test_no_pictures_no_film(self, tmp_path, monkeypatch):
        import gymnasium

        class Silent(gymnasium.Env):
            metadata = {"render_modes": []}
            observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

        monkeypatch.setitem(
            gymnasium.registry, "Silent-v0", gymnasium.envs.registration.EnvSpec("Silent-v0", entry_point=Silent)
        )
        with pytest.raises(ConfigError, match=r"Silent-v0.*image"):
            run(
                *("env=taxi", "env.id=Silent-v0", "env.text=auto", "agent=llm_player", "play.videos=1"),
                f"output_root={tmp_path}",
            )
