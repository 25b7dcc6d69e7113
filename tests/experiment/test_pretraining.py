"""`agent.init_from=preset:<study>`: the run of a preset is computed once, kept, and begun with."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from experiments import compose, run, run_experiment
from llmrl.core.errors import ConfigError
from llmrl.experiment.parts import build_parts, located
from llmrl.experiment.prerequisites import ensure
from llmrl.experiment.run_references import needed, with_digests
from llmrl.run.artifacts import saved_state
from llmrl.run.run import Run
from llmrl.run.signals import Stopped

STUDY = "preset:legislative/escape_room_alone"
NEEDS = (
    *("experiment=legislative/escape_room_small", "principal=fixed", "design.steps=1", "design.adapt_rounds=1"),
    f"agent.init_from={STUDY}",
)


def folders(root: Path) -> dict[str, Path]:
    """Of every run under `root`: `name/…/s<n>` by what was typed for it."""
    return {path.parent.name + "/" + path.name: path for path in root.rglob("s[0-9]*")}


@pytest.mark.slow
def test_it_is_computed_once_and_begun_with(tmp_path, capsys):
    config = compose(*NEEDS, f"output_root={tmp_path}")
    assert located(config)["agent"]["init_from"] is None
    run(*NEEDS, "dry_run=true", f"output_root={tmp_path}")
    plan = capsys.readouterr().out
    assert "to be computed first, 9,600 environment steps" in " ".join(plan.replace("│", " ").split())
    assert not folders(tmp_path)
    run(*NEEDS, f"output_root={tmp_path}")
    found = folders(tmp_path)
    assert len(found) == 2
    [begun] = [path for name, path in found.items() if "room_alone" in name.split("/")[0] and "init_from" not in name]
    assert located(with_digests(config))["agent"]["init_from"] == str(begun)
    status = json.loads((begun / "status.json").read_text())
    assert status["state"] == "finished" and status["shared"] == {}
    [needing] = [path for path in found.values() if path != begun]
    shared = json.loads((needing / "status.json").read_text())["shared"]
    assert shared == {"pre-training": ["/".join(begun.parts[-3:])]}
    parts = build_parts(with_digests(config), None)
    for name, x in saved_state(begun)[1]["agents"][0]["policy"].items():
        assert torch.equal(parts.agents[0].policy.state_dict()[name], x)
    parts.close()
    # Another run of the sweep shares it, and so does another seed, if it is told to.
    before = status["updated"]
    run(*NEEDS, "design.spending_cost=0.1", f"output_root={tmp_path}")
    run(*NEEDS, "seed=1", "agent.init_from_seed=shared", f"output_root={tmp_path}")
    assert len(folders(tmp_path)) == 4 and json.loads((begun / "status.json").read_text())["updated"] == before
    run(*NEEDS, "dry_run=true", f"output_root={tmp_path}")
    assert "finished:" in capsys.readouterr().out


@pytest.mark.slow
def test_several_that_need_it_at_once_wait_for_one(tmp_path):
    """The second finds the folder taken, and goes on when it is finished."""
    [begun] = needed(compose(*NEEDS, f"output_root={tmp_path}"))
    first = threading.Thread(target=run_experiment, args=(begun.config, begun.overrides))
    first.start()
    run(*NEEDS, f"output_root={tmp_path}")
    first.join()
    assert len(folders(tmp_path)) == 2


def test_who_waits_can_be_stopped(tmp_path, monkeypatch):
    config = compose(*NEEDS, f"output_root={tmp_path}")
    [begun] = needed(config)
    monkeypatch.setattr("llmrl.experiment.prerequisites._POLL_S", 0.01)
    name = begun.config["name"]
    with Run.open(tmp_path, name, begun.config, begun.overrides, 0), Run.open(tmp_path, "needs", {}, [], 0) as waits:
        waits.stop.signal = 15
        with pytest.raises(Stopped):
            ensure(needed(config), waits, run_experiment)
        waits.stop.signal = None


@pytest.mark.parametrize(
    ("study", "message"),
    [
        ("preset:legislative/nothing", "agent.init_from=preset:legislative/nothing: In .train.: Could not find"),
        ("preset:regimes/escape_room", "this one has a principal"),
    ],
)
def test_what_is_no_pretraining_is_refused(tmp_path, study, message):
    with pytest.raises(ConfigError, match=message):
        with_digests(compose(*NEEDS[:-1], f"agent.init_from={study}", f"output_root={tmp_path}"))
