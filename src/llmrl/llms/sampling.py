"""Sampling and reasoning settings of a hosted model, checked before the first request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, UnitInterval

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

CLIENT_FIELDS = {
    *("model", "messages", "contents", "system", "system_instruction", "systemInstruction", "stream", "stream_options"),
    *("temperature", "top_p", "seed", "random_seed", "stop", "stop_sequences", "generationConfig", "generation_config"),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "num_predict", "options", "extra_body"),
    *("response_format", "output_format", "output_config", "reasoning_effort", "reasoning", "thinking"),
}
"""Fields of requests that the client sets itself, so that `extra_body` must not contain them."""
UNSUPPORTED_FIELDS = {
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
        sampling_seed: seed of the provider's sampling; for the n-th repetition of a request it is sent plus n.
        stop: texts that end a reply.
        reasoning_effort: amount of reasoning before the answer.
        thinking_budget: tokens for thoughts, in addition to those for the answer, >= 1.
        extra_body: further fields of each request, as JSON-compatible values.

    Raises:
        ConfigError: a stop text is empty, or a field of `extra_body` is reserved or not JSON-compatible.
    """

    temperature: NonNegativeFloat | None
    top_p: UnitInterval | None
    sampling_seed: NonNegativeInt | None
    stop: list[str] | None
    reasoning_effort: Effort | None
    thinking_budget: PositiveInt | None
    extra_body: dict[str, Any] | None

    def __post_init__(self) -> None:
        if self.stop is not None and not all(self.stop):
            raise ConfigError("llm.stop contains an empty text, which would end every reply; remove it")
        for name, value in (self.extra_body or {}).items():
            if name in CLIENT_FIELDS:
                raise ConfigError(
                    f"llm.extra_body.{name} is reserved for the client; use the corresponding option of llm"
                )
            if name in UNSUPPORTED_FIELDS:
                raise ConfigError(
                    f"llm.extra_body.{name} is not supported, because it changes the form or the price of replies; "
                    "remove it"
                )
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(f"llm.extra_body.{name} must be JSON-compatible: {error}") from None

    @property
    def identity(self) -> dict[str, Any]:
        """All sampling settings as JSON-compatible values, since each can change the reply."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.sampling_seed,
            "stop": self.stop,
            "reasoning_effort": self.reasoning_effort,
            "thinking_budget": self.thinking_budget,
            "extra_body": self.extra_body,
        }

    def max_tokens_with_thoughts(self, answer: int | None) -> int | None:
        """Return the limit on tokens of thoughts and answer together for an `answer` limit; None: no limit."""
        return None if answer is None else answer + (self.thinking_budget or 0)

    def seed_of(self, repeat: int) -> int | None:
        """Return the seed for the `repeat`-th repetition of a request, so that replies are independent; None: none."""
        return None if self.sampling_seed is None else self.sampling_seed + repeat
