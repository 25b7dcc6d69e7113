"""Scripted substitute for a language model, without network and cost; replies depend only on request and seed."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.provider import Provider, estimate_tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

FREE_TEXT = "Drawn at random, by no rule."
"""Value of all free-text fields of random replies."""

MAX_LIST_LENGTH = 3
"""Maximum length of a list whose schema has no maximum."""

_DEFAULT_BOUNDS = (0.0, 1.0)
"""Range of a number whose schema has no bounds."""
_JSON_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"(?!\s*:)|[-+]?\d[\d.eE+-]*')
"""Strings and numbers in JSON, except names of fields."""

Rule = Callable[[Sequence[Mapping[str, str]], int, Callable[[str], None]], str]
"""Function `reply(messages, seed, note)` of a module in `RULE_MODULES`: from messages and a seed of the run to a reply.

It calls `note` with a warning if none of its rules applies, and raises UnreadPromptError if a part of the prompt that
its rules need is missing.
"""

RULE_MODULES = {
    "player": "llmrl.agents.llm_player.scripted_player",
    "lesson": "llmrl.agents.llm_player.scripted_player",
    "talk": "llmrl.agents.llm_player.scripted_player",
    "principal": "llmrl.principals.scripted_mechanism",
    "nomination": "llmrl.principals.scripted_vote",
    "vote": "llmrl.principals.scripted_vote",
    "search": "llmrl.principals.scripted_search",
    "teacher": "llmrl.teachers.scripted_planner",
    "check": "llmrl.llms.scripted",
}
"""Module whose function `reply` answers requests, by the purpose of the request (`ChatRequest.purpose`).

Modules are imported at the first request, because their packages import this module. The reply to a request with any
other purpose is drawn at random from its schema (`draw_reply`).
"""


class UnreadPromptError(LLMError):
    """Error of a rule that cannot find a part of a prompt; its message is the name of that part."""


def require(match: T | None, part: str) -> T:
    """Return `match`; raise UnreadPromptError if it is empty or None. `part` names the missing part of the prompt."""
    if not match:
        raise UnreadPromptError(part)
    return match


def first_prompt(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the first user message, which is the prompt; later user messages request corrections."""
    return next(message["content"] for message in messages if message["role"] == "user")


def reply(messages: Sequence[Mapping[str, str]], seed: int, note: Callable[[str], None]) -> str:
    """Return the reply to the prompt of `llmrl-llm check`."""
    require(first_prompt(messages).startswith("This is a connection test."), "its first sentence")
    return '{"number": 7}'


REFUSAL = "I'm sorry, but I can't help with that request."
"""Reply of the corruption `refusal`."""


@dataclass(frozen=True)
class ScriptedSettings:
    """Options of `ScriptedChat`; meanings, units and ranges are in `conf/llm/scripted.yaml`.

    Attributes:
        temperature: ignored; it exists so that experiments that set a temperature can use this model.
    """

    malformed: UnitInterval
    out_of_range: UnitInterval
    empty: UnitInterval
    truncated: UnitInterval
    refusal: UnitInterval
    temperature: NonNegativeFloat | None
    max_tokens: PositiveInt | None


class ScriptedChat(Provider):
    """Provider whose replies follow simple rules; replies of a principal are random draws with the run's seed.

    Prompts and parsing are those of language models, so runs test the software. Results are not evidence about language
    models, and their label states this.

    Fractions of the replies can be corrupted, to test the robustness of an experiment. The request, its repeat index
    and the run's seed determine which replies are corrupted.

    Args:
        settings: options.
        seeds: seed tree of the corruptions and of the rules' random draws.

    Raises:
        ConfigError: the fractions add up to more than 1.
    """

    label = "scripted rule (not a language model)"
    remote = False

    def __init__(self, settings: ScriptedSettings, seeds: Seeds) -> None:
        super().__init__(max_tokens=settings.max_tokens, input_price=0.0, output_price=0.0)
        self.settings, self._seeds = settings, seeds.child("faults")
        self._seed = seeds.integer("rule")
        self._fractions: dict[str, float] = {name: getattr(settings, name) for name in _CORRUPTIONS}
        if sum(self._fractions.values()) > 1 + 1e-9:
            raise ConfigError(
                f"fractions of corrupted replies must add up to at most 1, got {self._fractions}; decrease some of them"
            )
        self._logged_warnings: set[str] = set()

    @property
    def identity(self) -> dict[str, Any]:
        limit = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return {"model": "scripted", **{k: p for k, p in self._fractions.items() if p}, **limit}

    @property
    def accepts_images(self) -> bool:
        """True, because images are accepted; the rules ignore them."""
        return True

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Return the replies in order; raise LLMError for a request without rule and schema."""
        self._warn_once("llm=scripted replies by fixed rules: it is not a language model, and neither are its results")
        return [self._reply(request) for request in requests]

    def _reply(self, request: ChatRequest) -> ChatReply:
        """Return the reply to a request, possibly corrupted or truncated."""
        text = self._reply_by_rule(request)
        corruption = self._draw_corruption(request)
        text = _CORRUPTIONS[corruption](text) if corruption else text
        n_tokens = estimate_tokens(text)
        exceeds_limit = self.max_tokens is not None and n_tokens > self.max_tokens
        if self.max_tokens is not None and exceeds_limit:
            text = text[: len(text) * self.max_tokens // n_tokens]
        # Token counts are estimates, because there is no tokenizer.
        return ChatReply(
            text,
            prompt_tokens=self.count_tokens(request.messages),
            completion_tokens=estimate_tokens(text),
            finish="length" if exceeds_limit or corruption == "truncated" else "stop",
        )

    def _reply_by_rule(self, request: ChatRequest) -> str:
        """Return the reply of the rule for a request; without one, log a warning and draw a reply from the schema."""
        question = f"the prompt {request.prompt}" if request.prompt else f"a question of purpose {request.purpose!r}"
        if request.purpose in RULE_MODULES:
            rule: Rule = importlib.import_module(RULE_MODULES[request.purpose]).reply
            try:
                return rule(
                    request.messages,
                    self._seed,
                    lambda content: self._warn_once(f"llm=scripted, {question}: {content}"),
                )
            except UnreadPromptError as error:
                problem = f"llm=scripted cannot find a part of {question} that its rules need: {error}"
        else:
            problem = (
                f"llm=scripted has no rule for this question (purpose {request.purpose!r}); it answers "
                f"{', '.join(RULE_MODULES)}, and questions whose reply has a schema"
            )
        if request.schema is None:
            raise LLMError(f"{problem}. Choose a language model, e.g. llm=openai_compatible or llm=gpt4o.")
        self._warn_once(f"{problem}. Its replies are drawn at random from the requested schema.")
        return draw_reply(request.schema, _seed_text(request))

    def _warn_once(self, message: str) -> None:
        """Log a warning, unless it was logged before."""
        if message not in self._logged_warnings:
            self._logged_warnings.add(message)
            logger.warning("%s", message)

    def _draw_corruption(self, request: ChatRequest) -> str:
        """Return the name of the corruption of a reply in `_CORRUPTIONS`; "" if it is not corrupted."""
        if not any(self._fractions.values()):
            return ""
        digest = hashlib.sha256(_seed_text(request).encode()).digest()
        draw = self._seeds.numpy(int.from_bytes(digest[:4], "big")).random()
        for name, threshold in zip(self._fractions, np.cumsum(list(self._fractions.values())), strict=True):
            if draw < threshold:
                return name
        return ""


def _seed_text(request: ChatRequest) -> str:
    """Return the text that seeds the draws for a request; it includes the repeat index, so that repeats differ."""
    content = "\0".join(message["content"] for message in request.messages)
    return f"{request.question_id}{request.repeat}\0{content}"


_STANDALONE_NUMBER = re.compile(r"(?<!\w\[)(?<![\w.])-?\d+(\.\d+)?(?=\s*[,;}\]\n$])")
"""Number before punctuation or a line end that is not part of a word or an index (`params[3]`)."""


def _exceed_bounds(text: str) -> str:
    """Replace every number x that `_STANDALONE_NUMBER` matches by 1e5 x + sign(x) 1e5."""

    def enlarge(match: re.Match[str]) -> str:
        value = float(match.group())
        return repr(value * 1e5 + math.copysign(1e5, value))

    return _STANDALONE_NUMBER.sub(enlarge, text)


_CORRUPTIONS: dict[str, Callable[[str], str]] = {
    "malformed": lambda text: "Sure! Here is the form: " + _JSON_VALUE.sub("<...>", text),
    "out_of_range": _exceed_bounds,
    "empty": lambda text: "",
    "truncated": lambda text: text[: len(text) // 2],
    "refusal": lambda text: REFUSAL,
}


def draw_reply(schema: Mapping[str, Any], seed_text: str) -> str:
    """Return random JSON that satisfies `schema`; the hash of `seed_text` is the seed.

    The schema may contain objects, lists, enumerations, numbers with bounds, booleans, strings, null, alternatives
    (`anyOf`) and references (`$ref`).

    Raises:
        ValueError: the schema contains another type.
    """
    digest = hashlib.sha256(seed_text.encode("utf-8", errors="replace")).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))
    return json.dumps(_draw_value(schema, schema.get("$defs", {}), rng))


def _draw_value(schema: Mapping[str, Any], definitions: Mapping[str, Any], rng: np.random.Generator) -> Any:
    """Draw a value that satisfies `schema`; `definitions` are the schemas to which references point, by name."""
    if "$ref" in schema:
        return _draw_value(definitions[schema["$ref"].rpartition("/")[2]], definitions, rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][rng.integers(len(schema["enum"]))]
    if "anyOf" in schema:
        return _draw_value(schema["anyOf"][rng.integers(len(schema["anyOf"]))], definitions, rng)
    json_type = schema.get("type")
    if json_type == "object":
        return {name: _draw_value(field, definitions, rng) for name, field in schema.get("properties", {}).items()}
    if json_type == "array":
        min_items = schema.get("minItems", 1)
        max_items = schema.get("maxItems", max(min_items, MAX_LIST_LENGTH))
        return [_draw_value(schema["items"], definitions, rng) for _ in range(rng.integers(min_items, max_items + 1))]
    if json_type in ("integer", "number"):
        return _draw_number(schema, json_type, rng)
    simple_types: dict[str | None, Callable[[], Any]] = {
        "boolean": lambda: bool(rng.integers(2)),
        "string": lambda: FREE_TEXT,
        "null": lambda: None,
    }
    if json_type not in simple_types:
        raise ValueError(f"no reply can be drawn from the schema {json.dumps(schema)[:200]}")
    return simple_types[json_type]()


def _draw_number(schema: Mapping[str, Any], json_type: str, rng: np.random.Generator) -> int | float:
    """Draw a number within the bounds. If one bound is missing, it is assumed at a distance of 1 from the other."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        low, high = _DEFAULT_BOUNDS
    low = high - 1 if low is None else low
    high = low + 1 if high is None else high
    if json_type == "integer":
        first = int(np.ceil(low)) + ("exclusiveMinimum" in schema and float(low).is_integer())
        last = int(np.floor(high)) - ("exclusiveMaximum" in schema and float(high).is_integer())
        return int(rng.integers(first, last + 1))
    # Draws keep a distance from the bounds, which may be exclusive.
    return float(low + (high - low) * (0.05 + 0.9 * rng.random()))
