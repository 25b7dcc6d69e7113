"""One registry says what a principal can be judged on; options, prompts, metrics and pages follow it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import comparable_metrics, only_run_folder, run
from llmrl.cli.evaluate import main as evaluate
from llmrl.core.errors import ConfigError
from llmrl.core.welfare_measures import MEAN, MEASURES, OBJECTIVES, Objective
from llmrl.llms.call_log import read_calls

DOCS = Path(__file__).parents[2] / "docs"
CONF = Path(__file__).parents[2] / "conf"
TINY = ("env=escape_room", "env.n_envs=4", "design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=4")
OWN = ("trusted_modules=[signal_game]", "design.objective={_target_: signal_game.objectives.smallest_gap}")


def test_the_page_defines_every_measure():
    page = (DOCS / "mechanism_design.md").read_text()
    table = page.split("| measure | `design.objective` |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [(name, chosen.startswith("yes"), formula, source) for name, chosen, formula, source in rows] == [
        (f"`{each.name}`", isinstance(each, Objective), each.formula, each.source) for each in MEASURES
    ]


def test_the_comment_of_the_option_names_every_objective():
    comment = re.search(r"objective: null +((?:#.*\n +)+)", (CONF / "train.yaml").read_text())[1]
    assert " | ".join(OBJECTIVES) in re.sub(r"[\s#]+", " ", comment)


def test_the_payoff_is_told_with_the_number_of_others():
    told = OBJECTIVES["equality_productivity"].told
    assert "1 - D / (2 * 4 * S), where" in told(5) and "1 - D / (2 * 1 * S), where" in told(1)
    own = Objective(name="own", of=MEAN.of, formula="", payoff="{n_agents} agents, {others} others, {{braces}}")
    assert own.told(3) == "3 agents, 2 others, {braces}"


@pytest.mark.parametrize("principal", ["random", "none"])
def test_an_unknown_name_is_refused_with_those_there_are(tmp_path, principal):
    with pytest.raises(ConfigError) as refused:
        run(*TINY, f"principal={principal}", "design.objective=fairness", f"output_root={tmp_path}")
    said = str(refused.value)
    assert said.startswith("design.objective='fairness': ")
    assert f"there is no such objective; there are {', '.join(OBJECTIVES)}, or one of your own" in said


def test_one_of_ones_own_is_said_in_one_place(tmp_path):
    """It is what is proposed for, told, measured and reported; nothing else knows of it."""
    run(*TINY, *OWN, "principal=llm", "design.spending_cost=0.1", f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    rows = [row for row in comparable_metrics(folder) if "principal/objective" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["welfare/smallest_gap"] < 0
        expected = row["welfare/smallest_gap"] - 0.1 * row["welfare/spending"]
        assert row["principal/objective"] == pytest.approx(expected)
    calls = [json.dumps(call) for call in read_calls(folder / "llm_calls.jsonl")]
    sentence = "Your payoff is what the poorest of the 5 agents collects less what the richest collects. Payments you"
    assert len(calls) == 2 and all(sentence in call and call.count("Your payoff is ") == 1 for call in calls)
    evaluate([str(folder), "--episodes", "4", "--trust", "signal_game"])
    found = json.loads((folder / "evaluation" / "results.json").read_text())["per_episode"]
    charged = np.array(found["welfare/smallest_gap"]) - 0.1 * np.array(found["welfare/spending"])
    np.testing.assert_allclose(found["objective (smallest_gap)"], charged)


def test_the_example_of_the_manual_is_the_real_one():
    from signal_game.objectives import smallest_gap

    section = (DOCS / "extending.md").read_text().split("## An objective")[1]
    names: dict = {"__name__": "manual"}
    exec(section.split("```python\n")[1].split("```")[0], names)
    shown, real = names["smallest_gap"](), smallest_gap()
    assert (shown.name, shown.formula, shown.payoff) == (real.name, real.formula, real.payoff)


def test_agents_alone_are_judged_on_one_of_ones_own_too(tmp_path):
    run("env=escape_room", "env.n_envs=4", "learn.env_steps=20", "learn.evaluate_episodes=4", *OWN,
        f"output_root={tmp_path}")  # fmt: skip
    row = comparable_metrics(only_run_folder(tmp_path))[-1]
    assert row["evaluation/objective"] == row["welfare/smallest_gap"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (OWN[1:], "outside the trusted modules"),
        ((OWN[0], "design.objective={_target_: signal_game.objectives.misnamed}"), "the name gini is taken"),
        ((OWN[0], "design.objective={_target_: signal_game.objectives.flat}"), "one number for each of 4 episodes"),
    ],
)
def test_what_cannot_be_judged_on_is_refused(tmp_path, overrides, said):
    with pytest.raises(ConfigError, match=said):
        run(*TINY, "principal=random", *overrides, f"output_root={tmp_path}")
