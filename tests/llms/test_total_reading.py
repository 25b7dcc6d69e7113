"""Parsing is defined for all texts, takes linear time and returns serializable values."""

import dataclasses
import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from llmrl.agents.llm_player.answer_format import ContinuousAnswerFormat, DiscreteAnswerFormat, parse_player_reply
from llmrl.agents.llm_player.lessons import parse_lesson
from llmrl.core.records import ChatReply
from llmrl.core.spaces import ContinuousActions
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading import json_and_markup
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.object_parser import parse_object
from llmrl.llms.reading.vector_parser import VectorParser
from llmrl.llms.reply_cleaning import MAX_REPLY_LENGTH, clean_reply, strip_control_characters
from llmrl.llms.structured import apply_parser
from llmrl.llms.structured_query import StructuredQuery
from llmrl.teachers.plans import Skill, parse_reply
from models import EchoProvider, make_client, make_scripted_client
from shipped import build_llm_principal
from societies import make_toy_spec

SKILLS = (Skill("go to", True, ""), Skill("explore", False, ""))
CHOICES = DiscreteAnswerFormat((("left", ""), ("right", "")))
ARM = ContinuousAnswerFormat(ContinuousActions(("x", "y"), (-1.0, -2.0), (1.0, 2.0)), (("x", ""), ("y", "")), 2, "arm")


def numbers(text, d):
    return parse_answer(text, VectorParser([f"params[{i}]" for i in range(d)]))


class Preference(BaseModel):
    number: int
    text: str = ""


READERS = {
    "model": lambda text: parse_object(text, Preference),
    "dollar": lambda text: parse_answer(text, VectorParser(["x", "y", "z"])),
    "numbers": lambda text: numbers(text, 2),
    "grid": lambda text: parse_answer(text, VectorParser(["params[0]", "params[1]"], words=["left", "right"])),
    "cut": lambda text: parse_answer(text, VectorParser(["x", "y"]), truncated=True),
    "plan": lambda text: parse_reply(text, SKILLS, ("key", "door")),
    "choice": lambda text: parse_player_reply(text, CHOICES, [True, False], require_reflection=True),
    "arm": lambda text: parse_player_reply(text, ARM, None),
    "lesson": parse_lesson,
    "mechanism": build_llm_principal(make_toy_spec(), make_scripted_client()).parse_reply,
    "clamped": build_llm_principal(make_toy_spec(), make_scripted_client(), out_of_range="clamp").parse_reply,
}
NAMES = (
    "number",
    "text",
    "params",
    "proposals",
    "reasoning",
    "plan",
    "skill",
    "object",
    "action",
    "reflection",
    "lesson",
)
NAMES += ("x", "y", "a", "parameter 1", "\ud800", "")


def texts_in(value):
    """Return all strings in a parsed value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        yield from texts_in(value.model_dump())
    elif isinstance(value, dict):
        yield from texts_in([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
    elif dataclasses.is_dataclass(value):
        yield from texts_in([getattr(value, field.name) for field in dataclasses.fields(value)])


class RecordingTransport(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.records = []

    def emit(self, record):
        self.records.append(record.getMessage())


def check(text):
    """Assert that each parser parses `text` or reports it as invalid, without a general exception handler."""
    handler = RecordingTransport()
    logging.getLogger("llmrl.llms.structured").addHandler(handler)
    try:
        _check(text)
    finally:
        logging.getLogger("llmrl.llms.structured").removeHandler(handler)
    assert handler.records == []


def _check(text):
    for name, parse in READERS.items():
        try:
            answer = parse(text)
            assert apply_parser(ChatReply(text), lambda reply, parse=parse: parse(reply.text)) is not None
        except InvalidReply as error:
            answer = str(error)
            assert answer
        for words in texts_in(answer):
            assert words == strip_control_characters(words), name
            words.encode()


arbitrary_text = st.text(st.characters(exclude_categories=()))
numerals = st.sampled_from(
    ["0", "-1", "1.5", "1" * 5000, "-" + "9" * 400, "1e999999", "-1E308", "NaN", "Infinity", "1e-9"]
)
leaves = numerals | st.sampled_from(["null", "true", '"left"', '"go to"', '"key"', '"\\ud800"', '"' + "7" * 5000 + '"'])
leaves |= arbitrary_text.map(json.dumps)


def join_items(items):
    return st.lists(items, max_size=4).map(lambda members: f"[{', '.join(members)}]") | st.dictionaries(
        st.sampled_from(NAMES), items, max_size=5
    ).map(lambda members: "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in members.items()) + "}")


documents = st.recursive(leaves, join_items, max_leaves=12)
deep = st.builds(
    lambda n, opening, leaf, closed: opening * n + leaf + ("" if closed else {"[": "]", '{"a":': "}"}[opening] * n),
    st.sampled_from([3, 60, 990, 5000]),
    st.sampled_from(["[", '{"a":']),
    leaves,
    st.booleans(),
)
fragments = st.sampled_from([
    "{", "}", "[", "]", '"', "\\", "$", ",", "params[0]:", "params[1] = ", "f(params): 1", "<think>", "</think>",
    "<|message|>", "Action: {", "go to <key>", "```json\n", "-", "\ud800", "\x00", "\u2028", "%", "٣",
])  # fmt: skip
mixtures = st.lists(fragments | documents | numerals | arbitrary_text, max_size=12).map("".join)
wrapped = st.builds("{{{}: {}}}".format, st.sampled_from(NAMES).map(json.dumps), documents | deep)


@given(st.binary().map(lambda data: data.decode("latin-1")) | arbitrary_text)
def test_any_bytes(text):
    check(text)


@given(documents | wrapped | mixtures)
def test_json_answer_fragments(text):
    check(text)


@settings(max_examples=12)
@given(deep)
def test_any_depth(text):
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"action": "{"9" * 5000}", "reflection": "r"}}',
        f'{{"number": {"9" * 5000}}}',
        f'{{"params": [{"9" * 5000}, 1]}}',
        f"$ {'9' * 5000}, 1, 2 $",
        '{"action": "\\ud800", "reflection": "\\udfff"}',
        '{"plan": [{"skill": "\\ud83d"}]}',
        '{"action": ' + "[" * 900 + "]" * 900 + "}",
    ],
)
def test_odd_replies_are_invalid(text):
    check(text)
    for parse in READERS.values():
        with pytest.raises(InvalidReply):
            parse(text)


PATTERNS = {
    "digits": "params[0]: " + "1" * MAX_REPLY_LENGTH + "x",
    "digits between dollars": "$" + "1" * (MAX_REPLY_LENGTH - 9) + "x$",
    "digits in a list": "[" + "1" * (MAX_REPLY_LENGTH - 9) + "x]",
    "exponent": "params[0]: 1e" + "1" * (MAX_REPLY_LENGTH - 40) + "x",
    "prose": "a" * MAX_REPLY_LENGTH,
    "braces": "{" * MAX_REPLY_LENGTH,
    "braces and quotes": '{"' * MAX_REPLY_LENGTH,
    "nested": '{"a":' * MAX_REPLY_LENGTH,
    "nested and long": '{"k":[' * 400 + "1," * 14_000,
    "strings without end": '{"k": "' + "x" * 20_000 + '{"' * 3000,
    "thoughts": "<think>" * MAX_REPLY_LENGTH,
    "ends of thoughts": "</think" * MAX_REPLY_LENGTH,
    "spaces": "params[0]:1" + " " * 14_000 + "z f(params)=1 " * 1000,
    "backslashes": '{"a":"' + "\\" * MAX_REPLY_LENGTH,
    "actions": "Action: {" * MAX_REPLY_LENGTH,
    "commas": "Action: {" + "go to key," * 2900 + "}",
    "ten million": "x{" * 5_000_000,
}


STEPS = 100
"""Lines of Python for each character; the worst of these patterns takes 60 of the reader of several lists."""


def count_steps(text, parse, files):
    """Return the number of lines of Python executed to parse a text."""
    count = 0

    def local(frame, event, argument):
        nonlocal count
        count += event == "line"
        return local

    def trace(frame, event, argument):
        return local if frame.f_code.co_filename.startswith(files) else None

    tracer = sys.gettrace()
    sys.settrace(trace)
    try:
        parse(text)
    except InvalidReply:
        pass
    finally:
        sys.settrace(tracer)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_work_is_linear(pattern, monkeypatch):
    """The number of executed lines is at most linear in the number of characters.

    The library that repairs JSON takes more than linear time and therefore receives text of limited length.
    """
    pieces = []
    repair = json_and_markup.json_repair.loads
    monkeypatch.setattr(
        json_and_markup.json_repair, "loads", lambda piece, **options: pieces.append(piece) or repair(piece, **options)
    )
    folder = str(Path(json_and_markup.__file__).parent)
    text = PATTERNS[pattern][: MAX_REPLY_LENGTH // 8]
    for name, parse in READERS.items():
        pieces.clear()
        assert count_steps(text, parse, folder) < STEPS * len(text), name
        # Quoting what is no JSON makes a piece somewhat longer.
        assert sum(map(len, pieces)) <= 2 * 3 * json_and_markup.MAX_TOTAL_REPAIR_LENGTH, name


def test_thoughts_are_ignored():
    assert clean_reply("a<think>b</think>c<THINKING>d</thinking>e").text == "ace"
    assert clean_reply("of a cut-off thought</think>answer").text == "answer"
    assert (
        clean_reply("answer<think>and on").text == "answer"
        and clean_reply("answer<think>and on").unclosed_thought == "and on"
    )
    assert clean_reply("<think>a<think>b</think>c").text == "c"
    assert clean_reply("x<|message|>y<|message|>z").text == "z"
    assert clean_reply("a</think>b<think>c</think>d</think>e").text == "e"
    assert (
        clean_reply("<think>" + "x" * MAX_REPLY_LENGTH).unclosed_thought
        and clean_reply("x" * MAX_REPLY_LENGTH).unclosed_thought is None
    )


def test_human_number_formats():
    for text, number in {"3.": 3, "3.And": 3, ".5": 0.5, "1e2,": 100, "-2.5;": -2.5, "\u22121": -1}.items():
        assert numbers(f"params[0]: {text}", 1).answer.tolist() == [number], text
    for text in ("3%", "1.2.3", "3x", "1e5x"):
        with pytest.raises(InvalidReply):
            numbers(f"params[0]: {text}", 1)


def test_texts_are_cleaned_after_parsing():
    lesson = parse_lesson(r'{"lesson": "keep \ud83d\ude00, not \ud800 nor \u001b[2J\u0007"}')
    assert lesson == "keep \U0001f600, not \ufffd nor [2J"
    assert parse_player_reply(r'{"reflection": "\ud800!", "action": "left"}', CHOICES, None).reflection == "\ufffd!"
    assert numbers("\x1b[1mwhy\nparams[0]: 1", 1).reasons == "[1mwhy"
    assert str(InvalidReply("no \ud800")) == "no \ufffd"


def asker(parse, path, model, **options):
    client = make_client(model, Cache(path / "cache"), CallLog(path / CALL_LOG_NAME), **options)
    return StructuredQuery(client, "test", parse, lambda reason: Prompt(f"wrong: {reason}"), None, 0), client


class Says(EchoProvider):
    def __init__(self, text):
        super().__init__()
        self.text = text

    def complete(self, requests):
        return [dataclasses.replace(reply, text=self.text) for reply in super().complete(requests)]


@pytest.mark.parametrize("error", [ValueError("x"), RecursionError(), KeyError("k"), UnicodeError(), MemoryError()])
def test_reader_exception_is_logged_as_invalid(tmp_path, caplog, error):
    def parse(text):
        raise error

    for _ in range(2):  # the second time, out of the cache
        asking, _ = asker(parse, tmp_path, Says("a"))
        assert asking.ask([Prompt("q")]) == [None]
        assert asking.counters["invalid_replies"] == asking.counters["fallbacks"] == 1
    assert type(error).__name__ in caplog.text
    calls = list(read_calls(tmp_path / CALL_LOG_NAME))
    assert [(call["valid"], call["cached"]) for call in calls] == [(False, False), (False, True)]
    assert type(error).__name__ in calls[0]["parse_error"]


def test_reply_log_precedes_parsing(tmp_path):
    lines = []

    def parse(reply):
        lines.append((tmp_path / CALL_LOG_NAME).read_text())
        return reply.text

    asking, client = asker(parse, tmp_path, Says("a paid reply"))
    asking.ask([Prompt("q")])
    assert "a paid reply" in lines[0] and client.metrics()["usage/llm_calls"] == 1

    def fail_on(text):
        raise KeyboardInterrupt

    asking, _ = asker(fail_on, tmp_path / "killed", Says("a paid reply"))
    with pytest.raises(KeyboardInterrupt):
        asking.ask([Prompt("q")])
    [call] = read_calls(tmp_path / "killed" / CALL_LOG_NAME)
    assert call["reply"] == "a paid reply" and call["valid"] is None


def test_lesson_may_contain_lone_surrogate(tmp_path):
    asking, _ = asker(lambda reply: parse_lesson(reply.text), tmp_path, Says(r'{"lesson": "a \ud800"}'))
    [lesson] = asking.ask([Prompt("q")])
    asking.ask([Prompt(f"you know: {lesson}")])
    assert len(list(read_calls(tmp_path / CALL_LOG_NAME))) == 2


def test_logs_with_unparseable_lines(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    ChatClient(EchoProvider(), call_log=CallLog(path)).chat([rule_request()])
    path.write_text(f'{{"hash": {"9" * 5000}}}\n' + "[" * 100_000 + "\n" + '{"parsed_call": "x"}\n' + path.read_text())
    assert [call["reply"] for call in read_calls(path)] == ["hi"]
    assert CallLog(path).earlier_usage.calls == 1


def rule_request():
    from models import make_request

    return make_request("hi")


def test_huge_numbers_stay_numbers():
    vector = build_llm_principal(make_toy_spec(), make_scripted_client(), out_of_range="clamp").parse_reply(
        json.dumps(dict.fromkeys(make_toy_spec().proposal_space.names, 1e308) | {"reasoning": ""})
    )
    assert np.isfinite(vector.vector).all()
