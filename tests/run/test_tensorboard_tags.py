"""Under which tags TensorBoard shows what a run measures, by its own reader."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llmrl.run.metrics import MetricLog
from llmrl.run.sinks.sink import Opening
from llmrl.run.sinks.tensorboard import TensorBoard
from llmrl.run.sinks.tensorboard_tags import REPEATED, tag_of


def shown(folder: Path, rows: list[dict[str, float]], kind: str = "proposal") -> dict[str, list[tuple[int, float]]]:
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


def test_what_runs_are_compared_by_is_the_first_group_of_cards(tmp_path: Path) -> None:
    found = shown(tmp_path, [row(3.0, 3), row(6.0, 3)])
    assert found["Compare/2_online_objective"] == [(1, 3.0), (2, 6.0)]
    assert min(found) == "Compare/2_online_objective" and "principal/objective" not in found


def test_nothing_is_drawn_twice(tmp_path: Path) -> None:
    found = shown(tmp_path, [{**row(3.0, 3), "validation/incentives_paid": 4.0}])
    assert set(found) == {
        "Compare/2_online_objective",
        "welfare/minimum",
        "welfare/equality",
        "validation/incentives_paid",
    }
    assert not REPEATED.keys() & found.keys()


def test_welfare_of_a_single_agent_is_its_return(tmp_path: Path) -> None:
    assert set(shown(tmp_path, [row(3.0, 1), row(5.0, 1)])) == {"Compare/2_online_objective"}


def test_welfare_waits_until_there_are_several_agents_and_is_told_whole_then(tmp_path: Path) -> None:
    # Nobody has anything at first, so sum and mean are both zero.
    found = shown(tmp_path, [row(0.0, 3), row(0.0, 3), row(6.0, 3)])
    assert found["welfare/equality"] == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_metric_has_the_same_tag_in_all_runs_of_a_kind() -> None:
    assert tag_of("update", "ended/return") == "Compare/return"
    assert tag_of("evaluation", "evaluation/objective") == "evaluation/objective"
    assert tag_of("episode", "evaluation/objective") == "Compare/objective"
    assert tag_of("proposal", "welfare/sum") is None
