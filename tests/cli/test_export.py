"""`llmrl-export`: completed runs, read by the programs of the target formats."""

import json
import subprocess
import sys

import pytest

import llmrl
from explored import HOSTILE, played, principal_run
from llmrl.cli.export import TABLES, export_inspect, main
from llmrl.core.errors import ConfigError, RunFolderError

REASON = "inspect_ai is not installed: its 0.3.285 needs fsspec <= 2026.6, and constraints.txt has 2026.9"


def test_inspect_reads_episodes(tmp_path):
    log = pytest.importorskip("inspect_ai.log", reason=REASON)
    run = played(tmp_path, episodes=3, recorded=2)
    out, episodes = export_inspect(run)
    assert episodes == 2
    read = log.read_eval_log(str(out))
    assert (read.status, read.eval.task, read.eval.model) == ("success", "corridor", "tiny")
    first, second = read.samples
    assert (first.id, first.scores["return"].value, second.scores["return"].value) == (1, 0.0, 1.0)
    assert read.results.scores[0].metrics["mean"].value == 0.5
    assert [message.role for message in first.messages[:3]] == ["system", "user", "assistant"]
    assert first.messages[2].text == f"reply 0 {HOSTILE}"
    calls = [event for event in second.events if event.event == "model"]
    assert [message.output.message.metadata["valid"] for message in calls] == [True, True, False, True, True]
    assert calls[0].output.message.content[0].reasoning == "thought 0"
    notes = [event.data for event in second.events if event.event == "info"]
    assert (notes[2]["action"], notes[2]["reward"], notes[2]["faults"]) == ("go 2", 1.0, ["no action in it"])


def test_viewer_command_reads_log(tmp_path):
    pytest.importorskip("inspect_ai", reason=REASON)
    out, _ = export_inspect(played(tmp_path, episodes=1, recorded=1), tmp_path / "log.json")
    command = [sys.executable, "-m", "inspect_ai", "log", "dump", str(out), "--header-only"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["eval"]["task"] == "corridor"


def test_rejects_unsupported_runs(tmp_path, monkeypatch, capsys):
    import importlib.util

    if importlib.util.find_spec("inspect_ai") is None:
        with pytest.raises(ConfigError, match=r"llmrl\[inspect\]"):
            export_inspect(played(tmp_path, episodes=1))
        with pytest.raises(SystemExit):
            main(["inspect", str(tmp_path)])
        assert "boto3" in capsys.readouterr().err
        return
    with pytest.raises(RunFolderError, match=r"replies\.jsonl"):
        export_inspect(principal_run(tmp_path))
    with pytest.raises(ConfigError, match="end in"):
        export_inspect(played(tmp_path / "b", episodes=1), tmp_path / "log.txt")


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("what", ["runs", "metrics", "proposals", "episodes", "calls"])
def test_tables_equal_loaded_results(tmp_path, what, format):
    import pandas as pd

    run = principal_run(tmp_path / "outputs")
    main(["table", str(run), "--what", what, "--format", format])
    frame = getattr(llmrl.load(run), TABLES[what])
    path = run / "tables" / f"{what}.{format}"
    read = pd.read_parquet(path) if format == "parquet" else pd.read_csv(path)
    assert list(read) == list(frame) and len(read) == len(frame)
    if what in ("runs", "proposals"):
        assert len(read) and read["seed"].tolist() == frame["seed"].tolist()


def test_table_of_sweep(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        principal_run(tmp_path / "outputs", seed)
    monkeypatch.chdir(tmp_path)
    main(["table", "latest:state", "--out", "runs.csv"])
    assert "2 rows" in capsys.readouterr().out
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3


def test_missing_pyarrow_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit):
        main(["table", str(principal_run(tmp_path)), "--format", "parquet"])
    assert "llmrl[analysis]" in capsys.readouterr().err
