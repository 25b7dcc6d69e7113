"""Totals of a run's use of language models, as metrics and for its summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.core.model_protocols import ChatModel, Scorer
from llmrl.core.records import REPLY_COUNTS, ChatReply
from llmrl.core.state_fields import StateFields

TOTAL_NAMES = (*REPLY_COUNTS, "cost")

UNITS_PER_DOLLAR = 1e12

VALIDITY_KEYS = ("llm_judged_replies", "llm_invalid_share")
"""Entries of a summary about the validity of a language model's replies."""
FAILED_CALLS_KEY = "llm_calls_failed"
"""Entry of a summary if no call was answered in a run with `llm.failures=fall_back`."""


class ReplyTotals(StateFields):
    """Sums over all replies of a run, paid or cached. A sum with an unknown summand is unknown from then on.

    Costs are added as integers in units of 1e-12 dollars, so that the sum does not depend on the order of replies.
    """

    _state_fields = ("used", "unknown")

    def __init__(self) -> None:
        self.used = {"calls": 0.0, **dict.fromkeys(TOTAL_NAMES, 0.0)}
        self.unknown = dict.fromkeys(TOTAL_NAMES, False)

    def add(self, replies: Sequence[ChatReply]) -> None:
        """Count replies."""
        self.used["calls"] += len(replies)
        for reply in replies:
            for name in TOTAL_NAMES:
                value = getattr(reply, name)
                self.unknown[name] |= value is None
                self.used[name] += round((value or 0.0) * UNITS_PER_DOLLAR) if name == "cost" else value or 0.0

    def metrics(self) -> dict[str, float]:
        """Return llm/calls and the totals of token counts and cost, without unknown ones.

        These are llm/prompt_tokens, of them llm/cached_tokens and llm/cache_write_tokens, llm/completion_tokens, of
        them llm/reasoning_tokens, and llm/cost (USD).
        """
        totals = self.used | {"cost": self.used["cost"] / UNITS_PER_DOLLAR}
        return {f"llm/{name}": totals[name] for name in ("calls", *TOTAL_NAMES) if not self.unknown.get(name)}


def llm_summary(llm: ChatModel | Scorer | None) -> dict[str, Any]:
    """Return the entries of a run's summary about its language model, its usage, and its validity."""
    if llm is None:
        return {}
    totals: dict[str, Any] = llm.metrics() if hasattr(llm, "metrics") else {}
    prompt, reply, cached = (totals.get(f"llm/{name}_tokens") for name in ("prompt", "completion", "cached"))
    summary = {
        "llm_calls": totals.get("llm/calls"),
        "llm_tokens": None if prompt is None or reply is None else prompt + reply,
        # Share of prompt tokens that the provider had cached.
        "llm_cached_share": cached / prompt if cached is not None and prompt else None,
        "llm_calls_paid": totals.get("usage/llm_calls"),
        "llm_usd_paid": totals.get("usage/llm_cost"),
        "llm_judged_replies": totals.get("llm/parsed_replies"),
        "llm_invalid_share": totals.get("llm/invalid_share"),
    }
    if totals.get("usage/llm_unsettled_calls"):
        # It is unknown whether these replies were generated and charged.
        summary["llm_replies_lost"] = totals["usage/llm_unsettled_calls"]
    if totals.get("usage/llm_unsettled_cost"):
        summary["llm_usd_unsettled_at_most"] = totals["usage/llm_unsettled_cost"]
    if totals.get("llm/calls") == 0 and totals.get("usage/llm_failed_calls"):
        summary[FAILED_CALLS_KEY] = totals["usage/llm_failed_calls"]
    return {"llm": llm.label, **{name: value for name, value in summary.items() if value is not None}}
