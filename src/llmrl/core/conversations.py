"""Conversations with a chat model: generators that yield requests, receive the replies, and return a result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from llmrl.core.model_protocols import ChatModel
from llmrl.core.records import ChatReply, ChatRequest, PolicyOutput

R = TypeVar("R")
ConversationGenerator = Generator[Sequence[ChatRequest], Sequence[ChatReply], R]


@runtime_checkable
class ConversingPolicy(Protocol):
    """A policy that asks a chat model for actions and lets its caller send the requests.

    Attributes:
        llm: the chat model; None if no player of the policy is a chat model.
    """

    @property
    def llm(self) -> ChatModel | None: ...

    def acting(
        self, observation: dict[str, Any], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> ConversationGenerator[PolicyOutput]:
        """Do the same as `Policy.act` as a generator that yields requests, receives replies, and returns the actions.

        Random numbers are drawn from `generator` before the generator is returned.
        """
        ...


def run_conversation(
    conversation: ConversationGenerator[R], chat: Callable[[Sequence[ChatRequest]], Sequence[ChatReply]]
) -> R:
    """Run a conversation whose requests `chat` answers, batch by batch, and return its result."""
    try:
        requests = next(conversation)
        while True:
            requests = conversation.send(chat(requests))
    except StopIteration as end:
        value: R = end.value
        return value


def merge_conversations(conversations: Sequence[ConversationGenerator[R]]) -> ConversationGenerator[list[R]]:
    """Run conversations side by side, whose requests are sent together, and return their results.

    A conversation that waits for another one yields no requests.
    """
    results: dict[int, R] = {}
    replies: dict[int, Sequence[ChatReply] | None] = dict.fromkeys(range(len(conversations)))
    while replies:
        requests: dict[int, Sequence[ChatRequest]] = {}
        for i, answers in replies.items():
            try:
                requests[i] = conversations[i].send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                results[i] = end.value
        batch = [request for group in requests.values() for request in group]
        answered = iter((yield batch) if batch else ())
        replies = {i: [next(answered) for _ in group] for i, group in requests.items()}
    return [results[i] for i in range(len(conversations))]
