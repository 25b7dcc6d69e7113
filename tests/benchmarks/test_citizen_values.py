"""Extraction and payoff of learning citizens, read from a run of the study."""

import learning_citizens
import pytest

from experiments import find_run_folder, run


@pytest.mark.slow
@pytest.mark.parametrize(("treatment", "excess_tax"), [("ppo_free", 0.0), ("ppo_taxed", 2.0)])
def test_values_of_run(tmp_path, treatment, excess_tax):
    short = ("design.steps=1", "design.adapt_rounds=1", "design.validate_episodes=16", "design.evaluations=1")
    run("experiment=studies/learning_citizens", f"treatment={treatment}", *short, f"output_root={tmp_path}")
    values = learning_citizens.read_run(find_run_folder(tmp_path))
    assert (values["group"], values["seed"], values["excess_tax"]) == (treatment, 0, excess_tax)
    assert values["payoff"] > 0 and 0 <= values["over_usage"] <= 1 and 0 <= values["survived"] <= 1
