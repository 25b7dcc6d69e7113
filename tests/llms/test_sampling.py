"""What is sent beside the messages, and what becomes of thoughts."""

import json

import pytest

from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.llms.budget import Budget
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog, read_calls
from llmrl.llms.hosted import reply_of
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.provider import MESSAGE_TOKENS, estimate_tokens
from llmrl.llms.request_key import request_key
from llmrl.llms.sampling import SamplingSettings
from llmrl.llms.transcript import markdown
from models import ask, connected

SETTINGS = {
    "top_p": 0.9,
    "sampling_seed": 7,
    "stop": ["END"],
    "reasoning_effort": "low",
    "thinking_budget": 300,
    "extra_body": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": True}},
}


def test_all_settings_are_sent_and_the_limit_counts_thought_and_answer():
    with FakeOpenAIServer() as server:
        connected(server, provider={"max_tokens": 100, **SETTINGS}).chat([ask(), ask()])
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
def test_each_setting_is_part_of_the_request_key(name):
    def key(**settings):
        return request_key(OpenAICompatibleChat("http://localhost:1/v1", "m", **settings).identity, ask())

    assert key(**{name: SETTINGS[name]}) != key()


def test_room_for_thoughts_is_set_aside_in_budget_and_window():
    model = OpenAICompatibleChat("http://localhost:1/v1", "m", max_tokens=100, thinking_budget=300, context_window=450)
    prompt = estimate_tokens("hi") + MESSAGE_TOKENS
    assert Budget().reserve(ask(), model).tokens == prompt + 400
    assert model.fits(ask().messages) and not model.fits(ask("word " * 60).messages)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"stop": ["a", ""]}, r"llm\.stop"),
        ({"extra_body": {"max_tokens": 9}}, r"llm\.extra_body\.max_tokens is set by the client"),
        ({"extra_body": {"n": 4}}, r"llm\.extra_body\.n would change"),
        ({"extra_body": {"x": float("nan")}}, r"llm\.extra_body\.x is no JSON"),
    ],
)
def test_settings_that_contradict_the_client_are_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        SamplingSettings(**settings)


THOUGHT = {"content": "yes", "reasoning_content": "hm, perhaps"}


def test_thoughts_are_kept_beside_the_reply(tmp_path):
    usage = {"completion_tokens_details": {"reasoning_tokens": 5}}
    with FakeOpenAIServer(lambda messages: THOUGHT, usage=usage) as server:
        for _ in range(2):
            client = connected(server, cache=Cache(tmp_path / "cache"), ledger=CallLog(tmp_path / "calls.jsonl"))
            [reply] = client.chat([ask()])
            assert (reply.text, reply.thoughts, reply.reasoning_tokens) == ("yes", "hm, perhaps", 5)
            assert client.metrics()["llm/reasoning_tokens"] == 5
    paid, kept = read_calls(tmp_path / "calls.jsonl")
    assert len(server.requests) == 1 and kept["cached"]
    assert paid["thoughts"] == kept["thoughts"] == "hm, perhaps" and paid["reasoning_tokens"] == 5
    shown = markdown(paid)
    assert "**Thought before:**\n\n```\nhm, perhaps\n```" in shown and "5 reasoning tokens" in shown
    assert "perhaps" not in json.dumps(paid["messages"])


@pytest.mark.parametrize(
    ("counts", "completion"),
    [
        ((11, 7, 5, 18), 7),  # thoughts are part of the completion
        ((11, 7, 5, 23), 12),  # beside it, as the total tells
        ((11, 7, 40, None), 47),  # they cannot be part of it
    ],
)
def test_thoughts_are_never_left_out_of_what_is_charged(counts, completion):
    prompt, replied, thought, total = counts
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": replied,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    assert reply_of({"content": "yes"}, usage, "stop").completion_tokens == completion


def test_a_thought_without_an_answer_is_the_text_and_stands_once():
    reply = reply_of({"content": "", "reasoning_content": '{"action": 1}'}, {}, "length")
    assert reply.text == '<think>\n{"action": 1}' and reply.thoughts == "" and reply.cut
