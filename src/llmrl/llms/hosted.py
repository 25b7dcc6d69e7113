"""What every model behind a network has in common: key, price, retries, bounded concurrency."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.retry import with_retries


class BatchError(LLMError):
    """Some requests of a batch failed.

    Attributes:
        results: for each request its reply or its error, in order, so that nothing that was paid for is lost.
    """

    def __init__(self, results: Sequence[ChatReply | LLMError]) -> None:
        self.results = list(results)
        errors = [r for r in self.results if isinstance(r, LLMError)]
        more = f" ({len(errors)} of {len(self.results)} requests failed)" if len(self.results) > 1 else ""
        super().__init__(f"{errors[0]}{more}")


class HostedChat(ABC):
    """Base of chat models reached over a network. Subclasses make one attempt at one request; this does the rest.

    Args:
        model: name the provider knows the model by.
        api_key_env: environment variable that holds the key; None where no key is needed.
        structured: ask the provider to hold replies to the request's JSON schema.
        temperature: sampling temperature; None leaves it to the provider (some models accept no other).
        max_tokens: longest reply, in tokens; None leaves it to the provider.
        timeout: seconds of silence after which an attempt is given up.
        retries: further attempts after a passing failure (rate limit, outage, time-out).
        concurrency: requests of a batch in flight at once.
        input_price, output_price: US dollars per million tokens; None is unknown, and makes costs unknown, never zero.
    """

    label: str

    def __init__(
        self,
        model: str,
        api_key_env: str | None,
        structured: bool,
        temperature: float | None,
        max_tokens: int | None,
        timeout: float,
        retries: int,
        concurrency: int,
        input_price: float | None,
        output_price: float | None,
    ) -> None:
        self.model, self.api_key_env, self.structured = model, api_key_env, structured
        self.temperature, self.max_tokens, self.timeout = temperature, max_tokens, timeout
        self.retries, self.concurrency = retries, concurrency
        self.input_price, self.output_price = input_price, output_price

    @property
    def identity(self) -> dict[str, Any]:
        """Everything about the model that can change an answer; no key, no time-out, no price."""
        return {
            "model": self.model,
            "structured": self.structured,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }

    def check(self) -> None:
        """Raises LLMError, naming the environment variable, if a key is needed and not set."""
        if self.api_key_env is not None and not self._key():
            raise LLMError(
                f"{self.label} needs a key in the environment variable {self.api_key_env}, which is not set. "
                f"Set it (export {self.api_key_env}=...), or choose a model that needs no key: llm=ollama, "
                "llm=openai_compatible, or llm=scripted (not a language model)."
            )

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Replies in the order of `requests`, at most `concurrency` in flight.

        Raises:
            BatchError: if any request failed for good; it carries the replies of the others.
        """
        if not requests:
            return []
        if len(requests) == 1:
            # In this thread, so that Ctrl-C ends a long wait at once.
            results = [self._answer(requests[0])]
        else:
            with ThreadPoolExecutor(min(self.concurrency, len(requests)), thread_name_prefix="llm") as pool:
                results = list(pool.map(self._answer, requests))
        replies = [result for result in results if isinstance(result, ChatReply)]
        if len(replies) < len(results):
            raise BatchError(results) from None
        return replies

    @abstractmethod
    def _complete(self, request: ChatRequest) -> ChatReply:
        """One attempt at one request; latency and cost are filled in by the caller.

        Raises:
            TransientError: a failure worth another attempt.
            LLMError: any other failure. Its text goes to logs and files: pass provider texts through `_redact`.
        """

    def _answer(self, request: ChatRequest) -> ChatReply | LLMError:
        start = time.perf_counter()
        try:
            reply = with_retries(lambda: self._complete(request), self.retries)
        except LLMError as error:
            return error
        return replace(
            reply,
            latency=time.perf_counter() - start,
            cost=self._cost(reply.prompt_tokens, reply.completion_tokens),
        )

    def _cost(self, prompt_tokens: int | None, completion_tokens: int | None) -> float | None:
        """US dollars, or None where a price or a count is unknown."""
        known = (prompt_tokens, completion_tokens, self.input_price, self.output_price)
        if any(value is None for value in known):
            return None
        assert prompt_tokens is not None and completion_tokens is not None
        assert self.input_price is not None and self.output_price is not None
        return (prompt_tokens * self.input_price + completion_tokens * self.output_price) / 1e6

    def _key(self) -> str | None:
        """The key, read at the moment it is needed and kept nowhere."""
        return os.environ.get(self.api_key_env) if self.api_key_env else None

    def _redact(self, text: object) -> str:
        """`text` on one line, shortened, without the key: providers like to repeat it in their error messages."""
        key = self._key()
        line = " ".join(str(text).split())
        if key:
            line = line.replace(key, "[key]")
        return line if len(line) <= 500 else line[:500] + " ..."

    def _response_format(self, request: ChatRequest) -> dict[str, Any] | None:
        """OpenAI's `response_format` for the request's schema; None for free text."""
        if not self.structured or request.schema is None:
            return None
        return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": request.schema}}


def token_count(value: object) -> int | None:
    """A count as a server reports it; None for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
