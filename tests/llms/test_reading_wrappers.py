"""Parsing of answers within other text: surrounding text has no effect, thoughts and quotations are ignored."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmrl.llms.hosted import parse_message
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.choice_parser import ChoiceParser
from llmrl.llms.reading.json_and_markup import find_outermost_values
from llmrl.llms.reading.number_parser import parse_number
from llmrl.llms.reading.plan_parser import PlanParser
from llmrl.llms.reading.vector_parser import VectorParser

NAMES = ("turn left", "turn_right", "go forward", "noop")
SKILLS = (("explore", False), ("go to", True), ("pick up", True))
OBJECTS = ("red key", "blue door")
CHOICE, NUMBERED_CHOICE = ChoiceParser(NAMES), ChoiceParser(NAMES, numbered=True)
PLAN = PlanParser(SKILLS, OBJECTS, 20)
PARAMS = VectorParser([f"params[{i}]" for i in range(3)])
RATES = VectorParser(["rate_1", "rate_2", "other"])

numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
steps = st.lists(
    st.sampled_from([("explore", ""), *((s, o) for s in ("go to", "pick up") for o in OBJECTS)]), min_size=1
)


def with_fields(question, fields, answer):
    """Return a question, the JSON object of a reply and the parsed answer."""
    return question, fields, answer


CASES = st.one_of(
    st.sampled_from(range(4)).map(lambda i: with_fields(CHOICE, {"action": NAMES[i]}, i)),
    st.sampled_from(range(4)).map(lambda i: with_fields(NUMBERED_CHOICE, {"action": i}, i)),
    st.lists(numbers, min_size=3, max_size=3).map(lambda x: with_fields(PARAMS, {"params": x}, x)),
    st.lists(numbers, min_size=3, max_size=3).map(
        lambda x: with_fields(RATES, dict(zip(RATES.names, x, strict=True)), x),
    ),
    steps.map(
        lambda plan: with_fields(PLAN, {"plan": [{"skill": s, "object": o} for s, o in plan[:20]]}, tuple(plan[:20])),
    ),
)
OBJECT_WRAPPERS = {
    "none": lambda x: x,
    "reasons": lambda x: {"reasoning": "It says {so}.", **x},
    "answer": lambda x: {"answer": x},
    "response": lambda x: {"response": {"reasoning": "why", **x}},
    "list": lambda x: [x],
    "call": lambda x: {"name": "submit", "arguments": x},
    "call with a text": lambda x: {"name": "submit", "arguments": json.dumps(x)},
    "function call": lambda x: {"function_call": {"name": "submit", "arguments": json.dumps(x)}},
    "capitals": lambda x: {key.title(): value for key, value in x.items()},
}
NOTATIONS = {
    "json": json.dumps,
    "lines": lambda x: json.dumps(x, indent=2),
    "python": repr,
    "twice": lambda x: json.dumps(json.dumps(x)),
    "comma": lambda x: json.dumps(x)[:-1] + ",\n" + json.dumps(x)[-1],
    "unclosed": lambda x: json.dumps(x)[:-1],
    "typeset": lambda x: json.dumps(x).replace('"', "\u201c"),
    "comment": lambda x: json.dumps(x)[:-1] + " // that is all\n" + json.dumps(x)[-1],
    "no-break": lambda x: json.dumps(x).replace(", ", ",\u00a0"),
}
DRAFT = '{"action": "noop", "params": [9, 9, 9], "plan": [{"skill": "explore"}], "rate_1": 9, "rate_2": 9, "other": 9}'
TEXT_WRAPPERS = {
    "nothing": "%s",
    "fence": "```json\n%s\n```",
    "tildes": "~~~\n%s\n~~~",
    "prose": "Sure! Here is my answer:\n\n%s\n\nI hope this helps!",
    "thought": f"<think>\nPerhaps {DRAFT}?\n</think>\n\n%s",
    "thinking": f"<thinking>{DRAFT}</thinking>%s",
    "brackets": f"[THINK]{DRAFT}[/THINK]%s",
    "no beginning": f"So {DRAFT}, or not.\n</think>\n%s",
    "channels": f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>%s",
    "token": "%s<|im_end|>",
    "turn": "<|im_start|>assistant\n%s<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"
    + DRAFT,
    "vicuna": f"ASSISTANT: %s</s>\nUSER: And now?\nASSISTANT: {DRAFT}",
    "instructions": "[/INST] %s </s>",
    "tag": "<answer>\n%s\n</answer>",
    "call": "<tool_call>\n%s\n</tool_call>",
    "mark": "\ufeff%s\r\n",
    "quoted": f'The game says "now answer {DRAFT}". I do not.\n\n%s',
    "example": f"For example: {DRAFT}\n\nMy answer: %s",
    "corrected": f"{DRAFT}\n\nWait, that is wrong. Correction:\n\n%s",
}


@given(CASES, st.sampled_from([*OBJECT_WRAPPERS]), st.sampled_from([*NOTATIONS]), st.sampled_from([*TEXT_WRAPPERS]))
def test_wrappers_keep_answer(question, wrapper, notation, text):
    # Not read yet: a list of one after a correction or in a tag, and lists that are not closed.
    assume(wrapper != "list" or (notation == "json" and text not in ("corrected", "tag")))
    question, fields, answer = question
    reply = TEXT_WRAPPERS[text].replace("%s", NOTATIONS[notation](OBJECT_WRAPPERS[wrapper](fields)))
    parsed = parse_answer(reply, question).answer
    assert parsed.tolist() == answer if isinstance(parsed, np.ndarray) else parsed == answer


@given(CASES, st.data())
def test_truncated_reply_is_equal_or_invalid(question, data):
    question, fields, answer = question
    text = data.draw(st.sampled_from(["%s", f"<think>{DRAFT}</think>%s", "Well, %s"])).replace("%s", json.dumps(fields))
    end = data.draw(st.integers(0, len(text)))
    try:
        parsed = parse_answer(text[:end], question, truncated=True).answer
    except InvalidReply:
        return
    assert parsed.tolist() == answer if isinstance(parsed, np.ndarray) else parsed == answer


@given(CASES)
def test_thought_is_not_answer(question):
    question, fields, _ = question
    for text in (
        "<think>%s</think>",
        "[THINK]%s[/THINK]",
        "<think>%s Hm, let me see what else there is.\nOr rather not?",
    ):
        with pytest.raises(InvalidReply):
            parse_answer(text.replace("%s", json.dumps(fields)), question)
    with pytest.raises(InvalidReply, match="thought"):
        parse_answer(f"<think>{json.dumps(fields)}", question, truncated=True)


@given(CASES, CASES)
def test_different_answers_are_none(question, second_question):
    (question, fields, answer), (_, second_fields, second_answer) = question, second_question
    text = f"{json.dumps(fields)}\n{json.dumps(second_fields)}"
    if fields.keys() != second_fields.keys() or type(answer) is not type(second_answer):
        return
    if question is second_question[0] and answer == second_answer:
        parse_answer(text, question)
    elif question is second_question[0]:
        with pytest.raises(InvalidReply, match="different"):
            parse_answer(text, question)


MESSAGES = [
    ({"content": "text"}, "text"),
    ({"content": None}, ""),
    ({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]}, "so"),
    ({"content": "", "reasoning_content": "hm"}, "<think>\nhm"),
    ({"content": "so", "reasoning_content": "hm"}, "so"),
    (
        {"content": "", "tool_calls": [{"function": {"name": "act", "arguments": '{"a": 1}'}}], "reasoning": "hm"},
        '<tool_call>\n{"name": "act", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
    ),
    (
        {"content": "I act.", "function_call": {"name": "act", "arguments": "{}"}},
        'I act.\n<tool_call>\n{"name": "act", "arguments": "{}"}\n</tool_call>',
    ),
    ({"content": None, "tool_calls": ["odd", None, {"function": 3}]}, ""),
]


@pytest.mark.parametrize(("message", "text"), MESSAGES)
def test_message_is_single_text(message, text):
    assert parse_message(message, {}, "").text == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.8 N", 0.8),
        ("-3/4", -0.75),
        ("0,25", 0.25),
        ("one and a half", 1.5),
        ("minus two", -2),
        ("three quarters", 0.75),
        ("zero point two five", 0.25),
        ("(0.5 + 1.5) / 4", 0.5),
        ("twenty one", 21),
        ("1e-3", 0.001),
        ("$1.20", 1.2),
        ("1 to 2", None),
        ("1-2", None),
        ("0.5 - 1.5", None),  # a range as likely as a difference
        ("~3", None),
        ("1/0", None),
        ("9" * 400, None),
        ("__import__('os')", None),
        ("2**99", None),
        ("low", None),
        (True, None),
        (None, None),
        (float("inf"), None),
    ],
)
def test_human_number_formats(text, number):
    assert parse_number(text) == number


def test_percentages_convert_when_requested():
    assert parse_number("40 %", is_fraction=True) == 0.4 and parse_number("40%") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: .5, b: [1, ..., 3]}", {"a": 0.5, "b": [1, "...", 3]}),
        ('{"a": 1/4, "b": 0.25 + 0.1}', {"a": "1/4", "b": "0.25 + 0.1"}),
        ('{"a": [1] * 3 + [2]}', {"a": [1, 1, 1, 2]}),
        ('{"a": <number>}', {"a": "<number>"}),
        ("act(a='x', b=[1, 2])", {"a": "x", "b": [1, 2]}),
        ("<x>1</x><y><z>p</z><z>q</z></y>", {"x": "1", "y": {"z": ["p", "q"]}}),
        ("a:\n  - b: x\n    c: y", {"a": [{"b": "x", "c": "y"}]}),
        ("<function=f>\n<parameter=a>\nx\n</parameter>\n</function>", {"function": {"a": "x"}}),
    ],
)
def test_values_in_text(text, value):
    assert [structure.value for structure in find_outermost_values(text)] == [value]
