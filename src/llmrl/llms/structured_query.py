"""Questions with structured replies: send them, validate replies, request corrections, and count invalid replies."""

from __future__ import annotations

import bisect
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from llmrl.core.errors import LLMError
from llmrl.core.model_protocols import ChatModel, ConversationGenerator, run_conversation
from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest, TokenSample
from llmrl.core.state_fields import StateFields
from llmrl.llms.client import ChatClient
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.prompts import Prompt
from llmrl.llms.reply_cleaning import clean_reply
from llmrl.llms.structured import apply_parser

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_QUOTED_CHARACTERS = 4000
"""Maximum number of characters of an invalid reply that are quoted to the model."""

MAX_WARNINGS = 10
"""Number of invalid replies that are logged as warnings; further ones are logged at debug level."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Query:
    """Chat history that ends with a question.

    Attributes:
        messages: messages as in `ChatRequest`; user and assistant turns alternate, ending with a user turn.
        name, hash: name and hash of the prompt file, for the call log.
        schema: JSON schema of this question's reply; None: the schema of the `StructuredQuery`.
        question_id, model, adapter: as in `ChatRequest`.
    """

    messages: tuple[dict[str, Any], ...]
    name: str = ""
    hash: str = ""
    schema: dict[str, Any] | None = None
    question_id: str = ""
    model: str = CHOSEN_MODEL
    adapter: str = ""


@dataclass
class QueryStats:
    """Statistics of one question.

    Attributes:
        replies: number of replies, repairs included.
        invalid: number of invalid replies among them.
        failed: number of calls without a reply.
        text: text of the last reply.
        prompt_tokens, completion_tokens, cost: sums over its replies (cost in USD); None if one of them is unknown.
        samples: (sampled tokens, valid) for each reply; only for models being trained.
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
        """Count one more reply, or a failed call."""
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
        """All numbers, by name."""
        return {
            "replies": self.replies,
            "invalid": self.invalid,
            "failed": self.failed,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": self.cost,
        }


class StructuredQuery(StateFields, Generic[T]):
    """Sender of batches of questions to a chat model, whose replies must have a certain form.

    An invalid reply is answered with its error, up to `repair_turns` times. If no reply to a question is valid, its
    value is None, and the caller decides what to do instead.

    Args:
        llm: the chat model.
        purpose: name of the task, for the call log.
        parse: maps a reply to its value; raises InvalidReply with an error message for the model. Any other exception
            makes a reply invalid, too.
        repair: maps that error message to a prompt asking for a corrected reply.
        schema: JSON schema for models with structured output; None: free text.
        repair_turns: maximum number of corrections of an invalid reply.

    Attributes:
        failed_indices: indices of the questions in the last `ask` that got no value because the call failed even after
            all retries.
        query_stats: statistics of each question in the last `ask`.
    """

    _state_fields = ("counters",)

    def __init__(
        self,
        llm: ChatModel,
        purpose: str,
        parse: Callable[[ChatReply], T],
        repair: Callable[[str], Prompt],
        schema: dict[str, Any] | None,
        repair_turns: int,
    ) -> None:
        self.llm, self.purpose, self.parse, self.repair = llm, purpose, parse, repair
        self.schema, self.repair_turns = schema, repair_turns
        self.counters = {"invalid_replies": 0, "repairs": 0, "fallbacks": 0, "trimmed_prompts": 0}
        self.failed_indices: set[int] = set()
        self.query_stats: list[QueryStats] = []

    def ask(
        self, questions: Sequence[Prompt | Query], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> list[T | None]:
        """Ask the questions and return the parsed replies in order; None where no reply was valid.

        `parsers`, one per question, override `parse`. Use them if validity depends on the question.

        Raises:
            LLMError: the model could not be reached, or the budget is exhausted.
            TooManyInvalid: too many of the run's replies so far were invalid (`llm.max_invalid`).
        """
        return run_conversation(self.ask_generator(questions, parsers), self.llm.chat)

    def ask_generator(
        self, questions: Sequence[Prompt | Query], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> ConversationGenerator[list[T | None]]:
        """Run `ask` as a generator: yield requests, receive their replies, and return the values."""
        queries = [
            question
            if isinstance(question, Query)
            else Query((_user_message(question.text),), question.name, question.hash)
            for question in questions
        ]
        values: list[T | None] = [None] * len(queries)
        parsers = [self.parse] * len(queries) if parsers is None else parsers
        self.failed_indices = set()
        self.query_stats = [QueryStats() for _ in queries]
        pending: dict[int, Messages] = {i: list(query.messages) for i, query in enumerate(queries)}
        for turn in range(self.repair_turns + 1):
            requests = [self._request(queries[i], messages, parsers[i]) for i, messages in pending.items()]
            replies: Sequence[ChatReply] = (yield requests) if requests else []
            for (i, messages), reply in zip(list(pending.items()), replies, strict=True):
                try:
                    values[i] = _parse_or_raise(reply, parsers[i])
                    self.query_stats[i].add(reply, valid=True)
                except InvalidReply as error:
                    self.query_stats[i].add(reply, valid=False)
                    self.counters["invalid_replies"] += 1
                    level = logging.WARNING if self.counters["invalid_replies"] <= MAX_WARNINGS else logging.DEBUG
                    model = queries[i].model
                    hint = (
                        " (reply truncated: llm.max_tokens also counts reasoning tokens)" if reply.is_truncated else ""
                    )
                    logger.log(level, "invalid reply of %s: %s%s", self.llm.model_label(model), error, hint)
                    previous_reply = _assistant_message(reply, self.llm.includes_reasoning(model))
                    pending[i] = [*messages, previous_reply, _user_message(self.repair(str(error)).text)]
                    if reply.error:
                        self.failed_indices.add(i)
                    # A failed call has no reply to correct, and after a long reply the context window may be full.
                    if reply.error or not self.llm.fits(pending[i], model):
                        del pending[i]
                else:
                    self.counters["repairs"] += turn > 0
                    del pending[i]
        self.counters["fallbacks"] += sum(value is None for value in values)
        # Check only after all turns: before the repairs, the share of invalid replies is too high.
        if isinstance(self.llm, ChatClient):
            self.llm.check_invalid_rate()
        return values

    def fit_to_context(self, render: Callable[[int], Prompt], n: int) -> tuple[Prompt, int]:
        """Return the prompt with as many records of the history as fit into the context window, and their number.

        The window also has room for the longest reply. `render(k)` returns the prompt with the k most valuable records
        of the history, 0 <= k <= n.

        Raises:
            LLMError: not even the prompt without any history fits.
        """
        render = functools.cache(render)  # rendering long histories is slow
        n_records = max_fitting(lambda k: self.llm.fits([_user_message(render(k).text)]), n)
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

    def _request(self, query: Query, messages: Messages, parse: Callable[[ChatReply], T]) -> ChatRequest:
        """Return the chat request of a question with its current messages."""
        return ChatRequest(
            tuple(messages),
            schema=self.schema if query.schema is None else query.schema,
            purpose=self.purpose,
            prompt=query.name,
            prompt_hash=query.hash,
            question_id=query.question_id,
            parse=parse,
            model=query.model,
            adapter=query.adapter,
        )


def max_fitting(fits: Callable[[int], bool], n: int) -> int:
    """Return the largest 0 <= k <= n for which `fits(k)` is true, or -1.

    Uses bisection, so `fits` must be monotonic.
    """
    return n if fits(n) else bisect.bisect_left(range(n), True, key=lambda k: not fits(k)) - 1


def _add_or_none(x: Any, y: Any) -> Any:
    return None if x is None or y is None else x + y


def _parse_or_raise(reply: ChatReply, parse: Callable[[ChatReply], T]) -> T:
    """Parse a reply. A failed call also raises InvalidReply."""
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
    """Return a reply as a turn of the conversation, with its thoughts only if `include_thoughts` is true."""
    # Some providers refuse an empty turn.
    text = clean_reply(reply.text).text[:MAX_QUOTED_CHARACTERS].strip() or "(empty reply)"
    reasoning = (
        f"<think>\n{reply.thoughts[:MAX_QUOTED_CHARACTERS]}\n</think>\n\n"
        if include_thoughts and reply.thoughts
        else ""
    )
    return {"role": "assistant", "content": reasoning + text}
