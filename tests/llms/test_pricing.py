"""Cost of a call with uncached tokens, cache reads, cache writes and unknown counts or prices."""

from dataclasses import dataclass, replace

import pytest

from llmrl.llms.provider import Provider

cost = Provider.cost


@dataclass(frozen=True)
class PriceCard:
    """Prices in US dollars per million tokens."""

    input_price: float | None = 4.0
    cached_input_price: float | None = None
    cache_write_price: float | None = None
    output_price: float | None = 10.0


PLAIN = PriceCard()
READING = replace(PLAIN, cached_input_price=1.0)
WRITING = replace(READING, cache_write_price=5.0)


def per_million(*pairs):
    return pytest.approx(sum(tokens * price for tokens, price in pairs) / 1e6, rel=1e-12)


def test_cost_is_tokens_times_price():
    assert cost(PLAIN, 300, 20) == per_million((300, 4), (20, 10))
    assert cost(PLAIN, 0, 20) == cost(WRITING, 0, 20) == per_million((20, 10)), "an empty prompt is free"


def test_cache_read_price():
    assert cost(READING, 300, 20, 100) == per_million((200, 4), (100, 1), (20, 10))
    assert cost(READING, 300, 20) == cost(READING, 300, 20, 0) == per_million((300, 4), (20, 10))
    assert cost(PLAIN, 300, 20, 100) == per_million((300, 4), (20, 10)), "no other price is known for them"
    assert cost(READING, 300, 20, 999) == per_million((300, 1), (20, 10)), "no more than the prompt"


def test_cache_write_price():
    assert cost(WRITING, 300, 20, 100, 50) == per_million((150, 4), (100, 1), (50, 5), (20, 10))
    assert cost(WRITING, 300, 20, 100, 0) == per_million((200, 4), (100, 1), (20, 10))
    assert cost(WRITING, 300, 20, 100, 999) == per_million((100, 1), (200, 5), (20, 10)), "no more than is fresh"
    assert cost(READING, 300, 20, 100, 50) == per_million((200, 4), (100, 1), (20, 10)), "writing costs nothing more"


def test_unreported_cache_writes_use_higher_price():
    assert cost(WRITING, 300, 20, 100) == per_million((100, 1), (200, 5), (20, 10))
    for price in (3.0, 4.0):  # less than a fresh token, or as much
        assert cost(replace(WRITING, cache_write_price=price), 300, 20, 100) == per_million(
            (200, 4), (100, 1), (20, 10)
        )
    free = replace(WRITING, input_price=0.0, cache_write_price=0.5)
    assert cost(free, 300, 20, 100) == per_million((100, 1), (200, 0.5), (20, 10))


@pytest.mark.parametrize(("prompt", "completion"), [(None, 20), (300, None), (None, None)])
def test_an_unknown_count_has_no_price(prompt, completion):
    for card in (PLAIN, READING, WRITING):
        assert cost(card, prompt, completion) is None


@pytest.mark.parametrize("price", ["input_price", "output_price"])
def test_an_unknown_price_has_no_sum(price):
    assert cost(replace(PLAIN, **{price: None}), 300, 20) is None
    assert cost(replace(PLAIN, **{price: None}), 0, 0) is None


def test_zero_price_needs_no_count():
    assert cost(replace(PLAIN, input_price=0.0), None, 20) == per_million((20, 10))
    assert cost(replace(PLAIN, output_price=0.0), 300, None) == per_million((300, 4))
    assert cost(replace(READING, cached_input_price=0.0), 300, 20, 100) == per_million((200, 4), (20, 10))
    assert cost(replace(WRITING, cache_write_price=0.0), 300, 20, 100, 50) == per_million((150, 4), (100, 1), (20, 10))
