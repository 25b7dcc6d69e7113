"""Small chat models that are created on a CPU and have learned the format of replies, but not the task."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.llms.local.small import END, SmallModelShape, make_llama, make_tokenizer, save_small_model

ROLES = ("user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages if message.role != 'system' %}<|{{ message.role }}|>{{ message.content }}"
    f"{{% if message.role == 'assistant' %}}{END}{{% endif %}}{{% endfor %}}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Chat template in which a conversation begins with all its earlier prompts and replies, token for token.

It omits system messages. These are equal in all prompts, and the model has not learned the language of their rules, but
their tokens would dominate attention: training then moves the replies to all observations together.
"""


@dataclass(frozen=True, kw_only=True)
class SmallChat(SmallModelShape):
    """Settings of a small chat model that is created when it is first needed.

    Attributes:
        format_steps: steps of supervised training on replies of a random legal player, each on 32 replies.
        format_learning_rate: learning rate of Adam in these steps.
        seed: seed of weights and training; None: the run's.
    """

    tokens: Literal["messages"] = "messages"
    format_steps: PositiveInt
    format_learning_rate: PositiveFloat
    seed: NonNegativeInt | None

    @property
    def told(self) -> str:
        """Phrase that names the training."""
        return "has learned the format of replies"


def make_small_chat(folder: Path, texts: Iterable[str], shape: SmallModelShape, seed: int) -> int:
    """Write an untrained chat model with tokenizer and chat template; return the number of weights.

    Args:
        folder: folder to write to.
        texts: samples of the messages that the model will read and write.
        shape: sizes.
        seed: seed of the weights.

    Raises:
        ConfigError: as `make_small_model`.
    """
    tokenizer = make_tokenizer(list(texts), shape)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{role}|>" for role in ROLES]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return save_small_model(folder, tokenizer, lambda: make_llama(tokenizer, shape), seed)
