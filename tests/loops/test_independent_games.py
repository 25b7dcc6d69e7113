"""Games that go on by themselves: what comes of them is no matter of how long replies take."""

import hashlib
import json
import random
import re
import time

import numpy as np
import pytest

import commands
from experiments import comparable_metrics, compose, only_run_folder, run, run_experiment, silent_run
from fake_openai_server import FakeOpenAIServer
from llmrl.agents.llm_player.agent import LLMPlayer
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.substrates import substrate_env
from llmrl.evaluation.evaluate_environment import EpisodeSettings, evaluate_environment
from llmrl.llms.client import ChatClient
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.loops.independent_games import IndependentGames
from llmrl.run import trajectories
from llmrl.run.files import read_lines
from llmrl.run.run import Run

PLAY = (
    "agent=llm_player",
    "agent.action_every=1",
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
    "taxi": ("env=taxi", "env.horizon=8", "agent.action_every=2"),
    "babyai": ("env=goto_local", "env.horizon=8"),
    "lessons": ("env=frozen_lake", "env.horizon=6", "agent.lessons=2"),
    "cleanup": ("env=cleanup", *SOCIETY, "env.horizon=4"),
    "harvest": ("env=harvest", *SOCIETY, "env.horizon=5", "agent.action_every=2"),
}


def moves(messages):
    """Any move, and now and then none; a lesson where one is asked for."""
    if messages[-1]["content"].startswith("An episode is over."):
        return json.dumps({"lesson": f"number {random.randrange(10**6)}"})
    known = named(messages)
    return json.dumps({"reflection": "hm", "action": random.choice([*known, *known, "?"])})


def settled(messages):
    """A move that is a function of the question."""
    known = named(messages)
    drawn = hashlib.sha256(json.dumps(messages).encode()).digest()[0]
    return json.dumps({"reflection": "hm", "action": known[drawn % len(known)]})


def named(messages):
    """The actions that the player is told of."""
    told = messages[0]["content"].partition("# What you can do")[2].partition("# How to answer")[0]
    return re.findall(r"^- ([a-z_ ]+): ", told, re.MULTILINE)


def hurry():
    """Most replies come at once, some late."""
    return random.choice([0.0, 0.0, 0.0, 0.001, 0.03])


def playing(server, root, *more):
    return (*PLAY, f"llm.base_url={server.url}", f"output_root={root}", *more)


def written(folder):
    """All that a run says of its episodes."""
    files = [*folder.glob("episodes/*/replies.jsonl"), folder / "episodes.jsonl"]
    rows = [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(folder)]
    return {path.relative_to(folder).as_posix(): read_lines(path) for path in files}, rows


def steps(folder):
    """All that trajectories say, whatever files they are in."""
    found = trajectories.read(folder)
    texts = [found.text(row) for row in range(len(found))]
    names = ("action", "reward", "terminated", "truncated", "episode", "step", "game", "agent", "kind", "mission")
    return texts, {name: getattr(found, name).tolist() for name in names}


def in_waves(monkeypatch):
    """Let games that could go on by themselves be played in waves."""
    monkeypatch.setattr(IndependentGames, "fit", staticmethod(lambda env, policy: False))


@pytest.mark.parametrize("game", GAMES)
def test_results_are_no_matter_of_delays(tmp_path, game):
    """Replies are drawn anew whenever somebody asks, so another run that asked for anything else would differ."""
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        shared = f"llm.cache_dir={tmp_path / 'cache'}"
        run(*playing(server, tmp_path / "first", *GAMES[game], shared))
        asked = len(server.requests)
        assert 1 < server.most_in_flight <= 4
        run(*playing(server, tmp_path / "second", *GAMES[game], shared))
        assert len(server.requests) == asked
    first, second = (written(only_run_folder(tmp_path / name)) for name in ("first", "second"))
    assert first == second
    assert [row["episode"] for row in first[0]["episodes.jsonl"]] == list(range(10))
    assert [row["episodes"] for row in first[1] if "episodes" in row] == [4, 8, 10]


@pytest.mark.parametrize("game", ["frozen_lake", "cleanup"])
def test_nobody_waits_for_the_slowest(tmp_path, game):
    """The first reply comes when all other games have been asked for several episodes more."""
    with FakeOpenAIServer(reply=moves) as server:
        waited = []

        def delay():
            if not waited:
                waited.append(None)
                end = time.monotonic() + 20
                while len(server.requests) < 18 and time.monotonic() < end:
                    time.sleep(0.005)
                waited[0] = len(server.requests)
            return 0.0

        server.delay = delay
        run(*playing(server, tmp_path, *GAMES[game], f"llm.cache_dir={tmp_path / 'cache'}"))
        assert waited[0] >= 18


@pytest.mark.parametrize("game", ["taxi", "babyai", "cleanup", "harvest"])
def test_waves_have_the_same_episodes(tmp_path, monkeypatch, game):
    """They ask for nothing else, which replies drawn anew would give away, and write down the same steps."""
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        options = (*GAMES[game], "play.trajectories=true", f"llm.cache_dir={tmp_path / 'cache'}")
        monkeypatch.setattr("llmrl.rollout.trajectory_writers.PlayedEpisodes.__init__.__defaults__", (20,))
        run(*playing(server, tmp_path / "apart", *options))
        asked = len(server.requests)
        with monkeypatch.context() as patch:
            in_waves(patch)
            run(*playing(server, tmp_path / "waves", *options))
        assert len(server.requests) == asked
    apart, waves = (only_run_folder(tmp_path / name) for name in ("apart", "waves"))
    assert written(apart)[0] == written(waves)[0]
    assert len(trajectories.files(apart)) > 1
    for one, other in zip(trajectories.files(apart), trajectories.files(waves), strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert list(dict.fromkeys(trajectories.read(apart).episode)) == list(range(10))


@pytest.mark.parametrize("n_envs", [1, 3])
def test_an_episode_is_no_matter_of_how_many_are_played(tmp_path, n_envs):
    with FakeOpenAIServer(reply=moves) as server:
        shared = f"llm.cache_dir={tmp_path / 'cache'}"
        run(*playing(server, tmp_path / "four", *GAMES["cleanup"], shared))
        asked = len(server.requests)
        run(*playing(server, tmp_path / "other", *GAMES["cleanup"], shared, f"env.n_envs={n_envs}"))
        assert len(server.requests) == asked
    four, other = (written(only_run_folder(tmp_path / name))[0] for name in ("four", "other"))
    assert four == other


def test_an_evaluation_has_the_games_of_waves(tmp_path):
    """Also where the first reply comes last, and its steps are kept."""
    found = []
    for apart in (False, True):
        with FakeOpenAIServer(reply=settled, delay=hurry) as server:
            client = ChatClient(OpenAICompatibleChat(server.url, "fake-model", timeout=30.0))
            env = substrate_env("harvest", 3, Seeds(0), "cpu", n_agents=2, horizon=4, observe=["text"])
            policy = LLMPlayer(env.spec, client, None).policy
            with pytest.MonkeyPatch.context() as patch:
                if not apart:
                    in_waves(patch)
                how = EpisodeSettings(7, Seeds(1), exactly=True)
                folder, told = tmp_path / str(apart), []
                episodes = evaluate_environment(
                    env, policy, "cpu", how, folder, prepare=lambda env, told=told: told.append(env.spec.n_envs)
                )
            assert told == ([1, 1, 1] if apart else [3, 3, 3])
            returns = [(episode.returns.tolist(), episode.length, episode.game) for episode in episodes]
            found.append((returns, policy.counts.state_dict(), steps(folder), len(server.requests)))
    assert found[0] == found[1]
    assert np.unique(found[0][2][1]["episode"]).tolist() == list(range(7))


@pytest.mark.parametrize("game", ["taxi", "harvest"])
def test_a_budget_ends_it_and_more_goes_on(tmp_path, game):
    """What was paid for is paid for once, whichever game was under way."""
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        shared = ("play.trajectories=true", f"llm.cache_dir={tmp_path / 'cache'}")
        parts = playing(server, tmp_path / "parts", *GAMES[game], *shared)
        for calls in (7, 20):
            with pytest.raises(BudgetExhausted):
                run(*parts, f"llm.budget.calls={calls}")
            assert len(server.requests) == calls
        run(*parts)
        asked = len(server.requests)
        run(*playing(server, tmp_path / "whole", *GAMES[game], *shared))
        assert len(server.requests) == asked
    parts, whole = (only_run_folder(tmp_path / name) for name in ("parts", "whole"))
    assert written(parts) == written(whole)
    assert steps(parts) == steps(whole)


def test_games_that_cannot_be_restored_begin_their_episode_anew(tmp_path):
    """What was written down of it goes; nothing of the episodes that were over does, and no lesson is drawn twice."""
    game = ("trusted_modules=[unsaved_game]", "agent.lessons=2", "env=frozen_lake", "play.trajectories=true")
    game = (*game, f"llm.cache_dir={tmp_path / 'cache'}")

    def go(server, name, *more):
        config = compose(*playing(server, tmp_path / name, *game, *more))
        config["env"] = {"_target_": "unsaved_game.UnsavedLake", "n_envs": 4}
        run_experiment(config, [])

    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        for calls in (11, 45):
            with pytest.raises(BudgetExhausted):
                go(server, "parts", f"llm.budget.calls={calls}")
        go(server, "parts")
        asked = len(server.requests)
        go(server, "whole")
        assert len(server.requests) == asked
    parts, whole = (only_run_folder(tmp_path / name) for name in ("parts", "whole"))
    assert written(parts)[0] == written(whole)[0]
    assert steps(parts) == steps(whole)


def test_a_run_goes_on_as_it_was_begun(tmp_path, monkeypatch):
    """In waves, or each game by itself; so it is no matter of a run's hash, nor of who watches."""
    watched = "observers=[{_target_: unsaved_game.Watcher}]"
    with FakeOpenAIServer(reply=moves) as server:
        shared = ("trusted_modules=[unsaved_game]", f"llm.cache_dir={tmp_path / 'cache'}")
        parts = playing(server, tmp_path / "parts", *GAMES["taxi"], *shared)
        with monkeypatch.context() as patch:
            in_waves(patch)
            with pytest.raises(BudgetExhausted):
                run(*parts, "llm.budget.calls=20")
        run(*parts)
        waves = written(only_run_folder(tmp_path / "parts"))
        run(*playing(server, tmp_path / "watched", *GAMES["taxi"], *shared, watched))
        assert written(only_run_folder(tmp_path / "watched")) == waves
        apart = playing(server, tmp_path / "apart", *GAMES["taxi"], *shared)
        saved = []

        def stopping(self, iteration, state, safe_point=Run.safe_point):
            safe_point(self, iteration, state)
            saved.append(iteration)
            if len(saved) == 5:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Run, "safe_point", stopping)
            with pytest.raises(KeyboardInterrupt):
                run(*apart, "checkpoint_seconds=0")
        with pytest.raises(ConfigError, match="run it without observers"):
            run(*apart, watched)
        run(*apart)
        assert written(only_run_folder(tmp_path / "apart"))[0] == waves[0]


def test_steps_can_be_kept_from_some_point_on(tmp_path):
    """Whether they are is no part of the experiment: whole episodes that begin from then on."""
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        parts = playing(server, tmp_path, *GAMES["lessons"], f"llm.cache_dir={tmp_path / 'cache'}")
        with pytest.raises(BudgetExhausted):
            run(*parts, "llm.budget.calls=30")
        run(*parts, "play.trajectories=true")
    folder = only_run_folder(tmp_path)
    found, rows = trajectories.read(folder), read_lines(folder / "episodes.jsonl")
    kept = list(dict.fromkeys(found.episode.tolist()))
    assert kept == sorted(kept) and 0 < len(kept) < 10 and len(rows) == 10
    for k in kept:
        assert found.step[found.episode == k].tolist() == list(range(rows[k]["length"]))


@pytest.mark.slow
@pytest.mark.meltingpot
def test_the_engine_of_melting_pot(tmp_path):
    """One worker a game; an episode that was under way begins anew."""
    game = ("env=harvest", "env.engine=meltingpot", *SOCIETY, "env.horizon=5", "env.n_envs=2", "play.episodes=5")
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        parts = playing(server, tmp_path, *game, f"llm.cache_dir={tmp_path / 'cache'}", "play.trajectories=true")
        with pytest.raises(BudgetExhausted):
            run(*parts, "llm.budget.calls=33")
        run(*parts)
    folder = only_run_folder(tmp_path)
    found = trajectories.read(folder)
    assert found.episode.tolist() == np.repeat(np.arange(5), 5 * 2).tolist()
    for k in range(5):
        lines = read_lines(folder / "episodes" / str(k) / "replies.jsonl")
        assert [(line["step"], line["agent"]) for line in lines] == [(t, a) for t in range(5) for a in range(2)]


@pytest.mark.slow
def test_kills(tmp_path):
    """With SIGKILL, in the midst of replies; only those under way then are asked for again."""
    context = commands.children()
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        shared = (f"llm.cache_dir={tmp_path / 'cache'}", "checkpoint_seconds=0")
        killed = playing(server, tmp_path / "killed", *GAMES["frozen_lake"], *shared)
        for calls in (15, 40, None):
            process = context.Process(target=silent_run, args=killed)
            process.start()
            while calls is not None and process.is_alive() and len(server.requests) < calls:
                time.sleep(0.002)
            if calls is not None:
                process.kill()
            process.join()
        asked = len(server.requests)
        run(*playing(server, tmp_path / "whole", *GAMES["frozen_lake"], *shared))
        assert len(server.requests) == asked
    folder = only_run_folder(tmp_path / "killed")
    assert json.loads((folder / "status.json").read_text())["attempt"] == 3
    used = json.loads((folder / "summary.json").read_text())["llm_calls"]
    assert used <= asked <= used + 2 * 4, "but those in flight at one of two kills"
    assert written(folder) == written(only_run_folder(tmp_path / "whole"))


def test_kinds_that_belong_to_games_are_played_in_waves():
    from llmrl.envs.babyai.vec_env import BabyAIEnv

    fits = {}
    for kind in ("per_episode", "legacy"):
        env = BabyAIEnv(Seeds(0), "BabyAI-MixedTrainLocal-v0", kind=kind, n_envs=2)
        fits[kind] = env.separable and env.one_game().spec.n_envs == 1
        env.close()
    assert fits == {"per_episode": True, "legacy": False}
