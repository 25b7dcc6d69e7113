"""What a language player counts: decisions, replies and lessons, of each model that its players are."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.agents.llm_player.talk import Said
from llmrl.core.records import State
from llmrl.llms.structured_query import QueryStats

COUNTED = ("decisions", "replies", "invalid", "failed", "fallbacks", "lessons", "messages")
"""What is counted for each model; the player's own counts are sums over its models."""


class PlayerCounts:
    """Counts of a player since they were last taken.

    Args:
        models: model of each agent, by the name that the run has for it.

    Attributes:
        of_model: counts by model.
    """

    def __init__(self, models: Sequence[str]) -> None:
        self.of_model = {model: dict.fromkeys(COUNTED, 0) for model in dict.fromkeys(models)}

    @property
    def each(self) -> tuple[dict[str, int], ...]:
        """All counts, which may be changed in place."""
        return tuple(self.of_model.values())

    def decided(self, model: str, fell_back: bool) -> None:
        """Count a decision of a model, and whether the fallback took its place."""
        own = self.of_model[model]
        own["decisions"] += 1
        own["fallbacks"] += fell_back

    def took(self, model: str, stats: QueryStats) -> None:
        """Count the replies that a question to a model took."""
        own = self.of_model[model]
        own["replies"] += stats.replies
        own["invalid"] += stats.invalid
        own["failed"] += stats.failed

    def learnt(self, model: str) -> None:
        """Count a lesson that a model drew."""
        self.of_model[model]["lessons"] += 1

    def spoke(self, model: str, message: Said | None) -> None:
        """Count a message of a model, unless it said nothing."""
        self.of_model[model]["messages"] += message is not None and bool(message.text)

    def metrics(self, lessons: bool, by_model: bool, talks: bool = False) -> dict[str, float]:
        """Return the `player/...` metrics that `LLMPolicy.metrics` describes.

        Args:
            lessons: whether players draw lessons.
            by_model: whether to add the rates of each model.
            talks: whether players talk.
        """
        total = {name: sum(own[name] for own in self.of_model.values()) for name in COUNTED}
        found = {"player/decisions": float(total["decisions"]), "player/failed_calls": float(total["failed"])}
        found |= _rates("player", total)
        if lessons:
            found["player/lessons"] = float(total["lessons"])
        if talks:
            found["player/messages"] = float(total["messages"])
        for model, own in self.of_model.items() if by_model else ():
            found |= _rates(f"player/{model}", own)
        return found

    def state_dict(self) -> State:
        return {"of_model": [dict(own) for own in self.of_model.values()]}

    def load_state_dict(self, state: State) -> None:
        for own, saved in zip(self.of_model.values(), state["of_model"], strict=True):
            own |= saved


def _rates(name: str, counts: dict[str, int]) -> dict[str, float]:
    return {
        f"{name}/invalid_rate": counts["invalid"] / max(counts["replies"], 1),
        f"{name}/fallback_rate": counts["fallbacks"] / max(counts["decisions"], 1),
    }
