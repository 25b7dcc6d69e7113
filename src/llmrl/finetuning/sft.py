"""Supervised fine-tuning: the reply to learn holds parameters that are known to be better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.finetuning.optimiser import Optimiser
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.trainer import run_trainer, trainer_class
from llmrl.finetuning.training_job import TrainingJob
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.lora import Lora


class SFT:
    """`method=sft`: maximises the likelihood of replies with better parameters, given the prompt (trl's SFTTrainer).

    Loss is taken on the tokens of the reply, its end included, and on none of the prompt's. Prompt and reply are
    tokenised as `llm=local_chat` does when it asks.

    Args:
        lora: which weights are trained.
        optimiser: how.
        texts: examples a step.

    Raises:
        ConfigError: `texts` is no multiple of the optimiser's batch.
    """

    name = "sft"
    needs_replies = True

    def __init__(self, lora: Lora, optimiser: Optimiser, texts: PositiveInt = 16) -> None:
        optimiser.accumulation(texts, f"method.texts={texts}")
        self.lora, self.optimiser, self.texts = lora, optimiser, texts

    @property
    def steps(self) -> int:
        return self.optimiser.steps

    def plan(self) -> list[tuple[str, str]]:
        return [("  steps", f"{self.steps:,} of {self.texts} examples, {self.optimiser.batch} at once")]

    def check(self, prompts: int) -> None:
        """Raise ConfigError for fewer examples than a step takes."""
        if prompts < self.texts:
            raise ConfigError(
                f"there are {prompts} prompts with known better parameters, and a step takes "
                f"method.texts={self.texts}; raise dataset.prompts, or give data in which more is known"
            )

    def train(self, job: TrainingJob) -> Any:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        rows = [
            token_row(job, question.messages, reply)
            for question, reply in zip(job.questions, job.replies, strict=True)
            if reply is not None
        ]
        self.check(len(rows))
        arguments = SFTConfig(**self.optimiser.arguments(self.texts, "method.texts", *job.place), max_length=None)
        trainer = trainer_class(SFTTrainer)(
            model=job.module,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=job.chat.tokenizer,
            peft_config=self.lora.config(),
        )
        return run_trainer(trainer, job)


def check_replies(chat: LocalChat, questions: Sequence[ProposalPrompt], replies: Sequence[str | None]) -> None:
    """Raise ConfigError where a reply to learn is longer than replies may be, for which prompts leave room."""
    for question, reply in zip(questions, replies, strict=True):
        if reply is not None and (tokens := len(chat.encode_reply(question.messages, reply))) > chat.reply_tokens:
            raise ConfigError(
                f"the reply to learn takes {tokens} tokens of {chat.model}, and llm.max_tokens={chat.reply_tokens} "
                "would cut it; raise llm.max_tokens"
            )


def token_row(job: TrainingJob, messages: tuple[dict[str, str], ...], reply: str) -> dict[str, list[int]]:
    """`input_ids` and `labels` of one example: the prompt's tokens as they are asked with, then the reply's."""
    prompt = job.chat.encode(messages)
    answer = job.chat.encode_reply(messages, reply)
    return {"input_ids": [*prompt, *answer], "labels": [-100] * len(prompt) + answer}
