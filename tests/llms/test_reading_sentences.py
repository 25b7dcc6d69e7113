"""Parsing of answers in sentences, and of sentences about actions and numbers that contain no decision."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.plan_parser import PlanParser
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion

TAXI = ["move south", "move north", "move east", "move west", "pick up", "drop off"]
GRID = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
ACTIONS = [
    "turn left",
    "turn right",
    "move forward",
    "pick up an object",
    "drop",
    "toggle/activate an object",
    "unused",
]
SKILLS = [("explore", False), ("go to", True), ("pick up", True), ("drop", False), ("toggle", True)]
STATE = "Agent sees <door, key>, holds <nothing>."
QUESTIONS = {
    "taxi": ChoiceParser(TAXI, [""] * 6),
    "taxi by number": ChoiceParser(TAXI, [""] * 6, numbered=True),
    "cards": ChoiceParser(["stick", "hit"], ["stop taking cards", "take one more card"]),
    "grid": ChoiceParser(GRID, ACTIONS),
    "plan": PlanParser(SKILLS, ["key", "door", "ball"], 4, STATE),
    "incentives": VectorParser(["eat", "clean", "other"], bounds=[(0, 3)] * 3, question=VectorQuestion(turn=4)),
    "taxes": VectorParser(["rate_1", "rate_2", "rate_3"], bounds=[(0, 1)] * 3, question=VectorQuestion(turn=7)),
    "search": VectorParser(
        [f"params[{i}]" for i in range(3)], question=VectorQuestion(turn=5, history=[[0.4, -0.4, 1.9], [1, 2, 3]])
    ),
}
CASES = [json.loads(line) for line in (Path(__file__).parent / "corpus" / "sentences.jsonl").read_text().splitlines()]


def to_plain(answer):
    if isinstance(answer, np.ndarray):
        return pytest.approx(answer.tolist())
    return [list(step) for step in answer] if isinstance(answer, list | tuple) else answer


def case_id(case):
    """Its name, without backslashes: where pytest runs twice in one process, as for mutants, it escapes them again."""
    return f"{case['question']}: {re.sub(r'[^!-~]+', ' ', case['reply'])[:40]}".replace("\\", "")


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_sentences_parse_correctly(case):
    try:
        answer = to_plain(parse_answer(case["reply"], QUESTIONS[case["question"]], case.get("cut", False)).answer)
    except InvalidReply:
        answer = None
    assert case["expected"] == answer


def test_corpus_has_decisions():
    counts = Counter(case["expected"] is None for case in CASES)
    assert counts[True] > 50 and counts[False] > 80
