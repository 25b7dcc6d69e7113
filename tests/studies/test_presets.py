"""The legislative studies: every one builds under every principal and treatment, and is what the documentation says."""

import itertools

import pytest

from experiments import compose
from llmrl.config.treatments import studies, treatments
from llmrl.core.option_files import options
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop
from some import one_in

pytestmark = pytest.mark.slow

GAMES = ("harvest", "cleanup", "escape_room")
# `listed` proposes what it is given: it is no method that is compared.
PRINCIPALS = sorted(set(options("principal")) - {"none", "listed", "saez"})  # saez: only in the tax economy
TREATMENTS = [name for name, made_for in treatments().items() if "legislative/harvest" in made_for]
ALONE = ("legislative/cleanup_pretrain", "legislative/harvest_pretrain", "legislative/escape_room_alone")
OTHERS = [
    study
    for study in studies()
    if study.startswith("legislative/") and study.partition("/")[2] not in GAMES and not study.endswith("_small")
]
ARMS = {
    "egreedy": {"harvest": 21**3, "cleanup": 21**3, "escape_room": 6**5},
    "ucb": {"harvest": 11**3, "cleanup": 11**3, "escape_room": 3**5},
    "thompson": {"harvest": 11**3, "cleanup": 11**3, "escape_room": 3**5},
}
OWN_SCHEDULES = {"metagrad": {"adapt_rounds", "validate_episodes"}, "fixed": {"steps"}, "gp": {"steps"}}
"""What a principal sets of design: how it is trained and measured."""


def built(config):
    """The loop of a config, and its principal."""
    check_values(config)
    parts = build_parts(config, build_llm(config, None, check=False))
    try:
        return build_loop(config, parts), parts
    finally:
        parts.close()


def same_games_and_agents(config, common, principal, small):
    """Whether a study under a principal has the games, agents and schedule of the study alone."""
    own_schedule = {**OWN_SCHEDULES, "llm": set() if small else {"steps"}}.get(principal, set())
    assert config["env"] == common["env"]
    assert {name for name, x in config["design"].items() if x != common["design"][name]} <= own_schedule
    if principal == "metagrad":  # needs agents that go on exploring; published with gradients scaled down apart
        assert config["agent"]["ppo"]["clip_apart"] == (not small)
        own = {name: common["agent"]["ppo"][name] for name in ("learning_rate", "clip_apart")}
        config["agent"]["ppo"].update(own)
    assert config["agent"] == common["agent"]


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(("treatment", "game"), one_in(2, itertools.product(TREATMENTS, GAMES)))
def test_every_published_treatment_builds(game, treatment):
    config = compose(f"experiment=legislative/{game}", f"treatment={treatment}")
    assert config["principal"]["_target_"] == options("principal")[treatment]["_target_"]
    loop, parts = built(config)
    assert isinstance(loop, DesignLoop)
    if treatment in ARMS:
        assert parts.principal.grid.n_arms == ARMS[treatment][game]
    same_games_and_agents(config, compose(f"experiment=legislative/{game}"), treatment, small=False)


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(("principal", "game"), one_in(2, itertools.product(PRINCIPALS, GAMES)))
def test_every_principal_builds_in_small(game, principal):
    config = compose(f"experiment=legislative/{game}_small", f"principal={principal}")
    loop, parts = built(config)
    assert isinstance(loop, DesignLoop)
    if principal in ("ucb", "thompson"):
        each = loop.steps / max(len(parts.env.spec.contexts), 1)
        assert parts.principal.grid.n_arms <= 1.1 * each, "the grid is too fine to be gone through"
    same_games_and_agents(config, compose(f"experiment=legislative/{game}_small"), principal, small=True)


@pytest.mark.meltingpot
@pytest.mark.parametrize("study", OTHERS)
def test_the_others_build(study):
    loop, parts = built(compose(f"experiment={study}", *([] if study in ALONE else ["principal=random"])))
    assert isinstance(loop, LearnLoop if study in ALONE else DesignLoop)
    assert parts.env.spec.name == next(game for game in GAMES if game in study)


@pytest.mark.meltingpot
@pytest.mark.parametrize("game", ["harvest", "cleanup"])
def test_small_ones_on_the_native_engine_build(game):
    loop, parts = built(compose(f"experiment=legislative/{game}_native_small", "principal=cmaes"))
    assert isinstance(loop, DesignLoop) and parts.env.spec.name == game and parts.env.spec.n_envs == 16


def test_published_treatments_are_those_of_the_study():
    assert set(TREATMENTS) == {"egreedy", "ucb", "thompson", "gp", "dual_rl", "metagrad", "llm"}


@pytest.mark.parametrize("game", GAMES)
def test_language_models_are_asked_as_often_as_published_and_within_a_budget(game):
    config = compose(f"experiment=legislative/{game}", "treatment=llm")
    assert config["design"]["steps"] == 300 and config["llm"]["model"] == "gpt-4o-mini"
    assert 0 < config["llm"]["budget"]["usd"] <= 10


def test_bandits_of_the_small_escape_room_have_three_proposals_for_each_arm():
    _, parts = built(compose("experiment=legislative/escape_room_small", "principal=ucb"))
    assert parts.principal.n_arms == 90 // 3 // 3


def test_principals_of_the_small_escape_room_have_the_settings_of_the_measured_ones():
    study = "experiment=legislative/escape_room_small"
    assert compose(study, "principal=cem")["principal"]["population"] == 8
    assert compose(study, "principal=dual_rl")["principal"]["learning_rate"] == 3e-3
    metagrad, fixed = (compose(study, f"principal={name}") for name in ("metagrad", "fixed"))
    assert (metagrad["principal"]["learning_rate"], metagrad["agent"]["ppo"]["learning_rate"]) == (2e-3, 1e-3)
    assert fixed["principal"]["contexts"] == [[5 * (i == lever) for i in range(5)] for lever in range(3)]
