"""Client of servers with OpenAI's chat-completions protocol: vLLM, Ollama, llama.cpp, `transformers serve`, ..."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import httpx

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.hosted import HostedProvider, check_address, refuses, reply_of
from llmrl.llms.images import in_parts
from llmrl.llms.retry import RETRIABLE_STATUS, TransientError, parse_retry_after
from llmrl.llms.sampling import Effort, SamplingSettings

logger = logging.getLogger(__name__)

LARGEST_ANSWER = 8 << 20
"""Most bytes of an HTTP response; the longest replies of today's models are a tenth of that."""
_UNSENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)
"""Failures before a byte of the request was sent."""


class OpenAICompatibleChat(HostedProvider):
    """Chat model over HTTP at the server `base_url`, without streaming and without a client library.

    Args:
        base_url: address of the API including its version, e.g. `http://localhost:8000/v1`.
        plain_http: whether `base_url` may be an http address of another machine.
        model: name the server knows the model by.
        api_key_header: header that carries the key, e.g. `api-key`; None: `Authorization`, as `Bearer <key>`.
        api_key_query: query parameter that carries the key instead; addresses in logs and files do not hold it.

    The other arguments are those of `HostedProvider`.

    Raises:
        ConfigError: base_url is no http(s) address, holds a user name, password or query, or is one of plain HTTP to
            another machine; header and query are both given, or either without a key; or as `HostedProvider`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        structured: bool = True,
        temperature: NonNegativeFloat | None = 1.0,
        top_p: UnitInterval | None = None,
        sampling_seed: NonNegativeInt | None = None,
        stop: list[str] | None = None,
        reasoning_effort: Effort | None = None,
        thinking_budget: PositiveInt | None = None,
        feed_thoughts: bool = False,
        extra_body: dict[str, Any] | None = None,
        max_tokens: PositiveInt | None = None,
        timeout: PositiveFloat = 120.0,
        context_window: PositiveInt | None = None,
        input_price: NonNegativeFloat | None = None,
        cached_input_price: NonNegativeFloat | None = None,
        cache_write_price: NonNegativeFloat | None = None,
        output_price: NonNegativeFloat | None = None,
        api_key_header: str | None = None,
        api_key_query: str | None = None,
        plain_http: bool = False,
    ) -> None:
        sampling = SamplingSettings(
            temperature, top_p, sampling_seed, stop, reasoning_effort, thinking_budget, extra_body
        )
        super().__init__(
            model,
            api_key_env,
            structured,
            sampling,
            timeout,
            feed_thoughts,
            max_tokens=max_tokens,
            context_window=context_window,
            input_price=input_price,
            cached_input_price=cached_input_price,
            cache_write_price=cache_write_price,
            output_price=output_price,
        )
        check_address(base_url, plain_http, "llm.base_url")
        if api_key_env is None and (api_key_header or api_key_query):
            raise ConfigError(
                "llm.api_key_header and llm.api_key_query say how a key is sent: name its variable in llm.api_key_env"
            )
        if api_key_header and api_key_query:
            raise ConfigError("a key is sent in llm.api_key_header or in llm.api_key_query: choose one")
        self.api_key_header, self.api_key_query = api_key_header, api_key_query
        self.base_url = base_url.rstrip("/")
        self.label = f"{model} at {self.base_url}"
        # The client's limit on concurrent requests limits the connections.
        self._client = httpx.Client(timeout=timeout, limits=httpx.Limits(max_connections=None))

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "base_url": self.base_url}

    @property
    def sees(self) -> bool:
        """True: only the server knows, and it refuses images that its model does not accept."""
        return True

    def check(self) -> None:
        """Raise LLMError if a required key is not set, or if the server does not answer or refuses the key."""
        super().check()
        url = f"{self.base_url}/models"
        try:
            timeout = min(self.timeout, 15.0)
            response = self._client.get(url, headers=self._headers(), params=self._parameters(), timeout=timeout)
        except httpx.HTTPError as error:
            raise LLMError(
                f"no answer from the chat server at {self.base_url} ({self._redact(error) or type(error).__name__}). "
                "Start it, or set llm.base_url to where it listens."
            ) from None
        if response.status_code in (401, 403):
            raise LLMError(f"{self.base_url} refuses the request (HTTP {response.status_code}). {self._key_hint()}")
        if response.status_code >= 500:
            # Some servers fail to list what they serve (an empty folder of models) and chat all the same.
            logger.warning("the chat server at %s is up, but GET %s gave %d", self.base_url, url, response.status_code)
        self._look_for_model(response)

    def _look_for_model(self, response: httpx.Response) -> None:
        """Warn if the server lists its models without ours; no error, since some servers load models on demand."""
        try:
            names = [str(entry["id"]) for entry in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return
        if names and not {self.model, f"{self.model}:latest"} & set(names):
            logger.warning(
                "%s does not list the model %s; it lists %s", self.base_url, self.model, ", ".join(names[:20])
            )

    def close(self) -> None:
        self._client.close()

    def _attempt(self, request: ChatRequest) -> ChatReply:
        sampling = self.sampling
        optional = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed_of(request.repeat),
            "stop": None if sampling.stop is None else list(sampling.stop),
            "reasoning_effort": sampling.reasoning_effort,
            # OpenAI's protocol has no thinking budget: servers count thoughts and answer in one limit.
            "max_tokens": self.longest_reply,
            "response_format": self._response_format(request),
        }
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [in_parts(each) for each in request.messages],
            "stream": False,
            **{name: value for name, value in optional.items() if value is not None},
            **(sampling.extra_body or {}),
        }
        url = f"{self.base_url}/chat/completions"
        try:
            status, headers, content = self._post(url, body)
        except httpx.TimeoutException as error:
            late = f"no reply from {url} within {self.timeout:g} s"
            raise TransientError(late, refused=isinstance(error, _UNSENT)) from None
        except httpx.HTTPError as error:
            what = f"{url}: {self._redact(error) or type(error).__name__}"
            raise TransientError(what, refused=isinstance(error, _UNSENT)) from None
        text = content.decode("utf-8", errors="replace")
        self._raise_for_status(status, headers, text, url)
        return self._reply(text, url)

    def _post(self, url: str, body: dict[str, Any]) -> tuple[int, httpx.Headers, bytes]:
        """Return status, headers and content of the response, limited to `timeout` s and `LARGEST_ANSWER` bytes."""
        deadline = time.monotonic() + self.timeout
        # Not one growing buffer: after a buffer of many MiB the C library keeps freed memory of that size.
        pieces: list[bytes] = []
        size = 0
        headers, params = self._headers(), self._parameters()
        with self._client.stream("POST", url, json=body, headers=headers, params=params) as response:
            for piece in response.iter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST_ANSWER:
                    raise TransientError(f"{url} sent more than {LARGEST_ANSWER >> 20} MiB, which is no chat reply")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer trickles in")
            return response.status_code, response.headers, b"".join(pieces)

    def _raise_for_status(self, status: int, headers: httpx.Headers, text: str, url: str) -> None:
        if status < 300:
            return
        message = f"{url} gave HTTP {status}: {self._redact(text) or '(empty answer)'}"
        if status in RETRIABLE_STATUS:
            raise TransientError(message, parse_retry_after(headers.get("retry-after")), refused=refuses(status))
        if status in (401, 403):
            raise LLMError(f"{message}. {self._key_hint()}", refused=True)
        raise LLMError(message, refused=refuses(status))

    def _reply(self, text: str, url: str) -> ChatReply:
        """Parse a response; raise TransientError if it is damaged, so that the request is sent again."""
        try:
            answer = json.loads(text)
            choice = answer["choices"][0]
            usage = answer.get("usage")
            # A refusal or an empty reply has no content; the caller decides what that means.
            finish = self._redact(choice.get("finish_reason") or "")
            return reply_of(choice["message"], usage if isinstance(usage, dict) else {}, finish)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise TransientError(f"{url} gave no chat completion but {self._redact(text)[:200]!r}") from None

    def _headers(self) -> dict[str, str]:
        key = self._key()
        if not key or self.api_key_query:
            return {}
        return {self.api_key_header: key} if self.api_key_header else {"Authorization": f"Bearer {key}"}

    def _parameters(self) -> dict[str, str] | None:
        key = self._key()
        return {self.api_key_query: key} if key and self.api_key_query else None

    def _key_hint(self) -> str:
        if self.api_key_env is None:
            return "If it needs a key, put it in an environment variable and name that variable in llm.api_key_env."
        return f"Is the key in {self.api_key_env} the right one?"
