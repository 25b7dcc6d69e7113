"""Structured questions: ask, check the reply, show the model its error, and count what stays invalid."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmrl.core.errors import LLMError
from llmrl.core.model_protocols import ChatModel, CountsInvalidReplies
from llmrl.core.records import CHOSEN, ChatReply, ChatRequest, State
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.reply_cleaning import clean_reply
from llmrl.llms.structured import InvalidReply, read

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Conversing = Generator[Sequence[ChatRequest], Sequence[ChatReply], R]
"""Generator that yields requests, is sent their replies, and returns an R."""

QUOTED_REPLY = 4000
"""Most characters of an invalid reply that are shown back to the model."""

LOUD = 10
"""Number of invalid replies logged as warnings; further ones are logged at debug level. The call log has them all."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Query:
    """Conversation whose last turn is the question.

    Attributes:
        messages: messages as in `ChatRequest`; turns of user and assistant alternate, and the last is the user's.
        name, hash: name and hash of the prompt file, for the call log.
        schema: JSON schema of this question's reply; None: the schema of the `StructuredQuery`.
        place, model: as in `ChatRequest`.
    """

    messages: tuple[dict[str, Any], ...]
    name: str = ""
    hash: str = ""
    schema: dict[str, Any] | None = None
    place: str = ""
    model: str = CHOSEN


@dataclass
class QueryStats:
    """Statistics of one question.

    Attributes:
        replies: number of replies, repairs included.
        invalid: number of invalid replies among them.
        failed: number of calls without a reply.
        text: text of the last reply.
        prompt_tokens, completion_tokens, cost: sums over its replies (cost in USD); None if one of them is unknown.
    """

    replies: int = 0
    invalid: int = 0
    failed: int = 0
    text: str = ""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost: float | None = 0.0

    def add(self, reply: ChatReply, valid: bool) -> None:
        """Count one more reply, or a failed call."""
        if reply.error:  # providers do not charge for failed calls
            self.failed += 1
            return
        self.replies += 1
        self.invalid += not valid
        self.text = reply.text
        self.prompt_tokens = _plus(self.prompt_tokens, reply.prompt_tokens)
        self.completion_tokens = _plus(self.completion_tokens, reply.completion_tokens)
        self.cost = _plus(self.cost, reply.cost)


class StructuredQuery(Generic[T]):
    """Batch of questions to a chat model whose replies must have a form.

    An invalid reply is answered with its error, up to `repair_turns` times. If no reply to a question is valid its
    value is None, and the caller decides what to do instead.

    Args:
        llm: the chat model.
        purpose: name of the task, for the call log.
        parse: function from a reply to its value; raises InvalidReply with a text for the model. Any other exception
            makes a reply invalid, too.
        repair: function from that text to the prompt that asks for another reply.
        schema: JSON schema for models with structured output; None: free text.
        repair_turns: chances to correct an invalid reply.

    Attributes:
        unreached: indices of the last questions that have no value because a call failed for good.
        asked: statistics of each of the last questions.
    """

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
        self.unreached: set[int] = set()
        self.asked: list[QueryStats] = []

    def ask(
        self, questions: Sequence[Prompt | Query], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> list[T | None]:
        """Return the values of the replies in order, None for questions without a valid one.

        `parsers`, one for each question, replace `parse` if validity depends on the question.

        Raises:
            LLMError: the model could not be reached, or the budget is exhausted.
            TooManyInvalid: too large a share of all the run's replies so far is invalid (`llm.max_invalid`).
        """
        return conversed(self.asking(questions, parsers), self.llm.chat)

    def asking(
        self, questions: Sequence[Prompt | Query], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> Conversing[list[T | None]]:
        """Do as `ask` for callers that send requests themselves: yield requests, be sent replies, return values."""
        values: list[T | None] = [None] * len(questions)
        parsers = [self.parse] * len(questions) if parsers is None else parsers
        self.unreached = set()
        self.asked = [QueryStats() for _ in questions]
        open_: dict[int, Messages] = {i: _messages(question) for i, question in enumerate(questions)}
        for turn in range(self.repair_turns + 1):
            requests = [self._request(questions[i], messages, parsers[i]) for i, messages in open_.items()]
            replies: Sequence[ChatReply] = (yield requests) if requests else []
            for (i, messages), reply in zip(list(open_.items()), replies, strict=True):
                try:
                    values[i] = _value(reply, parsers[i])
                    self.asked[i].add(reply, valid=True)
                except InvalidReply as fault:
                    self.asked[i].add(reply, valid=False)
                    self.counters["invalid_replies"] += 1
                    level = logging.WARNING if self.counters["invalid_replies"] <= LOUD else logging.DEBUG
                    model = _model(questions[i])
                    hint = " (llm.max_tokens limits replies, thoughts included)" if reply.cut else ""
                    logger.log(level, "invalid reply of %s: %s%s", self.llm.label_of(model), fault, hint)
                    said_so = _assistant(reply, self.llm.feeds_thoughts(model))
                    open_[i] = [*messages, said_so, _user(self.repair(str(fault)).text)]
                    if reply.error:
                        self.unreached.add(i)
                    # After a failed call there is no reply to correct; after a long one the window may be full.
                    if reply.error or not self.llm.fits(open_[i], model):
                        del open_[i]
                else:
                    self.counters["repairs"] += turn > 0
                    del open_[i]
        self.counters["fallbacks"] += sum(value is None for value in values)
        # Checked after all turns: a model that always needs one repair has half of its replies invalid.
        if isinstance(self.llm, CountsInvalidReplies):
            self.llm.check_understood()
        return values

    def fit(self, render: Callable[[int], Prompt], n: int) -> Prompt:
        """Return the prompt with as much history as fits into the model's context window beside the longest reply.

        `render(k)` returns the prompt with the k most valuable records of the history, 0 <= k <= n, as the caller
        defines them.

        Raises:
            LLMError: not even the prompt without any history fits.
        """
        render = functools.cache(render)  # rendering long histories is slow
        most = most_that_fit(lambda k: self.llm.fits([_user(render(k).text)]), n)
        if most == n:
            return render(n)
        self.counters["trimmed_prompts"] += 1
        if most < 0:
            raise LLMError(
                f"the prompt {render(0).name} does not fit into the context window of {self.llm.label_of()} even "
                "without any history; choose a model with a longer one, or a smaller llm.max_tokens"
            )
        logger.warning("context window of %s: the prompt shows %d of %d records", self.llm.label_of(), most, n)
        return render(most)

    def metrics(self) -> dict[str, float]:
        """Return llm/invalid_replies, llm/repairs, llm/fallbacks, llm/trimmed_prompts since the start of the run."""
        return {f"llm/{name}": float(count) for name, count in self.counters.items()}

    def state_dict(self) -> State:
        return dict(self.counters)

    def load_state_dict(self, state: State) -> None:
        self.counters = dict(state)

    def _request(self, question: Prompt | Query, messages: Messages, parse: Callable[[ChatReply], T]) -> ChatRequest:
        own = question.schema if isinstance(question, Query) else None
        return ChatRequest(
            tuple(messages),
            schema=self.schema if own is None else own,
            purpose=self.purpose,
            prompt=question.name,
            prompt_hash=question.hash,
            place=question.place if isinstance(question, Query) else "",
            read=parse,
            model=_model(question),
        )


def conversed(conversing: Conversing[R], chat: Callable[[Sequence[ChatRequest]], Sequence[ChatReply]]) -> R:
    """Run a conversation whose requests `chat` answers, batch by batch, and return its result."""
    try:
        requests = next(conversing)
        while True:
            requests = conversing.send(chat(requests))
    except StopIteration as end:
        value: R = end.value
        return value


def most_that_fit(fits: Callable[[int], bool], n: int) -> int:
    """Return the largest k in 0 to n with `fits(k)`, by bisection of the monotonic `fits`; -1 if there is none."""
    if fits(n):
        return n
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _model(question: Prompt | Query) -> str:
    return question.model if isinstance(question, Query) else CHOSEN


def _messages(question: Prompt | Query) -> Messages:
    return list(question.messages) if isinstance(question, Query) else [_user(question.text)]


def _plus(a: Any, b: Any) -> Any:
    return None if a is None or b is None else a + b


def _value(reply: ChatReply, parse: Callable[[ChatReply], T]) -> T:
    if reply.error:
        raise InvalidReply(f"there is no reply: {reply.error}")
    try:
        return read(reply, parse)
    except InvalidReply as fault:
        if reply.cut:
            raise InvalidReply(f"the reply was cut off because it grew too long; {fault}") from None
        raise


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(reply: ChatReply, thoughts: bool) -> dict[str, str]:
    """Return a reply as a turn of the conversation, with its thoughts only if `thoughts`."""
    # Some providers refuse an empty turn.
    text = clean_reply(reply.text).text[:QUOTED_REPLY].strip() or "(empty reply)"
    thought = f"<think>\n{reply.thoughts[:QUOTED_REPLY]}\n</think>\n\n" if thoughts and reply.thoughts else ""
    return {"role": "assistant", "content": thought + text}
