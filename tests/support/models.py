"""Chat models for tests, built from the shipped options."""

from __future__ import annotations

from dataclasses import fields

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.client import ChatClient, ClientPolicies
from llmrl.llms.provider import Provider
from llmrl.llms.retry import Retry


def make_scripted_client(seed=0, **shares):
    """Return a client of the scripted model; `shares` are shares of invalid replies by kind."""
    return ChatClient(build_model("scripted", seeds=Seeds(seed), **shares))


def make_client(provider, cache=None, call_log=None, **options):
    """Return a client of a provider; `options` are fields of `ClientPolicies` and arguments of `ChatClient`."""
    policies = {field.name: options.pop(field.name) for field in fields(ClientPolicies) if field.name in options}
    return ChatClient(provider, cache, call_log, ClientPolicies(**policies), **options)


def make_openai_model(base_url, model="fake-model", api_key_env=None, **options):
    """Return a provider with OpenAI's protocol, by default without a limit on the tokens of replies."""
    defaults = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "max_tokens": None, "timeout": 120.0}
    return build_model("openai_compatible", **{**defaults, **options})


def make_litellm_model(model, api_key_env, **options):
    """Return a provider that uses litellm, by default without a limit on the tokens of replies and without prices."""
    unknown = ("max_tokens", "context_window", "input_price", "cached_input_price", "output_price")
    defaults = {"model": model, "api_key_env": api_key_env, **dict.fromkeys(unknown)}
    return build_model("gpt4o", **{**defaults, **options})


def make_seq2seq_scorer(model, **options):
    """Return a sequence-to-sequence scorer of the model in a folder."""
    return build_model("local_scorer_seq2seq", model=str(model), **options)


def make_causal_scorer(model, **options):
    """Return a causal scorer of the model in a folder."""
    return build_model("local_scorer_causal", model=str(model), **options)


def connect_client(server, retries=0, provider=None, **policies):
    """Return a client of a fake server with short delays between retries."""
    model = make_openai_model(server.url, **{"timeout": 5.0, **(provider or {})})
    return make_client(model, retry=Retry(retries, initial_delay=0.01), **policies)


def make_request(text="hi", **kwargs):
    """Return a request with one user message."""
    return ChatRequest(({"role": "user", "content": text},), **kwargs)


class EchoProvider(Provider):
    """Provider that replies with the last message.

    Args:
        remote: whether the provider counts as remote.
        fail: errors to raise, by text of the last message.
        reply: fields of the replies.
        facts: other arguments of the provider; by default prices are 1 and 2 dollars per million tokens.
    """

    label = "echo"
    identity = {"model": "echo"}

    def __init__(self, remote=True, fail=None, reply=None, **facts):
        super().__init__(**{"input_price": 1.0, "output_price": 2.0, **facts})
        self.remote, self.fail, self.asked = remote, fail or {}, []
        self.reply = {"prompt_tokens": 3, "completion_tokens": 2, **(reply or {})}

    def complete(self, requests):
        texts = [request.messages[-1]["content"] for request in requests]
        self.asked += texts
        for text in texts:
            if text in self.fail:
                raise self.fail[text]
        return [ChatReply(text, **self.reply) for text in texts]
