"""The labelled corpus of replies is as its README says; nothing here reads a reply."""

import json
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "corpus"
FAMILIES = ("player", "planner", "principal", "search")
STYLES = {"gpt", "claude", "gemini", "llama", "qwen", "mistral", "deepseek", "vicuna"}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("folder", "least"), [(FOLDER, 200), (FOLDER / "second", 75)], ids=["first", "second"])
@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_of_every_style_and_a_third_is_held_out(family, folder, least):
    questions = json.loads((folder / f"questions_{family}.json").read_text())
    shown, held_out = lines(folder / f"{family}.jsonl"), lines(folder / f"{family}_held_out.jsonl")
    replies = [*shown, *held_out]
    assert len(replies) >= least and 0.3 < len(held_out) / len(replies) < 0.36
    assert min(Counter(each["style"] for each in replies)[style] for style in STYLES) >= least // 10 - 1
    assert {each["style"] for each in replies} == STYLES
    assert len({each["id"] for each in replies}) == len(replies)
    assert len({json.dumps([each["question_id"], each["reply"]]) for each in replies}) == len(replies)
    for each in replies:
        assert each["family"] == family and each["question_id"] in questions and "expected" in each
        assert {"content", "finish_reason"} <= each["reply"].keys()
    # Whoever answers always, or never, is far from right.
    assert 0.15 < sum(each["expected"] is None for each in replies) / len(replies) < 0.35
