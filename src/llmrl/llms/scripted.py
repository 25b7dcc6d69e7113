"""A stand-in for a language model: offline, free, and the same reply to the same prompt every time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from llmrl.core.errors import LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms import scripted_principal

logger = logging.getLogger(__name__)

REPLIERS: tuple[Callable[[str], str | None], ...] = (scripted_principal.reply,)
"""One per task: from the first user message to a reply in the format it asks for; None if it is another task's."""


class ScriptedChat:
    """Replies computed from the text of the prompt alone, by simple rules.

    It is asked with the same prompts and its replies go through the same parsing as a real model's, so it shows that
    the machinery works. It says nothing about what language models can do; its label says so wherever results show it.
    """

    label = "scripted (not a language model)"
    identity = {"model": "scripted"}

    def __init__(self) -> None:
        self._warned = False

    def check(self) -> None:
        """Never fails: there is nothing to reach."""

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Raises LLMError for a prompt of a task that no replier knows."""
        if not self._warned:
            logger.warning(
                "llm=scripted replies by fixed rules: it is not a language model, and neither are its results"
            )
            self._warned = True
        return [ChatReply(self._answer(request), cost=0.0) for request in requests]

    def _answer(self, request: ChatRequest) -> str:
        prompt = next(message["content"] for message in request.messages if message["role"] == "user")
        for replier in REPLIERS:
            reply = replier(prompt)
            if reply is not None:
                return reply
        raise LLMError(
            f"llm=scripted has no rule for this question (purpose {request.purpose!r}); it only knows how to be a "
            "principal. Choose a language model, e.g. llm=openai_compatible or llm=gpt4o."
        )
