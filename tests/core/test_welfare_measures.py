"""The registry of objectives of a principal, which options, prompts, metrics and pages use."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.cli.evaluate import main as evaluate
from llmrl.core.errors import ConfigError
from llmrl.core.welfare_measures import MEAN, MEASURES, OBJECTIVES, Objective
from llmrl.llms.call_log import read_calls

DOCS = Path(__file__).parents[2] / "docs"
CONF = Path(__file__).parents[2] / "conf"
TINY = (
    "env=escape_room",
    "env.n_envs=4",
    "design.evaluations=1",
    "design.steps=2",
    "design.adapt_rounds=1",
    "design.validate_episodes=4",
)
CUSTOM_OBJECTIVE = ("trusted_modules=[signal_game]", "design.objective={_target_: signal_game.objectives.smallest_gap}")


def test_page_defines_all_measures():
    page = (DOCS / "mechanism_design.md").read_text()
    table = page.split("| measure | `design.objective` |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [(name, selectable.startswith("yes"), formula, source) for name, selectable, formula, source in rows] == [
        (f"`{measure.name}`", isinstance(measure, Objective), measure.formula, measure.source) for measure in MEASURES
    ]


def test_option_comment_lists_objectives():
    comment = re.search(r"objective: null +((?:#.*\n +)+)", (CONF / "train.yaml").read_text())[1]
    assert " | ".join(OBJECTIVES) in re.sub(r"[\s#]+", " ", comment)


def test_payoff_text_counts_remaining_players():
    template = OBJECTIVES["equality_productivity"].format_payoff
    assert "1 - D / (2 * 4 * S), where" in template(5) and "1 - D / (2 * 1 * S), where" in template(1)
    custom = Objective(name="own", of=MEAN.of, formula="", payoff="{n_agents} agents, {others} others, {{braces}}")
    assert custom.format_payoff(3) == "3 agents, 2 others, {braces}"


@pytest.mark.parametrize("principal", ["random", "none"])
def test_unknown_name_lists_available_names(tmp_path, principal):
    with pytest.raises(ConfigError) as error:
        run(*TINY, f"principal={principal}", "design.objective=fairness", f"output_root={tmp_path}")
    message = str(error.value)
    assert message.startswith("design.objective='fairness': ") and ", ".join(OBJECTIVES) in message
    assert message.endswith("{_target_: package.module.function}")


def test_custom_measure_has_single_definition(tmp_path):
    """Check that the measure is optimized, described, measured and reported without any other change."""
    run(*TINY, *CUSTOM_OBJECTIVE, "principal=llm", "design.spending_cost=0.1", f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    rows = [row for row in load_comparable_metrics(folder) if "principal/objective" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["welfare/smallest_gap"] < 0
        expected = row["welfare/smallest_gap"] - 0.1 * row["welfare/spending"]
        assert row["principal/objective"] == pytest.approx(expected)
    calls = [json.dumps(call) for call in read_calls(folder / "llm_calls.jsonl")]
    sentence = "Your payoff is what the poorest of the 5 agents collects less what the richest collects. Payments you"
    assert len(calls) == 2 and all(sentence in call and call.count("Your payoff is ") == 1 for call in calls)
    evaluate([str(folder), "--episodes", "4", "--trust", "signal_game"])
    per_episode = json.loads((folder / "evaluation" / "results.json").read_text())["per_episode"]
    expected_scores = np.array(per_episode["welfare/smallest_gap"]) - 0.1 * np.array(per_episode["welfare/spending"])
    np.testing.assert_allclose(per_episode["objective (smallest_gap)"], expected_scores)


def test_manual_example_matches_source():
    from signal_game.objectives import smallest_gap

    section = (DOCS / "extending.md").read_text().split("## An objective")[1]
    names: dict = {"__name__": "manual"}
    exec(section.split("```python\n")[1].split("```")[0], names)
    example, real = names["smallest_gap"](), smallest_gap()
    assert (example.name, example.formula, example.payoff) == (real.name, real.formula, real.payoff)


def test_custom_measure_applies_to_agents(tmp_path):
    run("env=escape_room", "env.n_envs=4", "learn.env_steps=20", "learn.evaluate_episodes=4", *CUSTOM_OBJECTIVE,
        f"output_root={tmp_path}")  # fmt: skip
    row = load_comparable_metrics(find_run_folder(tmp_path))[-1]
    assert row["evaluation/objective"] == row["welfare/smallest_gap"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((CUSTOM_OBJECTIVE[0], "design.objective={_target_: signal_game.objectives.misnamed}"), "name gini"),
        ((CUSTOM_OBJECTIVE[0], "design.objective={_target_: signal_game.objectives.flat}"), r"shape \(4,\)"),
    ],
)
def test_rejects_invalid_objectives(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run(*TINY, "principal=random", *overrides, f"output_root={tmp_path}")
