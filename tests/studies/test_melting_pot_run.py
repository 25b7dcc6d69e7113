"""The main job on the real engine, small: design run, evaluation table, videos, pre-training into governing."""

import json

import imageio.v3 as iio
import pytest
import torch

from experiments import compose, find_run_folder, run
from llmrl.cli.evaluate import main as evaluate
from llmrl.config.treatments import list_studies
from llmrl.experiment.parts import build_parts
from llmrl.llms.call_log import read_calls
from llmrl.run.artifacts import load_saved_state
from some import mark_long_except, mark_long_except_every

LEGISLATIVE = [study for study in list_studies() if study.startswith("legislative/")]
GAMES_WITH_MECHANISM = (
    "cleanup",
    "harvest",
    "escape_room",
    "_independent",
    "_paper",
    "escape_room_small",
    "_native_small",
)
"""Endings of presets that wait for a principal; test_principals_in_games runs those that have one."""
pytestmark = [pytest.mark.slow, pytest.mark.meltingpot]
SMALL = (
    "env.n_envs=2",
    "env.horizon=10",
    "design.evaluations=1",
    "design.steps=2",
    "design.adapt_rounds=1",
    "design.validate_episodes=2",
)


@pytest.mark.parametrize("env", mark_long_except(["cleanup"], ["cleanup", "harvest"]))
def test_llm_principal_run(tmp_path, env, capsys):
    options = ("principal=llm", "llm=scripted", "design.references=0", *SMALL)
    result = run(f"env={env}_pixels", *options, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert result == summary["recommendation"] and len(summary["history"]) == 2
    calls = list(read_calls(folder / "llm_calls.jsonl"))
    assert len(calls) == 2 and "Generation 1" in json.dumps(calls[1])
    evaluate([str(folder), "--episodes", "3", "--video", "--video-steps", "10"])
    assert "objective (mean)" in capsys.readouterr().out
    results = json.loads((folder / "evaluation" / "results.json").read_text())
    assert results["episodes"] == 4 and len(results["videos"]) == 16
    world = iio.imread(folder / "evaluation" / "videos" / "world.mp4")
    assert world.shape[0] == 11 and world.shape[3] == 3 and world.std() > 10
    view = iio.imread(folder / "evaluation" / "videos" / "agent_6.gif")
    assert 1 < view.shape[0] <= 11 and view.std() > 10  # GIFs merge frames that do not differ


def weights(folder):
    return load_saved_state(folder)[1]["agents"][0]["policy"]


def equal(a, b, part=""):
    """Return whether all weights with `part` in their name are equal."""
    return all(torch.equal(a[name], b[name]) for name in a if part in name)


@pytest.mark.long
@pytest.mark.parametrize("game", ["harvest", "cleanup"])
def test_pretrained_agents_run(tmp_path, game):
    run(
        *(f"experiment=legislative/{game}_pretrain", "env.n_envs=1", "env.horizon=15", "learn.env_steps=30"),
        *("learn.evaluate_episodes=1", "name=pretrain", f"output_root={tmp_path}"),
    )
    first = find_run_folder(tmp_path / "pretrain")
    agents = weights(first)
    fresh = initial_weights(game)
    assert not any(torch.equal(x, fresh[name]) for name, x in agents.items() if ".core." in name)
    for parts in ("core", "all"):
        command = (
            *(f"experiment=legislative/{game}_small", "principal=ucb", "principal.points=3"),
            *(*SMALL, "env.horizon=15", f"agent.init_from='{first}'"),
            *(f"agent.init_parts={parts}", f"name={parts}", f"output_root={tmp_path}"),
        )
        run(*command)
        has_principal = weights(find_run_folder(tmp_path / parts))
        assert equal(agents, has_principal, ".core.") and not equal(agents, has_principal, ".actor.")
        run_parts = build_parts(compose(*command), None)
        [agent] = run_parts.agents
        loaded = {name: x.clone() for name, x in agent.policy.state_dict().items()}
        assert equal(agents, loaded, ".core.") and equal(agents, loaded) == (parts == "all")
        agent.load_state_dict(load_saved_state(find_run_folder(tmp_path / parts))[1]["agents"][0])
        assert equal(agent.policy.state_dict(), has_principal)
        agent.reset()
        assert equal(agent.policy.state_dict(), loaded)
        run_parts.close()


def initial_weights(game):
    parts = build_parts(compose(f"experiment=legislative/{game}_pretrain"), None)
    parts.close()
    return parts.agents[0].policy.state_dict()


@pytest.mark.parametrize(
    "study", mark_long_except_every(5, [s for s in LEGISLATIVE if s.endswith(GAMES_WITH_MECHANISM)])
)
def test_studies_run(tmp_path, study):
    small = (
        "env.horizon=5",
        "design.evaluations=1",
        "design.steps=1",
        "design.adapt_rounds=1",
        f"output_root={tmp_path}",
    )
    assert run(f"experiment={study}", "principal=random", *small) is not None
