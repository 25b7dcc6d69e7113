"""Client with a server at which three in ten requests have a fault."""

import importlib.util
import json
import logging
import multiprocessing
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import BaseModel

from fake_openai_server import (
    FAULTS,
    PERMANENT_FAULTS,
    TRANSIENT_FAULTS,
    UNUSUAL_REPLIES,
    FakeOpenAIServer,
    hash_messages,
)
from llmrl.core.errors import BudgetExhausted
from llmrl.core.records import ChatRequest
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.llms.prompts import Prompt
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.reading.object_parser import parse_object
from llmrl.llms.retry import Retry
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import StructuredQuery
from models import make_client, make_litellm_model, make_openai_model
from some import mark_long_except

OPEN_FILES = Path("/proc/self/fd")
REQUESTS, CALLERS = 500, 16
LOSSES = ("500", "503", "reset", "reset-midway", "truncated", "malformed", "no_choices")
"""Faults after which nobody knows whether a reply was generated."""
GROWTH = 20 << 20
"""Bytes that may be added to a process by 2,000 requests after the first 500."""


def client(url, folder, retries, timeout=1.0):
    return make_client(
        make_openai_model(url, "fake-model", max_tokens=100, timeout=timeout),
        Cache(folder / "cache"),
        CallLog(folder / "llm_calls.jsonl"),
        retry=Retry(retries, initial_delay=0.002, max_delay=0.01),
        limits=RateLimit(concurrency=CALLERS),
        failures="fall_back",
    )


def ask(i):
    return ChatRequest(({"role": "user", "content": f"question {i}"},))


def answer(messages):
    return messages[0]["content"].replace("question", "answer")


@contextmanager
def no_resources_open():
    """Return a context that asserts that all threads and open files of the block are closed at its end."""
    threads, files = set(threading.enumerate()), len(list(OPEN_FILES.iterdir()))
    yield
    assert set(threading.enumerate()) <= threads
    assert len(list(OPEN_FILES.iterdir())) <= files


def test_unclosed_client_is_detected(tmp_path):
    with pytest.raises(AssertionError), no_resources_open(), FakeOpenAIServer() as server:
        open_client = client(server.url, tmp_path, retries=0)
        open_client.chat([ask(0)])
    open_client.close()


@pytest.mark.parametrize("callers", mark_long_except(["threads"], ["threads", "one batch"]))
def test_requests_end_in_reply_or_fallback(tmp_path, callers):
    requests = [ask(i) for i in range(REQUESTS)]
    with no_resources_open():
        with FakeOpenAIServer(answer, delay=0.005, fault_rate=0.3, fault_kinds=FAULTS) as server:
            chat = client(server.url, tmp_path, retries=1)
            if callers == "threads":
                with ThreadPoolExecutor(CALLERS) as pool:
                    replies = [reply for [reply] in pool.map(lambda request: chat.chat([request]), requests)]
            else:
                replies = chat.chat(requests)
            metrics = chat.metrics()
            chat.close()
        assert 1 < server.most_in_flight <= CALLERS
    failed = [reply for reply in replies if reply.error]
    # Two faults that pass in a row, or one that does not: about 8 in 100.
    assert 0 < len(failed) < REQUESTS / 5
    assert all(reply.text == "" and reply.attempts == 0 for reply in failed)
    # A cut connection has not one name only.
    assert {"HTTP 401", "HTTP 400", "(tried 2 times)"} == {
        next((name for name in ("HTTP 401", "HTTP 400", "(tried 2 times)") if name in reply.error), reply.error)
        for reply in failed
    }
    faults = {exchange.question: exchange.fault for exchange in server.exchanges if exchange.delivered}
    for request, reply in zip(requests, replies, strict=True):
        if not reply.error:
            assert server.delivered[hash_messages(request.messages)] == 1
            fault = faults[hash_messages(request.messages)]
            assert (reply.text == answer(request.messages)) == (fault in (None, "wrong_usage")), fault
            assert (reply.prompt_tokens == 11) == (fault != "wrong_usage")
    assert set(UNUSUAL_REPLIES) <= set(faults.values())
    record = list(read_calls(tmp_path / "llm_calls.jsonl"))
    calls = [call for call in record if "unsettled" not in call]
    assert len(record) - len(calls) == metrics["usage/llm_unsettled_calls"] > 0
    assert Counter("error" in call for call in calls) == {True: len(failed), False: REQUESTS - len(failed)}
    assert metrics["usage/llm_failed_calls"] == len(failed)
    assert metrics["usage/llm_calls"] == metrics["llm/calls"] == REQUESTS - len(failed)
    assert calls[-1]["spent"]["attempts"] == sum(reply.attempts for reply in replies)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is an optional package")
def test_litellm_propagates_faults(monkeypatch):
    """Each transient fault leads to one retry after the wait that the server requests."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with FakeOpenAIServer(answer, retry_after="0.3") as server:
        provider = make_litellm_model("gpt-4o", "OPENAI_API_KEY", api_base=server.url, timeout=1.0)
        chat = make_client(provider, retry=Retry(1, initial_delay=0.001), failures="fall_back")
        # A time-out of litellm is one of silence, so an answer that trickles in has no end; and it takes some of the
        # wrong usages for errors of the server.
        for i, fault in enumerate(sorted(set(FAULTS) - {"trickle", "wrong_usage"})):
            server.forget()
            server.faults.append(fault)
            [reply] = chat.chat([ask(i)])
            assert len(server.requests) == 1 + (fault in TRANSIENT_FAULTS), (fault, reply)
            assert bool(reply.error) == (fault in PERMANENT_FAULTS), (fault, reply)
            assert (reply.text == f"answer {i}") == (fault in TRANSIENT_FAULTS), (fault, reply)
            if fault == "429-after":
                assert server.times[1] - server.times[0] >= 0.3


@pytest.mark.parametrize("limit", [{"calls": 100}, {"usd": 0.3}])
def test_budget_bounds_all_threads(tmp_path, limit):
    """Rejected requests release their reservations; lost replies do not."""
    kinds = ("429", "500", "503", "529", "reset", "reset-midway", "truncated", "malformed", "no_choices", "400-echo")
    with FakeOpenAIServer(answer, fault_rate=0.3, fault_kinds=kinds) as server:
        provider = make_openai_model(server.url, "fake-model", max_tokens=5000, input_price=1.0, output_price=2.0)
        budget = Budget(**limit)
        chat = make_client(
            provider, retry=Retry(1, 0.001), limits=RateLimit(CALLERS), budget=budget, failures="fall_back"
        )
        with pytest.raises(BudgetExhausted, match=rf"llm\.budget\.{next(iter(limit))}="):
            chat.chat([ask(i) for i in range(300)])
        chat.close()
    totals, n_lost = budget.usage, sum(exchange.fault in LOSSES for exchange in server.exchanges)
    assert totals.unsettled == n_lost > 0 and totals.calls == server.delivered.total()
    reservation = provider.cost(provider.count_tokens(ask(300).messages), 5000)
    assert totals.cost == pytest.approx(totals.calls * 25e-6)
    assert totals.unsettled_cost == pytest.approx(n_lost * reservation, rel=1e-3)
    if "calls" in limit:
        assert totals.calls + n_lost == limit["calls"]
    else:
        assert limit["usd"] - reservation < totals.cost + totals.unsettled_cost <= limit["usd"]


class Number(BaseModel):
    number: int


def test_questions_end_in_value_or_none(tmp_path):
    def number(messages):
        return json.dumps({"number": int(messages[0]["content"].split()[1])})

    with no_resources_open(), FakeOpenAIServer(number, fault_rate=0.3, fault_kinds=FAULTS, seed=1) as server:
        chat = client(server.url, tmp_path, retries=1)
        asker = StructuredQuery(
            chat,
            "test",
            lambda reply: parse_object(reply.text, Number).number,
            lambda fault: Prompt(f"That is wrong: {fault}"),
            json_schema(Number),
            repair_turns=1,
        )
        values = asker.ask([Prompt(f"question {i}") for i in range(REQUESTS)])
        chat.close()
    n_missing = values.count(None)
    assert [value for value in values if value is not None] == [i for i, value in enumerate(values) if value == i]
    counters, failed = asker.counters, chat.metrics()["usage/llm_failed_calls"]
    assert 0 < n_missing == counters["fallbacks"] < REQUESTS / 5
    # A failed call ends its question at once; an invalid reply has one more chance, which may come to nothing.
    assert counters["repairs"] > 0 and failed > 0
    assert counters["invalid_replies"] + counters["repairs"] <= REQUESTS
    assert counters["invalid_replies"] >= failed
    lines = [call for call in read_calls(tmp_path / "llm_calls.jsonl") if "unsettled" not in call]
    invalid = sum(not call["valid"] for call in lines if "error" not in call)
    assert counters["invalid_replies"] == invalid + sum("error" in call for call in lines)
    assert "llm/prompt_tokens" not in chat.metrics(), "some replies did not tell their tokens"


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(url, folder, results):
    """Send 2,500 requests and report the memory after 500 and after all, the failures and the remaining threads."""
    logging.disable(logging.WARNING)  # a line for every fault
    chat = client(url, folder, retries=20, timeout=0.3)
    failed, sizes = 0, []
    for i in range(0, 2500, 500):
        failed += sum(bool(reply.error) for reply in chat.chat([ask(j) for j in range(i, i + 500)]))
        sizes.append(resident())
    chat.close()
    results.put((sizes[0], sizes[-1], failed, threading.active_count()))


@pytest.mark.long
@pytest.mark.slow
def test_memory_stays_flat(tmp_path):
    """Uses a separate process, so that the memory excludes the server and earlier tests."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with FakeOpenAIServer(answer, retry_after="0.01", fault_rate=0.3, fault_kinds=TRANSIENT_FAULTS) as server:
        process = context.Process(target=soak, args=(server.url, tmp_path, results))
        process.start()
        process.join()
        assert process.exitcode == 0
        initial, after, failed, threads = results.get()
        assert sum(exchange.fault == "huge" for exchange in server.exchanges) > 20
    assert failed == 0 and threads == 1
    assert len(server.delivered) == 2500
    assert after - initial < GROWTH, f"{initial / 2**20:.1f} MiB became {after / 2**20:.1f} MiB"
