"""What a method of training is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmrl.core.run_context import RunContext
from llmrl.core.seeding import Seeds
from llmrl.finetuning.judge import Judge
from llmrl.finetuning.optimiser import Optimiser
from llmrl.finetuning.questions import Question
from llmrl.finetuning.rewards import Rewards, Scale
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.loading import Dtype
from llmrl.llms.local.lora import Lora

if TYPE_CHECKING:
    import torch


@dataclass
class TrainingJob:
    """One training.

    Attributes:
        run: the run; metrics and checkpoints go there.
        chat: the model to train, as it will be asked: its tokenizer, template, window and longest reply.
        module: its weights, loaded.
        questions: to train on.
        replies: for each question the reply to learn, where a better vector is known; else None.
        judge, rewards, scale: what a reply is worth.
        seeds: of the method.
        folder: where checkpoints of weights are kept.
        resume: the newest of them that counts; None: there is none.
        save: makes it count, given its step; raises RunFolderError.
    """

    run: RunContext
    chat: LocalChat
    module: torch.nn.Module
    questions: Sequence[Question]
    replies: Sequence[str | None]
    judge: Judge
    rewards: Rewards
    scale: Scale
    seeds: Seeds
    folder: Path
    resume: Path | None
    save: Callable[[int], None]

    @property
    def place(self) -> tuple[Path, Seeds, str, Dtype]:
        """Where and in what is trained: the last arguments of `Optimiser.arguments`."""
        return self.folder, self.seeds, self.chat.device, self.chat.dtype


class Method(Protocol):
    """How a model is trained: an option of `method=`."""

    name: str
    needs_replies: bool
    """Questions without a known better vector cannot be used."""
    lora: Lora
    optimiser: Optimiser

    @property
    def steps(self) -> int:
        """Optimiser steps."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """What it would do: rows (what, how much)."""
        ...

    def check(self, prompts: int) -> None:
        """Raise ConfigError if so many prompts that can be used are too few."""
        ...

    def train(self, job: TrainingJob) -> Any:
        """Train, or go on from `job.resume`, to the last step; the trained `PeftModel`.

        Raises:
            Stopped: a signal asked for it; everything is saved.
        """
        ...
