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
    make_small_model(
        model, [WORDS], "causal", shape=SmallModelShape(width=16, layers=1, heads=2, vocabulary=300, longest=2048)
    )
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
    tests = {}
    for agent, folder in runs.items():
        policies = "student,random,bot" if agent == "llm_ppo" else "student"
        main([str(folder), *words, "--policy", policies, "--out", str(tmp_path / agent), "--trajectories"])
        results = json.loads((tmp_path / agent / "suite_babyai_text" / "results.json").read_text())
        assert results["run"] == str(folder) and results["players"] == policies.split(",")
        tests[agent] = {test["name"]: test for test in results["tests"]}
        assert set(tests[agent]) == set(TESTS)
        # What three actions can do is played by everybody, and nothing else.
        for name in ("unknown_nouns", "more_actions"):
            for player in tests[agent][name]["players"].values():
                assert player is None or (list(player["kinds"]), player["episodes"]) == (["goto"], 1)
                assert player is None or set(player["lacking"]) == {"pickup", "open", "putnext", "seq"}
        assert tests[agent]["unknown_nouns"]["refused"] == {}
        assert list(tests[agent]["new_composition"]["refused"]) == results["players"]
        assert tests[agent]["synonym_actions"]["env"]["actions"] == ["rotate left", "rotate right", "move ahead"]
        assert tests[agent]["goto_french"]["env"]["language"] == "fr"
    assert re.search("4 actions.* 3$", tests["llm_ppo"]["new_composition"]["refused"]["bot"])
    # Who reads the names of actions takes others and more of them; a network with three outputs does not.
    for agent in ("llm_ppo", "drrn"):
        for name in set(TESTS) - {"new_composition"}:
            assert tests[agent][name]["refused"] == {}, (agent, name)
    rejections = {name: test["refused"].get("student", "") for name, test in tests["symbolic_ppo"].items()}
    assert re.search("3 actions.* 9$", rejections["more_actions"])
    assert re.search("prompt and text, .* view, mission", rejections["synonym_actions"])
    assert re.search("prompt, .* view, mission", rejections["instruction_agent"])
    # Words of another language are other numbers.
    for name in ("goto_french", "goto_french_unknown_nouns"):
        assert "'mission'" in rejections[name]
    folder = tmp_path / "llm_ppo" / "suite_babyai_text"
    with (folder / "table.csv").open() as file:
        rows = {(row["test"], row["player"], row["kind"]): row for row in csv.DictReader(file)}
    assert re.search("pickup .*4 actions", rows["unknown_nouns", "student", "pickup"]["refused"])
    assert float(rows["unknown_nouns", "student", "goto"]["success"]) in (0, 1)
    # What was read has the words of the test.
    from llmrl.run.trajectories import read_trajectories

    steps = folder / "steps"
    renamed = read_trajectories(steps / "synonym_actions" / "goto" / "student")
    assert all("agent: rotate left, rotate right, move ahead \n" in text for text in renamed.prompts)
    french = " ".join(read_trajectories(steps / "goto_french_unknown_nouns" / "all" / "student").prompts)
    assert "But de l'agent: aller à " in french and not any(w in french for w in ("clef", "balle", "boîte"))
    assert any(word in french for word in ("chaise", "table", "voiture"))
    table = (folder / "table.md").read_text()
    assert re.search("‡ out-of-vocabulary nouns; .*: student, random, bot: goto only. pickup", table)
