"""Questions with structured replies: send them, parse replies, request corrections, and count invalid replies."""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from llmrl.core.errors import LLMError
from llmrl.core.model_protocols import ChatModel, ConversationGenerator, run_conversation
from llmrl.core.records import ChatReply, ChatRequest, TokenSample
from llmrl.core.state_fields import StateFields
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt
from llmrl.llms.reply_cleaning import clean_reply
from llmrl.llms.structured import apply_parser

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_QUOTED_CHARACTERS = 4000
"""Maximum number of characters of an invalid reply in the request for its correction."""

MAX_WARNINGS = 10
"""Number of invalid replies that are logged as warnings; further ones are logged at debug level."""

Messages = list[dict[str, str]]


@dataclass
class QueryStats:
    """Statistics of one question.

    Attributes:
        replies: number of replies, including corrections.
        invalid: number of invalid replies.
        failed: number of calls without a reply.
        text: text of the last reply.
        prompt_tokens, completion_tokens, cost: sums over all replies (cost in USD); None if one of them is unknown.
        samples: sampled tokens and validity of each reply; empty unless the model is trained.
    """

    replies: int = 0
    invalid: int = 0
    failed: int = 0
    text: str = ""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost: float | None = 0.0
    samples: list[tuple[TokenSample, bool]] = field(default_factory=list)

    def add(self, reply: ChatReply, valid: bool) -> None:
        """Count a reply, or a failed call (`reply.error`)."""
        if reply.error:  # providers do not charge for failed calls
            self.failed += 1
            return
        self.replies += 1
        self.invalid += not valid
        self.text = reply.text
        if reply.sample is not None:
            self.samples.append((reply.sample, valid))
        self.prompt_tokens = _add_or_none(self.prompt_tokens, reply.prompt_tokens)
        self.completion_tokens = _add_or_none(self.completion_tokens, reply.completion_tokens)
        self.cost = _add_or_none(self.cost, reply.cost)

    @property
    def counts(self) -> dict[str, float | None]:
        """All numeric statistics by name."""
        return {
            "replies": self.replies,
            "invalid": self.invalid,
            "failed": self.failed,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": self.cost,
        }


class StructuredQuery(StateFields, Generic[T]):
    """Sender of questions to a chat model, which parses the replies and requests corrections of invalid ones.

    The request for a correction quotes the invalid reply and its error. If no reply to a question is valid after
    `repair_turns` corrections, the value of the question is None, which the caller must handle.

    Args:
        llm: the chat model.
        purpose: name of the task, for the call log.
        parse: function from a reply to its value. It raises InvalidReply with an error message for the model; any other
            exception also makes the reply invalid.
        render_repair_prompt: function from an error message to a prompt that requests a corrected reply.
        schema: JSON schema for models with structured output; None: free text.
        repair_turns: maximum number of requests for a correction per question.

    Attributes:
        failed_indices: indices of the questions of the last `ask` whose call failed in all attempts.
        query_stats: statistics of each question of the last `ask`.
    """

    _state_fields = ("counters",)

    def __init__(
        self,
        llm: ChatModel,
        purpose: str,
        parse: Callable[[ChatReply], T],
        render_repair_prompt: Callable[[str], Prompt],
        schema: dict[str, Any] | None,
        repair_turns: int,
    ) -> None:
        self.llm, self.purpose, self.parse, self.render_repair_prompt = llm, purpose, parse, render_repair_prompt
        self.schema, self.repair_turns = schema, repair_turns
        self.counters = {"invalid_replies": 0, "repairs": 0, "fallbacks": 0, "trimmed_prompts": 0}
        self.failed_indices: set[int] = set()
        self.query_stats: list[QueryStats] = []

    def ask(
        self, questions: Sequence[Prompt | ChatRequest], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> list[T | None]:
        """Send the questions and return the parsed replies in order; None for a question without a valid reply.

        A question is a prompt, or a request that ends with a message of the user, for whole conversations.
        `parsers`, one per question, replace `parse` if validity depends on the question.

        Raises:
            LLMError: the model could not be reached, or the budget is exhausted.
            TooManyInvalidReplies: too many of the run's replies so far were invalid (`llm.max_invalid`).
        """
        return run_conversation(self.ask_generator(questions, parsers), self.llm.chat)

    def ask_generator(
        self, questions: Sequence[Prompt | ChatRequest], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> ConversationGenerator[list[T | None]]:
        """Run `ask` as a generator that yields requests, receives their replies, and returns the values."""
        first_requests = [self._make_request(question) for question in questions]
        values: list[T | None] = [None] * len(first_requests)
        parsers = [self.parse] * len(first_requests) if parsers is None else parsers
        self.failed_indices = set()
        self.query_stats = [QueryStats() for _ in first_requests]
        conversations: dict[int, Messages] = {i: list(request.messages) for i, request in enumerate(first_requests)}
        for turn in range(self.repair_turns + 1):
            requests = [
                replace(first_requests[i], messages=tuple(messages), parse=parsers[i])
                for i, messages in conversations.items()
            ]
            replies: Sequence[ChatReply] = (yield requests) if requests else []
            for (i, messages), reply in zip(list(conversations.items()), replies, strict=True):
                try:
                    values[i] = _parse_or_raise(reply, parsers[i])
                    self.query_stats[i].add(reply, valid=True)
                except InvalidReply as error:
                    self.query_stats[i].add(reply, valid=False)
                    self.counters["invalid_replies"] += 1
                    level = logging.WARNING if self.counters["invalid_replies"] <= MAX_WARNINGS else logging.DEBUG
                    model = first_requests[i].model
                    hint = (
                        " (reply truncated: llm.max_tokens also counts reasoning tokens)" if reply.is_truncated else ""
                    )
                    logger.log(level, "invalid reply of %s: %s%s", self.llm.model_label(model), error, hint)
                    previous_reply = _assistant_message(reply, self.llm.includes_reasoning(model))
                    correction_request = _user_message(self.render_repair_prompt(str(error)).text)
                    conversations[i] = [*messages, previous_reply, correction_request]
                    if reply.error:
                        self.failed_indices.add(i)
                    # A failed call has no reply to correct, and after a long reply the next request may not fit.
                    if reply.error or not self.llm.fits(conversations[i], model):
                        del conversations[i]
                else:
                    self.counters["repairs"] += turn > 0
                    del conversations[i]
        self.counters["fallbacks"] += sum(value is None for value in values)
        # Only after all turns, because corrections decrease the share of invalid replies.
        if isinstance(self.llm, ChatClient):
            self.llm.check_invalid_rate()
        return values

    def fit_to_context(self, render: Callable[[int], Prompt], n: int) -> tuple[Prompt, int]:
        """Return the longest prompt that fits into the context window with a reply, and its number of records.

        `render(k)` returns the prompt with the k most valuable records of the history, 0 <= k <= n.

        Raises:
            LLMError: the prompt without records does not fit.
        """
        render = functools.cache(render)  # rendering long histories is slow
        n_records = find_largest_fit(lambda k: self.llm.fits([_user_message(render(k).text)]), n)
        if n_records == n:
            return render(n), n
        self.counters["trimmed_prompts"] += 1
        if n_records < 0:
            raise LLMError(
                f"the prompt {render(0).name} exceeds the context window of {self.llm.model_label()} even without any "
                "history; choose a model with a larger one, or a smaller llm.max_tokens"
            )
        logger.warning("context window of %s: the prompt shows %d of %d records", self.llm.model_label(), n_records, n)
        return render(n_records), n_records

    def metrics(self) -> dict[str, float]:
        """Return llm/invalid_replies, llm/repairs, llm/fallbacks, llm/trimmed_prompts since the start of the run."""
        return {f"llm/{name}": float(count) for name, count in self.counters.items()}

    def _make_request(self, question: Prompt | ChatRequest) -> ChatRequest:
        """Return a question as a request with this sender's purpose and, unless it has one, this sender's schema."""
        if isinstance(question, Prompt):
            question = ChatRequest((_user_message(question.text),), prompt=question.name, prompt_hash=question.hash)
        schema = self.schema if question.schema is None else question.schema
        return replace(question, schema=schema, purpose=self.purpose)


def find_largest_fit(fits: Callable[[int], bool], n: int) -> int:
    """Return the largest k in 0 .. n for which `fits(k)` is true, or -1 if there is none.

    Bisection is used, so if `fits(k)` is true, `fits` must be true for all smaller numbers.
    """
    return n if fits(n) else bisect.bisect_left(range(n), True, key=lambda k: not fits(k)) - 1


def _add_or_none(x: Any, y: Any) -> Any:
    return None if x is None or y is None else x + y


def _parse_or_raise(reply: ChatReply, parse: Callable[[ChatReply], T]) -> T:
    """Return the parsed reply; raise InvalidReply if it is invalid or the call failed."""
    if reply.error:
        raise InvalidReply(f"there is no reply: {reply.error}")
    try:
        return apply_parser(reply, parse)
    except InvalidReply as error:
        if reply.is_truncated:
            raise InvalidReply(f"the reply was cut off because it grew too long; {error}") from None
        raise


def _user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant_message(reply: ChatReply, include_thoughts: bool) -> dict[str, str]:
    """Return a reply as a message of the conversation, with its thoughts if `include_thoughts` is true."""
    # Some providers reject empty messages.
    text = clean_reply(reply.text).text[:MAX_QUOTED_CHARACTERS].strip() or "(empty reply)"
    reasoning = (
        f"<think>\n{reply.thoughts[:MAX_QUOTED_CHARACTERS]}\n</think>\n\n"
        if include_thoughts and reply.thoughts
        else ""
    )
    return {"role": "assistant", "content": reasoning + text}
