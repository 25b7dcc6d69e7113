"""What every model behind a network has in common: a key that stays secret, a time-out, structured output."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.secrets import fault, protect, redact, variable_fault
from llmrl.llms.provider import Provider

logger = logging.getLogger(__name__)

MOST_TOKENS = 10**9
"""No prompt and no reply has so many."""
LONGEST_MESSAGE = 500
"""Characters of a provider's error text that are passed on."""
OVERLOADED = 529
"""HTTP status by which Anthropic refuses a request before it has begun with it."""


class HostedProvider(Provider):
    """Base of chat models reached over a network; subclasses write `_attempt`.

    Args:
        model: name the provider knows the model by.
        api_key_env: environment variable that holds the key; None where no key is needed.
        structured: ask the provider to hold replies to the request's JSON schema.
        temperature: sampling temperature; None leaves it to the provider (some models accept no other).
        timeout: seconds after which an attempt is given up.

    The others are those of `Provider`.

    Raises:
        ConfigError: api_key_env is no name of a variable, or looks like a key itself.
    """

    def __init__(
        self,
        model: str,
        api_key_env: str | None,
        structured: bool,
        temperature: float | None,
        max_tokens: int | None,
        timeout: float,
        context_window: int | None,
        input_price: float | None,
        cached_input_price: float | None,
        output_price: float | None,
    ) -> None:
        super().__init__(
            max_tokens=max_tokens,
            context_window=context_window,
            input_price=input_price,
            cached_input_price=cached_input_price,
            output_price=output_price,
        )
        if api_key_env is not None:
            if (wrong := variable_fault(api_key_env)) is not None:
                raise ConfigError(f"llm.api_key_env {wrong}")
            protect(api_key_env)
        self.model, self.api_key_env, self.structured = model, api_key_env, structured
        self.temperature, self.timeout = temperature, timeout

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "structured": self.structured,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }

    @property
    def account(self) -> str:
        return f"{self.label}, {self.api_key_env}"

    def check(self) -> None:
        """Raises LLMError, naming the environment variable, if a key is needed and not set, or is none."""
        key = self._key()
        if key is not None and not re.fullmatch("[!-~]+", key):
            # Libraries quote a header that they cannot send, in a form that would not be recognised as the key.
            raise LLMError(f"the key in {self.api_key_env} holds blanks or signs that no key has")
        if self.api_key_env is not None and key is None:
            raise LLMError(
                f"{self.label} needs a key in the environment variable {self.api_key_env}, which is not set. "
                f"Set it (export {self.api_key_env}=...), or choose a model that needs no key: llm=ollama, "
                "llm=openai_compatible, llm=local_chat, or llm=scripted (not a language model)."
            )

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [self._attempt(request) for request in requests]

    @abstractmethod
    def _attempt(self, request: ChatRequest) -> ChatReply:
        """One attempt at one request; raises as `complete` does. Pass a provider's texts through `_redact`."""

    def _key(self) -> str | None:
        """The key, read at the moment it is needed and kept nowhere."""
        # A line break at the end is what a key read from a file often has.
        return os.environ.get(self.api_key_env, "").strip() or None if self.api_key_env else None

    def _redact(self, text: object) -> str:
        """`text` on one line, shortened, without the key: providers like to repeat it in their error messages."""
        line = redact(" ".join(str(text).split()))
        return line if len(line) <= LONGEST_MESSAGE else line[:LONGEST_MESSAGE] + " ..."

    def _response_format(self, request: ChatRequest) -> dict[str, Any] | None:
        """OpenAI's `response_format` for the request's schema; None for free text."""
        if not self.structured or request.schema is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": request.schema}}


def written(message: Mapping[str, Any]) -> str:
    """What a provider's message holds, as one text: its content, with the calls of functions in it.

    Where there is neither, it is the thought that the provider sets apart, without an end: whoever reads the reply may
    find an answer at the end of it.
    """
    content = message.get("content")
    if isinstance(content, list):  # in parts, of which some are thoughts
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    calls = [_function(call) for call in message.get("tool_calls") or ()] + [_called(message.get("function_call"))]
    said = [
        f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
        for call in calls
        if call["arguments"] is not None
    ]
    text = "\n".join([*([str(content)] if content else []), *said])
    thought = message.get("reasoning_content") or message.get("reasoning")
    return text if text.strip() or not isinstance(thought, str) or not thought else f"<think>\n{thought}"


def _function(call: Any) -> dict[str, Any]:
    return _called(call.get("function") if isinstance(call, dict) else None)


def _called(function: Any) -> dict[str, Any]:
    if not isinstance(function, dict):
        return {"name": "", "arguments": None}
    return {"name": str(function.get("name")), "arguments": function.get("arguments")}


def check_address(address: str, where: str) -> None:
    """Raise ConfigError, without quoting it, for an address with a user name, a password or a key in it."""
    if (wrong := fault(where, address)) is not None:
        raise ConfigError(f"{where} {wrong}")


def refuses(status: int) -> bool:
    """Whether an HTTP status, not one of success, says for certain that nothing was generated.

    A refused request (4xx: no key, too many, too long) is not charged. A server's or gateway's failure (5xx), or a
    time-out (408), may have come over a reply that was being made.
    """
    return (300 <= status < 500 and status != 408) or status == OVERLOADED


def token_count(value: object) -> int | None:
    """A count as a server reports it; None, with a warning, for anything that cannot be one."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS):
        return value
    _warn_of_count()
    return None


@functools.cache
def _warn_of_count() -> None:
    """Once in a process: a server that counts wrongly does so in every reply."""
    logger.warning("a server counts tokens in numbers that none can have, such as negative ones: they are unknown")
