"""Counters of a language player for each of its models: decisions, replies, lessons and messages."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.core.records import State
from llmrl.llms.structured_query import QueryStats

COUNTERS = ("decisions", "replies", "invalid", "failed", "fallbacks", "lessons", "messages")
"""Names of the counters of each model; the player's totals are sums over its models."""


class PlayerCounts:
    """Counters of a player since they were last reset.

    Args:
        models: model of each agent, by the run's name of the model.

    Attributes:
        of_model: counters by model, which may be changed in place.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.of_model = {model: dict.fromkeys(COUNTERS, 0) for model in dict.fromkeys(models)}

    def count(self, model: str, stats: QueryStats | None = None, **counts: int) -> None:
        """Add to the counters of a model; `stats` are those of a question to it."""
        if stats is not None:
            counts |= {"replies": stats.replies, "invalid": stats.invalid, "failed": stats.failed}
        for name, n in counts.items():
            self.of_model[model][name] += n

    def metrics(self, has_lessons: bool, has_talk: bool, per_model: bool) -> dict[str, float]:
        """Return the `player/...` metrics that `LLMPolicy.metrics` describes.

        Args:
            has_lessons: whether players draw lessons.
            has_talk: whether players talk.
            per_model: whether to add the rates of each model.
        """
        total = {name: sum(counts[name] for counts in self.of_model.values()) for name in COUNTERS}
        metrics = {"player/decisions": float(total["decisions"]), "player/failed_calls": float(total["failed"])}
        metrics |= _rates("player", total)
        if has_lessons:
            metrics["player/lessons"] = float(total["lessons"])
        if has_talk:
            metrics["player/messages"] = float(total["messages"])
        for model, counts in self.of_model.items() if per_model else ():
            metrics |= _rates(f"player/{model}", counts)
        return metrics

    def state_dict(self) -> State:
        return {"of_model": [dict(counts) for counts in self.of_model.values()]}

    def load_state_dict(self, state: State) -> None:
        for counts, snapshot in zip(self.of_model.values(), state["of_model"], strict=True):
            counts |= snapshot


def _rates(name: str, counts: dict[str, int]) -> dict[str, float]:
    return {
        f"{name}/invalid_rate": counts["invalid"] / max(counts["replies"], 1),
        f"{name}/fallback_rate": counts["fallbacks"] / max(counts["decisions"], 1),
    }
