"""Without a study, language models are expected to cost little by default."""

from pathlib import Path

import pytest

import llmrl.conf
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.sweep_jobs import PlannedRun
from llmrl.experiment.sweep_plan import sweep_plan

FOLDER = Path(llmrl.conf.__file__).parent / "agent" / "numbers" / "none" / "llm_player"
ENVS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
GOVERNED = ("cleanup", "harvest", "escape_room", "fishery", "pasture", "pollution", "tax_economy")
CASES = [
    *((f"env={env}", "agent=llm_player") for env in ENVS),
    *((f"env={env}", "agent=llm_player", f"principal={each}") for env in GOVERNED for each in ("llm", "vote")),
    *((f"env={env}", f"principal={each}") for env in GOVERNED for each in ("llm", "vote")),
    ("env=cartpole", "agent=linear", "principal=llm"),
]


def expected_cost(tmp_path, *overrides):
    """Expected US dollars of a run with GPT-4o at its listed price."""
    run = PlannedRun(Experiment.compose(*overrides, "llm=gpt4o", f"output_root={tmp_path}"))
    cost = sweep_plan([run]).rows[-1][-2]
    assert cost.startswith("$"), cost
    return float(cost[1:].partition(",")[0])


@pytest.mark.slow
@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_defaults_are_expected_to_cost_at_most_three_dollars(tmp_path, monkeypatch, overrides):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert 0 < expected_cost(tmp_path, *overrides) <= 3


def test_a_study_is_what_it_says(tmp_path):
    assert Experiment.compose("experiment=zero_shot/cartpole").config["agent"]["action_every"] == 1
    assert Experiment.compose("env=acrobot", "agent=llm_player").config["agent"]["action_every"] == 3
    assert Experiment.compose("env=acrobot", "agent=llm_player", "play.episodes=7").config["play"]["episodes"] == 7
