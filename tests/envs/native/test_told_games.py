"""What is said of Clean Up and Harvest, in prompts and metrics, is true of the game that is played and paid for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.native import maps
from llmrl.principals.llm_factory import llm_principal
from models import scripted
from native_games import flat, native

SMALL = {
    "cleanup": "WWWWWWW\nWFFFHHW\nWP P PW\nWBBBB W\nWWWWWWW\n",
    "harvest": "WWWWWWW\nW AA PW\nWAAA PW\nWWWWWWW\n",
}
ENGINES = ["native", pytest.param("meltingpot", marks=pytest.mark.meltingpot)]
PUBLISHED = {"clean_count": "exactly_one", "pay_removed": True}


def game(engine: str, substrate: str, **options: Any) -> VecEnv:
    if engine == "native":
        return native(substrate, 4, **options)
    from llmrl.envs.melting_pot.env_spec import SubstrateSettings
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv

    return MeltingPotEnv(SubstrateSettings(substrate, 1, observe=["vector"], **options), Seeds(0))  # type: ignore[arg-type]


def counted(env: VecEnv) -> dict[str, float]:
    """What there is at the start, by a step in which nobody does anything: nothing grows or spills in it."""
    env.reset(seed=1)
    found = flat(env.step(np.zeros((env.spec.n_envs, env.spec.n_agents), np.int64)))
    return {name: float(found[f"info/{name}"][0]) for name in ("apples_live", "dirt") if f"info/{name}" in found}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rules", ["upstream", "legislative"])
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_facts_are_those_of_the_game(engine: str, substrate: str, rules: str) -> None:
    env = game(engine, substrate, rules=rules, map="melting_pot" if engine == "native" else "auto")
    try:
        facts, found = env.spec.facts, counted(env)
    finally:
        env.close()
    begins = facts["apple_sites"] if substrate == "harvest" or facts["apples_at_start"] else 0
    assert found["apples_live"] == begins
    assert found.get("dirt") == facts.get("dirty_at_start")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_facts_follow_the_map(engine: str, substrate: str) -> None:
    mechanism = Incentives() if substrate == "cleanup" else BracketedTax()
    env = game(engine, substrate, map=SMALL[substrate], n_agents=2, mechanism=mechanism)
    try:
        assert env.spec.facts["apple_sites"] == (4 if substrate == "cleanup" else 5)
        text = llm_principal(env.spec, scripted()).question(None).text
        if substrate == "cleanup":
            assert "begins with 3 of the river's 5 cells dirty and no apple on any of the orchard's 4 spots." in text
        else:
            assert "There are 5 apples at the start." in text
    finally:
        env.close()


def test_sites_of_melting_pots_map() -> None:
    pytest.importorskip("meltingpot")
    from llmrl.envs.melting_pot.substrate_rules import SUBSTRATES

    for substrate, facts in SUBSTRATES.items():
        assert maps.find(substrate, "melting_pot").sites == facts.sites


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, PUBLISHED], ids=["any", "exactly_one"])
def test_cleaning_is_counted_as_it_is_paid(engine: str, options: dict[str, Any]) -> None:
    """Every paid cleaning costs 1 in base reward; under the published rule most shots are neither paid nor charged."""
    env = game(engine, "cleanup", rules="legislative", mechanism=Incentives(**options))
    try:
        env.reset(seed=2)
        paid = shots = 0.0
        rng = np.random.default_rng(0)
        for _ in range(200):
            # Ahead and to the sides, and many shots.
            action = rng.choice([1, 1, 3, 4, 5, 6, 8, 8, 8], size=(env.spec.n_envs, env.spec.n_agents))
            found = flat(env.step(action))
            charged = (found["base"] == -1).sum(1)
            np.testing.assert_array_equal(found["info/paid_cleans"], charged)
            assert (found["info/paid_cleans"] <= found["info/cleaning_shots"]).all()
            paid, shots = paid + found["info/paid_cleans"].sum(), shots + found["info/cleaning_shots"].sum()
    finally:
        env.close()
    assert 0 < paid <= shots
    assert (paid < 0.8 * shots) if options else (paid > 0.95 * shots)


def question(rules: str, **options: Any) -> str:
    env = native("cleanup", 1, rules=rules, map="melting_pot", mechanism=Incentives(**options))
    return llm_principal(env.spec, scripted()).question(None).text


@pytest.mark.meltingpot
def test_the_prompt_follows_every_switch() -> None:
    plain = question("upstream")
    assert "no apple on any of the orchard's 122 spots. So nothing grows until" in plain
    published = question("legislative", **PUBLISHED)
    assert (
        "an apple on every one of the orchard's 122 spots. These apples can be eaten without any cleaning" in published
    )
    for switched, said in {
        "clean_count": "Only a shot that cleans exactly one cell counts as cleaning",
        "pay_removed": "in each of them it is paid for doing anything else",
    }.items():
        assert said in published and said not in plain
        assert said not in question("legislative", **{k: v for k, v in PUBLISHED.items() if k != switched})
    also = "(also cleaning two or three cells at once and being out of the game after a zap)"
    assert f"doing anything else {also}, which is worth 0 before payments" in published
    assert "doing anything else, which is worth 0 before payments" in plain


def test_a_tax_on_clean_up_is_told_as_one() -> None:
    env = native("cleanup", 1, map=SMALL["cleanup"], n_agents=2, mechanism=BracketedTax())
    text = llm_principal(env.spec, scripted()).question(None).text
    assert "An apple is worth 1 in base reward, and cleaning costs nothing but time." in text
    assert "stands with the numbers below" not in text and "paid_cleans" not in text


@pytest.mark.parametrize(("rules", "horizon", "said"), [("upstream", 2000, True), ("upstream", 1000, False),
                                                        ("legislative", 2000, False)])  # fmt: skip
def test_an_end_by_chance_is_told_where_there_is_one(rules: str, horizon: int, said: bool) -> None:
    env = native("harvest", 1, rules=rules, horizon=horizon, map="own", mechanism=BracketedTax())
    text = llm_principal(env.spec, scripted()).question(None).text
    assert (f"An episode lasts {horizon} steps at most: at step 1099" in text) == said
    assert (f"An episode lasts {horizon} steps.\n" in text) != said


@pytest.mark.parametrize("rules", ["upstream", "legislative"])
def test_zapping_is_told_where_there_is_any(rules: str) -> None:
    env = native("harvest", 1, rules=rules, map="own", mechanism=BracketedTax())
    text = llm_principal(env.spec, scripted()).question(None).text
    assert ("An agent hit by the zapping beam of another is out of the game for 4 steps." in text) == (
        "zap" in env.spec.action_names
    )
