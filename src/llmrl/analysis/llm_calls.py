"""What the language models of a folder of runs were asked, and what it took: totals of the call logs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llmrl.llms.ledger import FILE_NAME, read_calls


@dataclass
class CallTotals:
    """Sums over call logs.

    Attributes:
        models: labels of the models that were asked.
        calls: replies, from a provider or from the cache; `cached` of them from the cache.
        failed: calls that ended without a reply.
        judged: replies that had to have a form; `invalid` of them had not.
        prompt_tokens, completion_tokens: of all replies; None as soon as one is not known.
        cost: US dollars of the replies that were paid for; None as soon as one is not known.
        lost: attempts whose reply was lost: it may have been charged all the same, at most with `lost_cost` US dollars
            (None as soon as that is not known). What a provider did not tell is not among these.
    """

    models: tuple[str, ...] = ()
    calls: int = 0
    cached: int = 0
    failed: int = 0
    judged: int = 0
    invalid: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost: float | None = 0.0
    lost: int = 0
    lost_cost: float | None = 0.0

    @property
    def paid(self) -> str:
        """US dollars in words, with what the lost replies may have cost besides."""
        known = "unknown" if self.cost is None else f"{self.cost:.4f}"
        maybe = "?" if self.lost_cost is None else f"{self.lost_cost:.4f}"
        return f"{known} (+ at most {maybe})" if self.lost and self.lost_cost != 0.0 else known

    def add(self, call: dict[str, Any]) -> None:
        """Count one record of a log."""
        if call.get("model") not in self.models:
            self.models = (*self.models, str(call.get("model")))
        if call.get("unsettled"):
            self.lost += 1
            self.lost_cost = _plus(self.lost_cost, (call.get("reserved") or {}).get("cost"))
            return
        if "error" in call:
            self.failed += 1
            return
        self.calls += 1
        self.cached += bool(call.get("cached"))
        self.judged += call.get("valid") is not None
        self.invalid += call.get("valid") is False
        self.prompt_tokens = _plus(self.prompt_tokens, call.get("prompt_tokens"))
        self.completion_tokens = _plus(self.completion_tokens, call.get("completion_tokens"))
        self.cost = _plus(self.cost, 0.0 if call.get("cached") else call.get("cost"))

    def plus(self, other: CallTotals) -> CallTotals:
        """The sum of two totals."""
        total = CallTotals(tuple(dict.fromkeys((*self.models, *other.models))))
        for field in fields(CallTotals)[1:]:
            setattr(total, field.name, _plus(getattr(self, field.name), getattr(other, field.name)))
        return total


def call_totals(folder: Path) -> dict[Path, CallTotals]:
    """Totals of every run in and under `folder`, by run folder; runs that asked nothing are left out."""
    logs = [
        log
        for log in sorted(folder.rglob(FILE_NAME))
        # What a rerun has moved aside is an earlier run's.
        if not any(part.startswith("backup_") for part in log.relative_to(folder).parts)
    ]
    totals = {log.parent: run_totals(log.parent) for log in logs}
    return {run: total for run, total in totals.items() if total.calls or total.failed or total.lost}


def run_totals(run: Path) -> CallTotals:
    """Totals of the run in the folder `run`; zeros if it asked nothing."""
    total = CallTotals()
    if (run / FILE_NAME).is_file():
        for call in read_calls(run / FILE_NAME):
            total.add(call)
    return total


def _plus(a: Any, b: Any) -> Any:
    """The sum of two amounts, unknown if one of them is; none is negative."""
    known = all(isinstance(x, int | float) and not isinstance(x, bool) and x >= 0 for x in (a, b))
    return a + b if known else None
