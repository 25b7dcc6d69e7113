"""Supervised fine-tuning on replies with parameters that are known to be better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.training_method import TrainingJob, TrainingMethod, trainer_class
from llmrl.llms.local.chat import LocalChat


@dataclass(frozen=True)
class SFT(TrainingMethod):
    """Training by `method=sft`, which maximizes the likelihood of replies with better parameters (SFTTrainer of trl).

    The loss is over the tokens of the reply, including its end token, and not over those of the prompt. Prompt and
    reply are tokenized as by `llm=local_chat`.

    Attributes:
        lora, optimizer: see `TrainingMethod`.
        texts: number of examples per step.

    Raises:
        ConfigError: `texts` is not a multiple of the optimizer's batch.
    """

    name = "sft"
    needs_replies = True

    texts: PositiveInt = 16

    def __post_init__(self) -> None:
        self.optimizer.check_step(self.texts, f"method.texts={self.texts}")

    def plan(self) -> list[tuple[str, str]]:
        return [("  steps", f"{self.optimizer.steps:,} of {self.texts} examples, {self.optimizer.batch} at once")]

    def check(self, prompts: int) -> None:
        if prompts < self.texts:
            raise ConfigError(
                f"there are {prompts} prompts with known better parameters, but a step needs "
                f"method.texts={self.texts}; increase dataset.prompts, or use trials with more improvements"
            )

    def trainer(self, job: TrainingJob, **options: Any) -> Any:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        rows = [
            token_row(job, question.messages, reply)
            for question, reply in zip(job.questions, job.replies, strict=True)
            if reply is not None
        ]
        arguments = SFTConfig(**self.arguments(self.texts, job), max_length=None)
        return trainer_class(SFTTrainer)(args=arguments, train_dataset=Dataset.from_list(rows), **options)


def check_replies(chat: LocalChat, questions: Sequence[ProposalPrompt], replies: Sequence[str | None]) -> None:
    """Raise ConfigError if a target reply has more tokens than `llm.max_tokens`."""
    max_tokens = chat.settings.max_tokens
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None and (tokens := len(chat.encode_reply(question.messages, reply))) > max_tokens:
            raise ConfigError(
                f"a target reply has {tokens} tokens of {chat.model}, more than llm.max_tokens={max_tokens}; increase "
                "llm.max_tokens"
            )


def token_row(job: TrainingJob, messages: tuple[dict[str, str], ...], reply: str) -> dict[str, list[int]]:
    """Return `input_ids` and `labels` of one example: the prompt's tokens as in a request, then the reply's."""
    prompt = job.chat.encode(messages)
    answer = job.chat.encode_reply(messages, reply)
    return {"input_ids": [*prompt, *answer], "labels": [-100] * len(prompt) + answer}
