"""What is counted of a reply and of an attempt without one, under which names it is logged, and when a limit is met."""

import re
from dataclasses import replace

import pytest

from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.records import ChatReply
from llmrl.llms.budget import Budget, Reservation, Usage
from models import Echo, ask

BEFORE = Usage(10, 20, 3, 400, 5.0, 6, 7, 8.0, 9, 1000, 11.0)
"""Each field differs from what it would be if it were counted anew."""
RESERVED = Reservation(70, 0.5)


def reply(prompt=30, completion=12, cost=0.25, latency=1.5, attempts=2):
    return ChatReply(
        "", prompt_tokens=prompt, completion_tokens=completion, cost=cost, latency=latency, attempts=attempts
    )


def test_a_reply_adds_what_it_took():
    after = BEFORE.plus(reply(), RESERVED)
    assert after == Usage(11, 22, 3, 442, 5.25, 6, 7, 9.5, 9, 1000, 11.0)


def test_a_replayed_reply_costs_nothing():
    assert BEFORE.plus(reply(attempts=0), RESERVED) == BEFORE


@pytest.mark.parametrize(("prompt", "completion", "told"), [(None, 12, 12), (30, None, 30), (None, None, 0)])
def test_tokens_that_nobody_told_are_the_reserved_ones(prompt, completion, told):
    after = BEFORE.plus(reply(prompt, completion), RESERVED)
    assert (after.tokens, after.unknown_tokens, after.unsettled_tokens) == (400 + told, 7, 1070)
    assert (after.cost, after.unknown_costs, after.unsettled_cost) == (5.25, 7, 11.0)


def test_a_cost_that_nobody_knows_is_the_reserved_one():
    after = BEFORE.plus(reply(cost=None), RESERVED)
    assert (after.cost, after.unknown_costs, after.unsettled_cost) == (5.0, 8, 11.5)
    assert (after.tokens, after.unknown_tokens, after.unsettled_tokens) == (442, 6, 1000)
    assert BEFORE.plus(reply(cost=None), Reservation(70, None)).unsettled_cost == 11.0
    assert BEFORE.plus(reply(cost=0.0), RESERVED).unknown_costs == 7


def test_lost_attempts_add_all_that_was_reserved():
    after = BEFORE.lost([RESERVED, Reservation(5, None)])
    assert after == replace(BEFORE, unsettled=11, unsettled_tokens=1075, unsettled_cost=11.5)
    assert BEFORE.lost(iter([])) == BEFORE


def test_names_of_what_is_logged():
    known = replace(BEFORE, unknown_tokens=0, unknown_costs=0)
    assert known.metrics(priced=True) == {
        "time/llm_latency": 8.0,
        "spent/llm_calls": 10.0,
        "spent/llm_attempts": 20.0,
        "spent/llm_failed_calls": 3.0,
        "spent/llm_unsettled_calls": 9.0,
        "spent/llm_unsettled_tokens": 1000.0,
        "spent/llm_unsettled_cost": 11.0,
        "spent/llm_tokens": 400.0,
        "spent/llm_cost": 5.0,
    }
    assert all(type(value) is float for value in known.metrics(priced=True).values())


def test_what_is_unknown_is_not_logged():
    full = set(replace(BEFORE, unknown_tokens=0, unknown_costs=0).metrics(priced=True))
    assert full - set(replace(BEFORE, unknown_costs=0).metrics(priced=True)) == {"spent/llm_tokens"}
    assert full - set(replace(BEFORE, unknown_tokens=0).metrics(priced=True)) == {"spent/llm_cost"}
    settled = replace(BEFORE, unknown_tokens=0, unknown_costs=0)
    assert full - set(settled.metrics(priced=False)) == {"spent/llm_unsettled_cost"}
    nothing_lost = replace(settled, unsettled_tokens=0)
    assert full - set(nothing_lost.metrics(priced=True)) == {"spent/llm_unsettled_tokens", "spent/llm_unsettled_cost"}


MODEL = Echo(max_tokens=100)  # the prompt "a" has 5 tokens: 105 are reserved; US dollars 1 and 2 per million tokens


def opened(budget):
    return budget.reserve(ask("a"), MODEL)


def test_an_attempt_is_counted_from_when_it_is_sent_until_its_reply_comes():
    budget = Budget()
    first, second = opened(budget), opened(budget)
    assert first.id != second.id and len(first.id) == 16
    assert (first.tokens, first.cost) == (105, MODEL.cost(5, 100))
    assert budget.account() == Usage(), "nothing is sent"
    budget.sent(first)
    assert budget.account() == Usage(unsettled=1, unsettled_tokens=105, unsettled_cost=first.cost)
    assert budget.spent == Usage()
    assert budget.settle(first, reply()) is True
    assert budget.account() == budget.spent == Usage().plus(reply(), first)
    assert budget.settle(first, reply()) is False, "a reply counts once"
    assert budget.spent.calls == 1
    budget.sent(first)
    assert budget.account() == budget.spent, "what is settled is not sent again"
    assert budget.settle(second, reply(prompt=None)) is True
    assert budget.spent == Usage().plus(reply(), first).plus(reply(prompt=None), second)


def test_what_was_refused_leaves_nothing():
    budget = Budget(tokens=105)
    first = opened(budget)
    with pytest.raises(BudgetExhausted):
        opened(budget)
    budget.sent(first)
    budget.release(first)
    assert budget.account() == Usage()
    assert budget.settle(first, reply()) is False and budget.spent == Usage()
    opened(budget)


def test_what_is_given_up_counts_if_it_was_sent():
    budget = Budget()
    sent, kept, unsent = opened(budget), opened(budget), opened(budget)
    budget.sent(sent)
    budget.sent(kept)
    budget.abandon(sent)
    once = Usage().lost([sent])
    assert budget.spent == once
    budget.abandon(sent)
    assert budget.spent == once, "it is lost once"
    assert budget.settle(sent, reply()) is False
    budget.abandon()
    assert budget.spent == once.lost([kept]) == budget.account()
    assert budget.settle(unsent, reply()) is False, "it was released"


def test_what_was_lost_may_come_back():
    budget = Budget()
    attempt = opened(budget)
    budget.sent(attempt)
    budget.abandon()
    later = Budget()
    later.spent = budget.spent.lost([Reservation(5, None)])
    later.reclaim(attempt)
    assert later.spent == Usage(unsettled=1, unsettled_tokens=5)
    assert later.account() == Usage(unsettled=2, unsettled_tokens=110, unsettled_cost=attempt.cost)
    assert later.settle(attempt, reply()) is True
    assert later.spent == Usage(unsettled=1, unsettled_tokens=5).plus(reply(), attempt)


def test_nothing_comes_back_twice():
    budget = Budget()
    budget.reclaim(Reservation(70, 0.5))
    budget.reclaim(Reservation(70, None))
    assert budget.spent == Usage()


def test_calls_without_a_reply():
    budget = Budget()
    budget.failed(2)
    budget.failed(3)
    assert budget.spent == Usage(failed=5)


@pytest.mark.parametrize("limit", ["calls", "tokens", "usd"])
def test_one_limit_is_enough(limit):
    assert not Budget().limited and Budget(**{limit: 0}).limited


@pytest.mark.parametrize("price", ["input_price", "output_price"])
def test_each_price_is_needed_for_dollars_alone(price):
    unpriced = Echo(**{price: None})
    Budget(calls=1, tokens=1).check(unpriced)
    Budget(usd=0.0).check(Echo())
    with pytest.raises(ConfigError, match="usd=0 cannot be held"):
        Budget(usd=0.0).check(unpriced)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"calls": 1012}, "llm.budget.calls=1,012, spent 1,000 and at most 12 for replies that were lost, and the next "
                          "call may need 1"),
        ({"tokens": 3104}, "llm.budget.tokens=3,104, spent 2,000 and at most 1,000 for replies that were lost, and the "
                           "next call may need 105"),
        ({"usd": 1.5}, "llm.budget.usd=1.5, spent 1 and at most 0.5 for replies that were lost, and the next call may "
                       "need 0.000205"),
    ],
)  # fmt: skip
def test_lost_replies_count_and_are_told(limits, said):
    spent = Usage(calls=1000, tokens=2000, cost=1.0, unsettled=12, unsettled_tokens=1000, unsettled_cost=0.5)
    budget = Budget(**limits)
    budget.spent = spent
    with pytest.raises(BudgetExhausted) as error:
        opened(budget)
    assert said in str(error.value)
    (name,) = limits
    assert f"Everything is saved; repeat the command with a larger llm.budget.{name} to go on" in str(error.value)
    ignoring = Budget(**limits, unknown="ignore")
    ignoring.spent = spent
    opened(ignoring)
    ignoring.spent = replace(spent, calls=2000, tokens=4000, cost=2.0)
    with pytest.raises(BudgetExhausted) as error:
        opened(ignoring)
    assert re.search(r"spent [\d,]+, and the next call may need", str(error.value)), "lost ones are not told"
    larger = Budget(**{name: limits[name] + 1})
    larger.spent = spent
    opened(larger)


def test_a_wait_ends_with_the_reply_of_another():
    budget = Budget(tokens=120)
    first, looked = opened(budget), []

    def wait(seconds):
        looked.append(seconds)
        budget.settle(first, reply(5, 1))

    second = budget.reserve(ask("a"), MODEL, wait)
    assert second.id != first.id and looked == [0.0]
    with pytest.raises(BudgetExhausted):
        Budget(tokens=104).reserve(ask("a"), MODEL, wait)  # there is nobody to wait for
