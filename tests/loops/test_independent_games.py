"""Games that go on by themselves: what comes of them is no matter of how long replies take."""

import json
import random
import time

import pytest

import commands
from experiments import comparable_metrics, only_run_folder, run, silent_run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import BudgetExhausted
from llmrl.run.files import read_lines

PLAY = ("agent=llm_player", "llm=openai_compatible", "llm.model=fake-model", "env.n_envs=4", "play.episodes=10")
PLAY = (*PLAY, "llm.limits.concurrency=4", "llm.max_invalid=null", "llm.retry.retries=0")
GAMES = {
    "frozen_lake": ("env=frozen_lake", "env.horizon=12"),
    "taxi": ("env=taxi", "env.horizon=8", "agent.action_every=2"),
    "babyai": ("env=goto_local", "env.horizon=8"),
    "lessons": ("env=frozen_lake", "env.horizon=6", "agent.lessons=2"),
}


def moves(messages):
    """Any move, and now and then none; a lesson where one is asked for."""
    if messages[-1]["content"].startswith("An episode is over."):
        return json.dumps({"lesson": f"number {random.randrange(10**6)}"})
    words = ["up", "down", "left", "right", "north", "south", "east", "west"]
    words += ["turn left", "turn right", "go forward"]
    known = [word for word in words if f"\n- {word}: " in messages[0]["content"]]
    return json.dumps({"reflection": "hm", "action": random.choice([*known, *known, "?"])})


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


def test_nobody_waits_for_the_slowest(tmp_path):
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
        run(*playing(server, tmp_path, *GAMES["frozen_lake"], f"llm.cache_dir={tmp_path / 'cache'}"))
        assert waited[0] >= 18


def test_a_budget_ends_it_and_more_goes_on(tmp_path):
    """What was paid for is paid for once, whichever game was under way."""
    with FakeOpenAIServer(reply=moves, delay=hurry) as server:
        shared = f"llm.cache_dir={tmp_path / 'cache'}"
        parts = playing(server, tmp_path / "parts", *GAMES["taxi"], shared)
        for calls in (7, 20):
            with pytest.raises(BudgetExhausted):
                run(*parts, f"llm.budget.calls={calls}")
            assert len(server.requests) == calls
        run(*parts)
        asked = len(server.requests)
        run(*playing(server, tmp_path / "whole", *GAMES["taxi"], shared))
        assert len(server.requests) == asked
    parts, whole = (written(only_run_folder(tmp_path / name)) for name in ("parts", "whole"))
    assert parts == whole


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
    from llmrl.core.seeding import Seeds
    from llmrl.envs.babyai.vec_env import BabyAIEnv

    fits = {}
    for kind in ("per_episode", "legacy"):
        env = BabyAIEnv(Seeds(0), "BabyAI-MixedTrainLocal-v0", kind=kind, n_envs=2)
        fits[kind] = env.separable and env.one_game().spec.n_envs == 1
        env.close()
    assert fits == {"per_episode": True, "legacy": False}
