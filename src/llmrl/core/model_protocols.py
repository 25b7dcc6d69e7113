"""The interfaces of language models, and conversations with chat models.

A conversation is a generator that yields requests, receives the replies, and returns a result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest, PolicyOutput

if TYPE_CHECKING:
    import torch


@runtime_checkable
class ChatModel(Protocol):
    """A client of one or several chat models, which replies to batches of requests (`ChatRequest.model`)."""

    label: str
    """Label of the model in results, e.g. `gpt-4o (litellm)` or `scripted rule (not a language model)`."""

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Return the replies in the order of the requests.

        Raises:
            LLMError: a request failed permanently.
            BudgetExhausted: the budget does not cover a request.
        """
        ...

    def check(self) -> None:
        """Raise LLMError if the model cannot be used (missing key, unreachable server). It is called before a run."""
        ...

    def fits(self, messages: Sequence[Mapping[str, str]], model: str = CHOSEN_MODEL) -> bool:
        """Return whether `messages` and a reply of maximum length fit into the model's context; true if unknown."""
        ...

    def accepts_images(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether the model accepts images; true if this is unknown."""
        ...

    def includes_reasoning(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether an earlier reply in a prompt must be preceded by its reasoning (`ChatReply.thoughts`)."""
        ...

    def model_label(self, model: str = CHOSEN_MODEL) -> str:
        """Return the label of the model with the name `model` (see `label`)."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A language model that computes log-probabilities of given continuations, for policies over text actions.

    Its weights are local, because hosted chat models do not return these log-probabilities.
    """

    label: str
    """Label of the model in results, e.g. `google/flan-t5-small (local scorer)`."""

    def score(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]]) -> torch.Tensor:
        """Return log p(candidate | prompt), [n_prompts, n_candidates] float32, differentiable unless under `no_grad`.

        `candidates` is one list for all prompts, or a list for each prompt; scores of shorter lists are padded with
        -inf. Prompt and candidate are concatenated without a separator, so one of them must contain it
        (`EnvSpec.continuations`).
        """
        ...

    def check(self) -> None:
        """Raise LLMError if the model cannot be used (missing package or weights). It is called before a run."""
        ...


R = TypeVar("R")
ConversationGenerator = Generator[Sequence[ChatRequest], Sequence[ChatReply], R]
"""Generator that yields requests, receives their replies in the same order, and returns its result."""


@runtime_checkable
class ConversingPolicy(Protocol):
    """A policy that takes its actions from a chat model, and lets the caller send the requests.

    Attributes:
        llm: the chat model; None if the policy has none.
    """

    @property
    def llm(self) -> ChatModel | None: ...

    def act_as_conversation(
        self, observation: dict[str, Any], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> ConversationGenerator[PolicyOutput]:
        """Return a conversation whose result is that of `Policy.act` with the same arguments.

        Random numbers are drawn from `generator` before the conversation is returned.
        """
        ...


def run_conversation(
    conversation: ConversationGenerator[R], chat: Callable[[Sequence[ChatRequest]], Sequence[ChatReply]]
) -> R:
    """Run a conversation to its end with replies from `chat`, and return its result."""
    try:
        requests = next(conversation)
        while True:
            requests = conversation.send(chat(requests))
    except StopIteration as end:
        return end.value


def merge_conversations(conversations: Sequence[ConversationGenerator[R]]) -> ConversationGenerator[list[R]]:
    """Merge conversations into one, whose batches contain the requests of all and whose result is the list of results.

    A conversation that waits for another one yields an empty list of requests.

    Raises:
        ValueError: the numbers of requests and of replies to them differ.
    """
    results: dict[int, R] = {}
    replies: dict[int, Sequence[ChatReply] | None] = dict.fromkeys(range(len(conversations)))
    while replies:
        requests: dict[int, Sequence[ChatRequest]] = {}
        for i, conversation_replies in replies.items():
            try:
                requests[i] = conversations[i].send(conversation_replies)  # type: ignore[arg-type]
            except StopIteration as end:
                results[i] = end.value
        batch = [request for group in requests.values() for request in group]
        batch_replies = (yield batch) if batch else []
        if len(batch_replies) != len(batch):
            raise ValueError(
                f"{len(batch)} requests were answered by {len(batch_replies)} replies; each needs one reply"
            )
        remaining_replies = iter(batch_replies)
        replies = {i: list(islice(remaining_replies, len(group))) for i, group in requests.items()}
    return [results[i] for i in range(len(conversations))]
