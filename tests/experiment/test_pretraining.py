"""`agent.init_from=preset:<study>`: the run of a preset is computed once, stored and loaded."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from experiments import compose, run, run_experiment
from llmrl.core.errors import ConfigError
from llmrl.experiment.parts import build_parts, without_missing_weights
from llmrl.experiment.prerequisites import ensure_finished
from llmrl.experiment.run_references import list_referenced_runs, with_digests
from llmrl.run.artifacts import load_saved_state
from llmrl.run.run import Run
from llmrl.run.signals import Stopped

STUDY = "preset:legislative/escape_room_alone"
NEEDS = (
    *(
        "experiment=legislative/escape_room_small",
        "principal=fixed",
        "design.evaluations=1",
        "design.steps=1",
        "design.adapt_rounds=1",
    ),
    f"agent.init_from={STUDY}",
)


def folders(root: Path) -> dict[str, Path]:
    """Return the folder of each run under `root` by `name/.../s<n>`."""
    return {path.parent.name + "/" + path.name: path for path in root.rglob("s[0-9]*")}


@pytest.mark.slow
def test_pretraining_is_computed_once(tmp_path, capsys):
    config = compose(*NEEDS, f"output_root={tmp_path}")
    assert without_missing_weights(config)["agent"]["init_from"] is None
    run(*NEEDS, "dry_run=true", f"output_root={tmp_path}")
    plan = capsys.readouterr().out
    assert ", 9,600 environment steps" in " ".join(plan.replace("│", " ").split())
    assert not folders(tmp_path)
    run(*NEEDS, f"output_root={tmp_path}")
    run_folders = folders(tmp_path)
    assert len(run_folders) == 2
    [pretraining_folder] = [
        path for name, path in run_folders.items() if "room_alone" in name.split("/")[0] and "init_from" not in name
    ]
    assert without_missing_weights(with_digests(config))["agent"]["init_from"] == str(pretraining_folder)
    status = json.loads((pretraining_folder / "status.json").read_text())
    assert status["state"] == "finished" and status["shared"] == {}
    [needing] = [path for path in run_folders.values() if path != pretraining_folder]
    shared = json.loads((needing / "status.json").read_text())["shared"]
    assert shared == {"pre-training": ["/".join(pretraining_folder.parts[-3:])]}
    parts = build_parts(with_digests(config), None)
    for name, x in load_saved_state(pretraining_folder)[1]["agents"][0]["policy"].items():
        assert torch.equal(parts.agents[0].policy.state_dict()[name], x)
    parts.close()
    # Another run of the sweep shares it, and so does another seed, if it is told to.
    updated = status["updated"]
    run(*NEEDS, "design.spending_cost=0.1", f"output_root={tmp_path}")
    run(*NEEDS, "seed=1", "agent.init_from_seed=shared", f"output_root={tmp_path}")
    assert (
        len(folders(tmp_path)) == 4
        and json.loads((pretraining_folder / "status.json").read_text())["updated"] == updated
    )
    run(*NEEDS, "dry_run=true", f"output_root={tmp_path}")
    assert "finished:" in capsys.readouterr().out


@pytest.mark.slow
def test_concurrent_runs_wait_for_single_pretraining(tmp_path):
    """Let the second run find the folder in use and continue when it is finished."""
    [pretraining_folder] = list_referenced_runs(compose(*NEEDS, f"output_root={tmp_path}"))
    first = threading.Thread(target=run_experiment, args=(pretraining_folder.config, pretraining_folder.overrides))
    first.start()
    run(*NEEDS, f"output_root={tmp_path}")
    first.join()
    assert len(folders(tmp_path)) == 2


def test_waiting_run_is_interruptible(tmp_path, monkeypatch):
    config = compose(*NEEDS, f"output_root={tmp_path}")
    [pretraining_folder] = list_referenced_runs(config)
    monkeypatch.setattr("llmrl.experiment.prerequisites._POLL_SECONDS", 0.01)
    name = pretraining_folder.config["name"]
    with (
        Run.open(tmp_path, name, pretraining_folder.config, pretraining_folder.overrides, 0),
        Run.open(tmp_path, "needs", {}, [], 0) as waits,
    ):
        waits.stop_flag.signal = 15
        with pytest.raises(Stopped):
            ensure_finished(list_referenced_runs(config), waits, run_experiment)
        waits.stop_flag.signal = None


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ("preset:legislative/nothing", "agent.init_from=preset"),
        ("preset:regimes/escape_room", "preset:regimes/escape_room.*principal"),
    ],
)
def test_rejects_invalid_pretraining(tmp_path, study, message):
    with pytest.raises(ConfigError, match=message):
        with_digests(compose(*NEEDS[:-1], f"agent.init_from={study}", f"output_root={tmp_path}"))
