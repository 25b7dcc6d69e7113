"""Studies of conf/experiment/regimes, and default settings of games for each kind of principal."""

import pytest

from experiments import compose
from llmrl.config.treatments import list_studies
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values, count_envs_per_society
from llmrl.experiment.resources import RunResources
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop
from some import mark_long_except_every

STUDIES = [study.removeprefix("regimes/") for study in list_studies() if study.startswith("regimes/")]


def build_study(*overrides):
    """Return the config of a run, and the loop of its parts."""
    config = compose(*overrides)
    check_values(config)
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        return config, build_loop(config, parts)
    finally:
        parts.close()


@pytest.mark.parametrize("study", STUDIES)
def test_studies_match_names(study):
    is_pretraining = study.endswith("_pretrain")
    _, loop = build_study(f"experiment=regimes/{study}", *([] if is_pretraining else ["principal=random"]))
    assert isinstance(loop, LearnLoop if is_pretraining else DesignLoop)


@pytest.mark.parametrize("game", ["cleanup", "harvest"])
def test_society_from_scratch_builds(game):
    config, loop = build_study(f"env={game}", f"regime={game}_scratch", "principal=random")
    assert isinstance(loop, DesignLoop) and config["agent"]["init_from"] is None


@pytest.mark.slow
@pytest.mark.parametrize(("game", "games"), [("cleanup", 2), ("harvest", 1)])
@pytest.mark.parametrize(
    ("principal", "candidates"), mark_long_except_every(3, [("random", 8), ("cmaes", 8), ("fixed", 1), ("metagrad", 1)])
)
def test_sequential_principal_gets_single_batch(game, games, principal, candidates):
    config, loop = build_study(f"env={game}", f"principal={principal}")
    assert config["design"]["candidates"] == candidates and config["env"]["n_envs"] == candidates * games
    assert count_envs_per_society(config) == games and loop.env.spec.n_envs == candidates * games


@pytest.mark.parametrize("societies", [1, 3])
def test_games_follow_candidates(societies):
    config, _ = build_study("env=cleanup", "principal=random", "design.candidates=2", f"design.replicates={societies}")
    assert config["env"]["n_envs"] == 4 * societies and count_envs_per_society(config) == 2


@pytest.mark.parametrize(
    ("overrides", "row"),
    [
        (("env=escape_room", "principal=random"), "escape_room (untrained agents, 100 adaptation rounds)"),
        pytest.param(
            ("env=escape_room", "principal=random", "regime=none"),
            "none (untrained agents, 2 adaptation rounds)",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("env=simple_doorkey",), "rooms (untrained agents, 200,000 environment steps)", marks=pytest.mark.long
        ),
        (("env=taxi", "agent=random"), "none (agents that do not learn)"),
    ],
)
def test_the_plan_names_the_regime(overrides, row, tmp_path):
    rows = Experiment.compose(*overrides, "design.references=0", f"output_root={tmp_path}").plan()
    assert dict(rows)["regime"] == row
