"""Totals of the call logs of a folder of runs: calls to language models, tokens and costs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llmrl.llms.call_log import CALL_LOG_NAME, read_calls


@dataclass
class CallTotals:
    """Totals of call logs.

    Attributes:
        models: labels of the models.
        calls: number of replies, from a provider or the cache.
        cached: number of replies from the cache.
        failed: number of calls that ended without a reply.
        validated: number of replies that were checked for a required format.
        invalid: number of replies that did not have this format.
        prompt_tokens, completion_tokens: number of tokens of all replies and their prompts; None if any is unknown.
        cost: cost of all replies that did not come from the cache, US dollars; None if any is unknown.
        lost: number of attempts whose reply was lost but may have been charged; not included in tokens and `cost`.
        lost_cost: maximum cost of lost attempts, US dollars; None if any is unknown.
    """

    models: tuple[str, ...] = ()
    calls: int = 0
    cached: int = 0
    failed: int = 0
    validated: int = 0
    invalid: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost: float | None = 0.0
    lost: int = 0
    lost_cost: float | None = 0.0

    @property
    def counts(self) -> list[int | None]:
        """Replies, cached replies, failed calls, lost replies, checked replies, invalid ones, and tokens in and out."""
        replies = [self.calls, self.cached, self.failed, self.lost, self.validated, self.invalid]
        return [*replies, self.prompt_tokens, self.completion_tokens]

    @property
    def paid(self) -> str:
        """Cost in US dollars as text, with the maximum cost of lost replies."""
        cost = "unknown" if self.cost is None else f"{self.cost:.4f}"
        max_lost_cost_text = "?" if self.lost_cost is None else f"{self.lost_cost:.4f}"
        return f"{cost} (+ at most {max_lost_cost_text})" if self.lost and self.lost_cost != 0.0 else cost

    def add(self, call: dict[str, Any]) -> None:
        """Add one record of a call log to the totals."""
        if call.get("model") not in self.models:
            self.models = (*self.models, str(call.get("model")))
        if call.get("unsettled"):
            self.lost += 1
            self.lost_cost = _sum_known(self.lost_cost, (call.get("reserved") or {}).get("cost"))
            return
        if "error" in call:
            self.failed += 1
            return
        self.calls += 1
        self.cached += bool(call.get("cached"))
        self.validated += call.get("valid") is not None
        self.invalid += call.get("valid") is False
        self.prompt_tokens = _sum_known(self.prompt_tokens, call.get("prompt_tokens"))
        self.completion_tokens = _sum_known(self.completion_tokens, call.get("completion_tokens"))
        self.cost = _sum_known(self.cost, 0.0 if call.get("cached") else call.get("cost"))

    def __add__(self, other: CallTotals) -> CallTotals:
        total = CallTotals(tuple(dict.fromkeys((*self.models, *other.models))))
        for field in fields(CallTotals)[1:]:
            setattr(total, field.name, _sum_known(getattr(self, field.name), getattr(other, field.name)))
        return total


def read_run_totals(run: Path) -> CallTotals:
    """Return the totals of the run in the folder `run`; zeros without calls."""
    totals = CallTotals()
    if (run / CALL_LOG_NAME).is_file():
        for call in read_calls(run / CALL_LOG_NAME):
            totals.add(call)
    return totals


def _sum_known(x: Any, y: Any) -> Any:
    """Return the sum of two amounts; None if one of them is unknown, i.e. not a number >= 0."""
    are_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and x >= 0 for x in (x, y))
    return x + y if are_numbers else None
