"""Models that never answer: waiting ends after a signal, and sent requests count toward the budget."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import commands
import models
from experiments import find_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import BudgetExhausted, CallInterrupted
from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.principals import scripted_mechanism
from llmrl.run.signals import Stopped
from llmrl.run.status import read_status
from models import EchoProvider
from some import mark_long_except

HANGS_S = 45.0
PRINCIPAL = (
    "env=escape_room",
    "principal=llm",
    "design.evaluations=1",
    "design.steps=3",
    "design.adapt_rounds=1",
    "design.validate_episodes=1",
)
PLAYER = ("env=nim", "env.n_envs=3", "agent=llm_player", "play.episodes=3", "env.horizon=6")
TEACHER = ("env=simple_doorkey", "env.n_envs=4", "agent=student_mlp", "teacher=llm", "env.horizon=8")
TEACHER += ("learn.rollout_steps=4", "learn.env_steps=64", "learn.evaluate_episodes=4")
WAITING = {"a principal": PRINCIPAL, "players": PLAYER, "a teacher": TEACHER}


def requests(n):
    return [ChatRequest(({"role": "user", "content": f"question {i}"},), purpose="test") for i in range(n)]


class UnresponsiveModel(EchoProvider):
    """Model that answers the questions in `replies` at once and other questions never or after a release."""

    def __init__(self, replies=(), **facts):
        super().__init__(**facts)
        self.answered, self.asked, self.go = replies, [], threading.Event()

    def complete(self, requests):
        [request] = requests
        text = request.messages[-1]["content"]
        self.asked.append(text)
        if text not in self.answered:
            self.go.wait(HANGS_S)
        return [ChatReply(f"re {text}", prompt_tokens=3, completion_tokens=2)]


@pytest.fixture
def fast_polling(monkeypatch):
    monkeypatch.setattr("llmrl.llms.cancellable_calls.MAX_STOP_WAIT_SECONDS", 1.0, raising=False)


def make_client(model, tmp_path, should_stop=lambda: False, **budget):
    call_log = CallLog(tmp_path / "llm_calls.jsonl")
    return models.make_client(
        model, Cache(tmp_path / "cache"), call_log, budget=Budget(**budget), should_stop=should_stop
    )


@pytest.mark.parametrize("n", [1, 5])
def test_stop_drops_pending_requests(tmp_path, fast_polling, n):
    model = UnresponsiveModel(replies=["question 1", "question 3"], max_tokens=50)
    client = make_client(model, tmp_path, should_stop=lambda: len(model.asked) == n, calls=20)
    start = time.monotonic()
    with pytest.raises(CallInterrupted):
        client.chat(requests(n))
    assert time.monotonic() - start < HANGS_S / 2
    n_pending = len({f"question {i}" for i in range(n)} - {"question 1", "question 3"})
    lines = list(read_calls(tmp_path / "llm_calls.jsonl"))
    assert sum(line.get("unsettled", False) for line in lines) == n_pending and len(lines) == n
    # What was sent may be charged for: a later process of the run must not spend it again.
    totals = make_client(model, tmp_path, calls=20).budget.usage
    assert (totals.calls, totals.unsettled) == (n - n_pending, n_pending)
    prompt = model.count_tokens(requests(1)[0].messages)
    assert (totals.tokens, totals.unsettled_tokens) == ((n - n_pending) * 5, n_pending * (prompt + 50))
    model.go.set()


def test_pending_spending_reduces_budget(tmp_path, fast_polling):
    model = UnresponsiveModel()
    with pytest.raises(CallInterrupted):
        make_client(model, tmp_path, should_stop=lambda: bool(model.asked), calls=1).chat(requests(1))
    second_client = make_client(UnresponsiveModel(replies=["question 0"]), tmp_path, calls=1)
    with pytest.raises(BudgetExhausted):
        second_client.chat(requests(1))
    model.go.set()


def test_imminent_reply_is_awaited(tmp_path):
    model = UnresponsiveModel()
    threading.Timer(0.4, model.go.set).start()
    client = make_client(model, tmp_path, should_stop=lambda: bool(model.asked))
    assert [reply.text for reply in client.chat(requests(2)[:1])] == ["re question 0"]


def test_late_reply_is_reused(tmp_path, fast_polling):
    model = UnresponsiveModel()
    with pytest.raises(CallInterrupted):
        make_client(model, tmp_path, should_stop=lambda: bool(model.asked)).chat(requests(1))
    lines = (tmp_path / "llm_calls.jsonl").read_text()
    model.go.set()
    deadline = time.monotonic() + 20
    while not list((tmp_path / "cache").rglob("*.json*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    assert (tmp_path / "llm_calls.jsonl").read_text() == lines, "the run's folder is no longer its"
    second_model = UnresponsiveModel()
    assert make_client(second_model, tmp_path).chat(requests(1))[0].text == "re question 0" and not second_model.asked


def test_no_request_follows_stop(tmp_path, fast_polling):
    model = UnresponsiveModel()
    client = make_client(
        model, tmp_path, should_stop=lambda: len(model.asked) >= client.endpoints[CHOSEN_MODEL].limits.concurrency
    )
    with pytest.raises(CallInterrupted):
        client.chat(requests(30))
    model.go.set()
    time.sleep(0.3)
    assert len(model.asked) == client.endpoints[CHOSEN_MODEL].limits.concurrency == client.budget.usage.unsettled


@pytest.mark.parametrize("waiter", mark_long_except(["a principal", "players"], WAITING))
def test_run_waiting_for_model_can_stop(tmp_path, fast_polling, capfd, waiter):
    overrides = (*WAITING[waiter], "llm=openai_compatible", "llm.model=fake-model", "design.references=0")
    overrides += ("llm.max_invalid=null", f"llm.cache_dir={tmp_path / 'cache'}", f"output_root={tmp_path / 'outputs'}")

    def reply(messages):
        return scripted_mechanism.reply(messages) if waiter == "a principal" else "{}"

    with FakeOpenAIServer(reply, hang=HANGS_S) as server:
        server.faults += ["hang"] * 40
        signal_times = []

        def interrupt():
            while not server.requests:
                time.sleep(0.02)
            signal_times.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(Stopped, match="is saved"):
            run(*overrides, f"llm.base_url={server.url}")
        assert time.monotonic() - signal_times[0] < HANGS_S / 2
        folder = find_run_folder(tmp_path / "outputs")
        assert read_status(folder).state == "preempted"
        unsettled = [call for call in read_calls(folder / "llm_calls.jsonl") if call.get("unsettled")]
        assert len(unsettled) == len(server.requests) == CallLog(folder / "llm_calls.jsonl").earlier_usage.unsettled
        assert capfd.readouterr().err.count("SIGTERM: ") == 1
        server.faults.clear()
        run(*overrides, f"llm.base_url={server.url}")
    assert read_status(folder).state == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("number", mark_long_except([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_process_with_hanging_requests_exits(tmp_path, number):
    """A real process with default timeouts: threads that wait for a server must not delay its exit."""
    with FakeOpenAIServer(hang=100.0) as server:
        server.faults += ["hang"] * 40
        command = [sys.executable, "-m", "llmrl.cli.train", *PLAYER, "llm=openai_compatible", "llm.model=fake-model"]
        process = commands.Popen(
            [*command, f"llm.base_url={server.url}"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        while len(server.requests) < 3 and process.poll() is None:
            time.sleep(0.05)
        start = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=90)
        assert time.monotonic() - start < 20
        assert process.returncode == 128 + number, errors
        assert "is saved" in errors and "Traceback" not in errors
        assert json.loads((find_run_folder(tmp_path) / "status.json").read_text())["state"] != "running"
