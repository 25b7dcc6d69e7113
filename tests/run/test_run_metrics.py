"""Metrics files and TensorBoard events, and their equality for resumed and uninterrupted runs."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from experiments import compute_log_position
from llmrl.core.errors import RunFolderError
from llmrl.run.files import FilePosition
from llmrl.run.metrics import FILE_NAME, TIME_PREFIX, MetricLog, read_metric_tables, read_metrics
from llmrl.run.sink import HyperParameters, Opening
from llmrl.run.sinks.tensorboard import TensorBoard


def open_log(
    folder: Path, hyperparameters: HyperParameters | None = None, position: FilePosition | None = None
) -> MetricLog:
    """Return a metrics log with a TensorBoard sink."""
    opening = Opening(folder, folder, "name", "label", hyperparameters=hyperparameters or {}, started=1.0)
    return MetricLog(folder, position, {"tensorboard": TensorBoard()}, opening)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return TensorBoard's scalars of a folder as (step, value) by tag, with NaN as a string that equals itself."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = {}
    for tag in accumulator.Tags()["scalars"]:
        points = [(event.step, event.value) for event in accumulator.Scalars(tag)]
        tags[tag] = [(step, "nan" if value != value else value) for step, value in points]
    return tags


def hparams(folder: Path) -> dict[str, Any]:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator.summary_metadata


def texts(folder: Path, tag: str) -> list[tuple[int, str]]:
    """Return (step, Markdown) of the texts of a tag."""
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    assert accumulator.summary_metadata[tag].plugin_data.plugin_name == "text"
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in accumulator.Tensors(tag)]


def numbers(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / FILE_NAME).read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(TIME_PREFIX)} for line in lines]


def record(metrics: MetricLog, steps: range) -> None:
    for step in steps:
        scalars = {"reward/mean": math.sin(step), "loss": np.float32(0.1) * step}
        metrics.log("update", "updates", scalars, updates=step, env_steps=80 * step)


def test_lines_are_flat_json(tmp_path: Path) -> None:
    metrics = MetricLog(tmp_path)
    scalars = {"a": 0.1, "b": torch.tensor(2.0), "c": np.int64(4), "d": True}
    metrics.log("update", "env_steps", scalars, env_steps=np.int64(80), updates=3)
    line = json.loads((tmp_path / FILE_NAME).read_text())  # on disk before the log is closed
    assert {key for key in line if key.startswith(TIME_PREFIX)} == {"time/unix", "time/elapsed_s"}
    place = {"kind": "update", "x": "env_steps", "env_steps": 80, "updates": 3}
    assert numbers(tmp_path) == [{**place, "a": 0.1, "b": 2.0, "c": 4.0, "d": 1.0}]
    metrics.close()


def test_event_file_contains_hyperparameters(tmp_path: Path) -> None:
    metrics = open_log(tmp_path, {"lr": 0.1, "principal": "ucb", "flag": True})
    record(metrics, range(5))
    metrics.close()
    assert len(list(tmp_path.glob("*tfevents*"))) == 1
    tags = curves(tmp_path)
    assert set(tags) == {"reward/mean", "loss"}  # counters are axes
    assert [step for step, _ in tags["loss"]] == list(range(5))
    assert tags["reward/mean"][2][1] == pytest.approx(math.sin(2))
    metadata = hparams(tmp_path)
    start = plugin_data_pb2.HParamsPluginData.FromString(
        metadata["_hparams_/session_start_info"].plugin_data.content
    ).session_start_info
    assert start.group_name == ""  # so the row has the run's name
    assert start.hparams["lr"].number_value == pytest.approx(0.1)
    assert start.hparams["principal"].string_value == "ucb"
    assert start.hparams["flag"].bool_value
    assert "_hparams_/session_end_info" in metadata


def test_resume_files_match_uninterrupted_files(tmp_path: Path) -> None:
    reference, broken = tmp_path / "whole", tmp_path / "broken"
    reference.mkdir()
    broken.mkdir()
    metrics = open_log(reference, {"x": 1})
    record(metrics, range(10))
    metrics.close()

    metrics = open_log(broken, {"x": 1})
    record(metrics, range(4))
    position = metrics.position()
    record(metrics, range(4, 7))  # lost: logged after the checkpoint, and not closed
    with (broken / FILE_NAME).open("a") as file:
        file.write('{"step": 7, "rew')  # killed in the middle of a line
    metrics = open_log(broken, {"x": 1}, position)
    assert metrics.position() == position
    assert position["lines"] == 4
    record(metrics, range(4, 10))
    metrics.close()

    assert numbers(broken) == numbers(reference)
    assert curves(broken) == curves(reference)
    assert len(list(broken.glob("*tfevents*"))) == 1
    elapsed = [line["time/elapsed_s"] for line in read_metrics(broken / FILE_NAME)]
    assert elapsed == sorted(elapsed)


def test_final_metrics_come_from_last_step(tmp_path: Path) -> None:
    metrics = open_log(tmp_path, {"x": 1})
    record(metrics, range(5))
    final = {"result": 2.5, "worst": float("nan"), "count": 3, "done": True, "best": {"a": 1.0}, "loss/policy": 1.0}
    final["llm_usd_paid"] = 0.1  # runs without a model have none
    metrics.close(final_results={"none": None} | final)
    tags = curves(tmp_path)
    assert tags.pop("Final/result") == [(4, 2.5)] and tags.pop("Final/worst") == [(4, "nan")]
    assert set(tags) == {"reward/mean", "loss"}
    assert min(tags | {"Final/result": []}) == "Final/result"  # TensorBoard's table shows what sorts first


def test_failing_run_has_no_final_metrics(tmp_path: Path) -> None:
    metrics = open_log(tmp_path, {"x": 1})
    record(metrics, range(2))
    metrics.close("failed")
    assert set(curves(tmp_path)) == {"reward/mean", "loss"}
    end = plugin_data_pb2.HParamsPluginData.FromString(
        hparams(tmp_path)["_hparams_/session_end_info"].plugin_data.content
    )
    assert end.session_end_info.status == api_pb2.STATUS_FAILURE


def test_texts_next_to_lines_across_resume(tmp_path: Path) -> None:
    def text_at(line: Mapping[str, Any]) -> str | None:
        return f"**{line['loss']:.2f}**" if line["updates"] % 2 == 0 else None

    metrics = open_log(tmp_path)
    record(metrics, range(2))
    metrics.attach_text("told", text_at)
    record(metrics, range(2, 3))
    position = metrics.position()
    record(metrics, range(3, 5))
    assert texts(tmp_path, "told") == [(0, "**0.00**"), (2, "**0.20**"), (4, "**0.40**")]
    metrics = open_log(tmp_path, position=position)
    metrics.attach_text("told", text_at)
    record(metrics, range(3, 7))
    assert texts(tmp_path, "told") == [(0, "**0.00**"), (2, "**0.20**"), (4, "**0.40**"), (6, "**0.60**")]
    assert len(curves(tmp_path)["loss"]) == 7


def test_missing_checkpoint_logs_anew(tmp_path: Path) -> None:
    record(MetricLog(tmp_path), range(3))
    metrics = MetricLog(tmp_path)
    record(metrics, range(2))
    metrics.close()
    assert [line["updates"] for line in numbers(tmp_path)] == [0, 1]


def test_non_finite_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = open_log(tmp_path)
    with caplog.at_level(logging.WARNING):
        metrics.log("update", "updates", {"a": float("nan"), "b": float("-inf"), "c": 1.0}, updates=0)
        metrics.log("update", "updates", {"a": float("nan")}, updates=1)
    position = metrics.position()
    live = curves(tmp_path)
    assert numbers(tmp_path)[0] == {"kind": "update", "x": "updates", "updates": 0, "a": None, "b": None, "c": 1.0}
    assert math.isnan(read_metrics(tmp_path / FILE_NAME)[0]["b"])
    names = [r.getMessage().split()[1] for r in caplog.records if r.name == "llmrl.run.metrics"]
    assert names == ["a", "b"]  # told once for each
    open_log(tmp_path, position=position).close()
    assert curves(tmp_path)["a"] == live["a"] == [(0, "nan"), (1, "nan")]


@pytest.mark.parametrize(
    ("arguments", "counters", "complaint"),
    [
        (("update", "updates", {"kind": 1.0}), {"updates": 1}, "kind"),
        (("update", "updates", {"env_steps": 1.0}), {"updates": 1}, "env_steps"),
        (("final", "updates", {"b": 1.0}), {"updates": 1}, "update, adaptation, .* not 'final'"),
        (("update", "env_steps", {"b": 1.0}), {"updates": 1}, "env_steps"),
        (("update", "years", {"b": 1.0}), {"years": 1}, "not years"),
        (
            ("update", "env_steps", {"b": 1.0}),
            {"updates": 1, "env_steps": 5},
            "env_steps",
        ),
        (("evaluation", "updates", {"a": 1.0}), {"updates": 1}, "a is in rows of kind update"),
    ],
)
def test_inconsistent_counters_raise(
    tmp_path: Path, arguments: tuple[Any, ...], counters: dict[str, int], complaint: str
) -> None:
    """Also after a resume, when earlier rows are known only from the file."""
    metrics = MetricLog(tmp_path)
    metrics.log("update", "updates", {"a": 1.0, "usage/llm_calls": 1.0}, updates=1)
    for is_restart in (False, True):
        metrics = MetricLog(tmp_path, compute_log_position(tmp_path / FILE_NAME)) if is_restart else metrics
        with pytest.raises(ValueError, match=complaint):
            metrics.log(*arguments, **counters)
        assert len(numbers(tmp_path)) == 1
    metrics.log("evaluation", "updates", {"b": 1.0, "usage/llm_calls": 2.0}, updates=1)
    assert len(numbers(tmp_path)) == 2


def test_row_types_have_separate_tables(tmp_path: Path) -> None:
    """Rows of three kinds have different counters, as in runs of principals."""
    metrics = open_log(tmp_path)
    for proposal in (1, 2):
        for round_ in (1, 2, 3):
            rounds = 3 * (proposal - 1) + round_
            metrics.log("adaptation", "rounds", {"loss": 0.5 * rounds}, rounds=rounds, env_steps=10 * rounds)
        scalars = {"objective": 1.0 * proposal} | ({"late": math.inf} if proposal == 2 else {})
        metrics.log("proposal", "proposals", scalars, env_steps=30 * proposal + 1, proposals=4 * proposal)
    metrics.close(final_results={"result": 2.0})
    tables = read_metric_tables(tmp_path / FILE_NAME)
    assert {kind: (table.kind, table.x) for kind, table in tables.items()} == {
        "adaptation": ("adaptation", "rounds"),
        "proposal": ("proposal", "proposals"),
    }
    columns = {name: x.tolist() for name, x in tables["adaptation"].columns.items() if TIME_PREFIX not in name}
    assert columns == {
        "rounds": [1, 2, 3, 4, 5, 6],
        "env_steps": [10, 20, 30, 40, 50, 60],
        "loss": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0],
    }
    assert list(tables["proposal"].columns)[:4] == ["proposals", "env_steps", "objective", TIME_PREFIX + "elapsed_s"]
    assert tables["proposal"].columns["objective"].tolist() == [1, 2]
    assert np.isnan(tables["proposal"].columns["late"]).all()
    assert [row["objective"] for row in read_metrics(tmp_path / FILE_NAME, "proposal")] == [1, 2]
    assert curves(tmp_path) == {
        "loss": [(k, 0.5 * k) for k in range(1, 7)],
        "objective": [(4, 1.0), (8, 2.0)],
        "late": [(8, "nan")],
        "Final/result": [(8, 2.0)],
    }


def test_untyped_rows_raise(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"step": 1, "a": 2.0, "time/unix": 1.0}\n')
    with pytest.raises(RunFolderError, match="line 1"):
        read_metric_tables(tmp_path / FILE_NAME)
    with pytest.raises(RunFolderError, match="rerun=true"):
        MetricLog(tmp_path, compute_log_position(tmp_path / FILE_NAME))


def test_file_shorter_than_checkpoint(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{}\n")
    with pytest.raises(RunFolderError, match=r" 1 lines .* 100: .*rerun=true"):
        MetricLog(tmp_path, {"lines": 100, "sha256": ""})


def test_reader_skips_partial_line(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text('{"step": 1}\n{"step"')
    assert read_metrics(path) == [{"step": 1}]
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(RunFolderError, match="line 2"):
        read_metrics(path)
