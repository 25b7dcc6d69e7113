"""Prompts and metrics of Clean Up and Harvest match the rules and the payments of the game."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.substrate import maps
from models import make_scripted_client
from native_games import flatten_step, make_native_env
from shipped import build_llm_principal
from some import mark_long_except

SMALL = {
    "cleanup": "WWWWWWW\nWFFFHHW\nWP P PW\nWBBBB W\nWWWWWWW\n",
    "harvest": "WWWWWWW\nW AA PW\nWAAA PW\nWWWWWWW\n",
}
ENGINES = ["native", pytest.param("meltingpot", marks=pytest.mark.meltingpot)]
PUBLISHED_OPTIONS = {"clean_count": "exactly_one", "reward_removed": True}


def game(engine: str, substrate: str, **options: Any) -> VecEnv:
    if engine == "native":
        return make_native_env(substrate, 4, **options)
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
    from llmrl.envs.substrate.society_env import SubstrateSettings

    return MeltingPotEnv(SubstrateSettings(substrate, 1, observe=["vector"], **options), Seeds(0))  # type: ignore[arg-type]


def count_events(env: VecEnv) -> dict[str, float]:
    """Return the initial counts, from a step without actions, growth or new dirt."""
    env.reset(seed=1)
    outputs = flatten_step(env.step(np.zeros((env.spec.n_envs, env.spec.n_agents), np.int64)))
    return {name: float(outputs[f"info/{name}"][0]) for name in ("apples_live", "dirt") if f"info/{name}" in outputs}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rules", mark_long_except(["legislative"], ["upstream", "legislative"]))
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_facts_match_game(engine: str, substrate: str, rules: str) -> None:
    env = game(engine, substrate, rules=rules, map="melting_pot" if engine == "native" else "auto")
    try:
        facts, outputs = env.spec.facts, count_events(env)
    finally:
        env.close()
    begins = facts["apple_sites"] if substrate == "harvest" or facts["apples_at_start"] else 0
    assert outputs["apples_live"] == begins
    assert outputs.get("dirt") == facts.get("dirty_at_start")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("substrate", ["cleanup", "harvest"])
def test_facts_follow_map(engine: str, substrate: str) -> None:
    mechanism = Incentives() if substrate == "cleanup" else BracketedTax()
    env = game(engine, substrate, map=SMALL[substrate], n_agents=2, mechanism=mechanism)
    try:
        assert env.spec.facts["apple_sites"] == (4 if substrate == "cleanup" else 5)
        text = build_llm_principal(env.spec, make_scripted_client()).build_prompt(None).text
        if substrate == "cleanup":
            assert "begins with 3 of the river's 5 cells dirty and no apple on any of the orchard's 4 spots." in text
        else:
            assert "There are 5 apples at the start." in text
    finally:
        env.close()


def test_melting_pot_map_sites() -> None:
    pytest.importorskip("meltingpot")
    from llmrl.envs.substrate.substrate_rules import SUBSTRATES

    for substrate, facts in SUBSTRATES.items():
        assert maps.load_map(substrate, "melting_pot").site_counts == facts.site_counts


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, PUBLISHED_OPTIONS], ids=["any", "exactly_one"])
def test_cleaning_count_matches_payment(engine: str, options: dict[str, Any]) -> None:
    """Check that paid cleaning costs 1 in base reward.

    Under the published rule most shots are neither paid nor charged.
    """
    env = game(engine, "cleanup", rules="legislative", mechanism=Incentives(**options))
    try:
        env.reset(seed=2)
        payments = shots = 0.0
        rng = np.random.default_rng(0)
        for _ in range(200):
            # Ahead and to the sides, and many shots.
            action = rng.choice([1, 1, 3, 4, 5, 6, 8, 8, 8], size=(env.spec.n_envs, env.spec.n_agents))
            outputs = flatten_step(env.step(action))
            n_charged = (outputs["base"] == -1).sum(1)
            np.testing.assert_array_equal(outputs["info/paid_cleans"], n_charged)
            assert (outputs["info/paid_cleans"] <= outputs["info/cleaning_shots"]).all()
            payments, shots = payments + outputs["info/paid_cleans"].sum(), shots + outputs["info/cleaning_shots"].sum()
    finally:
        env.close()
    assert 0 < payments <= shots
    assert (payments < 0.8 * shots) if options else (payments > 0.95 * shots)


def question(rules: str, **options: Any) -> str:
    env = make_native_env("cleanup", 1, rules=rules, map="melting_pot", mechanism=Incentives(**options))
    return build_llm_principal(env.spec, make_scripted_client()).build_prompt(None).text


@pytest.mark.meltingpot
def test_prompt_follows_switches() -> None:
    plain = question("upstream")
    assert "no apple on any of the orchard's 122 spots. So nothing grows until" in plain
    published_prompt = question("legislative", **PUBLISHED_OPTIONS)
    assert (
        "an apple on every one of the orchard's 122 spots. These apples can be eaten without any cleaning"
        in published_prompt
    )
    for switched, phrase in {
        "clean_count": "Only a shot that cleans exactly one cell counts as cleaning",
        "reward_removed": "in each of them it is paid for doing anything else",
    }.items():
        assert phrase in published_prompt and phrase not in plain
        assert phrase not in question("legislative", **{k: v for k, v in PUBLISHED_OPTIONS.items() if k != switched})
    remark = "(also cleaning two or three cells at once and being out of the game after a zap)"
    assert f"doing anything else {remark}, which is worth 0 before payments" in published_prompt
    assert "doing anything else, which is worth 0 before payments" in plain


def test_describes_clean_up_tax() -> None:
    env = make_native_env("cleanup", 1, map=SMALL["cleanup"], n_agents=2, mechanism=BracketedTax())
    text = build_llm_principal(env.spec, make_scripted_client()).build_prompt(None).text
    assert "An apple is worth 1 in base reward, and cleaning costs nothing but time." in text
    assert "stands with the numbers below" not in text and "paid_cleans" not in text


@pytest.mark.parametrize(("rules", "horizon", "phrase"), [("upstream", 2000, True), ("upstream", 1000, False),
                                                        ("legislative", 2000, False)])  # fmt: skip
def test_describes_random_end(rules: str, horizon: int, phrase: bool) -> None:
    env = make_native_env("harvest", 1, rules=rules, horizon=horizon, map="own", mechanism=BracketedTax())
    text = build_llm_principal(env.spec, make_scripted_client()).build_prompt(None).text
    assert (f"An episode lasts {horizon} steps at most: at step 1099" in text) == phrase
    assert (f"An episode lasts {horizon} steps.\n" in text) != phrase


@pytest.mark.parametrize("rules", ["upstream", "legislative"])
def test_describes_zapping(rules: str) -> None:
    env = make_native_env("harvest", 1, rules=rules, map="own", mechanism=BracketedTax())
    text = build_llm_principal(env.spec, make_scripted_client()).build_prompt(None).text
    assert ("An agent hit by the zapping beam of another is out of the game for 4 steps." in text) == (
        "zap" in env.spec.action_names
    )
