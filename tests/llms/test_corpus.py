"""Agreement of the labeled corpus of replies with its README."""

import json
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "corpus"
FAMILIES = ("player", "planner", "principal", "search")
STYLES = {"gpt", "claude", "gemini", "llama", "qwen", "mistral", "deepseek", "vicuna"}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("folder", "minimum"), [(FOLDER, 200), (FOLDER / "second", 72)], ids=["first", "second"])
@pytest.mark.parametrize("family", FAMILIES)
def test_corpus_covers_styles(family, folder, minimum):
    questions = json.loads((folder / f"questions_{family}.json").read_text())
    development, held_out = lines(folder / f"{family}.jsonl"), lines(folder / f"{family}_held_out.jsonl")
    replies = [*development, *held_out]
    assert len(replies) >= minimum and 0.3 < len(held_out) / len(replies) < 0.36
    assert min(Counter(reply["style"] for reply in replies)[style] for style in STYLES) >= minimum // 10 - 1
    assert {reply["style"] for reply in replies} == STYLES
    assert len({reply["id"] for reply in replies}) == len(replies)
    assert len({json.dumps([reply["question_id"], reply["reply"]]) for reply in replies}) == len(replies)
    for reply in replies:
        assert reply["family"] == family and reply["question_id"] in questions and "expected" in reply
        assert {"content", "finish_reason"} <= reply["reply"].keys()
    # Whoever answers always, or never, is far from right.
    assert 0.15 < sum(reply["expected"] is None for reply in replies) / len(replies) < 0.35
