"""Sampling and reasoning settings of a hosted model, checked before the first request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

OWN_FIELDS = {
    *("model", "messages", "contents", "system", "system_instruction", "systemInstruction", "stream", "stream_options"),
    *("temperature", "top_p", "seed", "random_seed", "stop", "stop_sequences", "generationConfig", "generation_config"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "options", "extra_body"),
    *("response_format", "output_format", "output_config", "reasoning_effort", "reasoning", "thinking"),
}
"""Fields of requests that the client sets itself, so that `extra_body` must not contain them."""
CHARGED_FIELDS = {
    *("n", "best_of", "candidateCount", "service_tier", "tools", "tool_choice", "functions", "function_call"),
    *("web_search_options", "plugins", "modalities", "audio", "prediction", "logprobs", "top_logprobs"),
}
"""Fields that request several replies, other prices or other output than text, none of which is supported."""


@dataclass(frozen=True)
class SamplingSettings:
    """Sampling settings of one model; None: the provider's default.

    Attributes:
        temperature: sampling temperature, >= 0.
        top_p: sample among the most probable tokens that together have this probability, [0, 1].
        seed: seed of the provider's sampling; for the n-th repetition of a request seed + n is sent.
        stop: texts that end a reply.
        reasoning_effort: amount of reasoning before the answer.
        thinking_budget: tokens for thoughts, in addition to those for the answer, >= 1.
        extra_body: further fields of each request, as JSON-compatible values.

    Raises:
        ConfigError: a stop text is empty, or a field of `extra_body` is reserved or not JSON-compatible.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] | None = None
    reasoning_effort: Effort | None = None
    thinking_budget: int | None = None
    extra_body: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.stop is not None and not all(self.stop):
            raise ConfigError("llm.stop holds an empty text, which would end every reply; leave it out")
        for name, value in (self.extra_body or {}).items():
            if name in OWN_FIELDS:
                raise ConfigError(f"llm.extra_body.{name} is set by the client itself: use the option of llm for it")
            if name in CHARGED_FIELDS:
                raise ConfigError(f"llm.extra_body.{name} would change what a reply is or costs unseen: it is not sent")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"llm.extra_body.{name} is no JSON: {error}") from None

    @property
    def identity(self) -> dict[str, Any]:
        """All settings as JSON-compatible values, since each can change the reply."""
        return {
            **asdict(self),
            "stop": None if self.stop is None else list(self.stop),
            "extra_body": None if self.extra_body is None else dict(self.extra_body),
        }

    def longest(self, answer: int | None) -> int | None:
        """Return the limit on tokens of thoughts and answer together for an `answer` limit; None: no limit."""
        return None if answer is None else answer + (self.thinking_budget or 0)

    def seed_of(self, repeat: int) -> int | None:
        """Return the seed for the `repeat`-th repetition of a request, so that replies are independent; None: none."""
        return None if self.seed is None else self.seed + repeat
