"""Requests that go into batches: all that wait at once, at half the price, each paid once whatever goes wrong."""

import importlib.util
import json
import logging
import threading
import time

import pytest

from batching import KEY, PROVIDERS, batched, echoing, provider_of, under_way
from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import CHOSEN, CallEstimate
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.plan import calls, costs
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.litellm_chat import LiteLLMChat
from llmrl.llms.rate_limit import RateLimit
from models import ask

pytestmark = pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional")
each_provider = pytest.mark.parametrize("provider", PROVIDERS)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("BATCH_KEY", KEY)


def questions(n, first=0):
    return [ask(f"question {i}") for i in range(first, first + n)]


def texts(replies):
    return [reply.text for reply in replies]


def answers(n, first=0):
    return [f"re: question {i}" for i in range(first, first + n)]


@each_provider
def test_requests_are_one_batch_at_half_the_price(tmp_path, provider):
    with echoing(provider) as server:
        client = batched(server, tmp_path)
        client.check()
        batch = client.chat(questions(7))
        single = ChatClient(provider_of(server, batch=False)).chat(questions(7))
    assert texts(batch) == texts(single) == answers(7)
    assert server.sizes == [7] and server.singles == 7
    assert [reply.prompt_tokens for reply in batch] == [reply.prompt_tokens for reply in single]
    assert [reply.cost for reply in batch] == [reply.cost / 2 for reply in single]
    assert client.budget.spent.cost == pytest.approx(7 * (11 * 1.0 + 7 * 2.0) / 1e6 / 2)
    assert client.budget.spent.calls == 7 and client.budget.spent.unsettled == 0
    logged = list(read_calls(client.ledger.path))
    assert [call["cost"] for call in logged] == [reply.cost for reply in batch]
    assert not under_way(tmp_path)
    # What was asked is in the cache.
    assert texts(batched(server, tmp_path, "again").chat(questions(7))) == answers(7)


@each_provider
def test_who_asks_at_the_same_time_shares_a_batch(tmp_path, provider):
    """Runs of one process, and threads of one run."""
    with echoing(provider) as server:
        clients = [batched(server, tmp_path, f"run{i}", provider={"batch_gather": 2.0}, stream=i) for i in range(3)]
        found = {}
        threads = [
            threading.Thread(target=lambda i=i: found.update({i: clients[i % 3].chat(questions(2, 2 * i))}))
            for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(server.sizes) == 12 and len(server.sizes) < 3  # all at once, unless the machine is very busy
    assert all(texts(found[i]) == answers(2, 2 * i) for i in range(6))
    assert [client.budget.spent.calls for client in clients] == [4, 4, 4]


def test_equal_requests_of_two_runs_are_paid_once(tmp_path):
    """Where they share replies: one run pays, and the other has what is in the cache."""
    with echoing("openai") as server:
        clients = [batched(server, tmp_path, f"run{i}", stream=None) for i in range(2)]
        found = {}
        threads = [
            threading.Thread(target=lambda i=i: found.update({i: clients[i].chat(questions(5))})) for i in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert server.answered.total() == 5 and texts(found[0]) == texts(found[1]) == answers(5)
    spent = [client.budget.spent for client in clients]
    assert sum(one.calls for one in spent) == 5 and sum(one.unsettled for one in spent) == 0


def test_another_process_waits_for_what_is_under_way(tmp_path):
    """A desk of its own, as a process has one, finds beside the cache that its requests are being made."""
    with echoing("openai") as server:
        server.hold.set()
        first, second = batched(server, tmp_path, "a"), batched(server, tmp_path, "b", provider={"batch_poll": 0.03})
        found = {}

        def chat(name, client):
            found[name] = client.chat(questions(4))

        threads = [threading.Thread(target=chat, args=(name, each)) for name, each in (("a", first), ("b", second))]
        threads[0].start()
        while "look" not in server.asked:
            time.sleep(0.01)
        threads[1].start()
        while len(list(second.ledger.path.open())) < 4:
            time.sleep(0.01)
        server.hold.clear()
        for thread in threads:
            thread.join()
    assert server.sizes == [4] and texts(found["a"]) == texts(found["b"]) == answers(4)
    assert not under_way(tmp_path)


@each_provider
@pytest.mark.parametrize("fate", ["errored", "expired"])
def test_what_passes_is_asked_again(tmp_path, provider, fate):
    fates = {f"question {i}": fate for i in (1, 3)}
    with echoing(provider, fate=lambda messages: fates.pop(messages[-1]["content"], "succeeded")) as server:
        client = batched(server, tmp_path)
        assert texts(client.chat(questions(5))) == answers(5)
    assert server.sizes == [5, 2] and server.answered.total() == 5
    assert client.budget.spent.calls == 5 and client.budget.spent.unsettled == 0
    assert client.budget.spent.attempts == 7 and client.budget.spent.failed == 0


@each_provider
@pytest.mark.parametrize(("fate", "batches"), [("errored", 3), ("expired", 3), ("invalid", 1), ("canceled", 1)])
def test_what_stays_wrong_is_told(tmp_path, provider, fate, batches):
    """The others are paid and kept; the error is the provider's, without the key that it quotes."""
    with echoing(provider, fate=lambda m: fate if m[-1]["content"] == "question 1" else "succeeded") as server:
        client = batched(server, tmp_path, retries=2)
        told = {"errored": "500|errored", "expired": "expired", "invalid": "400|errored", "canceled": "cancell?ed"}[
            fate
        ]
        with pytest.raises(LLMError, match=told) as error:
            client.chat(questions(3))
        assert "1 of 3 requests failed" in str(error.value) and KEY not in str(error.value)
        assert server.sizes == [3] + [1] * (batches - 1)
        assert (client.budget.spent.calls, client.budget.spent.failed, client.budget.spent.unsettled) == (2, 1, 0)
        [failed] = [call for call in read_calls(client.ledger.path) if "error" in call]
        assert failed["messages"][0]["content"] == "question 1" and KEY not in failed["error"]
        assert texts(batched(server, tmp_path, "other").chat([ask("question 0")])) == answers(1)
    assert not under_way(tmp_path)


@each_provider
@pytest.mark.parametrize("operation", ["upload", "create", "look", "fetch"])
@pytest.mark.parametrize("fault", ["429", "500", "lost", "malformed"])
def test_passing_faults(tmp_path, provider, operation, fault, caplog):
    """Whatever goes wrong on the way, each reply is paid once."""
    with echoing(provider) as server, caplog.at_level(logging.DEBUG):
        server.faults[operation] += [fault, fault]
        client = batched(server, tmp_path)
        assert texts(client.chat(questions(4))) == answers(4)
    assert KEY not in caplog.text
    assert server.answered.total() == 4, server.sizes
    assert client.budget.spent.calls == 4 and client.budget.spent.unsettled == 0
    assert not under_way(tmp_path)


@each_provider
def test_a_batch_of_whose_making_nobody_heard_is_found(tmp_path, provider):
    """Also if looking for it goes wrong at first, and beside others of the account."""
    with echoing(provider) as server:
        server.made({"another": {"messages": []}})
        server.faults["create"] += ["lost"]
        server.faults["list"] += ["500"]
        assert texts(batched(server, tmp_path).chat(questions(4))) == answers(4)
    assert server.sizes == [1, 4] and server.asked.count("create") == 1


def test_one_of_as_many_requests_is_not_taken_for_ours(tmp_path):
    """Anthropic's batches have no mark of who made them: what is in them tells."""
    with echoing("anthropic") as server:
        for i in range(2):
            server.made({f"another{i}": {"messages": [{"content": "x"}], "model": "m"}})
        server.faults["create"] += ["500", "lost"]
        assert texts(batched(server, tmp_path).chat(questions(1))) == answers(1)
    assert server.answered["question 0"] == 1


@each_provider
def test_a_refused_key_ends_it(tmp_path, provider):
    with echoing(provider, key="another") as server:
        client = batched(server, tmp_path)
        with pytest.raises(LLMError, match=r"HTTP 401.*redacted") as error:
            client.chat(questions(2))
    assert KEY not in str(error.value) and not server.batches and not under_way(tmp_path)
    assert client.budget.spent.unsettled == 0 and client.budget.spent.failed == 2


@each_provider
def test_a_batch_that_the_provider_has_no_more_is_made_anew(tmp_path, provider):
    with echoing(provider) as server:
        server.faults["look"] += ["404"]
        assert texts(batched(server, tmp_path).chat(questions(2))) == answers(2)
    assert server.sizes == [2, 2]


@pytest.mark.parametrize(("reason", "sizes"), [("token_limit_exceeded", [2, 2, 2]), ("invalid_json_line", [2])])
def test_a_batch_that_failed_as_a_whole(tmp_path, reason, sizes):
    """Too much under way passes; what is wrong with a batch does not."""
    with echoing("openai", ends="failed") as server:
        server.reason = reason
        client = batched(server, tmp_path, retries=2)
        with pytest.raises(LLMError, match=f"the batch failed: {reason}: no"):
            client.chat(questions(2))
    assert server.sizes == sizes and client.budget.spent.unsettled == 0


def test_a_batch_that_expires_keeps_what_it_has(tmp_path):
    with echoing("openai", ends="expired") as server:
        client = batched(server, tmp_path, retries=1, failures="fall_back")
        replies = client.chat(questions(2))
    assert all("batch_expired" in reply.error for reply in replies) and server.sizes == [2, 2]


@each_provider
def test_a_budget_counts_half_the_price_and_sends_what_fits(tmp_path, provider):
    """Each may come to 100 tokens of reply and a prompt of a few; what replies did not take is spent on the rest."""
    with echoing(provider) as server:
        one = batched(server, tmp_path, "one")
        each = one.budget.reserve(ask("question 0"), one.provider).cost
        assert each == pytest.approx(provider_of(server, batch=False).cost(each_tokens(one), 100) / 2)
        client = batched(server, tmp_path, "run", budget=Budget(usd=5.5 * each))
        assert texts(client.chat(questions(12))) == answers(12)
        assert server.sizes[0] == 5 and sum(server.sizes) == 12
        few = batched(server, tmp_path, "few", budget=Budget(calls=3), stream=1)
        with pytest.raises(BudgetExhausted, match="calls=3"):
            few.chat(questions(5))
        assert few.budget.spent.calls == 3 and server.sizes[-1] == 3


def each_tokens(client):
    return client.provider.count_tokens(ask("question 0").messages)


def test_large_batches_are_divided(tmp_path, monkeypatch):
    from llmrl.llms.batches.batch_api import OpenAIBatches

    monkeypatch.setattr(OpenAIBatches, "most", 3)
    with echoing("openai") as server:
        assert texts(batched(server, tmp_path).chat(questions(7))) == answers(7)
        monkeypatch.setattr(OpenAIBatches, "most", 100)
        monkeypatch.setattr(OpenAIBatches, "most_bytes", 1000)
        batched(server, tmp_path).chat([ask(f"{i}" + "x" * 300) for i in range(3)])
    assert server.sizes == [3, 3, 1, 1, 1, 1]


def test_two_models_wait_side_by_side(tmp_path):
    with echoing("openai") as one, echoing("anthropic") as other:
        beside = {"other": (provider_of(other), RateLimit())}
        client = batched(one, tmp_path, others=beside)
        for server in (one, other):
            server.hold.set()
        threading.Timer(0.5, other.hold.clear).start()
        threading.Timer(1.0, one.hold.clear).start()
        asked = [ask(f"question {i}", model="other" if i % 2 else CHOSEN) for i in range(6)]
        assert texts(client.chat(asked)) == answers(6)
    assert one.sizes == other.sizes == [3]
    assert client.budget.spent.calls == 6


def test_a_plan_is_at_half_the_price(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nothing")
    words = ("env=escape_room", "principal=llm", "design.steps=6", "llm=gpt4o")
    plans = [dict(Experiment.compose(*words, *more).plan()) for more in ((), ("llm.batch=true",))]
    dollars = [float(plan["  cost"].split("$")[1].split(",")[0]) for plan in plans]
    assert dollars[1] == pytest.approx(dollars[0] / 2, rel=0.01) and "half the price" in plans[1]["  batches"]
    model = LiteLLMChat("gpt-4o", "OPENAI_API_KEY", batch=True, input_price=1.0, output_price=1.0, max_tokens=10)
    client = ChatClient(model, Cache(tmp_path))
    estimate = CallEstimate(10, 10, 10**6, 10**6)
    assert costs(estimate, client) == (1.0, pytest.approx(0.50005)) and dict(calls(estimate, client))["  batches"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llm=gemini_flash",), "gemini.* has no batch API that is known here"),
        (("llm=grok",), "grok.* has no batch API that is known here"),
        (("llm=gpt4o", "llm.cache=off"), "llm.batch=true needs llm.cache=readwrite"),
        (("llm=openai_compatible",), "llm has no option 'batch'"),
        (("llm=gpt4o", "llm.batch_poll=0"), "llm.batch_poll=0"),
        (("llm=gpt4o", "llm.batch_gather=-1"), "llm.batch_gather=-1"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_asked(monkeypatch, words, message):
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "XAI_API_KEY"):
        monkeypatch.setenv(name, "sk-nothing")
    with pytest.raises(ConfigError, match=message):
        Experiment.compose("env=escape_room", "principal=llm", "++llm.batch=true", *words).check()


def test_what_is_written_down_says_no_secret(tmp_path):
    """Beside the cache are addresses, names and what was set aside."""
    with echoing("openai") as server:
        server.hold.set()
        client = batched(server, tmp_path)
        thread = threading.Thread(target=client.chat, args=(questions(3),))
        thread.start()
        while not [path for path in under_way(tmp_path) if json.loads(path.read_text())["batches"]]:
            time.sleep(0.01)
        [path] = under_way(tmp_path)
        written = path.read_text()
        server.hold.clear()
        thread.join()
    assert KEY not in written and "question" not in written
    assert set(json.loads(written)) == {"account", "requests", "time", "uploaded", "batches", "n"}
