"""Supervised fine-tuning on replies with parameters that are known to be better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.finetuning.optimizer import Optimizer
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.trainer import run_trainer, trainer_class
from llmrl.finetuning.training_job import TrainingJob
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.lora import Lora


class SFT:
    """Training by `method=sft`, which maximizes the likelihood of replies with better parameters (SFTTrainer of trl).

    The loss is over the tokens of the reply, including its end token, and not over those of the prompt. Prompt and
    reply are tokenized as by `llm=local_chat`.

    Args:
        lora: adapter whose weights are trained.
        optimizer: settings of the optimizer.
        texts: number of examples per step.

    Raises:
        ConfigError: `texts` is not a multiple of the optimizer's batch.
    """

    name = "sft"
    needs_replies = True

    def __init__(self, lora: Lora, optimizer: Optimizer, texts: PositiveInt = 16) -> None:
        optimizer.accumulation(texts, f"method.texts={texts}")
        self.lora, self.optimizer, self.texts = lora, optimizer, texts

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return self.optimizer.steps

    def plan(self) -> list[tuple[str, str]]:
        """Return rows (item, amount) that describe the planned training."""
        return [("  steps", f"{self.steps:,} of {self.texts} examples, {self.optimizer.batch} at once")]

    def check(self, prompts: int) -> None:
        """Raise ConfigError if there are fewer examples than a step needs."""
        if prompts < self.texts:
            raise ConfigError(
                f"there are {prompts} prompts with known better parameters, but a step needs "
                f"method.texts={self.texts}; increase dataset.prompts, or use trials with more improvements"
            )

    def train(self, job: TrainingJob) -> Any:
        """Train to the last step and return the trained `PeftModel`."""
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        rows = [
            token_row(job, question.messages, reply)
            for question, reply in zip(job.questions, job.replies, strict=True)
            if reply is not None
        ]
        self.check(len(rows))
        arguments = SFTConfig(**self.optimizer.arguments(self.texts, "method.texts", *job.place), max_length=None)
        trainer = trainer_class(SFTTrainer)(
            model=job.module,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=job.chat.tokenizer,
            peft_config=self.lora.config(),
        )
        return run_trainer(trainer, job)


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
