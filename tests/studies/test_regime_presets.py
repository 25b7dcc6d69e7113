"""The studies of conf/experiment/regimes, and what the bare commands' games become under each kind of principal."""

import pytest

from experiments import compose
from llmrl.config.treatments import studies
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts, check_values, games_of_a_society
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop

STUDIES = [study.removeprefix("regimes/") for study in studies() if study.startswith("regimes/")]


def built(*overrides):
    """The config of a run, and the loop of its parts."""
    config = compose(*overrides)
    check_values(config)
    parts = build_parts(config, build_llm(config, None, check=False))
    try:
        return config, build_loop(config, parts)
    finally:
        parts.close()


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_builds_what_its_name_says(study):
    alone = study.endswith("_pretrain")
    config, loop = built(f"experiment=regimes/{study}", *([] if alone else ["principal=random"]))
    assert isinstance(loop, LearnLoop if alone else DesignLoop)
    if study.endswith("_scratch"):
        game = study.removesuffix("_scratch")
        bare = compose(f"env={game}", "principal=random")
        own = {"adapt_rounds": {"cleanup": 10, "harvest": 40}[game]}
        unlike = {"init_from": None} | ({"freeze": "none"} if game == "harvest" else {})
        assert config["agent"] == bare["agent"] | unlike
        assert config["design"] == bare["design"] | own and config["env"] == bare["env"]


@pytest.mark.slow
@pytest.mark.parametrize(("game", "games"), [("cleanup", 2), ("harvest", 1)])
@pytest.mark.parametrize(("principal", "candidates"), [("random", 8), ("cmaes", 8), ("fixed", 1), ("metagrad", 1)])
def test_a_principal_of_one_proposal_at_a_time_gets_the_games_of_one(game, games, principal, candidates):
    config, loop = built(f"env={game}", f"principal={principal}")
    assert config["design"]["candidates"] == candidates and config["env"]["n_envs"] == candidates * games
    assert games_of_a_society(config) == games and loop.env.spec.n_envs == candidates * games


@pytest.mark.parametrize("societies", [1, 3])
def test_games_follow_candidates_and_societies(societies):
    config, _ = built("env=cleanup", "principal=random", "design.candidates=2", f"design.replicates={societies}")
    assert config["env"]["n_envs"] == 4 * societies and games_of_a_society(config) == 2
