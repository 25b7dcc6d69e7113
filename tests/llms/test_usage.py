"""Usage of replies and of attempts without a reply, the names of its metrics, and limits."""

import re
from dataclasses import replace

import pytest

from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.records import ChatReply
from llmrl.llms.budget import Budget, Reservation, Usage
from models import EchoProvider, make_request

INITIAL = Usage(10, 20, 3, 400, 5.0, 6, 7, 8.0, 9, 1000, 11.0)
"""Each field differs from what it would be if it were counted anew."""
RESERVED = Reservation(70, 0.5)


def reply(prompt=30, completion=12, cost=0.25, latency=1.5, attempts=2):
    return ChatReply(
        "", prompt_tokens=prompt, completion_tokens=completion, cost=cost, latency=latency, attempts=attempts
    )


def test_reply_adds_usage():
    after = INITIAL.with_reply(reply(), RESERVED)
    assert after == Usage(11, 22, 3, 442, 5.25, 6, 7, 9.5, 9, 1000, 11.0)


def test_replay_is_free():
    assert INITIAL.with_reply(reply(attempts=0), RESERVED) == INITIAL


@pytest.mark.parametrize(("prompt", "completion", "total_tokens"), [(None, 12, 12), (30, None, 30), (None, None, 0)])
def test_unknown_tokens_use_reservation(prompt, completion, total_tokens):
    after = INITIAL.with_reply(reply(prompt, completion), RESERVED)
    assert (after.tokens, after.unknown_tokens, after.unsettled_tokens) == (400 + total_tokens, 7, 1070)
    assert (after.cost, after.unknown_costs, after.unsettled_cost) == (5.25, 7, 11.0)


def test_unknown_cost_uses_reservation():
    after = INITIAL.with_reply(reply(cost=None), RESERVED)
    assert (after.cost, after.unknown_costs, after.unsettled_cost) == (5.0, 8, 11.5)
    assert (after.tokens, after.unknown_tokens, after.unsettled_tokens) == (442, 6, 1000)
    assert INITIAL.with_reply(reply(cost=None), Reservation(70, None)).unsettled_cost == 11.0
    assert INITIAL.with_reply(reply(cost=0.0), RESERVED).unknown_costs == 7


def test_failures_add_reservation():
    after = INITIAL.with_lost_attempts([RESERVED, Reservation(5, None)])
    assert after == replace(INITIAL, unsettled=11, unsettled_tokens=1075, unsettled_cost=11.5)
    assert INITIAL.with_lost_attempts(iter([])) == INITIAL


def test_metric_names():
    complete = replace(INITIAL, unknown_tokens=0, unknown_costs=0)
    assert complete.metrics(are_prices_known=True) == {
        "time/llm_latency": 8.0,
        "usage/llm_calls": 10.0,
        "usage/llm_attempts": 20.0,
        "usage/llm_failed_calls": 3.0,
        "usage/llm_unsettled_calls": 9.0,
        "usage/llm_unsettled_tokens": 1000.0,
        "usage/llm_unsettled_cost": 11.0,
        "usage/llm_tokens": 400.0,
        "usage/llm_cost": 5.0,
    }
    assert all(type(value) is float for value in complete.metrics(are_prices_known=True).values())


def test_unknown_usage_is_not_logged():
    full = set(replace(INITIAL, unknown_tokens=0, unknown_costs=0).metrics(are_prices_known=True))
    assert full - set(replace(INITIAL, unknown_costs=0).metrics(are_prices_known=True)) == {"usage/llm_tokens"}
    assert full - set(replace(INITIAL, unknown_tokens=0).metrics(are_prices_known=True)) == {"usage/llm_cost"}
    complete = replace(INITIAL, unknown_tokens=0, unknown_costs=0)
    assert full - set(complete.metrics(are_prices_known=False)) == {"usage/llm_unsettled_cost"}
    no_losses = replace(complete, unsettled_tokens=0)
    assert full - set(no_losses.metrics(are_prices_known=True)) == {
        "usage/llm_unsettled_tokens",
        "usage/llm_unsettled_cost",
    }


MODEL = EchoProvider(
    max_tokens=100
)  # the prompt "a" has 5 tokens: 105 are reserved; US dollars 1 and 2 per million tokens


def open_attempt(budget):
    return budget.reserve(make_request("a"), MODEL)


def test_attempt_spans_send_to_reply():
    budget = Budget()
    first, second = open_attempt(budget), open_attempt(budget)
    assert first.id != second.id and len(first.id) == 16
    assert (first.tokens, first.cost) == (105, MODEL.cost(5, 100))
    assert budget.compute_worst_case_usage() == Usage(), "nothing is sent"
    budget.mark_sent(first)
    assert budget.compute_worst_case_usage() == Usage(unsettled=1, unsettled_tokens=105, unsettled_cost=first.cost)
    assert budget.usage == Usage()
    assert budget.settle(first, reply()) is True
    assert budget.compute_worst_case_usage() == budget.usage == Usage().with_reply(reply(), first)
    assert budget.settle(first, reply()) is False, "a reply counts once"
    assert budget.usage.calls == 1
    budget.mark_sent(first)
    assert budget.compute_worst_case_usage() == budget.usage, "what is settled is not sent again"
    assert budget.settle(second, reply(prompt=None)) is True
    assert budget.usage == Usage().with_reply(reply(), first).with_reply(reply(prompt=None), second)


def test_rejected_attempt_leaves_no_trace():
    budget = Budget(tokens=105)
    first = open_attempt(budget)
    with pytest.raises(BudgetExhausted):
        open_attempt(budget)
    budget.mark_sent(first)
    budget.release(first)
    assert budget.compute_worst_case_usage() == Usage()
    assert budget.settle(first, reply()) is False and budget.usage == Usage()
    open_attempt(budget)


def test_abandonment_counts_after_send():
    budget = Budget()
    attempt, second_attempt, unsent = open_attempt(budget), open_attempt(budget), open_attempt(budget)
    budget.mark_sent(attempt)
    budget.mark_sent(second_attempt)
    budget.abandon(attempt)
    total = Usage().with_lost_attempts([attempt])
    assert budget.usage == total
    budget.abandon(attempt)
    assert budget.usage == total, "it is lost once"
    assert budget.settle(attempt, reply()) is False
    budget.abandon(second_attempt)
    budget.abandon(unsent)
    assert budget.usage == total.with_lost_attempts([second_attempt]) == budget.compute_worst_case_usage()
    assert budget.settle(unsent, reply()) is False, "it was released"


def test_calls_with_no_reply():
    budget = Budget()
    budget.record_failed_calls(2)
    budget.record_failed_calls(3)
    assert budget.usage == Usage(failed=5)


@pytest.mark.parametrize("limit", ["calls", "tokens", "usd"])
def test_single_limit_suffices(limit):
    assert not Budget().has_limits and Budget(**{limit: 0}).has_limits


@pytest.mark.parametrize("price", ["input_price", "output_price"])
def test_only_dollar_limit_needs_prices(price):
    unpriced = EchoProvider(**{price: None})
    Budget(calls=1, tokens=1).check_prices(unpriced)
    Budget(usd=0.0).check_prices(EchoProvider())
    with pytest.raises(ConfigError, match="usd=0"):
        Budget(usd=0.0).check_prices(unpriced)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"calls": 1012}, "llm.budget.calls=1,012, spent 1,000 .* 12 .* 1[.]"),
        ({"tokens": 3104}, "llm.budget.tokens=3,104, spent 2,000 .* 1,000 .* 105[.]"),
        ({"usd": 1.5}, "llm.budget.usd=1.5, spent 1 .* 0.5 .* 0.000205[.]"),
    ],
)
def test_missing_replies_warn(limits, message):
    totals = Usage(calls=1000, tokens=2000, cost=1.0, unsettled=12, unsettled_tokens=1000, unsettled_cost=0.5)
    budget = Budget(**limits)
    budget.usage = totals
    (name,) = limits
    with pytest.raises(BudgetExhausted, match=f"{message}.*larger llm.budget.{name} "):
        open_attempt(budget)
    ignoring = Budget(**limits, unknown="ignore")
    ignoring.usage = totals
    open_attempt(ignoring)
    ignoring.usage = replace(totals, calls=2000, tokens=4000, cost=2.0)
    with pytest.raises(BudgetExhausted) as error:
        open_attempt(ignoring)
    assert re.search(r"spent [\d,]+, ", str(error.value)), "lost ones are not told"
    larger = Budget(**{name: limits[name] + 1})
    larger.usage = totals
    open_attempt(larger)


def test_wait_ends_with_concurrent_reply():
    budget = Budget(tokens=120)
    first, checks = open_attempt(budget), []

    def wait(seconds):
        checks.append(seconds)
        budget.settle(first, reply(5, 1))

    second = budget.reserve(make_request("a"), MODEL, wait)
    assert second.id != first.id and checks == [0.0]
    with pytest.raises(BudgetExhausted):
        Budget(tokens=104).reserve(make_request("a"), MODEL, wait)  # there is nobody to wait for
