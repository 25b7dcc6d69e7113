"""How a hosted model is to sample and think: what is sent beside the messages, checked before anything is asked."""

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
"""Fields of requests that the client fills in itself: an `extra_body` would contradict them, or what they cost."""
CHARGED_FIELDS = {
    *("n", "best_of", "candidateCount", "service_tier", "tools", "tool_choice", "functions", "function_call"),
    *("web_search_options", "plugins", "modalities", "audio", "prediction", "logprobs", "top_logprobs"),
}
"""Fields that ask for more replies, other prices or other things than a text: none of it is counted or read."""


@dataclass(frozen=True)
class Sampling:
    """Settings of one model; None leaves each to the provider.

    Attributes:
        temperature: of sampling, >= 0.
        top_p: sample among the likeliest tokens that together have this probability, [0, 1].
        seed: of the provider's sampling; the n-th repetition of a question is sent seed + n.
        stop: texts that end a reply.
        reasoning_effort: how long a reasoning model thinks before it answers.
        thinking_budget: tokens for the thought, beside those for the answer, >= 1.
        extra_body: further fields of each request, as JSON.

    Raises:
        ConfigError: a stop text is empty, or a field of `extra_body` is no JSON or not for users to set.
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
        """All of it, as JSON: each setting can change the reply."""
        return {
            **asdict(self),
            "stop": None if self.stop is None else list(self.stop),
            "extra_body": None if self.extra_body is None else dict(self.extra_body),
        }

    def longest(self, answer: int | None) -> int | None:
        """Tokens of thought and answer together, which is what providers limit; None: no limit."""
        return None if answer is None else answer + (self.thinking_budget or 0)

    def seed_of(self, repeat: int) -> int | None:
        """What is sent for the `repeat`-th repetition of a question, whose replies are to be independent."""
        return None if self.seed is None else self.seed + repeat
