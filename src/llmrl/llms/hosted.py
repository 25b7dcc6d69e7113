"""What every model behind a network has in common: a key that stays secret, a time-out, structured output."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.addresses import check_transport
from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.secrets import fault, protect, redact, variable_fault
from llmrl.llms.provider import Provider
from llmrl.llms.sampling import SamplingSettings

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
        sampling: how it is to sample and think.
        timeout: seconds after which an attempt is given up.
        feed_thoughts: show a model that is to correct a reply its thoughts, too.
        facts: those of `Provider`.

    Raises:
        ConfigError: api_key_env is no name of a variable, or looks like a key itself.
    """

    def __init__(
        self,
        model: str,
        api_key_env: str | None,
        structured: bool,
        sampling: SamplingSettings,
        timeout: float,
        feed_thoughts: bool,
        **facts: Any,
    ) -> None:
        super().__init__(thinking_budget=sampling.thinking_budget, **facts)
        if api_key_env is not None:
            if (wrong := variable_fault(api_key_env)) is not None:
                raise ConfigError(f"llm.api_key_env {wrong}")
            protect(api_key_env)
        self.model, self.api_key_env, self.structured = model, api_key_env, structured
        self.sampling, self.timeout, self.feed_thoughts = sampling, timeout, feed_thoughts

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "structured": self.structured,
            "max_tokens": self.max_tokens,
            **self.sampling.identity,
        }

    @property
    def account(self) -> str:
        """Name of the model, and of the variable with the key."""
        return f"{self.label}, {self.api_key_env}"

    @property
    def quota(self) -> str:
        return f"{self.account}, {hashlib.sha256((self._key() or '').encode()).hexdigest()}"

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


def reply_of(message: Mapping[str, Any], usage: Mapping[str, Any], finish: str) -> ChatReply:
    """The reply in a provider's message, in OpenAI's form, with what it counted."""
    text, thoughts = written(message), _thoughts(message)
    # A thought that no answer follows is the text itself.
    return ChatReply(text, finish=finish, thoughts="" if text == f"<think>\n{thoughts}" else thoughts, **_counts(usage))


def _counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts by their names in `ChatReply`, of a provider's `usage`.

    Thoughts are part of the completion. Where a provider counts them beside it, as its total tells, they are added, as
    they are charged.
    """
    details = _mapping(usage.get("prompt_tokens_details"))
    told = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
        "cache_write_tokens": details.get("cache_write_tokens", usage.get("cache_creation_input_tokens")),
        "reasoning_tokens": _mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"),
    }
    counts = {name: token_count(value) for name, value in told.items()}
    prompt, completion, thought = counts["prompt_tokens"], counts["completion_tokens"], counts["reasoning_tokens"]
    if prompt is not None and completion is not None and thought:
        apart = usage.get("total_tokens") == prompt + completion + thought
        counts["completion_tokens"] = completion + thought if apart or thought > completion else completion
    return counts


def _mapping(value: object) -> Mapping[str, Any]:
    """Counts that are missing or of a strange form are no reason to throw a paid reply away."""
    return value if isinstance(value, Mapping) else {}


def _thoughts(message: Mapping[str, Any]) -> str:
    thought = message.get("reasoning_content") or message.get("reasoning")
    return thought if isinstance(thought, str) else ""


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
    thought = _thoughts(message)
    return text if text.strip() or not thought else f"<think>\n{thought}"


def _function(call: Any) -> dict[str, Any]:
    return _called(call.get("function") if isinstance(call, dict) else None)


def _called(function: Any) -> dict[str, Any]:
    if not isinstance(function, dict):
        return {"name": "", "arguments": None}
    return {"name": str(function.get("name")), "arguments": function.get("arguments")}


def check_address(address: str, plain_http: bool, where: str) -> None:
    """Raise ConfigError for an address that may hold a secret, or of plain HTTP to another machine (`plain_http`)."""
    if (wrong := fault(where, address)) is not None:
        raise ConfigError(f"{where} {wrong}")
    check_transport(address, plain_http, where)


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
