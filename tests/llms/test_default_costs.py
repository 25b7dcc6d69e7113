"""Expected costs of language models with default options."""

import pytest

from llmrl.core.option_files import get_root, read_file
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.sweep_plan import plan_sweep
from some import mark_long_except

ENVS = sorted(read_file(get_root() / "agent" / "numbers" / "none" / "llm_player.yaml")["per_env"])
GAMES_WITH_MECHANISM = ("cleanup", "harvest", "escape_room", "fishery", "pasture", "pollution", "tax_economy")
CASES = [
    *((f"env={env}", "agent=llm_player") for env in ENVS),
    *(
        (f"env={env}", "agent=llm_player", f"principal={principal}")
        for env in GAMES_WITH_MECHANISM
        for principal in ("llm", "vote")
    ),
    *((f"env={env}", f"principal={principal}") for env in GAMES_WITH_MECHANISM for principal in ("llm", "vote")),
    ("env=cartpole", "agent=linear", "principal=llm"),
]
SHORT_CASES = [
    ("env=cleanup", "agent=llm_player"),
    ("env=tax_economy", "agent=llm_player", "principal=vote"),
    ("env=escape_room", "agent=llm_player", "principal=llm"),
    ("env=harvest", "principal=llm"),
    CASES[-1],
]


def estimate_cost(tmp_path, *overrides):
    """Return the expected cost of a run with GPT-4o at its list price, in US dollars."""
    run = Experiment.compose(*overrides, "llm=gpt4o", f"output_root={tmp_path}")
    cost = plan_sweep([run])[1][-1][-2]
    assert cost.startswith("$"), cost
    return float(cost[1:].partition(",")[0])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", mark_long_except(SHORT_CASES, CASES), ids=" ".join)
def test_defaults_cost_less_than_three_dollars(tmp_path, monkeypatch, overrides):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert 0 < estimate_cost(tmp_path, *overrides) <= 3


def test_study_settings_match_name(tmp_path):
    assert Experiment.compose("experiment=zero_shot/games", "env=cartpole").config["agent"]["action_interval"] == 1
    assert Experiment.compose("env=acrobot", "agent=llm_player").config["agent"]["action_interval"] == 3
    assert Experiment.compose("env=acrobot", "agent=llm_player", "play.episodes=7").config["play"]["episodes"] == 7
