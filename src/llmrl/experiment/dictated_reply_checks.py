"""Questions whose answer is dictated: what is read in the reply can be held against what had to be said.

A call log counts invalid replies. It cannot show which replies were read as something else than the model meant; with
a dictated answer the meaning is known. Some answers are requested as JSON, others in plain sentences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms import schema_draw
from llmrl.llms.client import ChatClient
from llmrl.llms.prompts import PromptFamily
from llmrl.llms.reading.number_parser import WRITTEN, number_of
from llmrl.llms.reading.reply_cleaning import plain
from llmrl.llms.request_key import request_key
from llmrl.llms.scripted import needed
from llmrl.llms.structured import InvalidReply, as_json, read

PURPOSE = "control"
Form = Literal["json", "prose"]
Outcome = Literal["right", "noncompliance", "parsing_error"]
"""`right`: read as dictated. Otherwise `parsing_error` if the reply holds all dictated values, else `noncompliance`."""

DRAWS = 20
"""Answers that are drawn for a question at most, until one is valid: not every plan can be carried out."""
_REMARKS = ("reasoning", "reflection", "plan", "moved")
"""What a reply holds besides the answer."""


@dataclass(frozen=True)
class Control:
    """Question with a dictated answer.

    Attributes:
        request: the question with the answer in it.
        dictated: the answer as JSON, without remarks.
        expected: what the answer means, as JSON.
        form: whether the answer is requested as JSON or in sentences.
    """

    request: ChatRequest
    dictated: Any
    expected: Any
    form: Form


def controls_of(requests: Sequence[ChatRequest], n: int) -> list[Control]:
    """Return up to `n` of a run's questions with an answer drawn for each, alternately as JSON and in sentences.

    Only questions whose reply has a form are taken. The same run yields the same controls.
    """
    asked = {
        request_key({}, request): request
        for request in requests
        if request.schema is not None and request.read is not None and request.purpose != "lesson"
    }
    chosen = [asked[key] for key in sorted(asked)[:n]]
    return [control for i, request in enumerate(chosen) if (control := _control(request, i)) is not None]


def outcomes(client: ChatClient, controls: Sequence[Control]) -> list[tuple[Outcome, str, Any]]:
    """Send the questions; return the outcome of each, its reply, and the parsed answer or the fault.

    Raises:
        LLMError: a question could not be answered.
    """
    found: list[tuple[Outcome, str, Any]] = []
    for control, reply in zip(controls, client.chat([each.request for each in controls]), strict=True):
        assert control.request.read is not None
        parsed: Any
        try:
            parsed = _answer(read(reply, control.request.read))
        except InvalidReply as fault:
            is_right, parsed = False, str(fault)
        else:
            is_right = _equal(parsed, control.expected)
        failure: Outcome = "parsing_error" if contains_values(reply.text, control.dictated) else "noncompliance"
        found.append(("right" if is_right else failure, reply.text, parsed))
    return found


def contains_values(text: str, answer: Any) -> bool:
    """Return whether a text contains every string, ignoring case, and every number of an answer."""
    if isinstance(answer, Mapping):
        return all(contains_values(text, each) for each in answer.values())
    if isinstance(answer, list):
        return all(contains_values(text, each) for each in answer)
    if isinstance(answer, str):
        return answer.casefold() in text.casefold()
    if isinstance(answer, bool) or answer is None:
        return json.dumps(answer) in text.casefold()
    numbers = (number_of(match[0]) for match in re.finditer(WRITTEN, plain(text)))
    return any(number is not None and _equal(number, answer) for number in numbers)


def reply(messages: Sequence[Mapping[str, str]], seed: int, note: Callable[[str], None]) -> str:
    """Return the dictated answer: the rule of llm=scripted."""
    _, is_control, text = messages[-1]["content"].rpartition("This question is a control:")
    return needed(text.splitlines()[-1] if is_control else None, "the dictated answer")


def _control(request: ChatRequest, index: int) -> Control | None:
    """Return `request` with an answer in it; None where no valid one is found."""
    form: Form = "prose" if index % 2 else "json"
    assert request.schema is not None and request.read is not None
    for draw in range(DRAWS):
        answer = _short(json.loads(schema_draw.reply(_sized(request), f"control {index} {draw}")))
        try:
            expected = _answer(read(ChatReply(json.dumps(answer)), request.read))
        except InvalidReply:
            continue
        said = {
            name: "As dictated." if isinstance(value, str) and name in _REMARKS else value
            for name, value in answer.items()
        }
        added = PromptFamily("experiment", Path(__file__).with_name("prompts")).render(
            "control", answer=json.dumps(said), prose=form == "prose"
        )
        last = request.messages[-1]
        messages = (*request.messages[:-1], {**last, "content": last["content"] + "\n\n" + added.text.strip()})
        asked = replace(request, messages=messages, purpose=PURPOSE, prompt=added.name, prompt_hash=added.hash)
        # A provider that enforces the schema could not answer in sentences.
        schema = request.schema if form == "json" else None
        dictated = {name: value for name, value in answer.items() if name not in _REMARKS}
        return Control(replace(asked, schema=schema, place=f"control {index}"), dictated, expected, form)
    return None


def _sized(request: ChatRequest) -> dict[str, Any]:
    """The schema of a reply; where its lists of numbers name no length, as many as the reader takes."""
    schema: dict[str, Any] = json.loads(json.dumps(request.schema))
    lists = [
        field
        for field in schema.get("properties", {}).values()
        if field.get("type") == "array" and field.get("items", {}).get("type") in ("number", "integer")
    ]
    if lists and (n := _numbers(request)):
        for field in lists:
            field |= {"minItems": n, "maxItems": n}
    return schema


def _numbers(request: ChatRequest) -> int:
    """How many numbers the answer to a question has; 0 where it is none of up to 1,000."""
    assert request.schema is not None and request.read is not None
    names = list(request.schema.get("properties", {}))
    for n in range(1, 1001):
        reply = json.dumps({name: [0.0] * n if name not in _REMARKS else "" for name in names})
        try:
            read(ChatReply(reply), request.read)
        except InvalidReply:
            continue
        return n
    return 0


def _short(value: Any) -> Any:
    """With three decimals at most: nobody is to copy sixteen digits."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def _answer(value: Any) -> Any:
    """What was read, without remarks."""
    plain = as_json(value)
    if isinstance(plain, Mapping):
        return {name: each for name, each in plain.items() if name not in _REMARKS}
    return plain


def _equal(one: Any, other: Any) -> bool:
    """Whether both are the same, numbers to a millionth."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= 1e-6
    return bool(one == other)
