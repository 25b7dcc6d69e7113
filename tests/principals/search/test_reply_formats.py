"""Parsing of numbers in replies: accepted and rejected formats."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.vector_parser import VectorParser, VectorQuestion


def read_numbers(text, d, **question):
    parser = VectorParser([f"params[{i}]" for i in range(d)], question=VectorQuestion(**question))
    return parse_answer(text, parser)


EXAMPLE_VECTOR = [1.0, -0.5, 2.0]

FORMS = {
    "json": '{"reasoning": "r", "params": [1.0, -0.5, 2]}',
    "json in a fence": '```json\n{"params": [1, -0.5, 2.0], "reasoning": "r"}\n```\nDone.',
    "json after a draft": '{"params": [9, 9, 9]} no, rather {"params": [1, -0.5, 2]}',
    "json with names": '{"params[0]": 1.0, "params[1]": -0.5, "params[2]": 2}',
    "json with bare points": '{"reasoning": "", "params": [1., -.5, +2]}',
    "published": "params[0]: 1.0; params[1]: -0.5; params[2]: 2.0\nBecause.",
    "commas": "params[0]: 1.0, params[1]: -0.5, params[2]: 2.0",
    "equals signs": "params[0] = 1.0, params[1] = -0.5, params[2] = 2.0",
    "no digit before the point": "params[0]: 1, params[1]: -.5, params[2]: 2",
    "exponents": "params[0]: 1e0, params[1]: -5e-1, params[2]: 0.2E+1",
    "a typesetter's minus": "params[0]: 1, params[1]: \u22120.5, params[2]: 2",
    "a dash": "params[0]: 1, params[1]: \u20130.5, params[2]: 2",
    "a minus apart": "params[0]: 1, params[1]: - 0.5, params[2]: + 2",
    "bold": "**params[0]**: 1.0, **params[1]:** -0.5, **params[2]** = **2.0**",
    "code": "`params[0]`: `1.0`, `params[1]`: `-0.5`, `params[2]`: `2.0`",
    "escaped": "params\\[0\\]: 1.0, params\\[1\\]: -0.5, params\\[2\\]: 2.0",
    "one a line": "Here they are:\n- params[0]: 1.0\n- params[1]: -0.5\n- params[2]: 2.0\nGood luck!",
    "a table": "| params[0] | 1.0 |\n| params[1] | -0.5 |\n| params[2] | 2.0 |",
    "a fence": "```\nparams[0]: 1.0; params[1]: -0.5; params[2]: 2.0\n```",
    "another order": "params[2]: 2.0, params[0]: 1.0, params[1]: -0.5",
    "thought before": "<think>params[0]: 9, params[1]: 9, params[2]: 9?</think>\n[1, -.5, 2]",
    "thought without a beginning": "so params[0]: 9, params[1]: 9, params[2]: 9\n</think>\n[1, -0.5, 2]",
    "a channel": '<|channel|>analysis<|message|>[9, 9, 9]<|end|><|channel|>final<|message|>{"params": [1, -0.5, 2]}',
    "a reason that quotes": "params[0]: 1, params[1]: -0.5, params[2]: 2\nThe best had params[0]: 7, and params[1]: 8.",
    "full stops": "params[0]: 1.0. params[1]: -0.5. params[2]: 2.0.",
    "a quoted row before": (
        "params[0]: 7; params[1]: 8; params[2]: 9; f(params): 90.00\nparams[0]: 1; params[1]: -0.5; params[2]: 2\nWhy."
    ),
    "a quoted row after": (
        "params[0]: 1; params[1]: -0.5; params[2]: 2\nAs params[0]: 7; params[1]: 8; params[2]: 9; f(params): 90."
    ),
    "a quoted row of many lines": (
        "- params[0]: 7\n- params[1]: 8\n- params[2]: 9\n- **f(params)**: 90\nSo:\n"
        "- params[0]: 1\n- params[1]: -0.5\n- params[2]: 2\n"
    ),
    "a quoted row right after": (
        "params[0]: 1; params[1]: -0.5; params[2]: 2;\nparams[0]: 7; params[1]: 8; params[2]: 9; f(params): 90"
    ),
    "a value spoken of": "params[0]: 1; params[1]: -0.5; params[2]: 2\nThe best f(params): 90 can be beaten.",
    "a bare list": "I try [1.0, -0.5, 2.0].",
    "a bare list beside a quoted row": "Better than [3, 3, 3] -> 12.50 should be [1, -0.5, 2]",
    "tags": "<policy>params[0]: 1, params[1]: -0.5, params[2]: 2</policy>",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form):
    assert read_numbers(FORMS[form], 3).answer.tolist() == EXAMPLE_VECTOR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty: .* 3 numbers"),
        ("I cannot help with that.", " 3 numbers .*JSON"),
        ('{"params": [1, 2]}', "params .*2 numbers, 3"),
        ('{"params": [1, 2, "many"]}', "'many'"),
        ('{"params": [1, 2, NaN]}', "numbers .*nan"),
        ('{"params": [1, ..., 3, 4]}', "params holds|numbers holds"),
        ('{"params[0]": 1, "params[2]": 2}', r"for params\[1\]$"),
        ("params[0]: 1, params[2]: 2", r"for params\[1\]$"),
        ("params[0]: 10%, params[1]: 2, params[2]: 3", r"for params\[0\]"),  # of what is not known
        ("params[0]: 1 to 2, params[1]: 2, params[2]: 3", "is no"),
        ("params[0]: 1.2.3, params[1]: 2, params[2]: 3", "is no"),
        ("params[1]: 1; params[2]: 2; params[3]: 3", "is no"),  # perhaps counted from 1
        ("<think>params[0]: 1, params[1]: 2", "inside a thought"),
        ("[1, 2], [1, 2, 3, 4]", "is no"),
        ("[1, 2, 3] -> 14.00", "is no"),
        ("[1, 2, 3] or [4, 5, 6]", "several"),
    ],
)
def test_invalid_replies_explain_reason(text, message):
    with pytest.raises(InvalidReply, match=message):
        read_numbers(text, 3)


@pytest.mark.parametrize(
    "text",
    [
        "params[0]: one, params[1]: -1/2, params[2]: 2",
        '{"params": [1, "-0,5", "2.0 units"]}',
        '{"params": [0.5 + 0.5, -1/2, 2 * 1]}',
        "params[0]: 1, params[1]: -0.5, params[2]: 2, params[3]: 4",  # there is no fourth
        "params[0]: 9 -> 1; params[1]: 9 -> -0.5; params[2]: 9 -> 2",  # what it was, and what it is to be
        "Counting from 1: params[1]: 1; params[2]: -0.5; params[3]: 2",
        '{"reasoning": "r", "params": [1, -0.5, 2]',
        "<think>I will answer\nparams[0]: 1; params[1]: -0.5; params[2]: 2",  # whole, though the thought never ends
        "| params | was | new |\n|---|---|---|\n| params[0] | 9 | 1 |\n| params[1] | 9 | -0.5 |\n| params[2] | 9 | 2 |",
    ],
)
def test_tolerant_parsing(text):
    assert read_numbers(text, 3).answer.tolist() == EXAMPLE_VECTOR


def test_history_row_is_not_answer():
    row = "params[0]: 1; params[1]: -0.5; params[2]: 2; f(params): 14.00"
    assert read_numbers(row, 3).answer.tolist() == EXAMPLE_VECTOR
    with pytest.raises(InvalidReply):
        read_numbers(row, 3, history=[EXAMPLE_VECTOR])
    assert read_numbers('{"params": [1, -0.5, 2]}', 3, history=[EXAMPLE_VECTOR]).answer.tolist() == EXAMPLE_VECTOR


def test_an_index_counts_not_the_place():
    reading = read_numbers("params[1]: 5; params[0]: 4", 2)
    assert reading.answer.tolist() == [4.0, 5.0]


def test_different_iterations_are_not_answers():
    text = "params[0]: 1; params[1]: 2\n\nIteration 4\nparams[0]: 3; params[1]: 4"
    assert read_numbers(text, 2, turn=3).answer.tolist() == [1.0, 2.0]


def test_reasons_are_parsed():
    assert read_numbers(FORMS["json"], 3).reasons == "r"
    assert read_numbers(FORMS["published"], 3).reasons == "Because."


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([": ", " = ", ":"]), st.randoms())
def test_format_round_trip(numbers, sign, random):
    assignments = [f"params[{i}]{sign}{x!r}" for i, x in enumerate(numbers)]
    random.shuffle(assignments)
    for text in ("; ".join(assignments), "\n".join(assignments), json.dumps({"params": numbers})):
        np.testing.assert_array_equal(read_numbers(text, len(numbers)).answer, numbers)


@given(st.text(max_size=300))
def test_arbitrary_reply_never_crashes(text):
    for reply in (text, f"params[0]: {text}", f"[{text}]", f'{{"params": [{text}]}}', f"<think>{text}"):
        try:
            assert np.isfinite(read_numbers(reply, 2).answer).all()
        except InvalidReply as error:
            assert str(error)
