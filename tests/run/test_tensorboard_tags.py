"""Tags of the metrics of a run in TensorBoard."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llmrl.run.metrics import MetricLog
from llmrl.run.sink import Opening
from llmrl.run.sinks.tensorboard import REPEATED_METRICS, TensorBoard, get_tag


def read_tags(folder: Path, rows: list[dict[str, float]], kind: str = "proposal") -> dict[str, list[tuple[int, float]]]:
    opening = Opening(folder, folder, "name", "label", started=1.0)
    metrics = MetricLog(folder, None, {"tensorboard": TensorBoard()}, opening)
    for i, row in enumerate(rows, start=1):
        metrics.log(kind, "proposals", row, proposals=i)
    metrics.close()
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def row(total: float, agents: int) -> dict[str, float]:
    welfare = {"sum": total, "mean": total / agents, "minimum": 0.0, "equality": 0.5, "gini": 0.5, "spending": 4.0}
    return {"principal/objective": total, **{f"welfare/{name}": x for name, x in welfare.items()}}


def test_comparison_is_first_card_group(tmp_path: Path) -> None:
    tags = read_tags(tmp_path, [row(3.0, 3), row(6.0, 3)])
    assert tags["Compare/2_online_objective"] == [(1, 3.0), (2, 6.0)]
    assert min(tags) == "Compare/2_online_objective" and "principal/objective" not in tags


def test_tags_are_unique(tmp_path: Path) -> None:
    tags = read_tags(tmp_path, [{**row(3.0, 3), "validation/incentives_paid": 4.0}])
    assert set(tags) == {
        "Compare/2_online_objective",
        "welfare/minimum",
        "welfare/equality",
        "validation/incentives_paid",
    }
    assert not REPEATED_METRICS.keys() & tags.keys()


def test_single_agent_welfare_is_return(tmp_path: Path) -> None:
    assert set(read_tags(tmp_path, [row(3.0, 1), row(5.0, 1)])) == {"Compare/2_online_objective"}


def test_welfare_requires_multiple_agents(tmp_path: Path) -> None:
    # Nobody has anything at first, so sum and mean are both zero.
    tags = read_tags(tmp_path, [row(0.0, 3), row(0.0, 3), row(6.0, 3)])
    assert tags["welfare/equality"] == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_metric_tags_agree_across_runs() -> None:
    assert get_tag("update", "episode/return") == "Compare/return"
    assert get_tag("evaluation", "evaluation/objective") == "evaluation/objective"
    assert get_tag("episode", "evaluation/objective") == "Compare/objective"
    assert get_tag("proposal", "welfare/sum") is None
