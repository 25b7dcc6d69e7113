"""Base class of chat models (`Provider`) with their limits and prices, and estimates of numbers of tokens."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.images import count_image_tokens

if TYPE_CHECKING:
    from llmrl.llms.local.learning import ChatLearners

TOKENS_PER_MESSAGE = 4
"""Approximate number of tokens that a chat format adds to each message."""

_TOKEN_PATTERN = re.compile(r"[A-Za-z]{1,6}|[0-9]{1,3}|\s{2,}|[^\S ]|[^A-Za-z0-9\s]")
_NON_ASCII = re.compile(r"[^\x00-\x7f\s]")


class Provider(ABC):
    """Base class of chat models. `ChatClient` adds retries, rate limits, budget, cache and log.

    Attributes:
        label: name of the model in results, e.g. `gpt-4o (litellm)`.
        remote: true: threads send single requests to a server. A request whose reply is lost may be charged, so each is
            logged before it is sent. False: a model in this process answers batches, in one thread.
        context_window: maximum number of tokens of messages and reply together; None: unknown.
        max_tokens: maximum number of tokens of an answer; None: the provider's default.
        thinking_budget: maximum number of tokens of thoughts; None: `max_tokens` includes thoughts.
        include_reasoning: whether earlier replies in messages include their thoughts.
        learners: learners that train the model from its replies; None if the model does not learn.
        should_stop: function that returns whether the run is to stop, set by the client. `complete` may call it while
            it waits, and then raise CallInterrupted.
        input_price, output_price: US dollars per million tokens of prompts and of replies; None: unknown.
        cached_input_price, cache_write_price: US dollars per million prompt tokens that the provider reads from its
            cache, and that it writes to its cache; None: `input_price`.
    """

    label: str
    remote = True
    include_reasoning = False
    learners: ChatLearners | None = None

    @property
    def accepts_images(self) -> bool:
        """True if messages may contain images."""
        return False

    @property
    def rate_limit_account(self) -> str | None:
        """Name of the account (model, address and key) whose requests rate limits count; None: only this object's."""
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
        self.should_stop: Callable[[], bool] = lambda: False
        self.input_price, self.cached_input_price = input_price, cached_input_price
        self.cache_write_price, self.output_price = cache_write_price, output_price

    @property
    def max_reply_tokens(self) -> int | None:
        """Maximum number of tokens of thoughts and answer together; None: no limit."""
        return None if self.max_tokens is None else self.max_tokens + (self.thinking_budget or 0)

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All properties of the model that can change an answer, as JSON-compatible values without keys or prices."""

    def check(self) -> None:  # noqa: B027  (not abstract, because some models need no check)
        """Raise LLMError if the model cannot be used (missing key or package, server down), without a paid call."""

    @abstractmethod
    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Make one attempt and return the replies in order; `remote` providers get one request at a time.

        The client sets cost, latency and attempts of the replies.

        Raises:
            TransientError: another attempt may succeed.
            LLMError: another failure. The message must not contain a key, because it is logged. `refused` states that
                certainly nothing was generated; otherwise the attempt counts toward the budget.
        """

    def additional_provider(self, name: str, build_provider: Callable[[], Provider]) -> Provider:
        """Return the provider of the additional model `name` of a run, by default `build_provider()`."""
        return build_provider()

    def close(self) -> None:  # noqa: B027  (not abstract, because most providers hold no resources)
        """Release connections and memory."""

    def count_tokens(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Return the number of tokens of `messages`, estimated unless a subclass has the tokenizer."""
        return sum(
            estimate_tokens(message["content"]) + TOKENS_PER_MESSAGE + count_image_tokens(message)
            for message in messages
        )

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Return whether `messages` and a reply of maximum length fit into the context window; true if unknown."""
        return (
            self.context_window is None
            or self.count_tokens(messages) + (self.max_reply_tokens or 0) <= self.context_window
        )

    def cost(
        self,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        cached_tokens: int | None = None,
        cache_write_tokens: int | None = None,
    ) -> float | None:
        """Return the cost in US dollars; None if a count or a price is unknown, unless the price is 0.

        If `cache_write_tokens` is unknown and `cache_write_price` exceeds `input_price`, all tokens that were not read
        from the cache count as written.
        """
        n_cached = min(cached_tokens or 0, prompt_tokens or 0) if self.cached_input_price is not None else 0
        n_new = (prompt_tokens or 0) - n_cached
        n_written = 0
        if self.cache_write_price is not None:
            write_costs_more = self.cache_write_price > (self.input_price or 0.0)
            n_written = n_new * write_costs_more if cache_write_tokens is None else min(cache_write_tokens, n_new)
        charges = [
            _token_cost(None if prompt_tokens is None else n_new - n_written, self.input_price),
            _token_cost(n_cached, self.cached_input_price or 0.0),
            _token_cost(n_written, self.cache_write_price or 0.0),
            _token_cost(completion_tokens, self.output_price),
        ]
        return None if None in charges else sum(charge for charge in charges if charge is not None)


def _token_cost(tokens: int | None, price: float | None) -> float | None:
    """Return the cost of tokens in US dollars; None if it is unknown. `price` is per million tokens."""
    if price == 0.0:
        return 0.0
    return None if tokens is None or price is None else tokens * price / 1e6


def estimate_tokens(text: str) -> int:
    """Return an estimate of the number of tokens of a text, which is more often too high than too low.

    A word is one token per six letters, rounded up; a number one per three digits; other characters are one each. A
    single space is no token, longer whitespace is one token. For byte-pair tokenizers with a vocabulary of 30 to 200
    thousand tokens the error is at most about 20 % for English prose and tables of numbers.

    >>> estimate_tokens("Generation 12: tax=0.25")
    9
    """
    # Characters outside ASCII (accents, Chinese, emoji) count twice, because they are often several tokens.
    return len(_TOKEN_PATTERN.findall(text)) + (0 if text.isascii() else len(_NON_ASCII.findall(text)))
