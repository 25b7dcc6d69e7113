"""The package's suite with its intended agents: applicable tests, and reasons for the others."""

import csv
import json
import re

import pytest

from experiments import run
from llmrl.cli.evaluate import main
from llmrl.llms.local.small import SmallModelShape, make_small_model

ENV = ("env=goto_local", "env.actions=restricted", "env.history=1", "env.n_envs=2")
QUICK = ("learn.rollout_steps=4", "learn.env_steps=8", "learn.evaluate_episodes=1", "learn.evaluation_interval=0")
TESTS = (
    *("unknown_nouns", "instruction_agent", "synonym_actions", "more_actions", "new_composition"),
    *("goto_french", "goto_french_unknown_nouns"),
)
WORDS = "Goal of the agent: go to the red ball, turn left, turn right, go forward, aller à la chaise rouge"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train each agent for a few steps."""
    root = tmp_path_factory.mktemp("played")
    model = root / "model"
    make_small_model(model, [WORDS], shape=SmallModelShape(width=16, layers=1, heads=2, vocabulary=300, longest=2048))
    agents = {
        "llm_ppo": ("llm=local_scorer_causal", f"llm.model={model}", "agent.head_hidden=[8]"),
        "drrn": ("agent.units=8",),
        "symbolic_ppo": ("agent.features=8", "agent.memory=8"),
    }
    outcomes = {}
    for agent, agent_options in agents.items():
        run(*ENV, *QUICK, f"agent={agent}", f"name={agent}", f"output_root={root}", *agent_options)
        [outcomes[agent]] = (root / agent).glob("*/s0")
    return outcomes


@pytest.mark.slow
@pytest.mark.long
def test_three_action_agents_run_package_suite(runs, tmp_path, capsys):
    words = ["suite=babyai_text", "suite.episodes=1", f"suite.only=[{','.join(TESTS)}]"]
    main([*map(str, runs.values()), *words, "--policy", "student,random,bot", "--out", str(tmp_path), "--trajectories"])
    results = json.loads((tmp_path / "suite_babyai_text" / "results.json").read_text())
    # A label has the options in which the runs differ, and their order is that of the labels.
    experiments = list(results["experiments"])
    labels = [next(label for label in experiments if f"agent={name}" in label.split(", ")) for name in runs]
    assert sorted(labels) == sorted(experiments) and results["players"] == [*experiments, "random", "bot"]
    tests = {test["name"]: test for test in results["tests"]}
    assert set(tests) == set(TESTS)
    rejections = {name: test["refused"] for name, test in tests.items()}
    language, drrn, symbolic = labels
    # What three actions can do is played by everybody, and nothing else.
    for name in ("unknown_nouns", "more_actions"):
        for player in tests[name]["players"].values():
            assert player is None or (list(player["kinds"]), player["episodes"]) == (["goto"], 1)
            assert player is None or set(player["lacking"]) == {"pickup", "open", "putnext", "seq"}
    assert rejections["unknown_nouns"] == {}
    assert list(rejections["new_composition"]) == [*experiments, "random", "bot"]
    assert re.search("4 actions.* 3$", rejections["new_composition"]["bot"])
    # Who reads the names of actions takes others and more of them; a network with three outputs does not.
    assert list(rejections["more_actions"]) == [symbolic]
    assert re.search("3 actions.* 9$", rejections["more_actions"][symbolic])
    synonym_reason = rejections["synonym_actions"].pop(symbolic)
    assert re.search("prompt and text, .* view, mission", synonym_reason)
    assert re.search("prompt, .* view, mission", rejections["instruction_agent"].pop(symbolic))
    assert rejections["synonym_actions"] == rejections["instruction_agent"] == {}
    # Words of another language are other numbers.
    for name in ("goto_french", "goto_french_unknown_nouns"):
        assert list(rejections[name]) == [symbolic] and "'mission'" in rejections[name][symbolic]
    assert tests["synonym_actions"]["env"]["actions"] == ["rotate left", "rotate right", "move ahead"]
    assert tests["goto_french"]["env"]["language"] == "fr"
    with (tmp_path / "suite_babyai_text" / "table.csv").open() as file:
        rows = {(row["test"], row["player"], row["kind"]): row for row in csv.DictReader(file)}
    assert re.search("pickup .*4 actions", rows["unknown_nouns", drrn, "pickup"]["refused"])
    assert float(rows["unknown_nouns", language, "goto"]["success"]) in (0, 1)
    # What was read has the words of the test.
    from llmrl.run.trajectories import read_trajectories

    steps = tmp_path / "0" / "suite_babyai_text" / "steps"
    renamed = read_trajectories(steps / "synonym_actions" / "goto" / "student")
    assert all("agent: rotate left, rotate right, move ahead \n" in text for text in renamed.prompts)
    french = " ".join(read_trajectories(steps / "goto_french_unknown_nouns" / "all" / "student").prompts)
    assert "But de l'agent: aller à " in french and not any(w in french for w in ("clef", "balle", "boîte"))
    assert any(word in french for word in ("chaise", "table", "voiture"))
    table = (tmp_path / "suite_babyai_text" / "table.md").read_text()
    assert f"‡ out-of-vocabulary nouns: {', '.join(experiments)}, random, bot: goto only. pickup" in table
