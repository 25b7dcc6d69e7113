"""Whole runs by batches: the numbers of one by one, few batches, and nothing paid twice after whatever ends them."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import commands
from batching import KEY, OPTIONS, PROVIDERS, QUICK, options
from experiments import comparable_metrics, compose, only_run_folder, run
from fake_batch_server import FakeBatchServer
from llmrl.cli.evaluate import main as evaluate
from llmrl.core.errors import BudgetExhausted
from llmrl.experiment.batched_runs import compute_rows
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_job import compute
from llmrl.experiment.sweep_jobs import job_of
from llmrl.llms.call_log import read_calls
from llmrl.principals import scripted_mechanism
from llmrl.run.status import read_status
from llmrl.sweeps.jobs import take_on
from llmrl.sweeps.work import JobWork

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional"),
]
GAME = (
    *(
        "env=escape_room",
        "env.n_envs=4",
        "agent=pg",
        "principal=llm",
        "design.references=0",
        "design.confirm_steps=0",
        "design.evaluations=0",
    ),
    *("design.adapt_rounds=0", "design.steps=3", "design.candidates=2", "hardware.threads=1"),
)


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)


def proposing(provider="openai", **more):
    return FakeBatchServer(provider, **{"reply": scripted_mechanism.reply, "key": KEY, **more})


def numbers(folder):
    """All that a run says but for the clock and for money."""
    return [
        {k: v for k, v in row.items() if "cost" not in k and "spent/" not in k} for row in comparable_metrics(folder)
    ]


def last_of(folder):
    return comparable_metrics(folder, "proposal")[-1]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_same_numbers_at_half_the_price(tmp_path, provider):
    """All candidates of a step are one batch."""
    with proposing(provider) as server:
        run(*GAME, *options(server, tmp_path / "batch"))
        assert set(server.sizes) == {2} and server.singles == 0
        asked = sum(server.sizes)
        run(*GAME, *options(server, tmp_path / "single"), "llm.batch=false")
        assert server.singles == asked
    batch, single = (only_run_folder(tmp_path / name) for name in ("batch", "single"))
    assert batch.relative_to(tmp_path / "batch") == single.relative_to(tmp_path / "single")  # one hash
    assert numbers(batch) == numbers(single)
    for name in ("spent/llm_cost", "llm/cost"):
        assert last_of(batch)[name] == pytest.approx(last_of(single)[name] / 2)


def test_runs_of_a_process_share_their_batches(tmp_path):
    with proposing() as server:
        works = []
        for seed in range(3):
            typed = [*GAME, *options(server, tmp_path), "llm.batch_gather=2", f"seed={seed}"]
            job = job_of(Experiment(compose(*typed), typed), typed)
            take_on(job, tmp_path)
            works.append(JobWork(compute, job.config, typed, job.folder, {}, "one shape"))
        assert [end.code for end in compute_rows(works)] == [0] * 3
    # Six at once, or a few less where the machine is busy; two are one run's.
    assert sum(server.sizes) == 18 and max(server.sizes) > 2


def started(server, root):
    arguments = [*GAME, *options(server, root)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return commands.Popen([sys.executable, "-m", "llmrl.cli.train", *arguments], env={**os.environ}, **quiet)


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the run ended too early"
        time.sleep(0.01)


def noted(root):
    """Names of the batches that are written down as under way."""
    return [json.loads(path.read_text())["batches"] for path in root.rglob("llm_cache/batches/*.json")]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_ends_while_a_batch_is_under_way_goes_on_with_it(tmp_path, provider, how):
    with proposing(provider) as server:
        server.hold.set()
        process = started(server, tmp_path)
        wait_for(lambda: any(noted(tmp_path)) and "look" in server.asked, process)
        process.send_signal(how)
        process.wait(60)
        folder = only_run_folder(tmp_path)
        assert read_status(folder).state == {signal.SIGKILL: "running", signal.SIGINT: "stopped"}[how]
        lost = [call for call in read_calls(folder / "llm_calls.jsonl") if call.get("unsettled")]
        assert len(lost) == 2 and len(server.batches) == 1
        server.hold.clear()
        # With a budget that has no room for a lost reply beside those that the run needs.
        run(*GAME, *options(server, tmp_path), "llm.budget.calls=6")
    assert server.sizes == [2, 2, 2] and set(server.answered.values()) == {1}
    row = last_of(folder)
    assert row["spent/llm_calls"] == row["llm/calls"] == 6 and row["spent/llm_unsettled_calls"] == 0
    assert row["spent/llm_cost"] == pytest.approx(row["llm/cost"])
    assert not [call for call in read_calls(folder / "llm_calls.jsonl") if call.get("unsettled")]
    assert not noted(tmp_path)


def test_a_kill_before_anybody_heard_of_the_batch(tmp_path):
    """The request that makes it is done, and its answer reaches nobody."""
    with proposing() as server:
        server.hold.set()
        server.faults["create"].append("lost")
        server.faults["list"] += ["500"] * 1000
        process = started(server, tmp_path)
        wait_for(lambda: "list" in server.asked, process)
        process.kill()
        process.wait(60)
        assert len(server.batches) == 1 and noted(tmp_path) == [[]]
        server.faults.clear()
        server.hold.clear()
        run(*GAME, *options(server, tmp_path))
    assert server.sizes == [2, 2, 2] and last_of(only_run_folder(tmp_path))["spent/llm_unsettled_calls"] == 0


def test_a_budget_ends_and_goes_on(tmp_path):
    with proposing() as server:
        with pytest.raises(BudgetExhausted, match="calls=3"):
            run(*GAME, *options(server, tmp_path), "llm.budget.calls=3")
        run(*GAME, *options(server, tmp_path), "llm.budget.calls=6")
    assert set(server.answered.values()) == {1} and last_of(only_run_folder(tmp_path))["spent/llm_calls"] == 6


def test_a_table_of_plans_is_asked_in_one_batch_an_update(tmp_path):
    """All new states of an update, and all samples of each."""

    def plan(messages):
        return json.dumps({"reasoning": "", "plan": [{"skill": "explore", "object": ""}]})

    words = ("env=simple_doorkey", "env.n_envs=2", "agent=student_lstm", "teacher=llm", "teacher.samples=3")
    learn = ("learn.rollout_steps=10", "learn.env_steps=60", "learn.evaluate_episodes=2", "llm.max_invalid=null")
    with FakeBatchServer("openai", reply=plan, key=KEY) as server:
        run(*words, *learn, *options(server, tmp_path))
    asked = [call for call in read_calls(only_run_folder(tmp_path) / "llm_calls.jsonl") if call["attempts"]]
    assert len(server.sizes) < len(asked) / 2 and sum(server.sizes) == len(asked) and max(server.sizes) >= 6


def test_games_of_a_suite_are_asked_together(tmp_path):
    """Each goes on by itself, and what they ask at about the same time is one batch."""

    def on(messages):
        return json.dumps({"reflection": "on", "action": "go forward"})

    with FakeBatchServer("anthropic", reply=on, key=KEY) as server:
        words = ("env=goto_local", "env.n_envs=4", "env.horizon=2", "agent=llm_player", "play.episodes=1")
        run(*words, *options(server, tmp_path), "llm.batch_gather=1")
        before = len(server.sizes)
        suite = ["suite=babyai_text", "suite.episodes=4", "suite.env.horizon=2", "suite.only=[unknown_nouns]"]
        evaluate([str(only_run_folder(tmp_path)), *suite, "--policy", "student", "--out", str(tmp_path / "out")])
    assert max(server.sizes[before:]) == 4


def test_players_of_two_batched_models(tmp_path):
    """A society of which each model has its own batch in each step."""

    def act(messages):
        return json.dumps({"reflection": "on", "action": "FORWARD"})

    society = ("env=cleanup", "env.n_agents=3", "env.observe=[text]", "env.mechanism=null", "env.n_envs=2")
    play = (
        "env.horizon=2",
        "agent=llm_player",
        "agent.action_every=1",
        "play.episodes=2",
        "agent.players={llm:1,claude_haiku:2}",
    )
    with FakeBatchServer("openai", reply=act, key=KEY) as one, FakeBatchServer("anthropic", reply=act, key=KEY) as two:
        other = {"api_base": two.url, "api_key_env": "ANTHROPIC_API_KEY"}
        other |= dict(word.removeprefix("llm.").split("=") for word in QUICK[:3])
        words = [f"+llm.others.{OPTIONS['anthropic']}.{name}={value}" for name, value in other.items()]
        run(*society, *play, *options(one, tmp_path), *words)
    assert one.sizes == [2, 2] and two.sizes == [4, 4]
