"""Legislative studies: they build with every principal and treatment and agree with the documentation."""

import itertools

import pytest

from experiments import compose
from llmrl.config.treatments import list_studies, list_studies_by_treatment
from llmrl.core.option_files import load_options
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.resources import RunResources
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop
from some import mark_long_except_every

pytestmark = pytest.mark.slow

GAMES = ("harvest", "cleanup", "escape_room")
# `listed` proposes what it is given: it is no method that is compared.
PRINCIPALS = sorted(set(load_options("principal")) - {"none", "listed", "saez"})  # saez: only in the tax economy
TREATMENTS = [name for name, names in list_studies_by_treatment().items() if "legislative/harvest" in names]
STUDIES_LACKING_PRINCIPAL = (
    "legislative/cleanup_pretrain",
    "legislative/harvest_pretrain",
    "legislative/escape_room_alone",
)
REMAINING_STUDIES = [
    study
    for study in list_studies()
    if study.startswith("legislative/") and study.partition("/")[2] not in GAMES and not study.endswith("_small")
]
ARMS = {
    "egreedy": {"harvest": 21**3, "cleanup": 21**3, "escape_room": 6**5},
    "ucb": {"harvest": 11**3, "cleanup": 11**3, "escape_room": 3**5},
    "thompson": {"harvest": 11**3, "cleanup": 11**3, "escape_room": 3**5},
}
SCHEDULE_KEYS = {"metagrad": {"adapt_rounds", "validate_episodes"}, "fixed": {"steps"}, "gp": {"steps"}}
"""What a principal sets of design: how it is trained and measured."""


def build_study(config):
    """Return the loop of a config, and its principal."""
    check_values(config)
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        return build_loop(config, parts), parts
    finally:
        parts.close()


def check_games_and_agents(config, common, principal, small):
    """Check that a study under a principal has the games, agents and schedule of the study without it."""
    schedule_keys = {**SCHEDULE_KEYS, "llm": set() if small else {"steps"}}.get(principal, set())
    # Voters pay for the incentives that they choose.
    votes = {"budget_balanced": True} if principal == "vote" and "budget_balanced" in common["env"] else {}
    assert config["env"] == common["env"] | votes
    assert {name for name, x in config["design"].items() if x != common["design"][name]} <= schedule_keys
    if principal == "metagrad":  # needs agents that go on exploring; published with gradients scaled down apart
        assert config["agent"]["ppo"]["separate_clipping"] == (not small)
        ppo = {name: common["agent"]["ppo"][name] for name in ("learning_rate", "separate_clipping")}
        config["agent"]["ppo"].update(ppo)
    assert config["agent"] == common["agent"]


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(("treatment", "game"), mark_long_except_every(5, itertools.product(TREATMENTS, GAMES)))
def test_paper_treatments_build(game, treatment):
    config = compose(f"experiment=legislative/{game}", f"treatment={treatment}")
    assert config["principal"]["_target_"] == load_options("principal")[treatment]["_target_"]
    loop, parts = build_study(config)
    assert isinstance(loop, DesignLoop)
    if treatment in ARMS:
        assert parts.principal.n_arms == ARMS[treatment][game]
    check_games_and_agents(config, compose(f"experiment=legislative/{game}"), treatment, small=False)


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(("principal", "game"), mark_long_except_every(11, itertools.product(PRINCIPALS, GAMES)))
def test_small_principals_build(game, principal):
    config = compose(f"experiment=legislative/{game}_small", f"principal={principal}")
    loop, parts = build_study(config)
    assert isinstance(loop, DesignLoop)
    if principal in ("ucb", "thompson"):
        per_context = loop.settings.steps / max(len(parts.env.spec.contexts), 1)
        assert parts.principal.n_arms <= 1.1 * per_context, "the grid is too fine to be gone through"
    check_games_and_agents(config, compose(f"experiment=legislative/{game}_small"), principal, small=True)


@pytest.mark.meltingpot
@pytest.mark.parametrize("study", REMAINING_STUDIES)
def test_remaining_studies_build(study):
    loop, parts = build_study(
        compose(f"experiment={study}", *([] if study in STUDIES_LACKING_PRINCIPAL else ["principal=random"]))
    )
    assert isinstance(loop, LearnLoop if study in STUDIES_LACKING_PRINCIPAL else DesignLoop)
    assert parts.env.spec.name == next(game for game in GAMES if game in study)


@pytest.mark.meltingpot
@pytest.mark.parametrize("game", ["harvest", "cleanup"])
def test_small_ones_on_the_native_engine_build(game):
    loop, parts = build_study(compose(f"experiment=legislative/{game}_native_small", "principal=cmaes"))
    assert isinstance(loop, DesignLoop) and parts.env.spec.name == game and parts.env.spec.n_envs == 16


def test_paper_treatments_match_study():
    assert set(TREATMENTS) == {"egreedy", "ucb", "thompson", "gp", "dual_rl", "metagrad", "llm"}


@pytest.mark.parametrize("game", GAMES)
def test_llm_requests_stay_in_budget(game):
    config = compose(f"experiment=legislative/{game}", "treatment=llm")
    assert config["design"]["steps"] == 300 and config["llm"]["model"] == "gpt-4o-mini"
    assert 0 < config["llm"]["budget"]["usd"] <= 10


def test_small_bandits_have_three_proposals_per_arm():
    _, parts = build_study(compose("experiment=legislative/escape_room_small", "principal=ucb"))
    assert parts.principal.n_arms == 90 // 3 // 3


def test_small_principals_match_large_settings():
    study = "experiment=legislative/escape_room_small"
    assert compose(study, "principal=cem")["principal"]["population"] == 8
    assert compose(study, "principal=dual_rl")["principal"]["learning_rate"] == 3e-3
    metagrad, fixed = (compose(study, f"principal={name}") for name in ("metagrad", "fixed"))
    assert (metagrad["principal"]["learning_rate"], metagrad["agent"]["ppo"]["learning_rate"]) == (2e-3, 1e-3)
    assert fixed["principal"]["contexts"] == [[5 * (i == lever) for i in range(5)] for lever in range(3)]
