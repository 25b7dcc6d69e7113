"""The labelled corpus of replies is as its README says; nothing here reads a reply."""

import json
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "corpus"
FAMILIES = ("player", "planner", "principal", "search")
STYLES = {"gpt", "claude", "gemini", "llama", "qwen", "mistral", "deepseek", "vicuna"}


def lines(name):
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_of_every_style_and_a_third_is_held_out(family):
    questions = json.loads((FOLDER / f"questions_{family}.json").read_text())
    shown, held_out = lines(family), lines(f"{family}_held_out")
    replies = [*shown, *held_out]
    assert len(replies) >= 200 and 0.3 < len(held_out) / len(replies) < 0.36
    assert min(Counter(each["style"] for each in replies)[style] for style in STYLES) >= 20
    assert {each["style"] for each in replies} == STYLES
    assert len({each["id"] for each in replies}) == len(replies)
    assert len({json.dumps([each["question_id"], each["reply"]]) for each in replies}) == len(replies)
    for each in replies:
        assert each["family"] == family and each["question_id"] in questions and "expected" in each
        assert {"content", "finish_reason"} <= each["reply"].keys()
    # Whoever answers always, or never, is far from right.
    assert 0.15 < sum(each["expected"] is None for each in replies) / len(replies) < 0.35
