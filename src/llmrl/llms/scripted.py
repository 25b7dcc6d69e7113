"""A stand-in for a language model: offline, free, and in a run the same reply to the same question every time."""

from __future__ import annotations

import hashlib
import importlib
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms import schema_draw
from llmrl.llms.provider import Provider, estimate_tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

_VALUES = re.compile(r'"(?:[^"\\]|\\.)*"(?!\s*:)|[-+]?\d[\d.eE+-]*')
"""Texts and numbers, but no names of fields."""

Rule = Callable[[Sequence[Mapping[str, str]], int, Callable[[str], None]], str]
"""Function `reply(messages, seed, note)` of a module in `RULES`: from a conversation and a seed of the run to a reply.

It tells `note` where no rule of its own applies, and raises UnreadPromptError where it does not find what it looks for.
"""

RULES = {
    "player": "llmrl.agents.llm_player.scripted_player",
    "lesson": "llmrl.agents.llm_player.scripted_player",
    "principal": "llmrl.principals.scripted_mechanism",
    "search": "llmrl.principals.scripted_search",
    "teacher": "llmrl.teachers.scripted_planner",
    "check": "llmrl.llms.scripted",
    "control": "llmrl.experiment.controls",
}
"""Purpose of a question (`ChatRequest.purpose`) -> module whose `reply` answers it, imported with the first one.

These are names and no imports, because rules stand beside the prompts they read, in packages above this one. Nothing
else of those packages is used here. A question of any other purpose gets a draw from its schema (`schema_draw`).
"""


class UnreadPromptError(LLMError):
    """Raised by a rule that does not find in a prompt what it looks for; the text names that part of the prompt."""


def needed(found: T | None, part: str) -> T:
    """Return what a rule has `found` of a prompt; raise UnreadPromptError, naming the `part`, if that is nothing."""
    if not found:
        raise UnreadPromptError(part)
    return found


def first_question(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the first turn of the user, which is the prompt; what follows are repairs."""
    return next(message["content"] for message in messages if message["role"] == "user")


def reply(messages: Sequence[Mapping[str, str]], seed: int, note: Callable[[str], None]) -> str:
    """Return the answer to `llmrl-llm check`."""
    needed(first_question(messages).startswith("This is a connection test."), "its first sentence")
    return '{"number": 7}'


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
        self._warned: set[str] = set()

    @property
    def identity(self) -> dict[str, Any]:
        longest = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return {"model": "scripted", **{name: share for name, share in self._shares.items() if share}, **longest}

    @property
    def sees(self) -> bool:
        """True: its rules are sent pictures as others are, and do not look at them."""
        return True

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Raises LLMError for a question without a schema that no rule understands."""
        self._warn("llm=scripted replies by fixed rules: it is not a language model, and neither are its results")
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply:
        text = self._answer(request)
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

    def _answer(self, request: ChatRequest) -> str:
        """A rule's answer, or else a draw from the schema, of which the log tells."""
        asked = f"the prompt {request.prompt}" if request.prompt else f"a question of purpose {request.purpose!r}"
        if request.purpose in RULES:
            rule: Rule = importlib.import_module(RULES[request.purpose]).reply
            try:
                return rule(request.messages, self._seed, lambda said: self._warn(f"llm=scripted, {asked}: {said}"))
            except UnreadPromptError as part:
                fault = f"llm=scripted does not find in {asked} what its rules read there: {part}"
        else:
            fault = (
                f"llm=scripted has no rule for this question (purpose {request.purpose!r}); it knows {', '.join(RULES)}"
                ", and questions whose reply has a schema"
            )
        if request.schema is None:
            raise LLMError(f"{fault}. Choose a language model, e.g. llm=openai_compatible or llm=gpt4o.")
        self._warn(f"{fault}. Its replies are drawn at random from the form asked for.")
        # Repeats differ, as a model's would.
        said = "\0".join(message["content"] for message in request.messages)
        return schema_draw.reply(request.schema, f"{request.place}{request.repeat}\0{said}")

    def _warn(self, said: str) -> None:
        """Log a warning once."""
        if said not in self._warned:
            self._warned.add(said)
            logger.warning("%s", said)

    def _fault(self, request: ChatRequest) -> str:
        """How this reply is spoilt; "" mostly."""
        if not any(self._shares.values()):
            return ""
        said = "\0".join(message["content"] for message in request.messages)
        digest = hashlib.sha256(f"{request.place}{request.repeat}\0{said}".encode()).digest()
        draw = self._seeds.numpy(int.from_bytes(digest[:4], "big")).random()
        for name, edge in zip(self._shares, np.cumsum(list(self._shares.values())), strict=True):
            if draw < edge:
                return name
        return ""


_VALUE = re.compile(r"(?<!\w\[)(?<![\w.])-?\d+(\.\d+)?(?=\s*[,;}\]\n$])")
"""A number that stands alone, but no index (`params[3]`)."""


def _out_of_range(text: str) -> str:
    """Every number that stands alone becomes a hundred thousand times as large, and one more that way."""

    def far(match: re.Match[str]) -> str:
        value = float(match.group())
        return repr(value * 1e5 + math.copysign(1e5, value))

    return _VALUE.sub(far, text)


_SPOIL: dict[str, Callable[[str], str]] = {
    "malformed": lambda text: "Sure! Here is the form: " + _VALUES.sub("<...>", text),
    "out_of_range": _out_of_range,
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "refusal": lambda text: REFUSAL,
}
