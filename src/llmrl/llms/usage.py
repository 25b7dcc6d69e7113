"""What a run used of a language model: counted, and as it says at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.core.model_protocols import ChatModel, Scorer, UsageMeter
from llmrl.core.records import REPLY_COUNTS, ChatReply, State

TOTALS = (*REPLY_COUNTS, "cost")

PICO = 1e12

UNDERSTOOD = ("llm_judged_replies", "llm_invalid_share")
"""Entries of a summary that say how far a language model was understood."""
UNANSWERED = "llm_calls_failed"
"""Entry of the summary of a run (`llm.failures=fall_back`) in which no call was answered."""


class ReplyTotals:
    """Sums over all replies of a run, wherever they came from. A sum that misses a number is unknown, and stays so.

    Costs are added up as whole numbers of 1e-12 dollars, so that the sum is the same in whatever order replies came.
    """

    def __init__(self) -> None:
        self.used = {"calls": 0.0, **dict.fromkeys(TOTALS, 0.0)}
        self.unknown = dict.fromkeys(TOTALS, False)

    def add(self, replies: Sequence[ChatReply]) -> None:
        """Count replies."""
        self.used["calls"] += len(replies)
        for reply in replies:
            for name in TOTALS:
                value = getattr(reply, name)
                self.unknown[name] |= value is None
                self.used[name] += round((value or 0.0) * PICO) if name == "cost" else value or 0.0

    def metrics(self) -> dict[str, float]:
        """llm/calls, llm/prompt_tokens, llm/cached_tokens and llm/cache_write_tokens (of these), llm/completion_tokens,
        llm/reasoning_tokens (of these), llm/cost (USD); without those that are not known."""
        told = self.used | {"cost": self.used["cost"] / PICO}
        return {f"llm/{name}": told[name] for name in ("calls", *TOTALS) if not self.unknown.get(name)}

    def state_dict(self) -> State:
        return {"used": dict(self.used), "unknown": dict(self.unknown)}

    def load_state_dict(self, state: State) -> None:
        self.used, self.unknown = dict(state["used"]), dict(state["unknown"])


def llm_summary(llm: ChatModel | Scorer | None) -> dict[str, Any]:
    """Rows of the summary that say whose words the results rest on, and what they cost."""
    if llm is None:
        return {}
    totals = llm.metrics() if isinstance(llm, UsageMeter) else {}
    prompt, reply, cached = (totals.get(f"llm/{name}_tokens") for name in ("prompt", "completion", "cached"))
    shown = {
        "llm_calls": totals.get("llm/calls"),
        "llm_tokens": None if prompt is None or reply is None else prompt + reply,
        # Of prompt tokens, those that the provider had kept.
        "llm_cached_share": cached / prompt if cached is not None and prompt else None,
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
