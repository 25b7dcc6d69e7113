"""Impossible token counts and costs of servers, providers, cached replies and logs, which must not reduce totals."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.analysis.llm_calls import CallTotals
from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest, find_impossible_fields
from llmrl.llms import hosted
from llmrl.llms.budget import Reservation
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.hosted import parse_token_count
from llmrl.llms.provider import Provider

PRICED = {"input_price": 1.0, "output_price": 2.0}


class FixedReplies(Provider):
    """Provider that returns given replies in order."""

    label = "sure"
    remote = False

    def __init__(self, *replies: ChatReply) -> None:
        super().__init__(**PRICED)
        self.replies = list(replies)

    @property
    def identity(self) -> dict[str, Any]:
        return {"model": "sure"}

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [self.replies.pop(0) for _ in requests]


GOOD = ChatReply("yes", prompt_tokens=1000, completion_tokens=1000, cost=0.5)
IMPOSSIBLE: list[dict[str, Any]] = [
    {"cost": -1.0},
    {"cost": float("nan")},
    {"cost": float("-inf")},
    {"cost": "0.5"},
    {"prompt_tokens": -10_000_000},
    {"completion_tokens": -1},
    {"cached_tokens": -5},
    {"prompt_tokens": "11"},
    {"completion_tokens": True},
]


def ask(text: str = "a") -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},))


@pytest.mark.parametrize("odd", IMPOSSIBLE)
def test_impossible_usage_is_unknown(tmp_path: Path, odd: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    client = ChatClient(
        FixedReplies(GOOD, replace(GOOD, **odd), replace(GOOD, **odd)), call_log=CallLog(tmp_path / "calls.jsonl")
    )
    client.chat([ask()])
    initial = client.budget.usage
    [reply] = client.chat([ask("b")])
    client.chat([ask("c")])
    assert getattr(reply, next(iter(odd))) is None or (reply.cost or 0) >= 0
    assert not find_impossible_fields(reply)
    after = client.budget.usage
    assert after.cost >= initial.cost and after.tokens >= initial.tokens
    assert caplog.text.count("impossible counts") == 1
    assert CallLog(tmp_path / "calls.jsonl").earlier_usage == after


@given(st.one_of(st.none(), st.integers(), st.floats(), st.booleans(), st.text(max_size=3)))
def test_impossible_values_are_detected(value: Any) -> None:
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost"):
        wrong = find_impossible_fields(replace(GOOD, **{name: value}))
        assert wrong in ([], [name])
        if wrong == [] and value is not None:
            assert value >= 0 and value < float("inf") and not isinstance(value, bool | str)


def test_wrong_server_counts_warn_only_at_start(caplog: pytest.LogCaptureFixture) -> None:
    hosted._warn_of_impossible_counts.cache_clear()
    assert parse_token_count(None) is None and not caplog.text
    assert [parse_token_count(x) for x in (-7, "11", 1.5, True, 7)] == [None, None, None, None, 7]
    assert caplog.text.count("token counts") == 1


CACHED: list[tuple[str, Any]] = [
    ("prompt_tokens", "12"),
    ("prompt_tokens", -3),
    ("completion_tokens", 1.5),
    ("completion_tokens", True),
    ("cached_tokens", []),
    ("cost", "free"),
    ("cost", -0.25),
    ("cost", float("nan")),
    ("latency", None),
    ("finish", 7),
    ("text", "flat"),
    ("text", [1]),
    ("text", None),
]


@pytest.mark.parametrize(("name", "value"), CACHED)
def test_cached_reply_with_impossible_count_is_replaced(
    tmp_path: Path, name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    ChatClient(FixedReplies(GOOD), Cache(tmp_path)).chat([ask()])
    [path] = tmp_path.rglob("*.json")
    entry = json.loads(path.read_text())
    entry["reply"][name] = value
    path.write_text(json.dumps(entry))
    model = FixedReplies(replace(GOOD, text="anew"))
    [reply] = ChatClient(model, Cache(tmp_path)).chat([ask()])
    assert reply.text == "anew" and not model.replies
    assert caplog.text.count("is damaged") == 1 and name in caplog.text
    [cached_reply] = ChatClient(FixedReplies(), Cache(tmp_path)).chat([ask()])
    assert cached_reply.text == "anew" and cached_reply.attempts == 0


@pytest.mark.parametrize("text", ["null", "7", "[]", '"x"', '{"reply": null}', '{"reply": []}', "[" * 50_000])
def test_malformed_cached_reply_is_ignored(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    ChatClient(FixedReplies(GOOD), Cache(tmp_path)).chat([ask()])
    [path] = tmp_path.rglob("*.json")
    path.write_text(text)
    assert ChatClient(FixedReplies(replace(GOOD, text="anew")), Cache(tmp_path)).chat([ask()])[0].text == "anew"
    assert caplog.text.count("is damaged") == 1


def test_log_totals_are_monotonic() -> None:
    totals = CallTotals()
    for line in ({"cost": 0.5, "prompt_tokens": 10}, {"cost": -9.0, "prompt_tokens": "12"}):
        totals.add({"model": "m", "completion_tokens": 1, **line})
    assert totals.cost is None and totals.prompt_tokens is None and totals.completion_tokens == 2


def test_unstorable_reply_enters_ledger(tmp_path: Path) -> None:
    from llmrl.core.errors import RunFolderError

    (tmp_path / "file").touch()
    client = ChatClient(FixedReplies(GOOD), Cache(tmp_path / "file"), CallLog(tmp_path / "calls.jsonl"))
    with pytest.raises(RunFolderError, match=r"llm\.cache=off"):
        client.services.cache.mode = "readwrite"  # type: ignore[union-attr]
        client.endpoints[CHOSEN_MODEL]._cache_and_log(client_call(), GOOD, Reservation(0, None))
    assert "yes" in (tmp_path / "calls.jsonl").read_text()


def client_call() -> Any:
    from llmrl.llms.call_log import Call

    return Call(ask(), "ab" * 32)
