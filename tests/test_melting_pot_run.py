"""The main job on the real engine, small: design run, evaluation table, videos, pre-training into governing."""

import json
from pathlib import Path

import imageio.v3 as iio
import pytest

import llmrl.conf
from experiments import only_run_folder, run
from llmrl.cli.evaluate import main as evaluate

PRESETS = Path(llmrl.conf.__file__).parent / "experiment" / "legislative"
pytestmark = [pytest.mark.slow, pytest.mark.meltingpot]
SMALL = ("env.n_envs=2", "env.horizon=20", "design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=2")


@pytest.mark.parametrize("env", ["cleanup", "harvest"])
def test_llm_principal_governs_and_is_evaluated(tmp_path, env, capsys):
    result = run(f"env={env}", "principal=llm", "llm=scripted", *SMALL, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert result == summary["final_objective"] and len(summary["history"]) == 2
    calls = [json.loads(line) for line in (folder / "llm_calls.jsonl").read_text().splitlines()]
    assert len(calls) == 2 and "Generation 1" in json.dumps(calls[1])
    evaluate([str(folder), "--episodes", "3", "--video", "--video-steps", "10"])
    assert "objective (mean over agents)" in capsys.readouterr().out
    results = json.loads((folder / "evaluation" / "results.json").read_text())
    assert results["episodes"] == 4 and len(results["videos"]) == 16
    world = iio.imread(folder / "evaluation" / "videos" / "world.mp4")
    assert world.shape[0] == 11 and world.shape[3] == 3 and world.std() > 10
    view = iio.imread(folder / "evaluation" / "videos" / "agent_6.gif")
    assert 1 < view.shape[0] <= 11 and view.std() > 10  # GIFs merge frames that do not differ


def test_pretrained_core_starts_a_governed_run(tmp_path):
    from llmrl.run.content import saved_state

    run("env=harvest", "env.n_envs=1", "env.horizon=20", "learn.env_steps=20", "learn.evaluate_episodes=1",
        "name=pretrain", f"output_root={tmp_path}")  # fmt: skip
    first = only_run_folder(tmp_path / "pretrain")
    run("env=harvest", "principal=fixed", *SMALL, "name=govern", f"agent.init_from='{first}'", "agent.init_parts=core",
        f"output_root={tmp_path}")  # fmt: skip
    trained = saved_state(first)[1]["agent"]["policy"]
    governed = saved_state(only_run_folder(tmp_path / "govern"))[1]["agent"]["policy"]
    same = {name: bool((trained[name] == governed[name]).all()) for name in trained}
    assert all(same[n] for n in same if ".core." in n) and not all(same.values())


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_presets_run(tmp_path, preset):
    small = ("env.horizon=5", "design.steps=1", "design.adapt_rounds=1", f"output_root={tmp_path}")
    assert run(f"experiment=legislative/{preset}", "principal=random", *small) is not None
