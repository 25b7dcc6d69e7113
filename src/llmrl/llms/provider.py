"""The one thing every kind of chat model must do: make one attempt at some requests."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.images import tokens_of

MESSAGE_TOKENS = 4
"""Tokens that a chat format adds around each message, about."""

_TOKENS = re.compile(r"[A-Za-z]{1,6}|[0-9]{1,3}|\s{2,}|[^\S ]|[^A-Za-z0-9\s]")
_FOREIGN = re.compile(r"[^\x00-\x7f\s]")


class Provider(ABC):
    """A model and what is known about it. Retries, limits, budget, cache and log are the client's business.

    Attributes:
        label: what readers of results should see, e.g. `gpt-4o (litellm)`.
        parallel: true: requests are sent one by one, from several threads at once (a server);
            false: whole batches, from one thread (a model in this process).
        remote: whether requests leave this process: then one whose reply is lost may be answered, and charged, all
            the same, and is written down before it is sent.
        context_window: most tokens of messages and reply together; None is unknown.
        max_tokens: longest answer, in tokens; None leaves it to the provider.
        thinking_budget: tokens for the thought before it, beside these; None: thoughts count as part of the answer.
        feed_thoughts: whether who shows a reply back to the model shows its thoughts, too.
        input_price, cached_input_price, cache_write_price, output_price: US dollars per million tokens of prompts, of
            prompts the provider found in its own cache or put there (None: charged like others), and of replies. None
            is unknown, and makes costs unknown, never zero.
    """

    label: str
    parallel = True
    remote = True
    feed_thoughts = False

    @property
    def sees(self) -> bool:
        """Whether messages may hold pictures."""
        return False

    @property
    def account(self) -> str | None:
        """What a provider's limits are for: who asks with one key for one model shares them. None: there are none."""
        return None

    def __init__(
        self,
        *,
        max_tokens: int | None = None,
        thinking_budget: int | None = None,
        context_window: int | None = None,
        input_price: float | None = None,
        cached_input_price: float | None = None,
        cache_write_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        self.max_tokens, self.thinking_budget, self.context_window = max_tokens, thinking_budget, context_window
        self.input_price, self.cached_input_price = input_price, cached_input_price
        self.cache_write_price, self.output_price = cache_write_price, output_price

    @property
    def longest_reply(self) -> int | None:
        """Most tokens of a reply, thought and answer together; None: no limit."""
        return None if self.max_tokens is None else self.max_tokens + (self.thinking_budget or 0)

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything about the model that can change an answer, as JSON-compatible values: no key, no price."""

    def check(self) -> None:  # noqa: B027  (a model that is always there has nothing to check)
        """Raise LLMError if it could never answer (missing key or package, server down). Costs nothing."""

    @abstractmethod
    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One attempt; a single request where `parallel`. The client fills in cost, latency and attempts.

        Raises:
            TransientError: a failure worth another attempt.
            LLMError: any other failure. Its text goes to logs and files and must hold no key. With `refused` nothing
                was generated, for certain; without, the attempt counts against the budget as if something had been.
        """

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Let go of connections and memory."""

    def count_tokens(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Prompt tokens of `messages`: an estimate here, exact where the tokenizer is at hand."""
        return sum(estimate_tokens(each["content"]) + MESSAGE_TOKENS + tokens_of(each) for each in messages)

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Whether `messages` and the longest reply fit into the context window; true where it is unknown."""
        if self.context_window is None:
            return True
        return self.count_tokens(messages) + (self.longest_reply or 0) <= self.context_window

    def cost(
        self,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        cached_tokens: int | None = None,
        cache_write_tokens: int | None = None,
    ) -> float | None:
        """US dollars, or None where a price or a count is unknown. A price of 0 needs no count.

        Where nobody tells how much of a prompt the provider put into its cache, and that costs more than reading it,
        all that did not come from there counts as put there.
        """
        cached = min(cached_tokens or 0, prompt_tokens or 0) if self.cached_input_price is not None else 0
        fresh = (prompt_tokens or 0) - cached
        kept = 0
        if self.cache_write_price is not None:
            dearer = self.cache_write_price > (self.input_price or 0.0)
            kept = fresh * dearer if cache_write_tokens is None else min(cache_write_tokens, fresh)
        charged = None if prompt_tokens is None else fresh - kept
        parts = [
            _charge(charged, self.input_price),
            _charge(cached, self.cached_input_price or 0.0),
            _charge(kept, self.cache_write_price or 0.0),
            _charge(completion_tokens, self.output_price),
        ]
        return None if None in parts else sum(part for part in parts if part is not None)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, without the model's tokenizer: rather too many than too few.

    Words count one token for each six letters begun, digits one for each three, other signs one each; a single space
    belongs to what follows it, and longer blanks are one token. For byte-pair tokenizers with a vocabulary of 30 to
    200 thousand this lies within about a fifth for English prose and tables of numbers.

    >>> estimate_tokens("Generation 12: tax=0.25")
    9
    """
    # Signs outside ASCII (accents, Chinese, emoji) are often more than one token.
    return len(_TOKENS.findall(text)) + (0 if text.isascii() else len(_FOREIGN.findall(text)))


def _charge(tokens: int | None, price: float | None) -> float | None:
    if price == 0.0:
        return 0.0
    return None if tokens is None or price is None else tokens * price / 1e6
