"""Structured questions: ask, check, show the model what was wrong, give up in a way that is counted."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmrl.core.errors import LLMError
from llmrl.core.protocols import ChatModel, Judging
from llmrl.core.records import ChatReply, ChatRequest, State
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.said import said
from llmrl.llms.structured import InvalidReply, read

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Conversing = Generator[Sequence[ChatRequest], Sequence[ChatReply], R]
"""Something that asks a model and goes on with its replies: yields requests, is sent replies, returns an R."""

QUOTED_REPLY = 4000
"""Characters of an invalid reply that are shown back to the model."""

LOUD = 10
"""Invalid replies that are warned of; more are only counted. The call log has them all."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Question:
    """A conversation whose last turn is the question.

    Attributes:
        messages: as in `ChatRequest`; turns of user and assistant alternate, and the last is the user's.
        name, hash: of the prompt it was made from, for the call log.
        schema: JSON schema of this question's reply; None: that of who asks.
        place: as in `ChatRequest`.
    """

    messages: tuple[dict[str, Any], ...]
    name: str = ""
    hash: str = ""
    schema: dict[str, Any] | None = None
    place: str = ""


@dataclass
class Asked:
    """What became of a question.

    Attributes:
        replies: that it took, repairs included; `invalid` of them were.
        failed: calls that gave no reply.
        text: the last reply.
        prompt_tokens, completion_tokens, cost: of all its replies; None as soon as one is not known.
    """

    replies: int = 0
    invalid: int = 0
    failed: int = 0
    text: str = ""
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cost: float | None = 0.0

    def add(self, reply: ChatReply, valid: bool) -> None:
        """Count one more reply."""
        if reply.error:  # nothing was said, and providers do not charge for that
            self.failed += 1
            return
        self.replies += 1
        self.invalid += not valid
        self.text = reply.text
        self.prompt_tokens = _plus(self.prompt_tokens, reply.prompt_tokens)
        self.completion_tokens = _plus(self.completion_tokens, reply.completion_tokens)
        self.cost = _plus(self.cost, reply.cost)


class Asker(Generic[T]):
    """Asks a chat model questions whose replies must have a form, many at once.

    An invalid reply is answered with what is wrong with it, up to `repair_turns` times. If none of a question's replies
    is valid the answer is None, and the task decides what to do instead.

    Args:
        llm: the model.
        purpose: the task, for the call log.
        parse: the value in a reply; raises InvalidReply, whose text the model is shown (whatever else it raises
            makes a reply invalid, too).
        repair: from that text to the question that asks for another reply.
        schema: JSON schema for models that can be held to one.
        repair_turns: chances to correct an invalid reply.

    Attributes:
        unreached: which of the last questions have no answer because a call failed for good.
        asked: what became of each of the last questions.
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
        self.asked: list[Asked] = []

    def ask(
        self, questions: Sequence[Prompt | Question], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> list[T | None]:
        """The values in the replies, in order; None where there is no valid one.

        `parsers` are used instead of `parse`, one for each question, where what is valid depends on the question.

        Raises:
            LLMError: the model could not be reached, or may not be paid any more.
            TooManyInvalid: too large a share of all the run's replies so far is invalid (`llm.max_invalid`).
        """
        return conversed(self.asking(questions, parsers), self.llm.chat)

    def asking(
        self, questions: Sequence[Prompt | Question], parsers: Sequence[Callable[[ChatReply], T]] | None = None
    ) -> Conversing[list[T | None]]:
        """`ask` for who sends the requests elsewhere: yields them, is sent their replies, and returns the values."""
        values: list[T | None] = [None] * len(questions)
        parsers = [self.parse] * len(questions) if parsers is None else parsers
        self.unreached = set()
        self.asked = [Asked() for _ in questions]
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
                    logger.log(level, "invalid reply of %s: %s", self.llm.label, fault)
                    said_so = _assistant(reply, self.llm.feed_thoughts)
                    open_[i] = [*messages, said_so, _user(self.repair(str(fault)).text)]
                    if reply.error:
                        self.unreached.add(i)
                    # After a failed call there is nobody to show a mistake to; after a long one there may be no room.
                    if reply.error or not self.llm.fits(open_[i]):
                        del open_[i]
                else:
                    self.counters["repairs"] += turn > 0
                    del open_[i]
        self.counters["fallbacks"] += sum(value is None for value in values)
        # Not before: who needs a second turn every time is understood in half of its replies.
        if isinstance(self.llm, Judging):
            self.llm.check_understood()
        return values

    def fit(self, render: Callable[[int], Prompt], n: int) -> Prompt:
        """The prompt with as much history as the model's context window takes.

        `render(k)` is the prompt with the k records of the history that are worth most, 0 <= k <= n; how to choose
        them is the task's business. Room is left for the longest reply.

        Raises:
            LLMError: not even the prompt without any history fits.
        """
        render = functools.cache(render)  # long histories take long: what fits is what is asked
        most = most_that_fit(lambda k: self.llm.fits([_user(render(k).text)]), n)
        if most == n:
            return render(n)
        self.counters["trimmed_prompts"] += 1
        if most < 0:
            raise LLMError(
                f"the prompt {render(0).name} does not fit into the context window of {self.llm.label} even without "
                "any history; choose a model with a longer one, or a smaller llm.max_tokens"
            )
        logger.warning("context window of %s: the prompt shows %d of %d records", self.llm.label, most, n)
        return render(most)

    def metrics(self) -> dict[str, float]:
        """llm/invalid_replies, llm/repairs, llm/fallbacks, llm/trimmed_prompts, counted since the start of the run."""
        return {f"llm/{name}": float(count) for name, count in self.counters.items()}

    def state_dict(self) -> State:
        return dict(self.counters)

    def load_state_dict(self, state: State) -> None:
        self.counters = dict(state)

    def _request(self, question: Prompt | Question, messages: Messages, parse: Callable[[ChatReply], T]) -> ChatRequest:
        own = question.schema if isinstance(question, Question) else None
        return ChatRequest(
            tuple(messages),
            schema=self.schema if own is None else own,
            purpose=self.purpose,
            prompt=question.name,
            prompt_hash=question.hash,
            place=question.place if isinstance(question, Question) else "",
            read=parse,
        )


def conversed(conversing: Conversing[R], chat: Callable[[Sequence[ChatRequest]], Sequence[ChatReply]]) -> R:
    """What comes of a conversation whose requests `chat` answers, one batch after the other."""
    try:
        requests = next(conversing)
        while True:
            requests = conversing.send(chat(requests))
    except StopIteration as end:
        value: R = end.value
        return value


def most_that_fit(fits: Callable[[int], bool], n: int) -> int:
    """The largest k <= n for which `fits(k)`, where what fits with k records fits with fewer; -1: none does."""
    if fits(n):
        return n
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _messages(question: Prompt | Question) -> Messages:
    return list(question.messages) if isinstance(question, Question) else [_user(question.text)]


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
    """A reply as a turn of the conversation, with its thoughts only if these are asked for."""
    # Some providers refuse an empty turn.
    text = said(reply.text).text[:QUOTED_REPLY].strip() or "(empty reply)"
    thought = f"<think>\n{reply.thoughts[:QUOTED_REPLY]}\n</think>\n\n" if thoughts and reply.thoughts else ""
    return {"role": "assistant", "content": thought + text}
