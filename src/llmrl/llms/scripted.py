"""A stand-in for a language model: offline, free, and in a run the same reply to the same question every time."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.limits import NonNegativeFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms import (
    scripted_particles,
    scripted_planner,
    scripted_player,
    scripted_principal,
    scripted_schema,
    scripted_search,
)
from llmrl.llms.provider import Provider, estimate_tokens

logger = logging.getLogger(__name__)

Replier = Callable[[Sequence[Mapping[str, str]], int], str | None]
"""From a conversation and a seed of the run to a reply in the format asked for; None if it is of another task."""


def _by_all(rule: Callable[[Sequence[Mapping[str, str]]], str | None]) -> Replier:
    """A replier that draws nothing but what the conversation says."""
    return lambda messages, seed: rule(messages)


def _by_first(rule: Callable[[str], str | None]) -> Replier:
    """The same, from the first user message alone."""
    return lambda messages, seed: rule(_first(messages))


def _principal(messages: Sequence[Mapping[str, str]], seed: int) -> str | None:
    return scripted_principal.reply(_first(messages), seed)


def _first(messages: Sequence[Mapping[str, str]]) -> str:
    return next(message["content"] for message in messages if message["role"] == "user")


def _check_reply(prompt: str) -> str | None:
    """To the question of `llmrl-llm check`."""
    return '{"number": 7}' if prompt.startswith("This is a connection test.") else None


REPLIERS: dict[str, Replier] = {
    "player": _by_all(scripted_player.reply),
    "principal": _principal,
    "policy search": _by_all(scripted_search.reply),
    "teacher in particle worlds": _by_first(scripted_particles.reply),
    "teacher": _by_first(scripted_planner.reply),
    "connection test": _by_first(_check_reply),
}
"""One per task; a structured question of any other task gets a draw from its schema (`scripted_schema`)."""

REFUSAL = "I'm sorry, but I can't help with that request."


class ScriptedChat(Provider):
    """Replies computed from the question by simple rules, as a principal with random draws from the run's seed.

    It is asked with the same prompts and its replies go through the same parsing as a real model's, so it shows that
    the machinery works. It says nothing about what language models can do; its label says so wherever results show it.

    A share of the replies can be spoilt, to see how an experiment bears it. Which ones is decided by the question, its
    repeat index and the run's seed.

    Args:
        malformed, out_of_range, empty, truncated, refusal: shares of replies spoilt in that way.
        temperature: nothing depends on it, as rules are not sampled; an experiment that sets one takes this model, too.
        max_tokens: longest reply, tokens by estimate; what is longer is cut off. None: no reply is.
        seeds: decide which; and what a principal draws.

    Raises:
        ConfigError: the shares add up to more than 1.
    """

    label = "scripted (not a language model)"
    parallel = False
    remote = False

    def __init__(
        self,
        seeds: Seeds,
        malformed: UnitInterval = 0.0,
        out_of_range: UnitInterval = 0.0,
        empty: UnitInterval = 0.0,
        truncated: UnitInterval = 0.0,
        refusal: UnitInterval = 0.0,
        temperature: NonNegativeFloat | None = None,
        max_tokens: PositiveInt | None = None,
    ) -> None:
        super().__init__(max_tokens=max_tokens, input_price=0.0, output_price=0.0)
        self._seeds = seeds.child("faults")
        self._seed = seeds.integer("rule")
        self._shares = {
            "malformed": malformed,
            "out_of_range": out_of_range,
            "empty": empty,
            "truncated": truncated,
            "refusal": refusal,
        }
        if sum(self._shares.values()) > 1 + 1e-9:
            raise ConfigError(f"the shares of spoilt replies of llm=scripted add up to more than 1: {self._shares}")
        self._warned = False

    @property
    def identity(self) -> dict[str, Any]:
        longest = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return {"model": "scripted", **{name: share for name, share in self._shares.items() if share}, **longest}

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Raises LLMError for a question without a schema, of a task that no replier knows."""
        if not self._warned:
            logger.warning(
                "llm=scripted replies by fixed rules: it is not a language model, and neither are its results"
            )
            self._warned = True
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply:
        text = _answer(request, self._seed)
        fault = self._fault(request)
        text = _SPOIL[fault](text) if fault else text
        tokens = estimate_tokens(text)
        cut = self.max_tokens is not None and tokens > self.max_tokens
        if self.max_tokens is not None and cut:
            text = text[: len(text) * self.max_tokens // tokens]
        # Counted by estimate: there is no tokenizer, but the sums of an experiment should be of the right order.
        return ChatReply(
            text,
            prompt_tokens=self.count_tokens(request.messages),
            completion_tokens=estimate_tokens(text),
            finish="length" if cut or fault == "truncated" else "stop",
        )

    def _fault(self, request: ChatRequest) -> str:
        """How this reply is spoilt; "" mostly."""
        if not any(self._shares.values()):
            return ""
        said = "\0".join(message["content"] for message in request.messages)
        digest = hashlib.sha256(f"{request.repeat}\0{said}".encode()).digest()
        draw = self._seeds.numpy(int.from_bytes(digest[:4], "big")).random()
        for name, edge in zip(self._shares, np.cumsum(list(self._shares.values())), strict=True):
            if draw < edge:
                return name
        return ""


def _answer(request: ChatRequest, seed: int) -> str:
    for replier in REPLIERS.values():
        reply = replier(request.messages, seed)
        if reply is not None:
            return reply
    if request.schema is not None:
        # Repeats differ, as a model's would.
        said = "\0".join(message["content"] for message in request.messages)
        return scripted_schema.reply(request.schema, f"{request.repeat}\0{said}")
    raise LLMError(
        f"llm=scripted has no rule for this question (purpose {request.purpose!r}); it knows {', '.join(REPLIERS)}, "
        "and questions whose reply has a schema. Choose a language model, e.g. llm=openai_compatible or llm=gpt4o."
    )


_VALUE = re.compile(r"(?<!\w\[)(?<![\w.])-?\d+(\.\d+)?(?=\s*[,;}\]\n$])")
"""A number that stands alone, but no index (`params[3]`)."""


def _out_of_range(text: str) -> str:
    """Every number that stands alone becomes a hundred thousand times as large, and one more that way."""

    def far(match: re.Match[str]) -> str:
        value = float(match.group())
        return repr(value * 1e5 + math.copysign(1e5, value))

    return _VALUE.sub(far, text)


_SPOIL: dict[str, Callable[[str], str]] = {
    "malformed": lambda text: "Sure! Here is what I would do: " + re.sub(r"[{}\[\]$\"]", "", text),
    "out_of_range": _out_of_range,
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "refusal": lambda text: REFUSAL,
}
