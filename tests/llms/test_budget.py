import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import BudgetExhausted, ConfigError, LLMError
from llmrl.core.records import ChatReply
from llmrl.llms.budget import Budget, Usage
from llmrl.llms.rate_limit import RateLimit
from models import EchoProvider, make_client, make_request


def exhaust_budget(client, n=1):
    with pytest.raises(BudgetExhausted) as error:
        client.chat([make_request(f"{i}") for i in range(n)])
    return str(error.value)


def test_calls():
    model = EchoProvider()
    client = make_client(model, budget=Budget(calls=3))
    client.chat([make_request("a"), make_request("b")])
    message = exhaust_budget(client, 4)
    assert "llm.budget.calls=3" in message
    assert len(model.asked) == 3, "what fits is asked, and not one more"


def test_budget_reserves_longest_reply():
    # Prompt: 1 token and 4 around it; reply: at most 100, in fact 2.
    client = make_client(EchoProvider(max_tokens=100, reply={"prompt_tokens": 5}), budget=Budget(tokens=120))
    client.chat([make_request("a"), make_request("b")])
    assert replace(client.budget.usage, seconds=0.0) == Usage(2, 2, 0, 14, pytest.approx(18e-6), 0, 0)
    assert "usage/llm_unsettled_tokens" not in client.metrics()
    client.chat([make_request("c")])
    assert "llm.budget.tokens=120, spent 21," in exhaust_budget(client)
    client = make_client(EchoProvider(max_tokens=100), budget=Budget(usd=0.0003))
    client.chat([make_request("a")])
    reply = ChatReply("", prompt_tokens=1, completion_tokens=1, cost=5e-6)
    for _ in range(20):
        client.budget.settle(client.budget.reserve(make_request("a"), client.provider), reply)
    assert "llm.budget.usd=0.0003, spent 0.000107," in exhaust_budget(client)


def test_zero_budget_makes_no_request():
    for budget in (Budget(calls=0), Budget(tokens=0), Budget(usd=0.0)):
        model = EchoProvider(max_tokens=100_000)
        exhaust_budget(make_client(model, budget=budget))
        assert model.asked == []


def test_free_models_spend_no_money():
    client = make_client(EchoProvider(input_price=0.0, output_price=0.0), budget=Budget(usd=0.0))
    client.chat([make_request("a")])
    assert client.metrics()["usage/llm_cost"] == 0.0


def test_rejected_calls_are_free():
    model = EchoProvider(fail={"a": LLMError("no", refused=True)})
    client = make_client(model, budget=Budget(calls=1))
    for _ in range(3):
        with pytest.raises(LLMError, match="no"):
            client.chat([make_request("a")])
    client.chat([make_request("b")])
    assert client.budget.usage.failed == 3 and client.budget.usage.calls == 1


def test_dollars_need_prices():
    with pytest.raises(ConfigError, match=r"llm.budget.usd=5.*llm.input_price"):
        make_client(EchoProvider(input_price=None), budget=Budget(usd=5.0)).check()


def test_local_batch_respects_budget():
    model = EchoProvider(remote=False)
    exhaust_budget(make_client(model, budget=Budget(calls=2)), 5)
    assert len(model.asked) == 2


@given(st.integers(0, 40), st.integers(1, 8), st.integers(1, 60))
@settings(max_examples=25)
def test_threads_respect_limit(calls, concurrency, n):
    model = EchoProvider()
    client = make_client(model, budget=Budget(calls=calls), limits=RateLimit(concurrency))
    outcomes = []

    def work(i):
        try:
            outcomes.append(len(client.chat([make_request(f"{i}-{j}") for j in range(3)])))
        except BudgetExhausted:
            outcomes.append(0)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n // 3 + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    assert len(model.asked) == min(calls, 3 * len(threads)) == client.budget.usage.calls
