"""The plan of a design run in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmrl.loops.design import DesignLoop


def design_plan(loop: DesignLoop) -> list[tuple[str, str]]:
    """Return the plan of a design run as rows (what, value)."""
    candidates = loop.candidates
    several = "" if candidates == 1 else f" of {candidates:,} candidates each"
    games, n = loop.societies.games, loop.societies.several
    cost = f" - {loop.spending_cost:g} x spending" if loop.spending_cost else ""
    pieces = len(loop.adaptation.pieces)
    updates = "one update" if pieces == 1 else f"{pieces:,} updates"
    unit, each = ("a proposal", "") if n == 1 else ("a society", f", {n:,} societies a proposal")
    confirmed = f"; the last {loop.confirm_steps:,} confirm the leading candidates" if loop.confirm_steps else ""
    rounds = ", ".join(f"{n:,}" for n in [*loop.earlier_validations, loop.adapt_rounds])
    after = f", after {rounds} rounds" if loop.earlier_validations else ""
    return [
        ("  principal steps", f"{loop.steps:,}{several}{each}{confirmed}"),
        ("  adaptation", _adaptation(loop, f"{games} games {unit}, {updates} each")),
        ("  validation", f"{loop.validate_rounds * games:,} episodes {unit}{after}"),
        ("  objective", loop.objective.name + cost),
        ("  result", _result(loop)),
        ("environment steps", f"{'at most ' if loop.settings.anytime else ''}{loop.env_steps:,}"),
    ]


def _adaptation(loop: DesignLoop, each: str) -> str:
    if loop.adapt_rounds:
        return f"{loop.adapt_rounds:,} rounds x {each if loop.agents[0].learns else each.rpartition(',')[0]}"
    if loop.agents[0].learns:
        return "none"
    return "none: these agents do not learn, and carry nothing to the next episode"


def _result(loop: DesignLoop) -> str:
    settings = loop.settings
    if not settings.evaluations:
        return "online performance; the recommendation is not evaluated (design.evaluations=0)"
    trials = f"{loop.max_evaluation_trials:,} trials, each as long as a principal step"
    if settings.anytime:
        return f"the recommendations after 1, 2, 5, ... measurements, evaluated in at most {trials}"
    contexts = " of each context" if loop.env.spec.contexts else ""
    evaluations = -(-settings.evaluations // loop.candidates) * loop.candidates
    return f"the recommendation{contexts}, evaluated {evaluations:,} times in {trials}"
