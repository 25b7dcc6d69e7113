"""Totals of a run's usage of language models, as metrics and for its summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.core.model_protocols import ChatModel, Scorer
from llmrl.core.records import TOKEN_COUNT_FIELDS, ChatReply
from llmrl.core.state_fields import StateFields

TOTALED_FIELDS = (*TOKEN_COUNT_FIELDS, "cost")
"""Fields of replies that are added up."""

UNITS_PER_DOLLAR = 1e12

VALIDITY_KEYS = ("llm_judged_replies", "llm_invalid_share")
"""Entries of a summary about the validity of a language model's replies."""
FAILED_CALLS_KEY = "llm_calls_failed"
"""Entry of the summary if all calls of a run failed (with `llm.failures=fall_back`): the number of failed calls."""


class ReplyTotals(StateFields):
    """Sums over all replies of a run, paid or cached. A sum is unknown if one of its summands is unknown.

    Costs are added in integer multiples of 1e-12 US dollars, so that sums do not depend on the order of replies.
    """

    _state_fields = ("used", "unknown")

    def __init__(self) -> None:
        self.used = {"calls": 0.0, **dict.fromkeys(TOTALED_FIELDS, 0.0)}
        self.unknown = dict.fromkeys(TOTALED_FIELDS, False)

    def add(self, replies: Sequence[ChatReply]) -> None:
        """Add the counts and costs of replies."""
        self.used["calls"] += len(replies)
        for reply in replies:
            for name in TOTALED_FIELDS:
                amount = getattr(reply, name)
                self.unknown[name] |= amount is None
                self.used[name] += round((amount or 0.0) * UNITS_PER_DOLLAR) if name == "cost" else amount or 0.0

    def metrics(self) -> dict[str, float]:
        """Return llm/calls and the totals of token counts and cost, without unknown ones.

        These are llm/prompt_tokens, which include llm/cached_tokens and llm/cache_write_tokens; llm/completion_tokens,
        which include llm/reasoning_tokens; and llm/cost (USD).
        """
        totals = self.used | {"cost": self.used["cost"] / UNITS_PER_DOLLAR}
        return {f"llm/{name}": totals[name] for name in ("calls", *TOTALED_FIELDS) if not self.unknown.get(name)}


def summarize_llm_usage(llm: ChatModel | Scorer | None) -> dict[str, Any]:
    """Return the entries of a run's summary about its language model: label, usage, and validity of replies."""
    if llm is None:
        return {}
    totals: dict[str, Any] = llm.metrics() if hasattr(llm, "metrics") else {}
    prompt, reply, cached = (totals.get(f"llm/{name}_tokens") for name in ("prompt", "completion", "cached"))
    summary = {
        "llm_calls": totals.get("llm/calls"),
        "llm_tokens": None if prompt is None or reply is None else prompt + reply,
        # Share of prompt tokens that the provider read from its cache.
        "llm_cached_share": cached / prompt if cached is not None and prompt else None,
        "llm_calls_paid": totals.get("usage/llm_calls"),
        "llm_usd_paid": totals.get("usage/llm_cost"),
        "llm_judged_replies": totals.get("llm/parsed_replies"),
        "llm_invalid_share": totals.get("llm/invalid_share"),
    }
    if totals.get("usage/llm_unsettled_calls"):
        summary["llm_replies_lost"] = totals["usage/llm_unsettled_calls"]
    if totals.get("usage/llm_unsettled_cost"):
        summary["llm_usd_unsettled_at_most"] = totals["usage/llm_unsettled_cost"]
    if totals.get("llm/calls") == 0 and totals.get("usage/llm_failed_calls"):
        summary[FAILED_CALLS_KEY] = totals["usage/llm_failed_calls"]
    return {"llm": llm.label, **{name: value for name, value in summary.items() if value is not None}}
