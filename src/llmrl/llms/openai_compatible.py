"""Any server that speaks OpenAI's chat-completions protocol: vLLM, Ollama, llama.cpp, `transformers serve`, ..."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

import httpx

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.limits import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.hosted import HostedChat, token_count
from llmrl.llms.retry import RETRIABLE_STATUS, TransientError, parse_retry_after

logger = logging.getLogger(__name__)


class OpenAICompatibleChat(HostedChat):
    """Chat over HTTP with the server at `base_url`. No streaming, no client library.

    Args:
        base_url: address of the API including its version, e.g. `http://localhost:8000/v1`.
        model: name the server knows the model by.

    The others are those of `HostedChat`.

    Raises:
        ConfigError: base_url is no http(s) address, or holds a user name or password.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str | None = None,
        structured: bool = True,
        temperature: NonNegativeFloat | None = 1.0,
        max_tokens: PositiveInt | None = None,
        timeout: PositiveFloat = 120.0,
        retries: NonNegativeInt = 5,
        concurrency: PositiveInt = 8,
        input_price: NonNegativeFloat | None = None,
        output_price: NonNegativeFloat | None = None,
    ) -> None:
        super().__init__(
            model,
            api_key_env,
            structured,
            temperature,
            max_tokens,
            timeout,
            retries,
            concurrency,
            input_price,
            output_price,
        )
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"llm.base_url must look like http://localhost:8000/v1, got {base_url!r}")
        if "@" in parts.netloc:
            raise ConfigError(
                "llm.base_url must hold no user name or password: put a key in the variable api_key_env names"
            )
        self.base_url = base_url.rstrip("/")
        self.label = f"{model} at {self.base_url}"
        self._client = httpx.Client(timeout=timeout, limits=httpx.Limits(max_connections=concurrency))

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "base_url": self.base_url}

    def check(self) -> None:
        """Raises LLMError if a key is needed and not set, or if the server does not answer or refuses us."""
        super().check()
        url = f"{self.base_url}/models"
        try:
            response = self._client.get(url, headers=self._headers(), timeout=min(self.timeout, 15.0))
        except httpx.HTTPError as error:
            raise LLMError(
                f"no answer from the chat server at {self.base_url} ({self._redact(error) or type(error).__name__}). "
                "Start it, or set llm.base_url to where it listens."
            ) from None
        if response.status_code in (401, 403):
            raise LLMError(f"{self.base_url} refuses the request (HTTP {response.status_code}). {self._key_hint()}")
        if response.status_code >= 500:
            raise LLMError(
                f"the chat server at {self.base_url} is up but failing: GET {url} gave {response.status_code}"
            )
        self._look_for_model(response)

    def _look_for_model(self, response: httpx.Response) -> None:
        """Warn, no more, if the server lists its models and ours is not among them: some load any model on demand."""
        try:
            names = [str(entry["id"]) for entry in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return
        if names and not {self.model, f"{self.model}:latest"} & set(names):
            logger.warning(
                "%s does not list the model %s; it lists %s", self.base_url, self.model, ", ".join(names[:20])
            )

    def _complete(self, request: ChatRequest) -> ChatReply:
        body: dict[str, Any] = {"model": self.model, "messages": list(request.messages), "stream": False}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        response_format = self._response_format(request)
        if response_format is not None:
            body["response_format"] = response_format
        url = f"{self.base_url}/chat/completions"
        try:
            response = self._client.post(url, json=body, headers=self._headers())
        except httpx.TimeoutException:
            raise TransientError(f"no reply from {url} within {self.timeout:g} s") from None
        except httpx.HTTPError as error:
            raise TransientError(f"{url}: {self._redact(error) or type(error).__name__}") from None
        self._raise_for_status(response, url)
        return self._reply(response, url)

    def _raise_for_status(self, response: httpx.Response, url: str) -> None:
        status = response.status_code
        if status < 300:
            return
        message = f"{url} gave HTTP {status}: {self._redact(response.text) or '(empty answer)'}"
        if status in RETRIABLE_STATUS:
            raise TransientError(message, parse_retry_after(response.headers.get("retry-after")))
        if status in (401, 403):
            raise LLMError(f"{message}. {self._key_hint()}")
        raise LLMError(message)

    def _reply(self, response: httpx.Response, url: str) -> ChatReply:
        """A damaged answer is an outage like any other: it is asked for again."""
        try:
            answer = response.json()
            text = answer["choices"][0]["message"].get("content")
            usage = answer.get("usage") or {}
            # A refusal or an empty reply has no content; whoever asked decides what that means.
            return ChatReply(
                str(text or ""), token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens"))
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            raise TransientError(f"{url} gave no chat completion but {self._redact(response.text[:200])!r}") from None

    def _headers(self) -> dict[str, str]:
        key = self._key()
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key_hint(self) -> str:
        if self.api_key_env is None:
            return "If it needs a key, put it in an environment variable and name that variable in llm.api_key_env."
        return f"Is the key in {self.api_key_env} the right one?"
