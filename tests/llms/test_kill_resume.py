"""Replies are paid for once, also after kills, under other names and after exhausted budgets."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

import commands
from experiments import find_run_folder, load_comparable_metrics, run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import BudgetExhausted, LLMError
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.principals import scripted_mechanism

STEPS, KILL_AT = 220, 200
FEW_STEPS, FEW_CALLS = 90, 40
"""Principal steps, replies paid before the kill."""
TOKENS, COST = 18, 25e-6
"""What the server counts for a call: 11 and 7 tokens, at one and two dollars per million."""

GAME = (
    "env=escape_room",
    "env.n_envs=4",
    "principal=llm",
    "principal.history=last",
    "principal.window=4",
    "design.references=0",
    "design.confirm_steps=0",  # a reply for each step
    "design.adapt_rounds=0",
    "design.validate_episodes=4",
    # Never before the end: whatever is lost by a kill is everything since the last checkpoint made for another reason.
    "checkpoint_seconds=100000",
)


def reply(messages):
    """Return a valid reply, except for one question in ten, and for one in twenty also after the repair request."""
    draw = int(hashlib.sha256(messages[0]["content"].encode()).hexdigest(), 16) % 40
    if draw % 20 == 0 or (draw % 10 == 0 and len(messages) == 1):
        return "Let me think about it."
    return scripted_mechanism.reply(messages)


def faulty_server():
    kinds = ("429", "500", "reset", "reset-midway", "truncated", "malformed")
    return FakeOpenAIServer(reply, fault_rate=0.1, fault_kinds=kinds)


def overrides(server, root, steps, *extra):
    return (
        *GAME,
        "llm=openai_compatible",
        f"llm.base_url={server.url}",
        "llm.model=fake-model",
        "llm.retry.initial_delay=0.001",
        "llm.input_price=1.0",
        "llm.output_price=2.0",
        "design.evaluations=1",
        f"design.steps={steps}",
        f"output_root={root}",
        *extra,
    )


def llmrl_train(arguments):
    return commands.Popen(
        [sys.executable, "-m", "llmrl.cli.train", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def metrics(folder):
    """Return all metrics except wall-clock times and costs, which depend on the cache."""
    return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]


def count_charges(folder):
    return [call for call in read_calls(folder / "llm_calls.jsonl") if "reply" in call and not call["cached"]]


def check_single_charges(folder, server):
    """Assert that each reply was delivered once and that the run counts the same requests as the server."""
    assert set(server.delivered.values()) <= {0, 1}
    n_delivered = server.delivered.total()
    assert len(count_charges(folder)) == n_delivered
    account = [n_delivered, n_delivered * TOKENS, pytest.approx(n_delivered * COST)]
    *_, last = read_calls(folder / "llm_calls.jsonl")
    assert [last["spent"][name] for name in ("calls", "tokens", "cost")] == account
    row = load_comparable_metrics(folder, "proposal")[-1]
    assert [row[f"usage/llm_{name}"] for name in ("calls", "tokens", "cost")] == account
    assert row["llm/calls"] == n_delivered


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the run ended too early"
        time.sleep(0.002)


def stopped(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def kill_between_calls(process, server, root, calls):
    """Kill the run when it has received `calls` replies and waits for none.

    A call in flight when its process is killed is the one that may be paid twice: its reply reaches nobody. So that
    the statement about all others is exact, a moment is chosen in which every reply that was sent has been kept.
    """
    while True:
        wait_for(lambda: server.delivered.total() >= calls, process)
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: stopped(process), process)
        time.sleep(0.05)  # what it sent before has arrived by then
        if server.in_flight == 0 and len(count_charges(find_run_folder(root))) == server.delivered.total():
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.003)


@pytest.fixture(scope="module")
def reference_folder(tmp_path_factory):
    """Return the folder of an undisturbed run."""
    return reference_metrics(tmp_path_factory.mktemp("whole"), STEPS)


def reference_metrics(root, steps):
    with FakeOpenAIServer(reply) as server:
        run(*overrides(server, root, steps))
        folder = find_run_folder(root)
        check_single_charges(folder, server)
    rows = metrics(folder)
    # The replies were of every kind, or equal numbers would say less.
    last = [row for row in rows if row["kind"] == "proposal"][-1]
    assert last["llm/repairs"] > 0 and last["llm/fallbacks"] > 0
    return rows


@pytest.mark.long
@pytest.mark.slow
def test_kill_9_after_200_calls(tmp_path, reference_folder):
    with faulty_server() as server:
        arguments = overrides(server, tmp_path, STEPS)
        process = llmrl_train(arguments)
        wait_for(lambda: server.delivered.total() >= 40, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
        checkpoints = list((find_run_folder(tmp_path) / "checkpoints").iterdir())
        assert checkpoints, "the first attempt saves when it is asked to stop"

        process = llmrl_train(arguments)
        kill_between_calls(process, server, tmp_path, KILL_AT)
        process.kill()
        process.wait()
        assert list((find_run_folder(tmp_path) / "checkpoints").iterdir()) == checkpoints
        n_delivered = server.delivered.total()
        assert n_delivered >= KILL_AT

        run(*arguments)
        folder = find_run_folder(tmp_path)
        assert server.delivered.total() > n_delivered, "there was nothing left to do"
        check_single_charges(folder, server)
    cached = [call for call in read_calls(folder / "llm_calls.jsonl") if call.get("cached")]
    assert len(cached) > 100, "what was lost since the checkpoint came from the cache"
    assert metrics(folder) == reference_folder


@pytest.mark.slow
def test_larger_budget_finishes_run(tmp_path, tmp_path_factory):
    with faulty_server() as server:
        process = llmrl_train(overrides(server, tmp_path, FEW_STEPS, f"llm.budget.calls={FEW_CALLS}"))
        assert process.wait() == 3
        folder = find_run_folder(tmp_path)
        totals = CallLog(folder / "llm_calls.jsonl").earlier_usage
        assert totals.calls == server.delivered.total() and totals.calls + totals.unsettled == FEW_CALLS
        assert json.loads((folder / "status.json").read_text())["state"] == "budget_exhausted"
        assert any((folder / "checkpoints").iterdir())
        run(*overrides(server, tmp_path, FEW_STEPS, "llm.budget.calls=1000"))
        check_single_charges(folder, server)
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert metrics(folder) == reference_metrics(tmp_path_factory.mktemp("whole"), FEW_STEPS)
    assert not any(call.get("cached") for call in read_calls(folder / "llm_calls.jsonl")), "it resumed where it stopped"


def test_cached_reply_is_reused(tmp_path):
    with FakeOpenAIServer(reply) as server:
        run(*overrides(server, tmp_path, 12, "name=first"))
        first = find_run_folder(tmp_path / "first")
        assert server.delivered.total() >= 12
        server.forget()

        run(*overrides(server, tmp_path, 12, "name=first"))
        run(*overrides(server, tmp_path, 12, "name=second"))
        assert server.requests == []
        second = find_run_folder(tmp_path / "second")
        assert metrics(second) == metrics(first)
        assert load_comparable_metrics(second, "proposal")[-1]["usage/llm_calls"] == 0

        run(*overrides(server, tmp_path, 12, "name=other_seed", "seed=1"))
        second_folder = find_run_folder(tmp_path / "other_seed")
        assert server.delivered.total() == len(list(read_calls(second_folder / "llm_calls.jsonl"))) >= 12

    # The server is gone. What was recorded is all there is, and enough.
    run(*overrides(server, tmp_path, 12, "name=from_cache", "llm.cache=only"))
    assert metrics(find_run_folder(tmp_path / "from_cache")) == metrics(first)
    run(
        *GAME,
        "llm=replay",
        f"llm.calls='{first}'",
        "design.evaluations=1",
        "design.steps=12",
        f"output_root={tmp_path}",
        "name=replayed",
    )
    assert metrics(find_run_folder(tmp_path / "replayed")) == metrics(first)
    with pytest.raises(LLMError, match=r"llm\.cache=only"):
        run(*overrides(server, tmp_path, 12, "name=no_cache", "llm.cache=only", f"llm.cache_dir={tmp_path / 'empty'}"))


def test_repeated_question_replays_in_order(tmp_path):
    """Also after a resume, because checkpoints contain the number of repeats."""
    (tmp_path / "prompts" / "principal").mkdir(parents=True)
    (tmp_path / "prompts" / "principal" / "escape_room.j2").write_text("What now?")
    numbers = count()

    def reply_counter(messages):
        names = ("lever_0", "lever_1", "lever_2", "door", "start")
        return json.dumps(dict.fromkeys(names, 0.1 * next(numbers)))

    with FakeOpenAIServer(reply_counter) as server:
        arguments = overrides(server, tmp_path, 12, f"prompts={tmp_path / 'prompts'}")
        with pytest.raises(BudgetExhausted):
            run(*arguments, "name=first", "llm.budget.calls=5")
        run(*arguments, "name=first")
        assert list(server.delivered.values()) == [12]
        server.forget()
        run(*arguments, "name=second")
        assert server.requests == []
    first, second = (metrics(find_run_folder(tmp_path / name)) for name in ("first", "second"))
    assert first == second
    assert [row["principal/door"] for row in first if row["kind"] == "proposal"] == pytest.approx(
        [0.1 * i for i in range(12)]
    )


@pytest.mark.parametrize("shared", [False, True])
def test_seeds_share_replies_on_request(tmp_path, shared):
    """The first question is the same for every seed."""
    shared_options = ("env.fixed_context=0", f"llm.share_cache={str(shared).lower()}")
    with FakeOpenAIServer(lambda messages: scripted_mechanism.reply(messages)) as server:
        for seed in range(3):
            run(*overrides(server, tmp_path, 1, f"seed={seed}", *shared_options))
        assert list(server.delivered.values()) == [1 if shared else 3]


def test_partial_run_replays_until_truncation(tmp_path):
    """Replaying a truncated call log raises an error at its end."""
    with FakeOpenAIServer(lambda messages: scripted_mechanism.reply(messages)) as server:
        run(*overrides(server, tmp_path / "whole", 6))
    log = find_run_folder(tmp_path / "whole") / "llm_calls.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    half = Path(tmp_path / "half.jsonl")
    fourth = [i for i, line in enumerate(lines) if '"reply"' in line][3]
    half.write_text("".join(lines[:fourth]) + lines[fourth][:100])
    with pytest.raises(LLMError, match=r"half\.jsonl"):
        run(
            *GAME,
            "llm=replay",
            f"llm.calls='{half}'",
            "design.evaluations=1",
            "design.steps=6",
            f"output_root={tmp_path / 'replayed'}",
        )
    assert len(metrics(find_run_folder(tmp_path / "replayed"))) == 3
