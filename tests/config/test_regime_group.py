"""The config group `regime`: pretraining, schedule and objective, selected by the environment."""

import pytest

from experiments import compose
from llmrl.core.option_files import get_root, list_option_names, read_file
from llmrl.run.config_hash import config_hash
from some import mark_long_except

ROOMS = ("colored_doorkey", "doorkey", "lava_doorkey", "simple_doorkey", "two_door", "unlock_pickup")
PARTICLES = ("simple_reference", "simple_speaker_listener", "simple_spread", "simple_tag")
REGIMES = {
    "cleanup": "cleanup",
    "escape_room": "escape_room",
    "fishery": "fishery",
    "harvest": "harvest",
    "pasture": "fishery",
    "pollution": "fishery",
    "tax_economy": "tax_economy",
    **dict.fromkeys(ROOMS, "rooms"),
    **dict.fromkeys(PARTICLES, "particles"),
}
"""The regime that each environment chooses; the others choose none."""
FIRST_ENVIRONMENTS = list({regime: env for env, regime in REGIMES.items()}.values())
"""An environment for each regime."""
AGENTS = {"cleanup": "cleanup_society", "harvest": "harvest_society"}
"""The agent that each regime chooses; the others choose none."""
REQUIRED_OPTIONS = {
    "gymnasium": "env.id=CartPole-v1",
    "openenv": "env.id=http://127.0.0.1:8000",
    "openspiel": "env.id=kuhn_poker",
    "pettingzoo": "env.id=a.b:c",
    "textarena": "env.id=TicTacToe-v0",
}
SCHEDULES = ("design", "learn", "play", "clone", "search")


def compose_environment(env, *overrides):
    return compose(f"env={env}", *([REQUIRED_OPTIONS[env]] if env in REQUIRED_OPTIONS else []), *overrides)


@pytest.mark.parametrize(
    "env", mark_long_except([*FIRST_ENVIRONMENTS, "cartpole", "babyai_text"], list_option_names("env"))
)
def test_environment_selects_only_regime(env):
    config, plain, bare = compose_environment(env), compose_environment(env, "regime=none"), compose("env=cartpole")
    regime = REGIMES.get(env, "none")
    assert (config["regime_name"], plain["regime_name"]) == (regime, "none")
    assert {key: plain[key] for key in ("agent", *SCHEDULES)} == {key: bare[key] for key in ("agent", *SCHEDULES)}
    changed = {key for key in config if config[key] != plain[key]} - {"regime_name", "regime_noise"}
    agent = {"agent"} if env in AGENTS else set()
    # The number of games follows from that of the proposals.
    games = {"env"} if env in AGENTS else set()
    schedule = set(read_file(get_root() / "regime" / f"{regime}.yaml")) - {"defaults", "regime_name", "regime_noise"}
    assert changed == agent | games | schedule
    assert config["env"] | {"n_envs": None} == plain["env"] | {"n_envs": None}


@pytest.mark.parametrize("env", mark_long_except(FIRST_ENVIRONMENTS, REGIMES))
def test_explicit_default_regime_has_no_effect(env):
    assert compose_environment(env, f"regime={REGIMES[env]}") == compose_environment(env)


@pytest.mark.parametrize("env", AGENTS)
def test_explicit_agent_overrides_regime(env):
    config, society = compose_environment(env, "agent=ppo"), compose_environment(env)
    assert config["agent"] == compose("env=cartpole")["agent"] != society["agent"]
    assert society["agent"] == compose_environment(env, f"agent={AGENTS[env]}")["agent"]
    assert config["regime_name"] == env and config["design"] == society["design"]


def test_preset_agent_overrides_regime():
    config = compose("experiment=legislative/harvest_native_small")
    assert config["regime_name"] == "harvest_published" and config["agent"]["init_from"] is None


@pytest.mark.parametrize(("env", "rounds", "overrides"), [("cleanup", 10, {}), ("harvest", 40, {"freeze": "none"})])
def test_society_learns_from_scratch(env, rounds, overrides):
    regime = {"cleanup": "cleanup", "harvest": "harvest_published"}[env]
    config, bare = compose_environment(env, f"regime={env}_scratch"), compose_environment(env, f"regime={regime}")
    assert config["agent"] == bare["agent"] | {"init_from": None} | overrides
    assert config["design"] == bare["design"] | {"adapt_rounds": rounds} and config["env"] == bare["env"]


@pytest.mark.parametrize("key", ["regime_name", "regime_noise"])
def test_descriptions_of_regimes_are_not_hashed(key):
    config = compose("env=cleanup")
    assert config_hash(config) == config_hash({name: value for name, value in config.items() if name != key})


def test_regimes_set_their_name():
    assert {name: compose("env=cartpole", f"regime={name}")["regime_name"] for name in list_option_names("regime")} == {
        name: name for name in list_option_names("regime")
    }


def test_finetuning_accepts_environments_with_regime():
    config = compose("env=harvest", "agent=linear", primary="finetune")
    assert config["env"]["n_envs"] == config["design"]["candidates"]
