"""Sinks of libraries contain each row of a run once, also after a kill between two checkpoints."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import commands
import sink_worker
from llmrl.run.signals import MAX_STOP_S
from sink_worker import ALL, KEY, ROWS_AT_CHECKPOINT

LOSSES = {10 * n: 0.5 * n for n in range(ALL) if n % 3 != 2}
RETURNS = {n: 2.0 * n for n in range(ALL) if n % 3 == 2}


def attempts(tmp_path: Path, node: dict[str, Any], *ways: str) -> Path:
    """Run attempts and return the run folder.

    Each attempt is a process with an empty home. They print nothing, and write only below the output folder, for their
    owner alone.
    """
    home, directory, root = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "outputs"
    for folder in (home, directory):
        folder.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    env |= {"HOME": str(home)}
    env.pop("XDG_CACHE_HOME", None)
    for way in ways:
        command = [sys.executable, sink_worker.__file__, str(root), json.dumps(node), way]
        done = commands.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == (9 if way == "killed" else 0), done.stderr
        output = [line for line in (done.stdout + done.stderr).splitlines() if "odd (tag) is nan" not in line]
        assert not output, output
    assert not list(directory.iterdir()) and not [path for path in home.rglob("*") if path.is_file()]
    for path in root.rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o077, f"{path} is open to others"
    holding = [path for path in root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not holding, f"a key is in {holding}"
    [folder] = (root / "game").glob("*/s3")
    return folder


def wandb_records(folder: Path) -> list[Any]:
    """Return the records of the only offline run in `folder`: protocol buffers in the log format of LevelDB."""
    from wandb.proto import wandb_internal_pb2 as pb

    [path] = (folder / "loggers" / "wandb").glob("offline-run-*/run-*.wandb")
    data, at, records, fragment = path.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        fragment += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            record = pb.Record()
            record.ParseFromString(fragment)
            records.append(record)
            fragment = b""
    return records


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    node = {"_target_": "llmrl.run.sinks.wandb.WandB", "mode": "offline"}
    folder = attempts(tmp_path, node, "killed", "finishes")
    records = wandb_records(folder)
    history = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                *outer, last = item.nested_key or [item.key]
                place = row.setdefault(outer[0], {}) if outer else row
                place[last] = json.loads(item.value_json)
            history.append(row)
    assert {row["env_steps"]: row["loss/value"] for row in history if "loss/value" in row} == LOSSES
    assert len([row for row in history if "loss/value" in row]) == len(LOSSES), "each row once"
    assert {row["updates"]: row["evaluation/return"] for row in history if "evaluation/return" in row} == RETURNS
    texts = {row["env_steps"]: row["llm/exchange"]["path"] for row in history if "llm/exchange" in row}
    assert texts.keys() == {0, 60}
    [text] = (folder / "loggers" / "wandb").glob(f"offline-run-*/files/{texts[60]}")
    assert text.read_text().endswith(">*key* &lt;redacted&gt;</pre>")
    [video] = [row["episode/video"] for row in history if "episode/video" in row]
    assert video["_type"] == "video-file"
    [media] = (folder / "loggers" / "wandb").glob(f"offline-run-*/files/{video['path']}")
    assert media.read_bytes() == sink_worker.write_video(tmp_path).read_bytes()
    metrics = {r.metric.name: r.metric.step_metric for r in records if r.WhichOneof("record_type") == "metric"}
    assert metrics["loss/value"] == "env_steps" and metrics["evaluation/return"] == "updates"
    [run] = [r.run for r in records if r.WhichOneof("record_type") == "run"][:1]
    config = {config_row.key: json.loads(config_row.value_json) for config_row in run.config.update}
    assert (run.project, run.display_name) == ("game", "/".join(folder.parts[-2:]))
    assert run.run_group == folder.parent.name and run.run_id == (folder / "loggers" / "run_id").read_text()
    assert config["env.n_envs"] == 4 and config["agent.sizes"] == [8, 8] and config["seed"] == 3
    assert not run.host and not run.git.remote_url
    summary = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary |= {summary_row.key: json.loads(summary_row.value_json) for summary_row in record.summary.update}
    assert summary["Final/result"] == 2.5 and summary["state"] == "finished" and summary["best.a"] == 1.0
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [0]


def test_wandb_online_needs_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from llmrl.core.errors import ConfigError
    from llmrl.run.sinks.wandb import WandB

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ConfigError, match=r"WANDB_API_KEY.*mode=offline"):
        WandB()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    WandB()


@pytest.mark.long
@pytest.mark.slow
def test_wandb_outage_does_not_delay_stop(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    script = """
import os, signal, sys, time
from pathlib import Path
import sink_worker
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.sinks.wandb import WandB
try:
    with Run.open(Path(sys.argv[1]), "game", sink_worker.CONFIG, make_sinks=lambda: {"wandb": WandB()}) as run:
        run.checkpoint(0, {})
        while not list(run.folder.glob("loggers/wandb/*")):
            time.sleep(0.01)
        time.sleep(1.0)  # it tries to reach the server
        print(time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        run.safe_point(1, dict)
except Stopped:
    pass
"""
    env = {**os.environ, "WANDB_API_KEY": "a" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    env["PYTHONPATH"] = str(Path(sink_worker.__file__).parent)
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    duration = time.time() - float(done.stdout.split()[0])
    assert duration < MAX_STOP_S, f"{duration:.0f} s"
    assert "Traceback" not in done.stderr
    [record] = tmp_path.rglob("run.log")
    assert all(part in record.read_text() for part in ("loggers.wandb", "in time"))


@pytest.mark.long
@pytest.mark.slow
def test_mlflow_database(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    node = {"_target_": "llmrl.run.sinks.mlflow.MLflow"}
    folder = attempts(tmp_path, node, "killed", "finishes")
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("game")
    [run] = client.search_runs([experiment.experiment_id])
    points = client.get_metric_history(run.info.run_id, "loss/value")
    assert [(point.step, point.value) for point in points] == list(LOSSES.items()), "each row once"
    returns = client.get_metric_history(run.info.run_id, "evaluation/return")
    assert {point.step: point.value for point in returns} == RETURNS and len(returns) == len(RETURNS)
    assert all(math.isnan(point.value) for point in client.get_metric_history(run.info.run_id, "odd _tag_"))
    assert run.info.status == "FINISHED" and run.info.run_name == "/".join(folder.parts[-2:])
    assert run.data.metrics["Final/result"] == 2.5 and run.data.params["agent.lr"] == "0.1"
    assert run.data.tags["llmrl.rows"] == str(ALL) and run.data.tags["llmrl.state"] == "finished"
    artifacts = tmp_path / "outputs" / "mlflow" / "artifacts" / run.info.run_id / "artifacts"
    assert sorted(p.name for p in (artifacts / "llm/exchange").iterdir()) == ["00000000.md", "00000006.md"]
    assert (artifacts / "llm/exchange/00000006.md").read_text() == "*key* <redacted>"
    [video] = (artifacts / "episode/video").rglob("*.gif")
    assert video.read_bytes() == sink_worker.write_video(tmp_path).read_bytes()
    assert json.loads((artifacts / "summary.json").read_text())["best"] == {"a": 1.0}


def test_mlflow_continues_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from llmrl.run.metrics import MetricLog
    from llmrl.run.sink import Opening
    from llmrl.run.sinks.mlflow import MLflow

    opening = Opening(tmp_path / "run", tmp_path, "game", "label", {"a": 1}, {}, started=1.0)
    opening.folder.mkdir()
    ids, position = [], None
    for begins, ends in ((0, ROWS_AT_CHECKPOINT), (ROWS_AT_CHECKPOINT, ALL)):
        sink = MLflow()
        metrics = MetricLog(opening.folder, position, {"mlflow": sink}, opening)
        metrics.attach_text("said", lambda line: "text")
        sink_worker.log_rows(metrics, range(begins, ends))
        position = metrics.position()
        metrics.close("preempted" if ends < ALL else "finished")
        metrics.wait_for_sinks()
        ids.append(sink._mlflow_run_id)
    assert ids[0] == ids[1]
    points = sink._client.get_metric_history(ids[0], "loss/value")
    assert [(point.step, point.value) for point in points] == list(LOSSES.items())
    assert len(sink._client.list_artifacts(ids[0], "said")) == ALL
    assert sink._client.get_run(ids[0]).info.status == "FINISHED"


def test_mlflow_outage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mlflow")
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    from llmrl.run.run import Run
    from llmrl.run.sinks.mlflow import MLflow

    sinks = {"mlflow": MLflow(f"http://127.0.0.1:{port}")}
    with Run.open(tmp_path, "game", sink_worker.CONFIG, make_sinks=lambda: sinks) as run:
        sink_worker.log_rows(run.metrics, range(4))
        run.result = 1.0
    assert Run.open(tmp_path, "game", sink_worker.CONFIG).finished
    assert "loggers.mlflow" in caplog.text and "4 of 4 rows" in caplog.text


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_libraries_load_lazily(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = f"import sys, sink_worker; sys.exit({library!r} in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(Path(sink_worker.__file__).parent)}
    assert subprocess.run([sys.executable, "-c", script], env=env).returncode == 0
