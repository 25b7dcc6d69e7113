"""Parsing of replies that quote earlier proposals, retract an answer or answer in words."""

import numpy as np
import pytest

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.vector_parser import VectorParser

INCENTIVES = VectorParser(["eat", "clean", "other"], bounds=[(0, 3)] * 3)
RATES = VectorParser(["rate_1", "rate_2", "rate_3"], bounds=[(0, 1)] * 3)
TAXI = ChoiceParser(["south", "north", "east", "west", "pick up", "drop off"])
BABYAI = ChoiceParser(["turn left", "turn right", "go forward", "pick up", "drop", "toggle"])
AMOUNTS = ChoiceParser([f"take_{k}" for k in range(101)])
BALLOT = ChoiceParser([f"option_{k}" for k in range(1, 6)])
REQUESTED = '{"reasoning": "x", "eat": 0, "clean": 2.5, "other": 0}'


@pytest.mark.parametrize(
    "prefix",
    [
        "Previously, eat=0, clean=2, other=0 led to too little cleaning. ",
        "In generation 3 [0, 2, 0] scored 58. ",
        "Earlier I tried eat: 1, clean: 3, other: 0 which gave 102.\n\n",
        '{"eat": 0, "clean": 2, "other": 0} was my last proposal.\n',
    ],
)
def test_requested_format_overrides_quotations(prefix):
    assert parse_answer(prefix + REQUESTED, INCENTIVES).answer.tolist() == [0, 2.5, 0]


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        (TAXI, '{"reasoning": "x", "action": "east"} Never mind, scratch that. South it is.'),
        (TAXI, '{"reasoning": "x", "action": "east"} Forget that.'),
        (INCENTIVES, f"{REQUESTED}\nOn second thought, that is wrong."),
        (INCENTIVES, f"<think>Maybe try {REQUESTED}"),
        (INCENTIVES, "<think>Perhaps something like eat=1, clean=2, other=0"),
        (RATES, "Do not use [0.1, 0.5, 1]."),
        (RATES, "Never repeat [0.1, 0.5, 1]."),
        (AMOUNTS, "take 8-10"),
        (AMOUNTS, "I take between 8 and 10"),
        (AMOUNTS, "8 or 10 tons"),
    ],
)
def test_retractions_are_invalid(question, reply):
    with pytest.raises(InvalidReply):
        parse_answer(reply, question)


@pytest.mark.parametrize(
    ("question", "reply", "answer"),
    [
        (RATES, "[0.1, 0.5, 1] was better than [0.2, 0.5, 1], so I go back to [0.1, 0.5, 1]", [0.1, 0.5, 1]),
        (RATES, "Rates of 0.15, 0.5 and 1.0 respectively", [0.15, 0.5, 1]),
        (RATES, "[0.15, 0.5, 1.0] -> 48 (expected)", [0.15, 0.5, 1]),
        (AMOUNTS, "catch 8 tons", 8),
        (AMOUNTS, "ten tons", 10),
        (AMOUNTS, '{"amount": 8}', 8),
        (AMOUNTS, '{"reasoning": "x", "action": "take 8 tons"}', 8),
        (AMOUNTS, '{"action": 8}', 8),
        (TAXI, "down", 0),
        (TAXI, "vers le sud", 0),
        (TAXI, "\u2b07\ufe0f south", 0),
        (BABYAI, "pick up the yellow key", 3),
        (BABYAI, "go forward 3 times", 2),
        (BALLOT, '{"vote": "option_4"}', 3),
        (BALLOT, "I vote for option 4", 3),
        (BALLOT, "Ich stimme f\u00fcr Option 4", 3),
        (BALLOT, "Je vote pour l'option 4", 3),
        (BALLOT, "Mein Votum: Option 4", 3),
    ],
)
def test_clear_words_are_answers(question, reply, answer):
    parsed = parse_answer(reply, question).answer
    assert (parsed.tolist() if isinstance(parsed, np.ndarray) else parsed) == answer


@pytest.mark.parametrize("reply", ["forward motion is blocked", "pick up or drop the key", "do not go forward"])
def test_statements_are_invalid(reply):
    with pytest.raises(InvalidReply):
        parse_answer(reply, BABYAI)
