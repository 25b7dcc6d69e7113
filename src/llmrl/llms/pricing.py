"""What a call of a model costs."""

from __future__ import annotations

from typing import Protocol


class Prices(Protocol):
    """US dollars per million tokens, as `provider.Provider` says; `price_share` of them is charged."""

    input_price: float | None
    cached_input_price: float | None
    cache_write_price: float | None
    output_price: float | None
    price_share: float


def cost(
    prices: Prices,
    prompt_tokens: int | None,
    completion_tokens: int | None,
    cached_tokens: int | None = None,
    cache_write_tokens: int | None = None,
) -> float | None:
    """US dollars, or None where a price or a count is unknown. A price of 0 needs no count.

    Where nobody tells how much of a prompt the provider put into its cache, and that costs more than reading it,
    all that did not come from there counts as put there.
    """
    cached = min(cached_tokens or 0, prompt_tokens or 0) if prices.cached_input_price is not None else 0
    fresh = (prompt_tokens or 0) - cached
    kept = 0
    if prices.cache_write_price is not None:
        dearer = prices.cache_write_price > (prices.input_price or 0.0)
        kept = fresh * dearer if cache_write_tokens is None else min(cache_write_tokens, fresh)
    charged = None if prompt_tokens is None else fresh - kept
    parts = [
        _charge(charged, prices.input_price),
        _charge(cached, prices.cached_input_price or 0.0),
        _charge(kept, prices.cache_write_price or 0.0),
        _charge(completion_tokens, prices.output_price),
    ]
    return None if None in parts else prices.price_share * sum(part for part in parts if part is not None)


def _charge(tokens: int | None, price: float | None) -> float | None:
    if price == 0.0:
        return 0.0
    return None if tokens is None or price is None else tokens * price / 1e6
