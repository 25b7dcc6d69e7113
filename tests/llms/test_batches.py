"""Requests that go into batches: all that wait at once, at half the price, each paid once whatever goes wrong."""

import importlib.util
import itertools
import json
import logging
import threading
import time

import pytest

from batching import KEY, PROVIDERS, batched, echoing, make_provider, pending_batches
from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import CHOSEN, CallEstimate
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.plan import calls, costs
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.rate_limit import RateLimit
from models import ask, litellm_model
from some import one_in, some

pytestmark = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional")
all_providers = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("BATCH_KEY", KEY)


def questions(n, first=0):
    return [ask(f"question {i}") for i in range(first, first + n)]


def texts(replies):
    return [reply.text for reply in replies]


def answers(n, first=0):
    return [f"re: question {i}" for i in range(first, first + n)]


@all_providers
def test_requests_form_half_price_batch(tmp_path, provider):
    with echoing(provider) as server:
        client = batched(server, tmp_path)
        client.check()
        batch = client.chat(questions(7))
        single = ChatClient(make_provider(server, batch=False)).chat(questions(7))
    assert texts(batch) == texts(single) == answers(7)
    assert server.sizes == [7] and server.singles == 7
    assert [reply.prompt_tokens for reply in batch] == [reply.prompt_tokens for reply in single]
    assert [reply.cost for reply in batch] == [reply.cost / 2 for reply in single]
    assert client.budget.spent.cost == pytest.approx(7 * (11 * 1.0 + 7 * 2.0) / 1e6 / 2)
    assert client.budget.spent.calls == 7 and client.budget.spent.unsettled == 0
    logged = list(read_calls(client.ledger.path))
    assert [call["cost"] for call in logged] == [reply.cost for reply in batch]
    assert not pending_batches(tmp_path)
    # What was asked is in the cache.
    assert texts(batched(server, tmp_path, "again").chat(questions(7))) == answers(7)


@pytest.mark.parametrize("provider", some(["openai"], PROVIDERS))
def test_concurrent_requests_share_batch(tmp_path, provider):
    """Runs of one process, and threads of one run."""
    with echoing(provider) as server:
        clients = [batched(server, tmp_path, f"run{i}", provider={"batch_gather": 2.0}, stream=i) for i in range(3)]
        replies = {}
        threads = [
            threading.Thread(target=lambda i=i: replies.update({i: clients[i % 3].chat(questions(2, 2 * i))}))
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(server.sizes) == 12 and len(server.sizes) < 3  # all at once, unless the machine is very busy
    assert all(texts(replies[i]) == answers(2, 2 * i) for i in range(6))
    assert [client.budget.spent.calls for client in clients] == [4, 4, 4]


def test_equal_requests_cost_only_single_price(tmp_path):
    """One of two runs that share replies pays, and the other one reads the cache."""
    with echoing("openai") as server:
        clients = [batched(server, tmp_path, f"run{i}", stream=None) for i in range(2)]
        replies = {}
        threads = [
            threading.Thread(target=lambda i=i: replies.update({i: clients[i].chat(questions(5))})) for i in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.answered.total() == 5 and texts(replies[0]) == texts(replies[1]) == answers(5)
    totals = [client.budget.spent for client in clients]
    assert sum(usage.calls for usage in totals) == 5 and sum(usage.unsettled for usage in totals) == 0


def test_second_process_waits_for_pending_batch(tmp_path):
    """A desk of its own, as a process has one, finds beside the cache that its requests are being made."""
    with echoing("openai") as server:
        server.hold.set()
        first, second = batched(server, tmp_path, "a"), batched(server, tmp_path, "b", provider={"batch_poll": 0.03})
        replies = {}

        def chat(name, client):
            replies[name] = client.chat(questions(4))

        threads = [
            threading.Thread(target=chat, args=(name, questions)) for name, questions in (("a", first), ("b", second))
        ]
        threads[0].start()
        while "look" not in server.asked:
            time.sleep(0.01)
        threads[1].start()
        while len(list(second.ledger.path.open())) < 4:
            time.sleep(0.01)
        server.hold.clear()
        for thread in threads:
            thread.join()
    assert server.sizes == [4] and texts(replies["a"]) == texts(replies["b"]) == answers(4)
    assert not pending_batches(tmp_path)


@all_providers
@pytest.mark.parametrize("fate", ["errored", "expired"])
def test_transient_errors_are_resent(tmp_path, provider, fate):
    fates = {f"question {i}": fate for i in (1, 3)}
    with echoing(provider, fate=lambda messages: fates.pop(messages[-1]["content"], "succeeded")) as server:
        client = batched(server, tmp_path)
        assert texts(client.chat(questions(5))) == answers(5)
    assert server.sizes == [5, 2] and server.answered.total() == 5
    assert client.budget.spent.calls == 5 and client.budget.spent.unsettled == 0
    assert client.budget.spent.attempts == 7 and client.budget.spent.failed == 0


@all_providers
@pytest.mark.parametrize(("fate", "batches"), [("errored", 3), ("expired", 3), ("invalid", 1), ("canceled", 1)])
def test_permanent_error_is_reported(tmp_path, provider, fate, batches):
    """The others are paid and kept; the error is the provider's, without the key that it quotes."""
    with echoing(provider, fate=lambda m: fate if m[-1]["content"] == "question 1" else "succeeded") as server:
        client = batched(server, tmp_path, retries=2)
        patterns = {"errored": "500|errored", "expired": "expired", "invalid": "400|errored", "canceled": "cancell?ed"}[
            fate
        ]
        with pytest.raises(LLMError, match=patterns) as error:
            client.chat(questions(3))
        assert "1 of 3 requests failed" in str(error.value) and KEY not in str(error.value)
        assert server.sizes == [3] + [1] * (batches - 1)
        assert (client.budget.spent.calls, client.budget.spent.failed, client.budget.spent.unsettled) == (2, 1, 0)
        [failed] = [call for call in read_calls(client.ledger.path) if "error" in call]
        assert failed["messages"][0]["content"] == "question 1" and KEY not in failed["error"]
        assert texts(batched(server, tmp_path, "other").chat([ask("question 0")])) == answers(1)
    assert not pending_batches(tmp_path)


@pytest.mark.parametrize(
    ("provider", "operation", "fault"),
    one_in(
        3,
        itertools.product(PROVIDERS, ["upload", "create", "look", "fetch"], ["429", "500", "lost", "malformed"]),
    ),
)
def test_passing_faults(tmp_path, provider, operation, fault, caplog):
    """Whatever goes wrong on the way, each reply is paid once."""
    with echoing(provider) as server, caplog.at_level(logging.DEBUG):
        server.faults[operation] += [fault, fault]
        client = batched(server, tmp_path)
        assert texts(client.chat(questions(4))) == answers(4)
    assert KEY not in caplog.text
    assert server.answered.total() == 4, server.sizes
    assert client.budget.spent.calls == 4 and client.budget.spent.unsettled == 0
    assert not pending_batches(tmp_path)


@all_providers
def test_unacknowledged_batch_is_recovered(tmp_path, provider):
    """Also if looking for it goes wrong at first, and beside others of the account."""
    with echoing(provider) as server:
        server.made({"another": {"messages": []}})
        server.faults["create"] += ["lost"]
        server.faults["list"] += ["500"]
        assert texts(batched(server, tmp_path).chat(questions(4))) == answers(4)
    assert server.sizes == [1, 4] and server.asked.count("create") == 1


def test_foreign_batch_with_equal_size_is_ignored(tmp_path):
    """Anthropic's batches have no mark of who made them: what is in them tells."""
    with echoing("anthropic") as server:
        for i in range(2):
            server.made({f"another{i}": {"messages": [{"content": "x"}], "model": "m"}})
        server.faults["create"] += ["500", "lost"]
        assert texts(batched(server, tmp_path).chat(questions(1))) == answers(1)
    assert server.answered["question 0"] == 1


@all_providers
def test_invalid_key_raises(tmp_path, provider):
    with echoing(provider, key="another") as server:
        client = batched(server, tmp_path)
        with pytest.raises(LLMError, match=r"HTTP 401.*redacted") as error:
            client.chat(questions(2))
    assert KEY not in str(error.value) and not server.batches and not pending_batches(tmp_path)
    assert client.budget.spent.unsettled == 0 and client.budget.spent.failed == 2


@all_providers
def test_missing_batch_is_recreated(tmp_path, provider):
    with echoing(provider) as server:
        server.faults["look"] += ["404"]
        assert texts(batched(server, tmp_path).chat(questions(2))) == answers(2)
    assert server.sizes == [2, 2]


@pytest.mark.parametrize(("reason", "sizes"), [("token_limit_exceeded", [2, 2, 2]), ("invalid_json_line", [2])])
def test_batch_failure(tmp_path, reason, sizes):
    """Too much under way passes; what is wrong with a batch does not."""
    with echoing("openai", ends="failed") as server:
        server.reason = reason
        client = batched(server, tmp_path, retries=2)
        with pytest.raises(LLMError, match=f"the batch failed: {reason}: no"):
            client.chat(questions(2))
    assert server.sizes == sizes and client.budget.spent.unsettled == 0


def test_expired_batch_keeps_partial_replies(tmp_path):
    with echoing("openai", ends="expired") as server:
        client = batched(server, tmp_path, retries=1, failures="fall_back")
        replies = client.chat(questions(2))
    assert all("batch_expired" in reply.error for reply in replies) and server.sizes == [2, 2]


@pytest.mark.parametrize("provider", some(["anthropic"], PROVIDERS))
def test_budget_counts_half_price(tmp_path, provider):
    """Each may come to 100 tokens of reply and a prompt of a few; what replies did not take is spent on the rest."""
    with echoing(provider) as server:
        first = batched(server, tmp_path, "one")
        cost = first.budget.reserve(ask("question 0"), first.provider).cost
        assert cost == pytest.approx(make_provider(server, batch=False).cost(token_counts(first), 100) / 2)
        client = batched(server, tmp_path, "run", budget=Budget(usd=5.5 * cost))
        assert texts(client.chat(questions(12))) == answers(12)
        assert server.sizes[0] == 5 and sum(server.sizes) == 12
        limited = batched(server, tmp_path, "few", budget=Budget(calls=3), stream=1)
        with pytest.raises(BudgetExhausted, match="calls=3"):
            limited.chat(questions(5))
        assert limited.budget.spent.calls == 3 and server.sizes[-1] == 3


def token_counts(client):
    return client.provider.count_tokens(ask("question 0").messages)


def test_large_batches_are_split(tmp_path, monkeypatch):
    from llmrl.llms.batches.batch_api import OpenAIBatches

    monkeypatch.setattr(OpenAIBatches, "max_requests", 3)
    with echoing("openai") as server:
        assert texts(batched(server, tmp_path).chat(questions(7))) == answers(7)
        monkeypatch.setattr(OpenAIBatches, "max_requests", 100)
        monkeypatch.setattr(OpenAIBatches, "max_bytes", 1000)
        batched(server, tmp_path).chat([ask(f"{i}" + "x" * 300) for i in range(3)])
    assert server.sizes == [3, 3, 1, 1, 1, 1]


def test_two_models_wait_concurrently(tmp_path):
    with echoing("openai") as openai_server, echoing("anthropic") as anthropic_server:
        extra_providers = {"other": (make_provider(anthropic_server), RateLimit())}
        client = batched(openai_server, tmp_path, others=extra_providers)
        for server in (openai_server, anthropic_server):
            server.hold.set()
        threading.Timer(0.5, anthropic_server.hold.clear).start()
        threading.Timer(1.0, openai_server.hold.clear).start()
        requests = [ask(f"question {i}", model="other" if i % 2 else CHOSEN) for i in range(6)]
        assert texts(client.chat(requests)) == answers(6)
    assert openai_server.sizes == anthropic_server.sizes == [3]
    assert client.budget.spent.calls == 6


def test_plan_states_half_price(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    words = ("env=escape_room", "principal=llm", "design.steps=6", "llm=gpt4o")
    plans = [dict(Experiment.compose(*words, *words_).plan()) for words_ in ((), ("llm.batch=true",))]
    dollars = [float(plan["  cost"].split("$")[1].split(",")[0]) for plan in plans]
    assert dollars[1] == pytest.approx(dollars[0] / 2, rel=0.01) and "half the price" in plans[1]["  batches"]
    model = litellm_model("gpt-4o", "OPENAI_API_KEY", batch=True, input_price=1.0, output_price=1.0, max_tokens=10)
    client = ChatClient(model, Cache(tmp_path))
    estimate = CallEstimate(10, 10, 10**6, 10**6)
    assert costs(estimate, client) == (1.0, pytest.approx(0.50005)) and dict(calls(estimate, client))["  batches"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llm=gemini_flash",), "gemini"),
        (("llm=grok",), "grok"),
        (("llm=gpt4o", "llm.cache=off"), "llm.batch=true.*llm.cache=readwrite"),
        (("llm=openai_compatible",), "'batch'"),
        (("llm=gpt4o", "llm.batch_poll=0"), "llm.batch_poll=0"),
        (("llm=gpt4o", "llm.batch_gather=-1"), "llm.batch_gather=-1"),
    ],
)
def test_unsupported_settings_raise_early(monkeypatch, words, message):
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "XAI_API_KEY"):
        monkeypatch.setenv(name, "sk-nothing")
    with pytest.raises(ConfigError, match=message):
        Experiment.compose("env=escape_room", "principal=llm", "++llm.batch=true", *words).check()


def test_batch_files_contain_no_secret(tmp_path):
    """Beside the cache are addresses, names and what was set aside."""
    with echoing("openai") as server:
        server.hold.set()
        client = batched(server, tmp_path)
        thread = threading.Thread(target=client.chat, args=(questions(3),))
        thread.start()
        while not [path for path in pending_batches(tmp_path) if json.loads(path.read_text())["batches"]]:
            time.sleep(0.01)
        [path] = pending_batches(tmp_path)
        content = path.read_text()
        server.hold.clear()
        thread.join()
    assert KEY not in content and "question" not in content
    assert set(json.loads(content)) == {"account", "requests", "time", "uploaded", "batches", "n"}
