"""Client of servers with OpenAI's chat-completions protocol: vLLM, Ollama, llama.cpp, `transformers serve`, ..."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.hosted import HostedProvider, HostedSettings, check_address, is_refusal_status, parse_message
from llmrl.llms.images import to_content_parts
from llmrl.llms.retry import RETRIABLE_STATUSES, TransientError, parse_retry_after

MAX_RESPONSE_BYTES = 8 << 20
"""Maximum number of bytes of an HTTP response, about ten times the longest replies of models."""
_UNSENT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
"""Exceptions of httpx after which the server has certainly not received the request."""


@dataclass(frozen=True)
class OpenAICompatibleSettings(HostedSettings):
    """Options of `OpenAICompatibleChat`; meanings, units and ranges are in `conf/llm/openai_compatible.yaml`."""

    base_url: str


class OpenAICompatibleChat(HostedProvider):
    """Chat model over HTTP at the server `base_url`, without streaming and without a client library.

    Raises:
        ConfigError: `base_url` is not an http(s) address, contains a user name, password or query, or uses HTTP to
            another machine without `plain_http`; or `api_key_env` is invalid (`HostedProvider`).
    """

    settings: OpenAICompatibleSettings

    def __init__(self, settings: OpenAICompatibleSettings) -> None:
        super().__init__(settings)
        check_address(settings.base_url, settings.plain_http, "llm.base_url")
        self.base_url = settings.base_url.rstrip("/")
        self.label = f"{settings.model} at {self.base_url}"
        # No limit on connections, because `RateLimit` limits the number of requests in flight.
        self._client = httpx.Client(timeout=settings.timeout, limits=httpx.Limits(max_connections=None))

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.settings.identity, "base_url": self.base_url}

    @property
    def accepts_images(self) -> bool:
        """True, because it is unknown whether the model accepts images; if not, the server refuses them."""
        return True

    def check(self) -> None:
        """Raise LLMError if a required key is not set, or the server cannot be reached or refuses the key."""
        super().check()
        try:
            timeout = min(self.settings.timeout, 15.0)
            response = self._client.get(f"{self.base_url}/models", headers=self._headers(), timeout=timeout)
        except httpx.HTTPError as error:
            raise LLMError(
                f"no answer from the chat server at {self.base_url} ({self._redact(error) or type(error).__name__}). "
                "Start it, or set llm.base_url to its address."
            ) from None
        if response.status_code in (401, 403):
            raise LLMError(f"{self.base_url} refuses the request (HTTP {response.status_code}). {self._key_hint()}")

    def close(self) -> None:
        self._client.close()

    def _attempt(self, request: ChatRequest) -> ChatReply:
        settings = self.settings
        optional_fields = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": settings.request_seed(request.repeat),
            "stop": settings.stop,
            "reasoning_effort": settings.reasoning_effort,
            # The protocol has no thinking budget; `max_tokens` applies to thoughts and answer together.
            "max_tokens": self.max_reply_tokens,
            "response_format": self._response_format(request),
        }
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [to_content_parts(chat_message) for chat_message in request.messages],
            "stream": False,
            **{name: value for name, value in optional_fields.items() if value is not None},
            **(settings.extra_body or {}),
        }
        url = f"{self.base_url}/chat/completions"
        try:
            status, headers, content = self._post(url, body)
        except httpx.HTTPError as error:
            message = f"{url}: {self._redact(error) or type(error).__name__}"
            if isinstance(error, httpx.TimeoutException):
                message = f"no reply from {url} within {self.settings.timeout:g} s"
            raise TransientError(message, refused=isinstance(error, _UNSENT_ERRORS)) from None
        text = content.decode("utf-8", errors="replace")
        if status >= 300:
            message = f"{url} returned HTTP {status}: {self._redact(text) or '(empty answer)'}"
            if status in RETRIABLE_STATUSES:
                retry_after = parse_retry_after(headers.get("retry-after"))
                raise TransientError(message, retry_after, refused=is_refusal_status(status))
            hint = f". {self._key_hint()}" if status in (401, 403) else ""
            raise LLMError(f"{message}{hint}", refused=is_refusal_status(status))
        return self._parse_response(text, url)

    def _post(self, url: str, body: dict[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        """Return status, headers and content of the response to a request.

        Raises:
            httpx.HTTPError: the connection failed, or the response took longer than `timeout` seconds.
            TransientError: the response has more than `MAX_RESPONSE_BYTES` bytes.
        """
        deadline = time.monotonic() + self.settings.timeout
        # A list, because the C library would not return the freed memory of one large growing buffer.
        chunks: list[bytes] = []
        n_bytes = 0
        with self._client.stream("POST", url, json=body, headers=self._headers()) as response:
            for chunk in response.iter_bytes():
                chunks.append(chunk)
                n_bytes += len(chunk)
                if n_bytes > MAX_RESPONSE_BYTES:
                    raise TransientError(
                        f"{url} sent more than {MAX_RESPONSE_BYTES >> 20} MiB, which is not a chat reply"
                    )
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer arrives too slowly")
            return response.status_code, response.headers, b"".join(chunks)

    def _parse_response(self, text: str, url: str) -> ChatReply:
        """Return the reply in a response; raise TransientError if the response is malformed."""
        try:
            completion = json.loads(text)
            choice = completion["choices"][0]
            usage = completion.get("usage")
            finish = self._redact(choice.get("finish_reason") or "")
            return parse_message(choice["message"], usage if isinstance(usage, dict) else {}, finish)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise TransientError(f"{url} returned {self._redact(text)[:200]!r} instead of a chat completion") from None

    def _headers(self) -> dict[str, str]:
        key = self._api_key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key_hint(self) -> str:
        if self.settings.api_key_env is None:
            return "If it needs a key, put it in an environment variable and name that variable in llm.api_key_env."
        return f"Check the key in {self.settings.api_key_env}."
