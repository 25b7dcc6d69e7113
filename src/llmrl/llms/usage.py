"""What a run says at its end of the language model it asked."""

from __future__ import annotations

from typing import Any

from llmrl.core.protocols import ChatModel, Meter, Scorer

UNDERSTOOD = ("llm_judged_replies", "llm_invalid_share")
"""Entries of a summary that say how far a language model was understood."""
UNANSWERED = "llm_calls_failed"
"""Entry of the summary of a run (`llm.failures=fall_back`) in which no call was answered."""


def llm_summary(llm: ChatModel | Scorer | None) -> dict[str, Any]:
    """Rows of the summary that say whose words the results rest on, and what they cost."""
    if llm is None:
        return {}
    totals = llm.metrics() if isinstance(llm, Meter) else {}
    shown = {
        "llm_calls": totals.get("llm/calls"),
        "llm_calls_paid": totals.get("spent/llm_calls"),
        "llm_usd_paid": totals.get("spent/llm_cost"),
        "llm_judged_replies": totals.get("llm/judged_replies"),
        "llm_invalid_share": totals.get("llm/invalid_share"),
    }
    if totals.get("spent/llm_unsettled_calls"):
        # Nobody knows whether these were generated, and charged.
        shown["llm_replies_lost"] = totals["spent/llm_unsettled_calls"]
    if totals.get("spent/llm_unsettled_cost"):
        shown["llm_usd_unsettled_at_most"] = totals["spent/llm_unsettled_cost"]
    if totals.get("llm/calls") == 0 and totals.get("spent/llm_failed_calls"):
        shown[UNANSWERED] = totals["spent/llm_failed_calls"]
    return {"llm": llm.label, **{name: value for name, value in shown.items() if value is not None}}
