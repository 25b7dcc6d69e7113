"""Deduplication of long messages and schemas in the call log, which readers restore."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from full_disk import limit_file_size
from llmrl.core.errors import RunFolderError
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog, StoredValueReader, StoredValueWriter, read_calls
from llmrl.llms.client import ChatClient
from llmrl.llms.transcript import Transcript
from models import EchoProvider, make_request

RULES = "The rules of the game. " * 200


def conversation(turns):
    messages = [{"role": "system", "content": RULES}]
    for turn in range(turns):
        messages += [{"role": "user", "content": f"turn {turn}: " + "x" * 300}, {"role": "assistant", "content": "go"}]
    return [*messages[:-1]]


def play(path, turns):
    model = ChatClient(EchoProvider(), call_log=CallLog(path))
    for turn in range(1, turns + 1):
        request = make_request("x")
        model.chat([type(request)(tuple(conversation(turn)), schema={"enum": [f"take_{k}" for k in range(100)]})])


def test_log_stores_only_new_values(tmp_path):
    play(tmp_path / "short" / CALL_LOG_NAME, 10)
    play(tmp_path / "long" / CALL_LOG_NAME, 40)
    short, long = ((tmp_path / name / CALL_LOG_NAME).stat().st_size for name in ("short", "long"))
    text = (tmp_path / "long" / CALL_LOG_NAME).read_text()
    assert text.count("The rules of the game. The rules") == 100  # one message, which repeats it 200 times
    assert text.count("take_99") == 1
    assert long < 8 * short  # each call has references to all messages; whole messages are 16 times as much


def test_calls_resolve_messages(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    play(path, 3)
    play(path, 2)  # another process of the same run
    calls = list(read_calls(path))
    assert [call["messages"] for call in calls] == [conversation(turn) for turn in (1, 2, 3, 1, 2)]
    assert {json.dumps(call["schema"]) for call in calls} == {json.dumps({"enum": [f"take_{k}" for k in range(100)]})}


def test_transcript_resolves_messages(tmp_path):
    play(tmp_path / CALL_LOG_NAME, 2)
    exchange = Transcript(tmp_path)({"llm/calls": 2, "time/unix": 1e12})
    assert "turn 1: xxx" in exchange and "The rules of the game." in exchange


def test_full_disk_leaves_no_dangling_reference(tmp_path):
    path = tmp_path / CALL_LOG_NAME
    model = ChatClient(EchoProvider(), call_log=CallLog(path))
    model.chat([make_request("short")])
    with limit_file_size(path.stat().st_size + 1000), pytest.raises(RunFolderError):
        model.chat([make_request(RULES)])
    model.chat([make_request(RULES)])
    records = [call for call in read_calls(path) if "reply" in call]
    assert records[-1]["messages"][0]["content"] == RULES


@settings(max_examples=30)
@given(
    st.lists(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30))
)
def test_stored_values_round_trip(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("log") / CALL_LOG_NAME
    writer, reader = StoredValueWriter(), StoredValueReader(path)
    lines = []
    references = [writer.store_value(value, lines) for value in values]
    position, text = 0, b""
    for line in lines:
        encoded = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        assert reader.index_line(encoded, position)
        position, text = position + len(encoded), text + encoded
    path.write_bytes(text)
    assert reader.resolve_references({"messages": references})["messages"] == values
