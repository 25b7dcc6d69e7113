"""Presets in which a mechanism matters: they compose, fit their pre-training, and run."""

import json

import pytest

from experiments import compose, only_run_folder, run
from llmrl.cli.compose import build_loop, build_parts, check_values
from llmrl.cli.pretraining import composed, reference
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop

GAMES = ("cleanup", "harvest")
SHORT = ("env.horizon=20", "agent.init_from=null", "design.steps=2", "design.adapt_rounds=1")


@pytest.mark.parametrize("game", GAMES)
def test_a_regime_begins_with_what_its_pretraining_makes(game, tmp_path):
    governed = compose(f"env={game}", "principal=random", f"output_root={tmp_path}")
    alone, _ = composed(reference(governed), governed)
    weights, kinds = [], []
    for config in (governed, alone):
        check_values(config)
        parts = build_parts(config, None)
        kinds.append(type(build_loop(config, parts)))
        weights.append({name: x.shape for name, x in parts.agents[0].policy.state_dict().items()})
        parts.close()
    assert weights[0] == weights[1] and kinds == [DesignLoop, LearnLoop]
    for name in ("engine", "rules", "observe", "mechanism", "show_mechanism", "n_agents"):
        assert governed["env"][name] == alone["env"][name], name
    assert alone["learn"]["mechanism"], "agents that never saw a mechanism do not heed it"


@pytest.mark.parametrize("game", GAMES)
def test_a_regime_runs(game, tmp_path):
    pieces = ("design.rollout_steps=10",) if game == "cleanup" else ()
    run(f"env={game}", "principal=random", *SHORT, *pieces, f"output_root={tmp_path}")
    summary = json.loads((only_run_folder(tmp_path) / "summary.json").read_text())
    assert summary["proposals"] == 16 and summary["best_measured_again"] is True


@pytest.mark.parametrize("game", GAMES)
def test_pretraining_runs(game, tmp_path):
    short = ("env.horizon=20", "learn.rollout_steps=10", "learn.env_steps=640", "learn.evaluate_episodes=16")
    run(f"experiment=regimes/{game}_pretrain", *short, f"output_root={tmp_path}")
    assert json.loads((only_run_folder(tmp_path) / "status.json").read_text())["state"] == "finished"
