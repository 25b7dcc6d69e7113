"""Conversion of requests and replies with litellm, without sending anything.

litellm does not support Anthropic's batch API, and expects OpenAI's batches in the provider's own format. Each request
is therefore made by an ordinary call of litellm through a transport that records it. Each answer of a batch is parsed
by the same call through a transport that returns it. A batch holds exactly the requests of single calls.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class RecordedHttpRequest:
    """Recorded request that was not sent: its address, headers (including the key) and JSON body."""

    url: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class NotSentError(Exception):
    """Error that ends a call whose request has been recorded."""


class RecordingTransport(httpx.BaseTransport):
    """Transport that sends nothing: it records the request and returns `answer`, or raises NotSentError without one.

    Attributes:
        request: newest request; None: there was none.
    """

    def __init__(self, answer: Mapping[str, Any] | None = None) -> None:
        self.answer = answer
        self.request: RecordedHttpRequest | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        import json

        self.request = RecordedHttpRequest(str(request.url), dict(request.headers), json.loads(request.read()))
        if self.answer is None:
            raise NotSentError
        return httpx.Response(200, json=dict(self.answer), request=request)


def make_client(provider: str, transport: httpx.BaseTransport, key: str | None, address: str | None) -> Any:
    """Return a client with `transport` for the argument `client` of `litellm.completion`.

    Args:
        provider: litellm's name of the provider, `openai` or `anthropic`.
        transport: transport of the requests.
        key: API key of OpenAI; litellm itself adds that of Anthropic.
        address: address of OpenAI's API; None: the one in the environment variables that litellm reads, or the default.
    """
    http_client = httpx.Client(transport=transport)
    if provider == "anthropic":
        from litellm.llms.custom_httpx.http_handler import HTTPHandler

        return HTTPHandler(client=http_client)
    import openai

    address = address or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    return openai.OpenAI(api_key=key or "", base_url=address, http_client=http_client, max_retries=0)
