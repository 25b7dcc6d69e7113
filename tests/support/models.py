"""Chat models for tests, as `llmrl-train` would build them."""

from __future__ import annotations

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.client import ChatClient
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.provider import Provider
from llmrl.llms.retry import Retry
from llmrl.llms.scripted import ScriptedChat


def scripted(seed=0, **shares):
    """The scripted model, spoiling `shares` of its replies."""
    return ChatClient(ScriptedChat(Seeds(seed), **shares))


def connected(server, retries=0, provider=None, **policies):
    """A client of a fake server that tries again at once."""
    model = OpenAICompatibleChat(server.url, "fake-model", **{"timeout": 5.0, **(provider or {})})
    return ChatClient(model, retry=Retry(retries, first_delay=0.01), **policies)


def ask(text="hi", **kwargs):
    """A request with one user message."""
    return ChatRequest(({"role": "user", "content": text},), **kwargs)


class Echo(Provider):
    """Says what it is told, at 1 and 2 dollars per million tokens; `fail` maps a text to the error it ends with."""

    label = "echo"
    identity = {"model": "echo"}

    def __init__(self, parallel=True, fail=None, reply=None, **facts):
        super().__init__(**{"input_price": 1.0, "output_price": 2.0, **facts})
        self.parallel, self.fail, self.asked = parallel, fail or {}, []
        self.reply = {"prompt_tokens": 3, "completion_tokens": 2, **(reply or {})}

    def complete(self, requests):
        texts = [request.messages[-1]["content"] for request in requests]
        self.asked += texts
        for text in texts:
            if text in self.fail:
                raise self.fail[text]
        return [ChatReply(text, **self.reply) for text in texts]
