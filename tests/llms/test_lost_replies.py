"""Budget of requests that may have been charged: received and lost replies."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commands
from fake_openai_server import FakeOpenAIServer
from llmrl.analysis.llm_calls import read_run_totals
from llmrl.core.errors import BudgetExhausted, LLMError
from llmrl.core.records import ChatReply
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.retry import Retry
from llmrl.llms.usage import summarize_llm_usage
from models import EchoProvider, connect_client, make_client, make_openai_model, make_request
from sweeping import wait_for

LOSSES = ("500", "503", "reset", "reset-midway", "truncated", "truncated-json", "malformed", "no_choices")
REJECTIONS = ("429", "429-after", "529", "400-echo", "401")


def chat_until_exhausted(client, n=200):
    """Send requests until the budget is exhausted."""
    with pytest.raises(BudgetExhausted) as error:
        for i in range(n):
            client.chat([make_request(f"{i}")])
    return str(error.value)


@pytest.mark.parametrize("fault", LOSSES)
def test_missing_reply_counts(fault, tmp_path):
    with FakeOpenAIServer(fault_rate=1.0, fault_kinds=(fault,)) as server:
        client = connect_client(
            server, retries=5, budget=Budget(calls=4), failures="fall_back", call_log=CallLog(tmp_path / CALL_LOG_NAME)
        )
        message = chat_until_exhausted(client)
        client.close()
        assert len(server.requests) == 4, "one more would have been one too many"
    assert "spent 0 and at most 4 " in message
    assert client.metrics()["usage/llm_unsettled_calls"] == 4
    record = list(read_calls(tmp_path / CALL_LOG_NAME))
    assert [call["unsettled"] for call in record if "unsettled" in call] == [True] * 4
    assert all(call["lost"] and call["reserved"]["tokens"] > 0 for call in record if "unsettled" in call)
    assert record[-1]["spent"]["unsettled"] == 4


def test_timeout_counts():
    with FakeOpenAIServer(hang=2.0) as server:
        server.faults += ["hang"] * 4
        client = connect_client(server, retries=5, budget=Budget(calls=2), provider={"timeout": 0.1})
        chat_until_exhausted(client)
        client.close()
        # A busy machine reads them after the timeout, and a third one would arrive while the server hangs.
        wait_for(lambda: len(server.requests) >= 2, 30)
        time.sleep(0.5)
        assert len(server.requests) == 2


@pytest.mark.parametrize("fault", REJECTIONS)
def test_rejection_is_free(fault, tmp_path):
    with FakeOpenAIServer(retry_after="0.01") as server:
        server.faults += [fault] * 3
        client = connect_client(server, retries=0, budget=Budget(calls=1), failures="fall_back")
        replies = [client.chat([make_request(f"{i}")])[0] for i in range(4)]
        client.close()
    assert [bool(reply.error) for reply in replies] == [True, True, True, False]
    assert client.budget.usage.unsettled == 0 and client.budget.usage.calls == 1


def test_unreachable_server_is_free():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        provider = make_openai_model(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", "m", timeout=1.0)
        client = make_client(provider, retry=Retry(3, 0.001), budget=Budget(calls=1), failures="fall_back")
        for i in range(3):
            assert client.chat([make_request(f"{i}")])[0].error
        client.close()
    assert client.budget.usage.unsettled == 0 and client.budget.usage.failed == 3


@pytest.mark.parametrize("n_parallel", [1, 8])
def test_call_limit_includes_missing_replies(n_parallel):
    kinds = ("reset", "reset-midway", "truncated", "503", "malformed")
    with FakeOpenAIServer(fault_rate=0.5, fault_kinds=kinds) as server:
        client = connect_client(
            server, retries=5, budget=Budget(calls=40), failures="fall_back", limits=RateLimit(concurrency=n_parallel)
        )
        with pytest.raises(BudgetExhausted):
            client.chat([make_request(f"{i}") for i in range(100)])
        client.close()
        assert len(server.requests) == 40
    assert client.budget.usage.calls == server.delivered.total()
    assert client.budget.usage.unsettled == 40 - server.delivered.total() > 5


def test_option_counts_only_replies():
    with FakeOpenAIServer() as server:
        server.faults += ["reset"] * 5
        client = connect_client(server, retries=5, budget=Budget(calls=2, unknown="ignore"))
        client.chat([make_request("a")])
        client.chat([make_request("b")])
        assert "spent 2, and" in chat_until_exhausted(client)
        client.close()
        assert len(server.requests) == 7
    assert client.metrics()["usage/llm_unsettled_calls"] == 5, "told, though not counted"


def test_missing_reply_charges_reservation():
    with FakeOpenAIServer() as server:
        server.faults += ["truncated"]
        facts = {"max_tokens": 1000, "input_price": 1.0, "output_price": 1.0}
        client = connect_client(server, budget=Budget(tokens=1500), provider=facts, failures="fall_back")
        assert client.chat([make_request("a")])[0].error
        assert "at most 1,005 " in chat_until_exhausted(client)
        client.close()
        assert len(server.requests) == 1
    metrics = client.metrics()
    assert metrics["usage/llm_unsettled_tokens"] == 1005
    assert metrics["usage/llm_unsettled_cost"] == pytest.approx(1005e-6)
    summary = summarize_llm_usage(client)
    assert summary["llm_replies_lost"] == 1 and summary["llm_usd_unsettled_at_most"] == pytest.approx(1005e-6)


def test_closing_table_omits_zero_losses():
    client = ChatClient(EchoProvider())
    client.chat([make_request("a")])
    assert not any("lost" in name or "unsettled" in name for name in summarize_llm_usage(client))


def test_missing_token_counts_use_reservation():
    model = EchoProvider(max_tokens=100, reply={"prompt_tokens": None})
    client = make_client(model, budget=Budget(tokens=250))
    chat_until_exhausted(client)
    assert len(model.asked) == 2


def test_attempt_log_precedes_request(tmp_path):
    path = tmp_path / CALL_LOG_NAME

    class LogReadingModel(EchoProvider):
        def complete(self, requests):
            self.seen = list(read_calls(path))
            return super().complete(requests)

    model = LogReadingModel(max_tokens=10)
    client = ChatClient(model, call_log=CallLog(path))
    client.chat([make_request("a", purpose="test")])
    [record] = model.seen
    assert (
        record["unsettled"] is True
        and record["lost"] is None
        and record["attempt"] == 1
        and record["purpose"] == "test"
    )
    assert record["reserved"] == {"tokens": 15, "cost": pytest.approx(25e-6)}
    assert record["spent"]["calls"] == 0 and record["spent"]["unsettled"] == 1
    [call] = read_calls(path)
    assert call["reply"] == "a" and call["hash"] == record["hash"] and call["spent"]["unsettled"] == 0


def test_unwritable_log_prevents_request(tmp_path):
    model = EchoProvider()
    client = ChatClient(model, call_log=CallLog(tmp_path / CALL_LOG_NAME))
    (tmp_path / CALL_LOG_NAME).unlink()
    (tmp_path / CALL_LOG_NAME).mkdir()
    with pytest.raises(Exception, match="call log"):
        client.chat([make_request("a")])
    assert model.asked == []


def test_kill_keeps_pending_calls_in_budget(tmp_path):
    """A kill with 3 of 10 allowed calls in flight leaves 7, and a second kill leaves 4."""
    path = tmp_path / CALL_LOG_NAME
    program = f"""
import sys
from pathlib import Path
from llmrl.llms.budget import Budget
from llmrl.llms.call_log import CallLog
from llmrl.llms.by_name import build_model
from models import make_client, make_request
call_log = CallLog(Path({str(path)!r}))
provider = build_model("openai_compatible", base_url=sys.argv[1], model="m")
client = make_client(provider, call_log=call_log, budget=Budget(calls=10))
client.chat([make_request(f"{{i}}") for i in range(3)])
"""
    with FakeOpenAIServer() as server:
        for kills in (1, 2):
            server.faults += ["hang"] * 3
            process = commands.Popen([sys.executable, "-c", program, server.url])
            while server.in_flight < 3 * kills:
                assert process.poll() is None
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            unsettled = [call for call in read_calls(path) if call.get("unsettled")]
            assert len(unsettled) == 3 * kills and all(call["lost"] is None for call in unsettled)
        server.stopping.set()
        client = connect_client(server, budget=Budget(calls=10), call_log=CallLog(path))
        assert client.metrics()["usage/llm_unsettled_calls"] == 6
        chat_until_exhausted(client)
        client.close()
        assert len(server.requests) == 10
    assert read_run_totals(tmp_path).lost == 6 and read_run_totals(tmp_path).calls == 4


def test_truncated_reply_line_is_ignored(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    ChatClient(EchoProvider(max_tokens=10), call_log=CallLog(path)).chat([make_request("a")])
    path.write_bytes(path.read_bytes()[:-30])
    assert CallLog(path).earlier_usage.unsettled == 1 and CallLog(path).earlier_usage.calls == 0
    [call] = read_calls(path)
    assert call["unsettled"] is True


def test_hanging_thread_keeps_reservation(tmp_path):
    """The waiting thread records the loss; a late reply changes nothing."""
    started, go_on = threading.Event(), threading.Event()

    class HangingModel(EchoProvider):
        def complete(self, requests):
            started.set()
            go_on.wait(30)
            return super().complete(requests)

    client = make_client(
        HangingModel(max_tokens=10), call_log=CallLog(tmp_path / CALL_LOG_NAME), budget=Budget(calls=2)
    )
    thread = threading.Thread(target=client.chat, args=([make_request("a")],))
    thread.start()
    assert started.wait(30)
    [reservation] = client.budget._open_reservations.values()
    client.budget.abandon(reservation)
    assert client.budget.usage.unsettled == 1 and client.metrics()["usage/llm_unsettled_tokens"] == 15
    go_on.set()
    thread.join()
    assert client.budget.usage.unsettled == 1 and client.budget.usage.calls == 0
    assert "spent 1 and at most 1" in chat_until_exhausted(client)
    assert CallLog(tmp_path / CALL_LOG_NAME).earlier_usage.unsettled == 1


def test_ctrl_c_counts_pending_reply():
    class InterruptingModel(EchoProvider):
        def complete(self, requests):
            raise KeyboardInterrupt

    client = make_client(InterruptingModel(), budget=Budget(calls=5))
    with pytest.raises(KeyboardInterrupt):
        client.chat([make_request("a")])
    assert client.budget.usage.unsettled == 1


def test_local_model_has_no_missing_replies(tmp_path):
    client = make_client(
        EchoProvider(remote=False, fail={"a": LLMError("no")}),
        call_log=CallLog(tmp_path / CALL_LOG_NAME),
        budget=Budget(calls=1),
        failures="fall_back",
    )
    client.chat([make_request("a")])
    client.chat([make_request("b")])
    assert client.budget.usage.unsettled == 0
    lines = [json.loads(line) for line in (tmp_path / CALL_LOG_NAME).read_text().splitlines()]
    assert [("error" in line, "reply" in line) for line in lines] == [(True, False), (False, True)]


def test_cached_replies_have_no_reservation(tmp_path):
    cache = Cache(tmp_path / "cache")
    ChatClient(EchoProvider(), cache).chat([make_request("a")])
    client = make_client(EchoProvider(), cache, CallLog(tmp_path / CALL_LOG_NAME), budget=Budget(calls=0))
    client.chat([make_request("a")])
    assert [call["cached"] for call in read_calls(tmp_path / CALL_LOG_NAME)] == [True]


@given(st.lists(st.sampled_from(["settle", "release", "abandon", "late", "fly"]), max_size=40), st.integers(0, 12))
def test_budget_bounds_possible_charges(ends, calls):
    """For every sequence of outcomes, the number of possibly charged attempts is within the limit."""
    budget, provider, n_charged, flying = Budget(calls=calls), EchoProvider(max_tokens=5), Counter(), 0
    for end in ends:
        try:
            held = budget.reserve(make_request("a"), provider)
        except BudgetExhausted:
            assert n_charged.total() + flying == calls
            continue
        budget.mark_sent(held)
        reply = ChatReply("a", prompt_tokens=1, completion_tokens=1, cost=0.0)
        if end == "settle":
            assert budget.settle(held, reply)
        elif end == "release":
            budget.release(held)
        elif end in ("abandon", "late"):
            budget.abandon(held)
            if end == "late":
                assert not budget.settle(held, reply)
        flying += end == "fly"
        n_charged[end] += end in ("settle", "abandon", "late")
        assert n_charged.total() + flying <= calls
    assert budget.compute_worst_case_usage().calls == n_charged["settle"]
    assert budget.compute_worst_case_usage().unsettled == n_charged["abandon"] + n_charged["late"] + flying
    for held in list(budget._open_reservations.values()):
        budget.abandon(held)
    assert budget.usage == budget.compute_worst_case_usage()
