"""A sink for TensorBoard: an event file in the run folder.

Metrics for the comparison of runs are listed first. Metrics that repeat another metric are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from llmrl.run.sink import Ending, Opening, Row, Sink
from llmrl.run.tensorboard_file import EventFile, read_animation

COMPARE_PREFIX = "Compare/"
"""Prefix of the tags of metrics that compare runs. It is capitalized and sorts before `Final/`, because TensorBoard
sorts groups of cards by character."""

_COMPARE_TAGS: Mapping[tuple[str, str], str] = {
    ("recommendation", "recommendation/objective"): "1_recommendation",
    ("proposal", "principal/objective"): "2_online_objective",
    ("proposal", "search/best_return"): "best_return",
    ("update", "episode/return"): "return",
    ("update", "episode/success"): "success",
    ("update", "train/reward"): "reward",
    ("episode", "evaluation/objective"): "objective",
    ("episode", "evaluation/progress"): "progress",
}
"""Kind of row and metric -> part of the tag after `Compare/`. A run has one or two of these, because HParams shows only
the first five tags in character order. Digits sort the recommendation, the result, before the online objective."""

REPEATED_METRICS: Mapping[str, str] = {
    "welfare/mean": "`base_return` of the same episodes",
    "welfare/sum": "`base_return` times the players",
    "welfare/gini": "1 - `welfare/equality`",
    "welfare/equality_productivity": "`welfare/equality` times the sum",
    "adapt/first_return": "`train/return` of a step's first round",
    "adapt/last_return": "`train/return` of a step's last round",
    "llm/calls": "`usage/llm_calls`",
    "llm/prompt_tokens": "in `usage/llm_tokens`",
    "llm/completion_tokens": "in `usage/llm_tokens`",
    "llm/cost": "`usage/llm_cost`",
    "usage/llm_attempts": "`usage/llm_calls` and the failed ones",
}
"""Metrics that are not written -> formula or metric that gives the same numbers."""

MORE_PREFIX = "More/"
"""Prefix of final numbers other than the result. It sorts after `Final/`, so that the result is among the first
five."""
_DETAIL_PREFIXES = ("area", "incumbent_")  # of the names of these numbers

_WELFARE_PREFIX = "welfare/"
_PAYMENT_METRICS = ("validation/incentives_paid", "evaluation/incentives_paid")
"""Metrics that, where they equal `welfare/spending`, are written instead of it."""


def get_tag(kind: str, metric: str) -> str | None:
    """Return the tag of a metric of a kind of row; None if another metric shows the same number.

    >>> get_tag("proposal", "principal/objective"), get_tag("adaptation", "train/return")
    ('Compare/2_online_objective', 'train/return')
    """
    if metric in REPEATED_METRICS:
        return None
    compare_tag = _COMPARE_TAGS.get((kind, metric))
    return metric if compare_tag is None else COMPARE_PREFIX + compare_tag


def select_final_numbers(final: Mapping[str, float]) -> dict[str, float]:
    """Return the final numbers by their tags in the HParams table, without standard errors, to leave room for results.

    >>> select_final_numbers({"Final/area": 3.0, "Final/result": 2.0, "Final/result_standard_error": 0.1})
    {'More/area': 3.0, 'Final/result': 2.0}
    """
    name_by_tag = {tag: tag.partition("/")[2] for tag in final if not tag.endswith("_standard_error")}
    return {MORE_PREFIX + x if x.startswith(_DETAIL_PREFIXES) else tag: final[tag] for tag, x in name_by_tag.items()}


class TensorBoard(Sink):
    """A sink that writes scalars, hyperparameters, texts and pictures for TensorBoard, but no MP4 videos.

    Resuming: a new event file, with the rows before the checkpoint, replaces those of earlier attempts, which may be
    incomplete. TensorBoard sees the new file when these rows are written.
    """

    background = False

    def open(self, opening: Opening) -> None:
        self._event_file = EventFile(opening.folder, started=opening.started or time.time())
        if opening.hyperparameters:
            self._event_file.write_hyperparameters(opening.hyperparameters)
        self._n_kept_rows = opening.n_kept_rows
        self._scalar_selector = ScalarSelector()
        if not self._n_kept_rows:
            self._event_file.publish()

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for measured_row, values in self._scalar_selector.select_values(row):
                self._event_file.write_scalars(measured_row.x_value, measured_row.unix_time, values)
            if row.number + 1 == self._n_kept_rows:
                self._event_file.publish()

    def text(self, row: Row, tag: str, markdown: str) -> None:
        self._event_file.write_text(row.x_value, row.unix_time, tag, markdown)

    def picture(self, row: Row, tag: str, path: Path) -> None:
        if path.suffix == ".gif":
            animation, size = read_animation(path)
            self._event_file.write_image(row.x_value, row.unix_time, tag, animation, size)
        elif path.suffix == ".png":
            import imageio.v3 as iio

            height, width = iio.improps(path).shape[:2]
            self._event_file.write_image(row.x_value, row.unix_time, tag, path.read_bytes(), (height, width))

    def close(self, ending: Ending) -> None:
        if ending.final_metrics:
            self._event_file.write_scalars(ending.x_value, ending.unix_time, select_final_numbers(ending.final_metrics))
        self._event_file.write_end(ending.succeeded)
        self._event_file.close()


class ScalarSelector:
    """A selector of the metrics that are written of the rows of one run.

    With a single agent, welfare measures repeat its return. They are therefore withheld until the sum of welfare over
    agents differs from the mean, and are then written with the rows in which they were measured.
    """

    def __init__(self) -> None:
        self._has_several_agents = False
        self._withheld_welfare: list[tuple[Row, dict[str, float]]] = []

    def select_values(self, row: Row) -> Iterator[tuple[Row, dict[str, float]]]:
        """Yield rows with the values to write for them, by tag: earlier rows with withheld values, then `row`."""
        values = {tag: value for metric, value in row.metrics.items() if (tag := get_tag(row.kind, metric)) is not None}
        if any(row.metrics.get(name) == values.get("welfare/spending") for name in _PAYMENT_METRICS):
            values.pop("welfare/spending", None)
        if not self._has_several_agents:
            welfare_sum, welfare_mean = (row.metrics.get(_WELFARE_PREFIX + name, 0.0) for name in ("sum", "mean"))
            self._has_several_agents = abs(welfare_sum - welfare_mean) > 0  # False for NaN
            if self._has_several_agents:
                yield from self._withheld_welfare
                self._withheld_welfare = []
            elif welfare := {tag: values.pop(tag) for tag in list(values) if tag.startswith(_WELFARE_PREFIX)}:
                self._withheld_welfare.append((row, welfare))
        if values:
            yield row, values
