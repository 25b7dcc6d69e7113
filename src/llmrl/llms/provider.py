"""Interface of chat models (`Provider`), with limits, prices, and estimates of tokens."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.images import count_image_tokens

if TYPE_CHECKING:
    from llmrl.llms.local.learning import ChatLearners

MESSAGE_TOKENS = 4
"""Approximate tokens that a chat format adds around each message."""

_TOKEN_PATTERN = re.compile(r"[A-Za-z]{1,6}|[0-9]{1,3}|\s{2,}|[^\S ]|[^A-Za-z0-9\s]")
_NON_ASCII = re.compile(r"[^\x00-\x7f\s]")


class Provider(ABC):
    """Chat model with its limits and prices. The client adds retries, rate limits, budget, cache and log.

    Attributes:
        label: name of the model in results, e.g. `gpt-4o (litellm)`.
        remote: true: requests are sent to a server one by one, from several threads at once. A request whose reply is
            lost may still be charged, so each is logged before it is sent. False: a model in this process answers whole
            batches, from one thread.
        context_window: maximum number of tokens of messages and reply together; None: unknown.
        max_tokens: maximum number of tokens of an answer; None: the provider's default.
        thinking_budget: tokens for thoughts, in addition to `max_tokens`; None: thoughts count as part of the answer.
        include_reasoning: whether earlier replies in a prompt include their thoughts.
        learners: learners that train the model from its replies; None if the model does not learn.
        should_stop: function that returns whether the run is to stop, which the client sets. A model in this process
            that waits for a server then raises `CallInterrupted`.
        input_price, cached_input_price, cache_write_price, output_price: US dollars per million tokens of prompts, of
            prompts that the provider found in its own cache or stored there (None: charged like others), and of
            replies. An unknown price (None) makes costs unknown, never zero.
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
        """Name of the account that rate limits apply to: a model at an address, called with a key.

        None: the limits apply to this provider only.
        """
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
        """Maximum number of tokens of a reply, thoughts and answer together; None: no limit."""
        return None if self.max_tokens is None else self.max_tokens + (self.thinking_budget or 0)

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All properties of the model that can change an answer, as JSON-compatible values without keys or prices."""

    def check(self) -> None:  # noqa: B027  (not abstract, because some models need no check)
        """Raise LLMError if the model can never answer (missing key or package, server down). This costs nothing."""

    @abstractmethod
    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Make one attempt and return the replies in order; `remote` providers get one request at a time.

        The client fills in cost, latency and attempts.

        Raises:
            TransientError: another attempt may succeed.
            LLMError: any other failure. Its text goes to logs and files and must not contain a key. `refused` means
                that certainly nothing was generated; otherwise the attempt counts against the budget.
        """

    def additional_provider(self, name: str, build_provider: Callable[[], Provider]) -> Provider:
        """Return the provider of the additional model `name` of a run, which `build_provider` builds."""
        return build_provider()

    def close(self) -> None:  # noqa: B027  (not abstract, because most providers hold no resources)
        """Release connections and memory."""

    def count_tokens(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Return the prompt tokens of `messages`: an estimate, exact in subclasses that have the tokenizer."""
        return sum(
            estimate_tokens(message["content"]) + MESSAGE_TOKENS + count_image_tokens(message) for message in messages
        )

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        """Return whether `messages` and the longest reply fit into the context window; true if it is unknown."""
        if self.context_window is None:
            return True
        return self.count_tokens(messages) + (self.max_reply_tokens or 0) <= self.context_window

    def cost(
        self,
        prompt_tokens: int | None,
        completion_tokens: int | None,
        cached_tokens: int | None = None,
        cache_write_tokens: int | None = None,
    ) -> float | None:
        """Return the cost in US dollars; None if a price or a count is unknown. A price of 0 needs no count.

        If the number of tokens written to the provider's cache is unknown, and writing costs more than reading, all
        tokens that were not read from the cache count as written.
        """
        n_cached = min(cached_tokens or 0, prompt_tokens or 0) if self.cached_input_price is not None else 0
        n_new = (prompt_tokens or 0) - n_cached
        n_written = 0
        if self.cache_write_price is not None:
            write_costs_more = self.cache_write_price > (self.input_price or 0.0)
            n_written = n_new * write_costs_more if cache_write_tokens is None else min(cache_write_tokens, n_new)
        n_plain = None if prompt_tokens is None else n_new - n_written
        charges = [
            _token_cost(n_plain, self.input_price),
            _token_cost(n_cached, self.cached_input_price or 0.0),
            _token_cost(n_written, self.cache_write_price or 0.0),
            _token_cost(completion_tokens, self.output_price),
        ]
        return None if None in charges else sum(charge for charge in charges if charge is not None)


def _token_cost(tokens: int | None, price: float | None) -> float | None:
    """Return the price of tokens in US dollars; None if the count or the price is unknown."""
    if price == 0.0:
        return 0.0
    return None if tokens is None or price is None else tokens * price / 1e6


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without the model's tokenizer, rather too many than too few.

    A word counts one token per six letters, rounded up; digits one per three; other characters one each. A single space
    counts nothing, and longer whitespace one token. For byte-pair tokenizers with a vocabulary of 30 to 200
    thousand the estimate is within about 20 % for English prose and tables of numbers.

    >>> estimate_tokens("Generation 12: tax=0.25")
    9
    """
    # Characters outside ASCII (accents, Chinese, emoji) are often more than one token.
    return len(_TOKEN_PATTERN.findall(text)) + (0 if text.isascii() else len(_NON_ASCII.findall(text)))
