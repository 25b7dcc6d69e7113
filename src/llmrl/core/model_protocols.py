"""The interfaces of language models, and conversations with chat models.

A conversation is a generator that yields requests, receives the replies, and returns a result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from llmrl.core.records import CHOSEN_MODEL, ChatReply, ChatRequest, PolicyOutput

if TYPE_CHECKING:
    import torch


@runtime_checkable
class ChatModel(Protocol):
    """A client that answers batches of chat requests.

    There may be further models besides the chosen one; a request names its model (`ChatRequest.model`).
    """

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
        """Raise LLMError if the model can never answer (missing key, unreachable server). Called before a run."""
        ...

    def fits(self, messages: Sequence[Mapping[str, str]], model: str = CHOSEN_MODEL) -> bool:
        """Return whether `messages` and a reply fit into the model's context window; true if unknown."""
        ...

    def accepts_images(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether the model accepts images; true if only its server knows."""
        ...

    def includes_reasoning(self, model: str = CHOSEN_MODEL) -> bool:
        """Return whether an earlier reply in a prompt must be preceded by its reasoning (`ChatReply.thoughts`)."""
        ...

    def model_label(self, model: str = CHOSEN_MODEL) -> str:
        """Return the `label` of one of several models."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """A language model that scores given continuations of a prompt, for policies over text actions.

    This takes a model with local weights; hosted chat models return no such scores.
    """

    label: str
    """Label of the model in results, e.g. `google/flan-t5-small (local scorer)`."""

    def score(self, prompts: Sequence[str], candidates: Sequence[str] | Sequence[Sequence[str]]) -> torch.Tensor:
        """Return log p(candidate | prompt), [n_prompts, n_candidates] float32, with gradients where torch records them.

        `candidates` is one list for all prompts, or a list for each prompt; shorter lists are padded with -inf. Prompt
        and candidate are concatenated as they are, so one of them must contain the space between the two
        (`EnvSpec.continuations`).
        """
        ...

    def check(self) -> None:
        """Raise LLMError if the model can never answer (missing package or weights). Called before a run."""
        ...


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

    def act_as_conversation(
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
