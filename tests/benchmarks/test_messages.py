"""Classes of the messages of citizens: patterns, shares, and those of a run."""

import json

import messages
import pytest

from experiments import find_run_folder, run


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("I mean to take 4.", ["intention"]),
        ("Let's all take ten?", ["request", "question"]),
        ("Agreed.", ["promise"]),
        ("Take less, or else.", ["threat"]),
        ("The tax is high.", ["mechanism"]),
        ("There are 40 fish left.", ["report"]),
        ("Hm.", ["other"]),
    ],
)
def test_classes(text, classes):
    assert messages.classify(text) == classes


def test_shares_and_examples():
    summary = messages.summarize_messages(["Hm.", "I will wait.", "I will go.", "I will go, please wait."])
    assert (summary["messages"], summary["intention"], summary["request"], summary["other"]) == (4, 0.75, 0.25, 0.25)
    assert json.loads(summary["examples"])["intention"] == "I will wait."
    assert messages.summarize_messages([])["intention"] is None


@pytest.mark.slow
@pytest.mark.parametrize("interval", [0, 1])
def test_messages_of_run(tmp_path, interval):
    short = ("env.horizon=2", "design.steps=1", "design.validate_episodes=1", "design.evaluations=1")
    words = (f"agent.message_interval={interval}", "principal=vote", *short, f"output_root={tmp_path}")
    run("experiment=studies/communication", *words)
    summary = messages.read_run(find_run_folder(tmp_path))
    assert summary["principal"] == "VotePrincipal" and summary["env"] == "fishery"
    assert summary["messages"] == interval * 2 * 2 * 5, "two episodes of two months and five players"
    assert summary["intention"] == (1.0 if interval else None)
