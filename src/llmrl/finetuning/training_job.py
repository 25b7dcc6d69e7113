"""Inputs of a training method, and the methods' protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from llmrl.core.seeding import Seeds
from llmrl.finetuning.optimizer import Optimizer
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.rewards import RewardFunction, Rewards, Scale
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.loading import Dtype
from llmrl.llms.local.lora import Lora
from llmrl.run.run import Run

if TYPE_CHECKING:
    import torch


@dataclass
class TrainingJob:
    """Inputs of one training.

    Attributes:
        run: run that receives metrics and checkpoints.
        chat: chat model to train, with the tokenizer, template, window and longest reply of its later use.
        module: loaded weights of the model.
        questions: prompts to train on.
        replies: target reply of each question; None where no better vector is known.
        judge, rewards, scale: functions that evaluate and reward replies, and the scale of returns.
        seeds: seed tree of the method.
        folder: folder of the checkpoints of weights.
        resume: newest valid checkpoint in `folder`; None: there is none.
        save: function that makes the checkpoint of a given step valid; raises RunFolderError.
    """

    run: Run
    chat: LocalChat
    module: torch.nn.Module
    questions: Sequence[ProposalPrompt]
    replies: Sequence[str | None]
    judge: RewardFunction
    rewards: Rewards
    scale: Scale
    seeds: Seeds
    folder: Path
    resume: Path | None
    save: Callable[[int], None]

    @property
    def place(self) -> tuple[Path, Seeds, str, Dtype]:
        """Folder, seeds, device and dtype: the last arguments of `Optimizer.arguments`."""
        return self.folder, self.seeds, self.chat.device, self.chat.settings.dtype


class Method(Protocol):
    """Training method, an option of `method=`."""

    name: str
    needs_replies: bool
    """Whether only questions with a known better vector can be used."""

    @property
    def lora(self) -> Lora: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """Return rows (item, amount) that describe the planned training."""
        ...

    def check(self, prompts: int) -> None:
        """Raise ConfigError if this number of usable prompts is too small."""
        ...

    def train(self, job: TrainingJob) -> Any:
        """Train to the last step, from `job.resume` if given, and return the trained `PeftModel`.

        Raises:
            Stopped: a signal stopped the training; everything is saved.
        """
        ...
