"""Counters of a language player for each of its models: decisions, replies, lessons and messages."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.core.records import State
from llmrl.llms.structured_query import QueryStats

COUNTER_NAMES = ("decisions", "replies", "invalid", "failed", "fallbacks", "lessons", "messages")
"""Names of the counters of each model; the player's totals are sums over its models."""


class PlayerCounts:
    """Counters of a player since they were last reset.

    Args:
        models: name of each agent's model in the run.

    Attributes:
        counts_by_model: counters by model, which may be changed in place.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.counts_by_model = {model: dict.fromkeys(COUNTER_NAMES, 0) for model in dict.fromkeys(models)}

    def count(self, model: str, stats: QueryStats | None = None, **counts: int) -> None:
        """Add to the counters of a model; `stats` are those of a question to it."""
        if stats is not None:
            counts |= {"replies": stats.replies, "invalid": stats.invalid, "failed": stats.failed}
        for name, n in counts.items():
            self.counts_by_model[model][name] += n

    def metrics(self, has_lessons: bool, has_talk: bool, per_model: bool) -> dict[str, float]:
        """Return the `player/...` metrics that `LLMPolicy.metrics` describes.

        Args:
            has_lessons: whether players draw lessons.
            has_talk: whether players talk.
            per_model: whether to add the rates of each model.
        """
        totals = {name: sum(counts[name] for counts in self.counts_by_model.values()) for name in COUNTER_NAMES}
        metrics = {"player/decisions": float(totals["decisions"]), "player/failed_calls": float(totals["failed"])}
        metrics |= _compute_rates("player", totals)
        if has_lessons:
            metrics["player/lessons"] = float(totals["lessons"])
        if has_talk:
            metrics["player/messages"] = float(totals["messages"])
        for model, counts in self.counts_by_model.items() if per_model else ():
            metrics |= _compute_rates(f"player/{model}", counts)
        return metrics

    def state_dict(self) -> State:
        return {"counts_by_model": [dict(counts) for counts in self.counts_by_model.values()]}

    def load_state_dict(self, state: State) -> None:
        for counts, loaded_counts in zip(self.counts_by_model.values(), state["counts_by_model"], strict=True):
            counts |= loaded_counts


def _compute_rates(prefix: str, counts: dict[str, int]) -> dict[str, float]:
    return {
        f"{prefix}/invalid_rate": counts["invalid"] / max(counts["replies"], 1),
        f"{prefix}/fallback_rate": counts["fallbacks"] / max(counts["decisions"], 1),
    }
