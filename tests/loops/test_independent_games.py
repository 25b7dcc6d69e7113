"""Games that advance independently, with results that do not depend on the delays of replies."""

import hashlib
import json
import random
import re
import time

import numpy as np
import pytest

import commands
from environments import make_env
from experiments import compose, find_run_folder, load_comparable_metrics, run, run_experiment, run_silently
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.loops.independent_games import IndependentGames
from llmrl.run import trajectories
from llmrl.run.files import read_json_lines
from llmrl.run.run import Run
from some import mark_long_except

PLAY = (
    "agent=llm_player",
    "agent.action_interval=1",
    "agent.history=10",
    "llm=openai_compatible",
    "llm.model=fake-model",
    "env.n_envs=4",
    "play.episodes=10",
)
PLAY = (*PLAY, "llm.limits.concurrency=4", "llm.max_invalid=null", "llm.retry.retries=0")
SOCIETY = ("env.observe=[text]", "env.mechanism=null", "env.n_agents=2")
GAMES = {
    "frozen_lake": ("env=frozen_lake", "env.horizon=12"),
    "taxi": ("env=taxi", "env.horizon=8", "agent.action_interval=2"),
    "babyai": ("env=goto_local", "env.horizon=8"),
    "lessons": ("env=frozen_lake", "env.horizon=6", "agent.lessons=2"),
    "cleanup": ("env=cleanup", *SOCIETY, "env.horizon=4"),
    "harvest": ("env=harvest", *SOCIETY, "env.horizon=5", "agent.action_interval=2"),
}


def sample_reply(messages):
    """Return a random move, sometimes an invalid one, or a lesson if requested."""
    if messages[-1]["content"].startswith("An episode is over."):
        return json.dumps({"lesson": f"number {random.randrange(10**6)}"})
    is_readable = has_names(messages)
    return json.dumps({"reflection": "hm", "action": random.choice([*is_readable, *is_readable, "?"])})


def is_final(messages):
    """Return a move that is a function of the question."""
    is_readable = has_names(messages)
    digest = hashlib.sha256(json.dumps(messages).encode()).digest()[0]
    return json.dumps({"reflection": "hm", "action": is_readable[digest % len(is_readable)]})


def has_names(messages):
    """Return the actions in the prompt of the player."""
    description = messages[0]["content"].partition("# What you can do")[2].partition("# How to answer")[0]
    return re.findall(r"^- ([a-z_ ]+): ", description, re.MULTILINE)


def sample_delay():
    """Return the delay of a reply: mostly zero, sometimes long."""
    return random.choice([0.0, 0.0, 0.0, 0.001, 0.03])


def build_play_overrides(server, root, *extra):
    return (*PLAY, f"llm.base_url={server.url}", f"output_root={root}", *extra)


def read_episodes(folder):
    """Return the records and metrics of all episodes of a run."""
    files = [*folder.glob("episodes/*/replies.jsonl"), folder / "episodes.jsonl"]
    rows = [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]
    return {path.relative_to(folder).as_posix(): read_json_lines(path) for path in files}, rows


def steps(folder):
    """Return all steps of trajectories, independently of their distribution over files."""
    steps = trajectories.read_trajectories(folder)
    texts = [steps.text(row) for row in range(len(steps))]
    names = ("action", "reward", "terminated", "truncated", "episode", "step", "game", "agent", "kind", "mission")
    return texts, {name: getattr(steps, name).tolist() for name in names}


def play_in_waves(monkeypatch):
    """Play independent games in waves."""
    monkeypatch.setattr(IndependentGames, "can_play", staticmethod(lambda env, policy: False))


@pytest.mark.parametrize("game", mark_long_except(["lessons", "harvest"], GAMES))
def test_results_ignore_delays(tmp_path, game):
    """Replies are random, so a run with other requests would have other results."""
    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        shared = f"llm.cache_dir={tmp_path / 'cache'}"
        run(*build_play_overrides(server, tmp_path / "first", *GAMES[game], shared))
        n_requests = len(server.requests)
        assert 1 < server.most_in_flight <= 4
        run(*build_play_overrides(server, tmp_path / "second", *GAMES[game], shared))
        assert len(server.requests) == n_requests
    first, second = (read_episodes(find_run_folder(tmp_path / name)) for name in ("first", "second"))
    assert first == second
    assert [row["episode"] for row in first[0]["episodes.jsonl"]] == list(range(10))
    assert [row["episodes"] for row in first[1] if "episodes" in row] == [4, 8, 10]


@pytest.mark.parametrize("game", mark_long_except(["frozen_lake"], ["frozen_lake", "cleanup"]))
def test_fast_games_do_not_wait(tmp_path, game):
    """The first reply arrives after the other games have sent requests of several later episodes."""
    with FakeOpenAIServer(reply=sample_reply) as server:
        waits = []

        def delay():
            if not waits:
                waits.append(None)
                end = time.monotonic() + 20
                while len(server.requests) < 18 and time.monotonic() < end:
                    time.sleep(0.005)
                waits[0] = len(server.requests)
            return 0.0

        server.delay = delay
        run(*build_play_overrides(server, tmp_path, *GAMES[game], f"llm.cache_dir={tmp_path / 'cache'}"))
        assert waits[0] >= 18


@pytest.mark.parametrize("game", mark_long_except(["babyai"], ["taxi", "babyai", "cleanup", "harvest"]))
def test_waves_have_equal_episodes(tmp_path, monkeypatch, game):
    """Requests are equal, which random replies would reveal otherwise, and so are the recorded steps."""
    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        options = (*GAMES[game], "play.trajectories=true", f"llm.cache_dir={tmp_path / 'cache'}")
        monkeypatch.setattr("llmrl.rollout.trajectory_writers.EpisodeQueue.__init__.__defaults__", (20,))
        run(*build_play_overrides(server, tmp_path / "apart", *options))
        n_requests = len(server.requests)
        with monkeypatch.context() as patch:
            play_in_waves(patch)
            run(*build_play_overrides(server, tmp_path / "waves", *options))
        assert len(server.requests) == n_requests
    independent, waves = (find_run_folder(tmp_path / name) for name in ("apart", "waves"))
    assert read_episodes(independent)[0] == read_episodes(waves)[0]
    assert len(trajectories.find_trajectory_files(independent)) > 1
    for file, wave_file in zip(
        trajectories.find_trajectory_files(independent), trajectories.find_trajectory_files(waves), strict=True
    ):
        assert file.read_bytes() == wave_file.read_bytes()
    assert list(dict.fromkeys(trajectories.read_trajectories(independent).episode)) == list(range(10))


@pytest.mark.long
@pytest.mark.parametrize("n_envs", mark_long_except([3], [1, 3]))
def test_episode_ignores_game_count(tmp_path, n_envs):
    with FakeOpenAIServer(reply=sample_reply) as server:
        shared = f"llm.cache_dir={tmp_path / 'cache'}"
        run(*build_play_overrides(server, tmp_path / "four", *GAMES["cleanup"], shared))
        n_requests = len(server.requests)
        run(*build_play_overrides(server, tmp_path / "other", *GAMES["cleanup"], shared, f"env.n_envs={n_envs}"))
        assert len(server.requests) == n_requests
    four, different = (read_episodes(find_run_folder(tmp_path / name))[0] for name in ("four", "other"))
    assert four == different


@pytest.mark.parametrize("game", mark_long_except(["harvest"], ["taxi", "harvest"]))
def test_larger_budget_continues(tmp_path, game):
    """Each reply is paid for once, whichever game was running."""
    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        shared = ("play.trajectories=true", f"llm.cache_dir={tmp_path / 'cache'}")
        parts = build_play_overrides(server, tmp_path / "parts", *GAMES[game], *shared)
        for calls in (7, 20):
            with pytest.raises(BudgetExhausted):
                run(*parts, f"llm.budget.calls={calls}")
            assert len(server.requests) == calls
        run(*parts)
        n_requests = len(server.requests)
        run(*build_play_overrides(server, tmp_path / "whole", *GAMES[game], *shared))
        assert len(server.requests) == n_requests
    parts, reference = (find_run_folder(tmp_path / name) for name in ("parts", "whole"))
    assert read_episodes(parts) == read_episodes(reference)
    assert steps(parts) == steps(reference)


@pytest.mark.long
def test_unrestorable_games_restart_episode(tmp_path):
    """Records of the unfinished episode are removed and those of finished episodes remain; no lesson is drawn twice."""
    game = ("trusted_modules=[unsaved_game]", "agent.lessons=2", "env=frozen_lake", "play.trajectories=true")
    game = (*game, f"llm.cache_dir={tmp_path / 'cache'}")

    def go(server, name, *extra):
        config = compose(*build_play_overrides(server, tmp_path / name, *game, *extra))
        config["env"] = {"_target_": "unsaved_game.UnsavedLake", "n_envs": 4}
        run_experiment(config, [])

    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        for calls in (11, 45):
            with pytest.raises(BudgetExhausted):
                go(server, "parts", f"llm.budget.calls={calls}")
        go(server, "parts")
        n_requests = len(server.requests)
        go(server, "whole")
        assert len(server.requests) == n_requests
    parts, reference = (find_run_folder(tmp_path / name) for name in ("parts", "whole"))
    assert read_episodes(parts)[0] == read_episodes(reference)[0]
    assert steps(parts) == steps(reference)


@pytest.mark.long
def test_run_continues_in_original_mode(tmp_path, monkeypatch):
    """Waves or independent games; the mode is not part of the hash and does not depend on observers."""
    observers = "observers=[{_target_: unsaved_game.NoopObserver}]"
    with FakeOpenAIServer(reply=sample_reply) as server:
        shared = ("trusted_modules=[unsaved_game]", f"llm.cache_dir={tmp_path / 'cache'}")
        parts = build_play_overrides(server, tmp_path / "parts", *GAMES["taxi"], *shared)
        with monkeypatch.context() as patch:
            play_in_waves(patch)
            with pytest.raises(BudgetExhausted):
                run(*parts, "llm.budget.calls=20")
        run(*parts)
        waves = read_episodes(find_run_folder(tmp_path / "parts"))
        run(*build_play_overrides(server, tmp_path / "watched", *GAMES["taxi"], *shared, observers))
        assert read_episodes(find_run_folder(tmp_path / "watched")) == waves
        independent = build_play_overrides(server, tmp_path / "apart", *GAMES["taxi"], *shared)
        saved = []

        def stopping(self, iteration, state, safe_point=Run.safe_point):
            safe_point(self, iteration, state)
            saved.append(iteration)
            if len(saved) == 5:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Run, "safe_point", stopping)
            with pytest.raises(KeyboardInterrupt):
                run(*independent, "checkpoint_seconds=0")
        with pytest.raises(ConfigError, match="observers"):
            run(*independent, observers)
        run(*independent)
        assert read_episodes(find_run_folder(tmp_path / "apart"))[0] == waves[0]


def test_step_recording_start(tmp_path):
    """Recording starts with the next complete episode and does not change the experiment."""
    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        parts = build_play_overrides(server, tmp_path, *GAMES["lessons"], f"llm.cache_dir={tmp_path / 'cache'}")
        with pytest.raises(BudgetExhausted):
            # An episode takes three calls or more, so at most eight of the ten have started in four games.
            run(*parts, "llm.budget.calls=12")
        run(*parts, "play.trajectories=true")
    folder = find_run_folder(tmp_path)
    steps, rows = trajectories.read_trajectories(folder), read_json_lines(folder / "episodes.jsonl")
    episode_numbers = list(dict.fromkeys(steps.episode.tolist()))
    assert episode_numbers == sorted(episode_numbers) and 0 < len(episode_numbers) < 10 and len(rows) == 10
    for k in episode_numbers:
        assert steps.step[steps.episode == k].tolist() == list(range(rows[k]["length"]))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.meltingpot
def test_melting_pot_engine(tmp_path):
    """Each game has a worker; unfinished episodes are restarted."""
    game = ("env=harvest", "env.engine=meltingpot", *SOCIETY, "env.horizon=5", "env.n_envs=2", "play.episodes=5")
    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        parts = build_play_overrides(
            server, tmp_path, *game, f"llm.cache_dir={tmp_path / 'cache'}", "play.trajectories=true"
        )
        with pytest.raises(BudgetExhausted):
            run(*parts, "llm.budget.calls=33")
        run(*parts)
    folder = find_run_folder(tmp_path)
    steps = trajectories.read_trajectories(folder)
    assert steps.episode.tolist() == np.repeat(np.arange(5), 5 * 2).tolist()
    for k in range(5):
        lines = read_json_lines(folder / "episodes" / str(k) / "replies.jsonl")
        assert [(line["step"], line["agent"]) for line in lines] == [(t, a) for t in range(5) for a in range(2)]


@pytest.mark.long
@pytest.mark.slow
def test_kills(tmp_path):
    """After SIGKILL only pending requests are repeated."""
    with FakeOpenAIServer(reply=sample_reply, delay=sample_delay) as server:
        shared = (f"llm.cache_dir={tmp_path / 'cache'}", "checkpoint_seconds=0")
        killed_run = build_play_overrides(server, tmp_path / "killed", *GAMES["frozen_lake"], *shared)
        for calls in (15, 40, None):
            process = commands.Process(target=run_silently, args=killed_run)
            process.start()
            while calls is not None and process.is_alive() and len(server.requests) < calls:
                time.sleep(0.002)
            if calls is not None:
                process.kill()
            process.join()
        n_requests = len(server.requests)
        run(*build_play_overrides(server, tmp_path / "whole", *GAMES["frozen_lake"], *shared))
        assert len(server.requests) == n_requests
    folder = find_run_folder(tmp_path / "killed")
    assert json.loads((folder / "status.json").read_text())["attempt"] == 3
    used = json.loads((folder / "summary.json").read_text())["llm_calls"]
    assert used <= n_requests <= used + 2 * 4, "but those in flight at one of two kills"
    assert read_episodes(folder) == read_episodes(find_run_folder(tmp_path / "whole"))


def test_indivisible_types_play_in_waves():

    fits = {}
    for kind in ("per_episode", "legacy"):
        env = make_env("babyai_text", level="BabyAI-MixedTrainLocal-v0", kind=kind, n_envs=2)
        fits[kind] = env.separable and env.make_single_game().spec.n_envs == 1
        env.close()
    assert fits == {"per_episode": True, "legacy": False}
