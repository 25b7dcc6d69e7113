"""Counters of a language player for each of its models: decisions, replies, lessons and messages."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.agents.llm_player.talk import TalkMessage
from llmrl.core.records import State
from llmrl.llms.structured_query import QueryStats

COUNTERS = ("decisions", "replies", "invalid", "failed", "fallbacks", "lessons", "messages")
"""Names of the counters of each model; the player's totals are sums over its models."""


class PlayerCounts:
    """Counters of a player since they were last reset.

    Args:
        models: model of each agent, by the run's name of the model.

    Attributes:
        of_model: counters by model.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.of_model = {model: dict.fromkeys(COUNTERS, 0) for model in dict.fromkeys(models)}

    @property
    def counters(self) -> tuple[dict[str, int], ...]:
        """Counters of all models, which may be changed in place."""
        return tuple(self.of_model.values())

    def count_decision(self, model: str, is_fallback: bool) -> None:
        """Count a decision of a model, and whether it was a fallback."""
        counts = self.of_model[model]
        counts["decisions"] += 1
        counts["fallbacks"] += is_fallback

    def count_replies(self, model: str, stats: QueryStats) -> None:
        """Count the replies to a question to a model."""
        counts = self.of_model[model]
        counts["replies"] += stats.replies
        counts["invalid"] += stats.invalid
        counts["failed"] += stats.failed

    def count_lesson(self, model: str) -> None:
        """Count a lesson of a model."""
        self.of_model[model]["lessons"] += 1

    def count_message(self, model: str, message: TalkMessage | None) -> None:
        """Count a message of a model, unless it is empty."""
        self.of_model[model]["messages"] += message is not None and bool(message.text)

    def metrics(self, lessons: bool, per_model: bool, talk: bool = False) -> dict[str, float]:
        """Return the `player/...` metrics that `LLMPolicy.metrics` describes.

        Args:
            lessons: whether players draw lessons.
            per_model: whether to add the rates of each model.
            talk: whether players talk.
        """
        total = {name: sum(counts[name] for counts in self.of_model.values()) for name in COUNTERS}
        metrics = {"player/decisions": float(total["decisions"]), "player/failed_calls": float(total["failed"])}
        metrics |= _rates("player", total)
        if lessons:
            metrics["player/lessons"] = float(total["lessons"])
        if talk:
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
