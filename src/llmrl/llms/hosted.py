"""Base class of chat models on servers: sampling settings, API key, structured output, and parsing of responses."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.addresses import check_transport_security
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.secrets import find_rejection_reason, find_variable_rejection_reason, redact, register_secret_variable
from llmrl.llms.provider import Provider

logger = logging.getLogger(__name__)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

RESERVED_FIELDS = {
    *("model", "messages", "contents", "system", "system_instruction", "systemInstruction", "stream", "stream_options"),
    *("temperature", "top_p", "seed", "random_seed", "stop", "stop_sequences", "generationConfig", "generation_config"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "options", "extra_body"),
    *("response_format", "output_format", "output_config", "reasoning_effort", "reasoning", "thinking"),
}
"""Fields of requests that the client sets itself, so that `extra_body` must not contain them."""
UNSUPPORTED_FIELDS = {
    *("n", "best_of", "candidateCount", "service_tier", "tools", "tool_choice", "functions", "function_call"),
    *("web_search_options", "plugins", "modalities", "audio", "prediction", "logprobs", "top_logprobs"),
}
"""Fields that request several replies, other prices or other output than text, none of which is supported."""


MAX_TOKEN_COUNT = 10**9
"""Token counts that a server reports must be smaller; others are treated as unknown."""
MAX_MESSAGE_LENGTH = 500
"""Maximum number of characters of a provider's text that error messages quote."""
STATUS_OVERLOADED = 529
"""HTTP status of Anthropic for a request that it refuses without processing it."""


@dataclass(frozen=True)
class HostedSettings:
    """Options that all hosted models have; meanings, units and ranges are in `conf/llm/_chat.yaml`.

    Attributes:
        model: name of the model at the provider.
        api_key_env: name of the environment variable with the API key; None: no key is needed.
        temperature, top_p: sampling parameters; None (also of the options below): the provider's default.
        sampling_seed: seed of the provider's sampling; n is added for the n-th repetition of a request.
        stop: texts that end a reply.
        reasoning_effort: amount of reasoning before the answer.
        thinking_budget: maximum number of tokens of thoughts, in addition to the tokens of the answer, >= 1.
        extra_body: further fields of each request, as JSON-compatible values.

    Raises:
        ConfigError: a stop text is empty, or a field of `extra_body` is reserved or not JSON-compatible.
    """

    model: str
    api_key_env: str | None
    temperature: NonNegativeFloat | None
    top_p: UnitInterval | None
    sampling_seed: NonNegativeInt | None
    stop: list[str] | None
    reasoning_effort: Effort | None
    thinking_budget: PositiveInt | None
    extra_body: dict[str, Any] | None
    structured: bool
    include_reasoning: bool
    max_tokens: PositiveInt | None
    timeout: PositiveFloat
    plain_http: bool
    context_window: PositiveInt | None
    input_price: NonNegativeFloat | None
    cached_input_price: NonNegativeFloat | None
    cache_write_price: NonNegativeFloat | None
    output_price: NonNegativeFloat | None

    def __post_init__(self) -> None:
        if self.stop is not None and not all(self.stop):
            raise ConfigError("llm.stop contains an empty text, which would end every reply; remove it")
        for name, value in (self.extra_body or {}).items():
            if name in RESERVED_FIELDS:
                raise ConfigError(
                    f"llm.extra_body.{name} is reserved for the client; use the corresponding option of llm"
                )
            if name in UNSUPPORTED_FIELDS:
                raise ConfigError(
                    f"llm.extra_body.{name} is not supported, because it changes the form or the price of replies; "
                    "remove it"
                )
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"llm.extra_body.{name} must be JSON-compatible: {error}") from None

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that can change the reply, as JSON-compatible values."""
        return {
            "model": self.model,
            "structured": self.structured,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.sampling_seed,
            "stop": self.stop,
            "reasoning_effort": self.reasoning_effort,
            "thinking_budget": self.thinking_budget,
            "extra_body": self.extra_body,
        }

    def request_seed(self, repeat: int) -> int | None:
        """Return the seed of the `repeat`-th repetition of a request; None if there is no `sampling_seed`."""
        return None if self.sampling_seed is None else self.sampling_seed + repeat


class HostedProvider(Provider):
    """Base of chat models that are called over a network; subclasses implement `_attempt`.

    Raises:
        ConfigError: `api_key_env` is not the name of a variable, or looks like a key itself.
    """

    def __init__(self, settings: HostedSettings) -> None:
        super().__init__(
            max_tokens=settings.max_tokens,
            thinking_budget=settings.thinking_budget,
            context_window=settings.context_window,
            input_price=settings.input_price,
            cached_input_price=settings.cached_input_price,
            cache_write_price=settings.cache_write_price,
            output_price=settings.output_price,
        )
        if settings.api_key_env is not None:
            if (reason := find_variable_rejection_reason(settings.api_key_env)) is not None:
                raise ConfigError(f"llm.api_key_env {reason}")
            register_secret_variable(settings.api_key_env)
        self.settings, self.include_reasoning = settings, settings.include_reasoning

    @property
    def account_label(self) -> str:
        """Label of the model and name of the variable with its key, which identify an account without the key."""
        return f"{self.label}, {self.settings.api_key_env}"

    @property
    def rate_limit_account(self) -> str:
        return f"{self.account_label}, {hashlib.sha256((self._api_key() or '').encode()).hexdigest()}"

    def check(self) -> None:
        """Raise LLMError if a required key is not set or contains impossible characters."""
        key = self._api_key()
        if key is not None and not re.fullmatch("[!-~]+", key):
            # Libraries quote invalid headers in error messages, with escapes, so that `redact` would not find the key.
            raise LLMError(
                f"the key in {self.settings.api_key_env} contains blanks or characters outside ASCII; set it again"
            )
        if self.settings.api_key_env is not None and key is None:
            raise LLMError(
                f"{self.label} needs a key in the environment variable {self.settings.api_key_env}, which is not set. "
                f"Set it (export {self.settings.api_key_env}=...), or choose a model that needs no key: llm=ollama, "
                "llm=openai_compatible, llm=local_chat, or llm=scripted (not a language model)."
            )

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [self._attempt(request) for request in requests]

    @abstractmethod
    def _attempt(self, request: ChatRequest) -> ChatReply:
        """Make one attempt at one request; raise the errors of `complete`.

        Implementations pass texts of the provider that are not the reply through `_redact`.
        """

    def _api_key(self) -> str | None:
        """Return the key from the environment variable without surrounding whitespace; None if it is not set."""
        return os.environ.get(self.settings.api_key_env, "").strip() or None if self.settings.api_key_env else None

    def _redact(self, text: object) -> str:
        """Return `text` on one line, shortened and without known secrets, which error messages may contain."""
        line = redact(" ".join(str(text).split()))
        return line if len(line) <= MAX_MESSAGE_LENGTH else line[:MAX_MESSAGE_LENGTH] + " ..."

    def _response_format(self, request: ChatRequest) -> dict[str, Any] | None:
        """Return OpenAI's `response_format` for the schema of a request; None for free text."""
        if not self.settings.structured or request.schema is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": request.schema}}


def parse_message(message: Mapping[str, Any], usage: Mapping[str, Any], finish: str) -> ChatReply:
    """Return the reply in a message of OpenAI's format: content and function calls, reasoning, and token counts.

    If there is neither content nor function call, the text is the reasoning after `<think>`, because the reasoning may
    contain the answer.
    """
    content = message.get("content")
    if isinstance(content, list):  # list of parts, of which those without text are thoughts
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    functions = [call.get("function") for call in message.get("tool_calls") or () if isinstance(call, dict)]
    function_calls = [
        {"name": str(function.get("name")), "arguments": function["arguments"]}
        for function in [*functions, message.get("function_call")]
        if isinstance(function, dict) and function.get("arguments") is not None
    ]
    call_texts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in function_calls]
    text = "\n".join([*([str(content)] if content else []), *call_texts])
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    thoughts = reasoning if isinstance(reasoning, str) else ""
    unclosed_thought = f"<think>\n{thoughts}"
    if thoughts and not text.strip():
        text = unclosed_thought
    return ChatReply(text, finish=finish, thoughts="" if text == unclosed_thought else thoughts, **_parse_usage(usage))


def _parse_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token counts in a provider's `usage`, by the names of the fields of `ChatReply`.

    Completion tokens include reasoning tokens. If the total shows that a provider counts them separately, they are
    added to the completion tokens, because they are charged.
    """
    prompt_details = _as_mapping(usage.get("prompt_tokens_details"))
    reported_counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": prompt_details.get("cached_tokens"),
        "cache_write_tokens": prompt_details.get("cache_write_tokens", usage.get("cache_creation_input_tokens")),
        "reasoning_tokens": _as_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"),
    }
    counts = {name: parse_token_count(value) for name, value in reported_counts.items()}
    n_prompt, n_completion, n_reasoning = (counts[f"{part}_tokens"] for part in ("prompt", "completion", "reasoning"))
    if n_prompt is not None and n_completion is not None and n_reasoning:
        excludes_reasoning = usage.get("total_tokens") == n_prompt + n_completion + n_reasoning
        if excludes_reasoning or n_reasoning > n_completion:
            counts["completion_tokens"] = n_completion + n_reasoning
    return counts


def _as_mapping(value: object) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else {}, because a paid reply is used even if its counts are malformed."""
    return value if isinstance(value, Mapping) else {}


def check_address(address: str, plain_http: bool, option_name: str) -> None:
    """Raise ConfigError if an address may contain a secret, or uses HTTP to another machine without `plain_http`."""
    if (reason := find_rejection_reason(option_name, address)) is not None:
        raise ConfigError(f"{option_name} {reason}")
    check_transport_security(address, plain_http, option_name)


def is_refusal_status(status: int) -> bool:
    """Return whether a server that answers with this HTTP error status has certainly generated nothing.

    A refused request (4xx: no key, too many requests, prompt too long) is not charged. A failure of the server or a
    gateway (5xx), or a time-out (408), may occur while a reply is generated.
    """
    return (300 <= status < 500 and status != 408) or status == STATUS_OVERLOADED


def parse_token_count(value: object) -> int | None:
    """Return a token count that a server reported; return None, and log a warning, if the value is impossible."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKEN_COUNT):
        return value
    _warn_of_impossible_counts()
    return None


@functools.cache
def _warn_of_impossible_counts() -> None:
    """Log a warning about impossible token counts, once per process."""
    logger.warning("a server reported impossible token counts, e.g. negative ones; they are treated as unknown")
