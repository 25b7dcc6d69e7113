"""Sampling settings in requests, and storage and cost of thoughts."""

import json

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache, compute_request_key
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.llms.hosted import parse_message
from llmrl.llms.provider import TOKENS_PER_MESSAGE, estimate_tokens
from llmrl.llms.transcript import format_call
from models import connect_client, make_openai_model, make_request

SETTINGS = {
    "top_p": 0.9,
    "sampling_seed": 7,
    "stop": ["END"],
    "reasoning_effort": "low",
    "thinking_budget": 300,
    "extra_body": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": True}},
}


def test_request_settings():
    with FakeOpenAIServer() as server:
        connect_client(server, provider={"max_tokens": 100, **SETTINGS}).chat([make_request(), make_request()])
    first, second = sorted(server.requests, key=lambda body: body["seed"])
    assert first | {"messages": None} == {
        "model": "fake-model",
        "messages": None,
        "stream": False,
        "temperature": 1.0,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "reasoning_effort": "low",
        "max_tokens": 400,
        "top_k": 20,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    assert second["seed"] == 8, "a repetition is an independent question"


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_in_request_key(name):
    def key(**settings):
        return compute_request_key(make_openai_model("http://localhost:1/v1", "m", **settings).identity, make_request())

    assert key(**{name: SETTINGS[name]}) != key()


def test_budget_reserves_thoughts():
    model = make_openai_model("http://localhost:1/v1", "m", max_tokens=100, thinking_budget=300, context_window=450)
    prompt = estimate_tokens("hi") + TOKENS_PER_MESSAGE
    assert Budget().reserve(make_request(), model).tokens == prompt + 400
    assert model.fits(make_request().messages) and not model.fits(make_request("word " * 60).messages)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop": ["a", ""]}, r"llm\.stop"),
        ({"extra_body": {"max_tokens": 9}}, r"llm\.extra_body\.max_tokens"),
        ({"extra_body": {"n": 4}}, r"llm\.extra_body\.n"),
        ({"extra_body": {"x": float("nan")}}, r"llm\.extra_body\.x"),
    ],
)
def test_contradictory_settings_raise(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_openai_model("http://localhost:1/v1", "m", **settings)


THOUGHT = {"content": "yes", "reasoning_content": "hm, perhaps"}


def test_thoughts_are_stored_with_reply(tmp_path):
    usage = {"completion_tokens_details": {"reasoning_tokens": 5}}
    with FakeOpenAIServer(lambda messages: THOUGHT, usage=usage) as server:
        for _ in range(2):
            client = connect_client(server, cache=Cache(tmp_path / "cache"), call_log=CallLog(tmp_path / "calls.jsonl"))
            [reply] = client.chat([make_request()])
            assert (reply.text, reply.thoughts, reply.reasoning_tokens) == ("yes", "hm, perhaps", 5)
            assert client.metrics()["llm/reasoning_tokens"] == 5
    first_call, cached_call = read_calls(tmp_path / "calls.jsonl")
    assert len(server.requests) == 1 and cached_call["cached"]
    assert first_call["thoughts"] == cached_call["thoughts"] == "hm, perhaps" and first_call["reasoning_tokens"] == 5
    text = format_call(first_call)
    assert "**Thought before:**\n\n```\nhm, perhaps\n```" in text and "5 reasoning tokens" in text
    assert "perhaps" not in json.dumps(first_call["messages"])


@pytest.mark.parametrize(
    ("counts", "completion"),
    [
        ((11, 7, 5, 18), 7),  # thoughts are part of the completion
        ((11, 7, 5, 23), 12),  # beside it, as the total tells
        ((11, 7, 40, None), 47),  # they cannot be part of it
    ],
)
def test_thoughts_cost_tokens(counts, completion):
    prompt, answer_tokens, thought, total = counts
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": answer_tokens,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    assert parse_message({"content": "yes"}, usage, "stop").completion_tokens == completion


def test_thought_with_empty_answer_becomes_text():
    reply = parse_message({"content": "", "reasoning_content": '{"action": 1}'}, {}, "length")
    assert reply.text == '<think>\n{"action": 1}' and reply.thoughts == "" and reply.is_truncated
