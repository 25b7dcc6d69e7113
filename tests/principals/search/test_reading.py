"""Numbers out of replies: every form that models write, and those that are not accepted."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.llms.structured import InvalidReply
from llmrl.principals.reading import answer_of, read_numbers

WANTED = [1.0, -0.5, 2.0]

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


@pytest.mark.parametrize("lines_first", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, lines_first):
    assert read_numbers(FORMS[form], 1, 3, lines_first).vectors.tolist() == [WANTED]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no complete JSON object.*there is no `params\[i\]"),
        ("I cannot help with that.", "there is no"),
        ('{"params": [1, 2]}', "params holds 2 numbers, 3 are needed"),
        ('{"params": [1, 2, "three"]}', "params.2"),
        ('{"params": [1, 2, NaN]}', "params.2"),
        ("params[0]: 1, params[2]: 2", r"params\[1\] are missing"),
        ("params[0]: 1, params[1]: 2, params[2]: 3, params[3]: 4", r"params\[3\] was given.*params\[2\]"),
        ("params[0]: 10%, params[1]: 2, params[2]: 3", r"params\[0\] are missing"),
        ("params[0]: one, params[1]: 2, params[2]: 3", r"params\[0\] are missing"),
        ("params[0]: 1.2.3, params[1]: 2, params[2]: 3", r"params\[0\] are missing"),
        ("<think>params[0]: 1, params[1]: 2, params[2]: 3", "there is no"),
        ("[1, 2], [1, 2, 3, 4]", "there is no"),
        ("[1, 2, 3] -> 14.00", "there is no"),
        ("params[0]: 1; params[1]: 2; params[2]: 3; f(params): 14.00", "there is no"),
    ],
)
def test_what_is_not_accepted_and_why(text, message):
    with pytest.raises(InvalidReply, match=message):
        read_numbers(text, 1, 3)


def test_an_index_counts_not_the_place():
    reading = read_numbers("params[1]: 5; params[0]: 4", 1, 2)
    assert reading.vectors.tolist() == [[4.0, 5.0]]


def test_the_first_whole_line_is_the_answer():
    text = "params[0]: 1; params[1]: 2\nEarlier params[0]: 3; params[1]: 4 gave less."
    assert read_numbers(text, 1, 2, lines_first=True).vectors.tolist() == [[1.0, 2.0]]


def test_several_vectors():
    two = '{"reasoning": "both", "proposals": [[1, 2], [3, 4]]}'
    reading = read_numbers(two, 2, 2)
    assert reading.vectors.tolist() == [[1, 2], [3, 4]] and reading.reasoning == "both"
    lines = "params[0]: 1; params[1]: 2\nparams[0]: 3; params[1]: 4\nwhy"
    assert read_numbers(lines, 2, 2, lines_first=True).vectors.tolist() == [[1, 2], [3, 4]]
    assert read_numbers("[0, 0]\n[1, 2]\n[3, 4]", 2, 2).vectors.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(InvalidReply, match="proposals holds 1 lists, 2 are needed"):
        read_numbers('{"proposals": [[1, 2]]}', 2, 2)
    with pytest.raises(InvalidReply, match="there are 1 whole lists of params, 2 are needed"):
        read_numbers("params[0]: 1; params[1]: 2", 2, 2)


def test_reasons_are_kept():
    assert read_numbers(FORMS["json"], 1, 3).reasoning == "r"
    assert read_numbers(FORMS["published"], 1, 3).reasoning == "Because."


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([": ", " = ", ":"]), st.randoms())
def test_what_was_written_is_read(numbers, sign, random):
    named = [f"params[{i}]{sign}{x!r}" for i, x in enumerate(numbers)]
    random.shuffle(named)
    for text in ("; ".join(named), "\n".join(named), json.dumps({"params": numbers})):
        np.testing.assert_array_equal(read_numbers(text, 1, len(numbers)).vectors, [numbers])


@given(st.text(max_size=300))
def test_no_reply_breaks_it(text):
    for reply in (text, f"params[0]: {text}", f"[{text}]", f'{{"params": [{text}]}}', f"<think>{text}"):
        try:
            assert np.isfinite(read_numbers(reply, 1, 2).vectors).all()
        except InvalidReply as fault:
            assert str(fault)
        assert isinstance(answer_of(reply), str)
