"""Under which tags TensorBoard shows a row: what runs are compared by stands first, and nothing is shown twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llmrl.run.sinks.sink import Row

COMPARE = "Compare/"
"""Of what runs are compared by. Capital, and before `Final/`, because TensorBoard sorts groups of cards by their
characters."""

_COMPARED: Mapping[tuple[str, str], str] = {
    ("recommendation", "recommendation/objective"): "1_recommendation",
    ("proposal", "principal/objective"): "2_online_objective",
    ("proposal", "search/best_return"): "best_return",
    ("update", "ended/return"): "return",
    ("update", "ended/success"): "success",
    ("update", "train/reward"): "reward",
    ("episode", "evaluation/objective"): "objective",
    ("episode", "evaluation/progress"): "progress",
}
"""Kind of row and metric -> name in the first group. One or two of a run, as HParams shows five tags at first, in the
order of their characters. Digits put the recommendation, which is the result, before the objective of proposals."""

REPEATED: Mapping[str, str] = {
    "welfare/mean": "`base_return` of the same episodes",
    "welfare/sum": "`base_return` times the players",
    "welfare/gini": "1 - `welfare/equality`",
    "welfare/equality_productivity": "`welfare/equality` times the sum",
    "adapt/first_return": "`train/return` of a step's first round",
    "adapt/last_return": "`train/return` of a step's last round",
    "llm/calls": "`spent/llm_calls`",
    "llm/prompt_tokens": "in `spent/llm_tokens`",
    "llm/completion_tokens": "in `spent/llm_tokens`",
    "llm/cost": "`spent/llm_cost`",
    "spent/llm_attempts": "`spent/llm_calls` and the failed ones",
}
"""Metrics that are not drawn, and what is drawn that says the same."""

MORE = "More/"
"""Of final numbers beside the result. After `Final/`, so that the result is among the five that HParams shows first."""
_DETAILS = ("area", "incumbent_")

_WELFARE = "welfare/"
_PAID = ("validation/incentives_paid", "evaluation/incentives_paid")
"""Names of games for `welfare/spending`."""


def tag_of(kind: str, metric: str) -> str | None:
    """Return the tag of a metric of a kind of row; None where another one says the same.

    >>> tag_of("proposal", "principal/objective"), tag_of("adaptation", "train/return")
    ('Compare/2_online_objective', 'train/return')
    """
    if metric in REPEATED:
        return None
    compared = _COMPARED.get((kind, metric))
    return metric if compared is None else COMPARE + compared


def finals(final: Mapping[str, float]) -> dict[str, float]:
    """Return the final numbers that HParams is told: an error is no result, and would take the place of one.

    >>> finals({"Final/area": 3.0, "Final/result": 2.0, "Final/result_standard_error": 0.1})
    {'More/area': 3.0, 'Final/result': 2.0}
    """
    return {_later(tag): value for tag, value in final.items() if not tag.endswith("_standard_error")}


def _later(tag: str) -> str:
    name = tag.partition("/")[2]
    return MORE + name if name.startswith(_DETAILS) else tag


class Tags:
    """The tags of the rows of one run.

    Welfare of a single agent is its return. So measures of welfare wait until a sum over agents is not their mean, and
    are then told with the rows that they were measured in.
    """

    def __init__(self) -> None:
        self._several = False
        self._waiting: list[tuple[Row, dict[str, float]]] = []

    def of(self, row: Row) -> Iterator[tuple[Row, dict[str, float]]]:
        """Yield what is to be written once this row is known: earlier rows first, each with its values by tag."""
        shown = {tag: value for metric, value in row.metrics.items() if (tag := tag_of(row.kind, metric)) is not None}
        if any(row.metrics.get(name) == shown.get("welfare/spending") for name in _PAID):
            shown.pop("welfare/spending", None)
        if not self._several:
            total, mean = (row.metrics.get(_WELFARE + name, 0.0) for name in ("sum", "mean"))
            self._several = total != mean and total == total and mean == mean
            if self._several:
                yield from self._waiting
                self._waiting = []
            elif welfare := {tag: shown.pop(tag) for tag in list(shown) if tag.startswith(_WELFARE)}:
                self._waiting.append((row, welfare))
        if shown:
            yield row, shown
