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
from some import some

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional"),
]
GAME = (
    *(
        "env=escape_room",
        "env.n_envs=4",
        "design.validate_episodes=4",
        "agent=pg",
        "principal=llm",
        "design.references=0",
        "design.confirm_steps=0",
        "design.evaluations=0",
    ),
    *("design.adapt_rounds=0", "design.steps=3", "design.candidates=2", "hardware.threads=1"),
)
GATHER = "llm.batch_gather=2"
"""Where batches are counted: on a busy machine threads that ask together hand in their requests a second apart."""


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)


def proposing(provider="openai", **options):
    return FakeBatchServer(provider, **{"reply": scripted_mechanism.reply, "key": KEY, **options})


def numbers(folder):
    """All that a run says but for the clock and for money."""
    return [
        {k: v for k, v in row.items() if "cost" not in k and "usage/" not in k} for row in comparable_metrics(folder)
    ]


def last_call(folder):
    return comparable_metrics(folder, "proposal")[-1]


@pytest.mark.parametrize("provider", some(["openai"], PROVIDERS))
def test_batch_results_match_at_half_price(tmp_path, provider):
    """All candidates of a step are one batch."""
    with proposing(provider) as server:
        run(*GAME, *options(server, tmp_path / "batch"))
        assert set(server.sizes) == {2} and server.singles == 0
        n_requests = sum(server.sizes)
        run(*GAME, *options(server, tmp_path / "single"), "llm.batch=false")
        assert server.singles == n_requests
    batch, single = (only_run_folder(tmp_path / name) for name in ("batch", "single"))
    assert batch.relative_to(tmp_path / "batch") == single.relative_to(tmp_path / "single")  # one hash
    assert numbers(batch) == numbers(single)
    for name in ("usage/llm_cost", "llm/cost"):
        assert last_call(batch)[name] == pytest.approx(last_call(single)[name] / 2)


@pytest.mark.long
def test_runs_in_process_share_batches(tmp_path):
    with proposing() as server:
        works = []
        for seed in range(3):
            words = [*GAME, *options(server, tmp_path), GATHER, f"seed={seed}"]
            job = job_of(Experiment(compose(*words), words), words)
            take_on(job, tmp_path)
            works.append(JobWork(compute, job.config, words, job.folder, {}, "one shape"))
        assert [end.exit_code for end in compute_rows(works)] == [0] * 3
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


def read_batches(root):
    """Names of the batches that are written down as under way."""
    return [json.loads(path.read_text())["batches"] for path in root.rglob("llm_cache/batches/*.json")]


@pytest.mark.parametrize(
    ("provider", "stop_signal"),
    [
        ("openai", signal.SIGKILL),
        pytest.param("openai", signal.SIGINT, marks=pytest.mark.long),
        pytest.param("anthropic", signal.SIGKILL, marks=pytest.mark.long),
        pytest.param("anthropic", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_stopped_run_continues_pending_batch(tmp_path, provider, stop_signal):
    with proposing(provider) as server:
        server.hold.set()
        process = started(server, tmp_path)
        wait_for(lambda: any(read_batches(tmp_path)) and "look" in server.asked, process)
        process.send_signal(stop_signal)
        process.wait(60)
        folder = only_run_folder(tmp_path)
        assert read_status(folder).state == {signal.SIGKILL: "running", signal.SIGINT: "stopped"}[stop_signal]
        unsettled = [call for call in read_calls(folder / "llm_calls.jsonl") if call.get("unsettled")]
        assert len(unsettled) == 2 and len(server.batches) == 1
        server.hold.clear()
        # With a budget that has no room for a lost reply beside those that the run needs.
        run(*GAME, *options(server, tmp_path), "llm.budget.calls=6")
    assert server.sizes == [2, 2, 2] and set(server.answered.values()) == {1}
    row = last_call(folder)
    assert row["usage/llm_calls"] == row["llm/calls"] == 6 and row["usage/llm_unsettled_calls"] == 0
    assert row["usage/llm_cost"] == pytest.approx(row["llm/cost"])
    assert not [call for call in read_calls(folder / "llm_calls.jsonl") if call.get("unsettled")]
    assert not read_batches(tmp_path)


@pytest.mark.long
def test_kill_during_batch_submission(tmp_path):
    """The request that makes it is done, and its answer reaches nobody."""
    with proposing() as server:
        server.hold.set()
        server.faults["create"].append("lost")
        server.faults["list"] += ["500"] * 1000
        process = started(server, tmp_path)
        wait_for(lambda: "list" in server.asked, process)
        process.kill()
        process.wait(60)
        assert len(server.batches) == 1 and read_batches(tmp_path) == [[]]
        server.faults.clear()
        server.hold.clear()
        run(*GAME, *options(server, tmp_path))
    assert server.sizes == [2, 2, 2] and last_call(only_run_folder(tmp_path))["usage/llm_unsettled_calls"] == 0


@pytest.mark.long
def test_budget_stop_can_continue(tmp_path):
    with proposing() as server:
        with pytest.raises(BudgetExhausted, match="calls=3"):
            run(*GAME, *options(server, tmp_path), "llm.budget.calls=3")
        run(*GAME, *options(server, tmp_path), "llm.budget.calls=6")
    assert set(server.answered.values()) == {1} and last_call(only_run_folder(tmp_path))["usage/llm_calls"] == 6


def test_plan_table_sends_single_batch_per_update(tmp_path):
    """All new states of an update, and all samples of each."""

    def plan(messages):
        return json.dumps({"reasoning": "", "plan": [{"skill": "explore", "object": ""}]})

    words = ("env=simple_doorkey", "env.n_envs=2", "agent=student_lstm", "teacher=llm", "teacher.samples=3")
    learn = ("learn.rollout_steps=10", "learn.env_steps=60", "learn.evaluate_episodes=2", "llm.max_invalid=null")
    with FakeBatchServer("openai", reply=plan, key=KEY) as server:
        run(*words, *learn, *options(server, tmp_path))
    calls = [call for call in read_calls(only_run_folder(tmp_path) / "llm_calls.jsonl") if call["attempts"]]
    assert len(server.sizes) < len(calls) / 2 and sum(server.sizes) == len(calls) and max(server.sizes) >= 6


@pytest.mark.long
def test_suite_games_share_batches(tmp_path):
    """Each goes on by itself, and what they ask at about the same time is one batch."""

    def on(messages):
        return json.dumps({"reflection": "on", "action": "go forward"})

    with FakeBatchServer("anthropic", reply=on, key=KEY) as server:
        words = ("env=goto_local", "env.n_envs=4", "env.horizon=2", "agent=llm_player", "play.episodes=1")
        run(*words, *options(server, tmp_path), "llm.batch_gather=1")
        n_batches = len(server.sizes)
        suite = ["suite=babyai_text", "suite.episodes=4", "suite.env.horizon=2", "suite.only=[unknown_nouns]"]
        evaluate([str(only_run_folder(tmp_path)), *suite, "--policy", "student", "--out", str(tmp_path / "out")])
    assert max(server.sizes[n_batches:]) == 4


@pytest.mark.long
def test_players_with_two_batch_models(tmp_path):
    """A society of which each model has its own batch in each step."""

    def act(messages):
        return json.dumps({"reflection": "on", "action": "FORWARD"})

    society = ("env=cleanup", "env.n_agents=3", "env.observe=[text]", "env.mechanism=null", "env.n_envs=2")
    play = (
        "env.horizon=2",
        "agent=llm_player",
        "agent.action_interval=1",
        "play.episodes=2",
        "agent.players={llm:1,claude_haiku:2}",
    )
    with (
        FakeBatchServer("openai", reply=act, key=KEY) as first_server,
        FakeBatchServer("anthropic", reply=act, key=KEY) as two,
    ):
        second_player = {"api_base": two.url, "api_key_env": "ANTHROPIC_API_KEY"}
        second_player |= dict(word.removeprefix("llm.").split("=") for word in (*QUICK[:3], GATHER))
        words = [f"+llm.variants.{OPTIONS['anthropic']}.{name}={value}" for name, value in second_player.items()]
        run(*society, *play, *options(first_server, tmp_path), GATHER, *words)
    assert first_server.sizes == [2, 2] and two.sizes == [4, 4]
