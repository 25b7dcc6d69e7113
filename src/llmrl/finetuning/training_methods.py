"""Training methods: supervised fine-tuning and group-relative policy optimization, by trainers of trl.

Their base class `TrainingMethod` runs a trainer, whose metrics and checkpoints go to a run of llmrl.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.finetuning.prompt_format import ProposalPrompt
from llmrl.finetuning.rewards import REWARDS, ReplyEvaluator, ReturnScale, Rewards
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.lora import Lora
from llmrl.run.run import Run

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Optimizer:
    """Settings of AdamW and of the batch size.

    Attributes:
        steps: number of optimizer steps.
        learning_rate: maximum learning rate, reached at the end of the warm-up.
        schedule: course of the learning rate after the warm-up; `linear` and `cosine` end at 0.
        warmup: fraction of the steps in which the learning rate rises from 0.
        weight_decay: weight decay of AdamW.
        max_grad_norm: maximum norm of the gradient; larger gradients are scaled to it.
        batch: number of texts per forward pass, a divisor of the number of texts per optimizer step. Decrease it if
            memory is exhausted.
        recompute: recompute activations in the backward pass instead of storing them (gradient checkpointing), which
            takes less memory and about a fifth more time.
    """

    steps: PositiveInt = 100
    learning_rate: PositiveFloat = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: UnitInterval = 0.0
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    batch: PositiveInt = 4
    recompute: bool = False

    def check_batch(self, n_texts: int, subject: str) -> None:
        """Raise ConfigError unless a step of `n_texts` texts, described by `subject`, is a multiple of `batch`."""
        if n_texts % self.batch:
            raise ConfigError(
                f"{subject} is {n_texts} texts per step, which must be a multiple of "
                f"method.optimizer.batch={self.batch}"
            )


@dataclass
class TrainingJob:
    """Inputs of one training by a `TrainingMethod`.

    Attributes:
        run: run that receives metrics and checkpoints.
        chat: chat model to train; its tokenizer, template, context window and `max_tokens` also apply in training.
        module: loaded model.
        prompts: prompts to train on.
        target_replies: target reply to each prompt; None if no trial is better than those in the prompt.
        evaluator: evaluator of replies, which plays their parameters.
        rewards, scale: rewards of evaluated replies, and the scale of their returns.
        seeds: node of the seed tree for the method.
        folder: folder of the trainer's checkpoints.
        resume_path: trainer checkpoint in `folder` to resume from; None: train from the first step.
        save_checkpoint: function that is called with the step of a complete trainer checkpoint. It saves a checkpoint
            of the run that refers to this step, or raises RunFolderError.
    """

    run: Run
    chat: LocalChat
    module: torch.nn.Module
    prompts: Sequence[ProposalPrompt]
    target_replies: Sequence[str | None]
    evaluator: ReplyEvaluator
    rewards: Rewards
    scale: ReturnScale
    seeds: Seeds
    folder: Path
    resume_path: Path | None
    save_checkpoint: Callable[[int], None]


@dataclass(frozen=True)
class TrainingMethod(ABC):
    """Base of training methods, the options of `method=`.

    Attributes:
        name: name of the method.
        needs_targets: whether only prompts with a target reply are used.
        lora: settings of the trained adapter.
        optimizer: settings of the optimizer.
    """

    name: ClassVar[str]
    needs_targets: ClassVar[bool]
    lora: Lora
    optimizer: Optimizer

    @property
    def resume_interval(self) -> int:
        """Number of optimizer steps between two points from which a training can resume exactly."""
        return 1

    @abstractmethod
    def plan(self) -> list[tuple[str, str]]:
        """Return rows (label, description) of the plan that is printed before the training."""

    @abstractmethod
    def check_prompt_count(self, n_available: int) -> None:
        """Raise ConfigError if `n_available` prompts are too few for a step."""

    @abstractmethod
    def build_trainer(self, job: TrainingJob, **options: Any) -> Any:
        """Return a trainer of trl; `options` are keyword arguments of all trainers, such as `model`."""

    def make_training_arguments(self, n_texts: int, job: TrainingJob) -> dict[str, Any]:
        """Return keyword arguments of transformers' `TrainingArguments` for steps of `n_texts` texts.

        Raises:
            ConfigError: more than one GPU is visible.
        """
        import torch

        optimizer, device = self.optimizer, job.chat.device
        if device.startswith("cuda") and torch.cuda.device_count() > 1:
            raise ConfigError(
                f"{torch.cuda.device_count()} GPUs are visible, but a run trains on one; select it with "
                "CUDA_VISIBLE_DEVICES, as hardware=gpu and hardware=slurm_finetune do for each run of a sweep"
            )
        schedules = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
        return {
            "output_dir": str(job.folder),
            "max_steps": optimizer.steps,
            "per_device_train_batch_size": optimizer.batch,
            "gradient_accumulation_steps": n_texts // optimizer.batch,
            "learning_rate": optimizer.learning_rate,
            "lr_scheduler_type": schedules[optimizer.schedule],
            "warmup_steps": round(optimizer.warmup * optimizer.steps),
            "weight_decay": optimizer.weight_decay,
            "max_grad_norm": optimizer.max_grad_norm,
            "gradient_checkpointing": optimizer.recompute,
            "bf16": job.chat.settings.dtype == "bfloat16",
            "use_cpu": device == "cpu",
            "seed": job.seeds.integer("trainer"),
            "data_seed": job.seeds.integer("order"),
            # `CheckpointCallback` decides when to save, and logs to the run.
            "save_strategy": "no",
            "save_total_limit": 2,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
            "push_to_hub": False,
        }

    def train(self, job: TrainingJob) -> Any:
        """Train to the last step, from `job.resume_path` if given, and return the trained `PeftModel`.

        Raises:
            ConfigError: more than one GPU is visible.
            Stopped: a signal stopped the training; a checkpoint has been saved.
        """
        from transformers.trainer_callback import PrinterCallback, ProgressCallback

        from llmrl.finetuning.checkpoint_callback import CheckpointCallback

        with _suppress_library_messages():
            trainer = self.build_trainer(
                job, model=job.module, processing_class=job.chat.tokenizer, peft_config=self.lora.peft_config()
            )
            for callback in (PrinterCallback, ProgressCallback):
                trainer.remove_callback(callback)
            step = 0 if job.resume_path is None else int(job.resume_path.name.rpartition("-")[2])
            with job.run.progress(trainer.args.max_steps, "steps", "finetune", step) as progress:
                trainer.add_callback(
                    CheckpointCallback(
                        job.run, progress, job.save_checkpoint, job.evaluator.metrics, self.resume_interval
                    )
                )
                save_trainer_checkpoint = trainer._save_checkpoint

                def save_without_interruption(*arguments: Any, **options: Any) -> None:
                    with job.run.saving():  # delays signals until the checkpoint is complete
                        save_trainer_checkpoint(*arguments, **options)

                trainer._save_checkpoint = save_without_interruption
                trainer.train(resume_from_checkpoint=None if job.resume_path is None else str(job.resume_path))
        return trainer.model


def make_trainer_class(base: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of trl that sends no telemetry and writes no model cards."""

    class Trainer(base):  # type: ignore[misc]
        def _send_telemetry(self) -> None: ...

        def create_model_card(self, *_: Any, **__: Any) -> None: ...

    return Trainer


@contextmanager
def _suppress_library_messages() -> Iterator[None]:
    """Suppress warnings of libraries about settings that are intended, such as changed special tokens."""
    loggers = [logging.getLogger(name) for name in ("transformers", "trl", "accelerate", "peft")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True)
class SFT(TrainingMethod):
    """Supervised fine-tuning (`method=sft`) on replies with better parameters, by trl's SFTTrainer.

    The loss covers the tokens of the reply, including its end token, but not the prompt. Prompt and reply are tokenized
    by `LocalChat`.

    Attributes:
        lora, optimizer: see `TrainingMethod`.
        texts: number of examples per step.

    Raises:
        ConfigError: `texts` is not a multiple of the optimizer's batch.
    """

    name = "sft"
    needs_targets = True

    texts: PositiveInt = 16

    def __post_init__(self) -> None:
        self.optimizer.check_batch(self.texts, f"method.texts={self.texts}")

    def plan(self) -> list[tuple[str, str]]:
        return [("  steps", f"{self.optimizer.steps:,} of {self.texts} examples, {self.optimizer.batch} at once")]

    def check_prompt_count(self, n_available: int) -> None:
        if n_available < self.texts:
            raise ConfigError(
                f"there are {n_available} prompts with known better parameters, but a step needs "
                f"method.texts={self.texts}; increase dataset.prompts, or use trials with more improvements"
            )

    def build_trainer(self, job: TrainingJob, **options: Any) -> Any:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        examples = [
            tokenize_example(job, prompt.messages, reply)
            for prompt, reply in zip(job.prompts, job.target_replies, strict=True)
            if reply is not None
        ]
        arguments = SFTConfig(**self.make_training_arguments(self.texts, job), max_length=None)
        return make_trainer_class(SFTTrainer)(args=arguments, train_dataset=Dataset.from_list(examples), **options)


def check_target_replies(
    chat: LocalChat, prompts: Sequence[ProposalPrompt], target_replies: Sequence[str | None]
) -> None:
    """Raise ConfigError if a target reply has more tokens than `llm.max_tokens`."""
    max_tokens = chat.settings.max_tokens
    for prompt, reply in zip(prompts, target_replies, strict=True):
        if reply is not None and (n_tokens := len(chat.encode_reply(prompt.messages, reply))) > max_tokens:
            raise ConfigError(
                f"a target reply has {n_tokens} tokens of {chat.model}, more than llm.max_tokens={max_tokens}; "
                "increase llm.max_tokens"
            )


def tokenize_example(job: TrainingJob, messages: tuple[dict[str, str], ...], reply: str) -> dict[str, list[int]]:
    """Return `input_ids` (prompt, then reply) and `labels` of one example; labels of the prompt are -100 (no loss)."""
    prompt_ids = job.chat.encode(messages)
    reply_ids = job.chat.encode_reply(messages, reply)
    return {"input_ids": [*prompt_ids, *reply_ids], "labels": [-100] * len(prompt_ids) + reply_ids}


@dataclass(frozen=True)
class GRPO(TrainingMethod):
    """Group-relative policy optimization (`method=grpo`; arXiv 2402.03300), by trl's GRPOTrainer.

    A step samples `samples` replies, a group, to each of `prompts` prompts. The rewards of a reply are computed from
    episodes with its parameters. Its advantage is its reward minus the mean reward of its group, divided by a standard
    deviation according to `scale_advantages`. The objective is PPO's clipped objective over the tokens of the replies.

    Replies are sampled with `temperature` and `top_p` of this method, and have at most `llm.max_tokens` tokens.

    Attributes:
        lora, optimizer: see `TrainingMethod`.
        prompts: number of prompts per step.
        samples: number of replies to each prompt, G >= 2.
        temperature, top_p: sampling temperature, > 0, and nucleus probability, (0, 1].
        updates: number of optimizer steps on the same replies.
        clip: distance of probability ratios from 1 at which the objective is clipped.
        clip_high: distance for ratios above 1; None: `clip`.
        kl: weight of the KL divergence from the model without the adapter; 0: it is not computed.
        loss: weights of tokens: `grpo`: equal sums for all replies; `dapo`: equal for all tokens of the step;
            `dr_grpo`: 1 / (number of replies x `llm.max_tokens`).
        scale_advantages: divisor of advantages: the standard deviation of the `group` or of the `batch`, or `none`.

    Raises:
        ConfigError: there are fewer than two samples, or a step is not a multiple of the optimizer's batch.
    """

    name = "grpo"
    needs_targets = False

    prompts: PositiveInt
    samples: PositiveInt
    temperature: PositiveFloat
    top_p: UnitInterval
    updates: PositiveInt
    clip: PositiveFloat
    clip_high: PositiveFloat | None
    kl: NonNegativeFloat
    loss: Literal["grpo", "dapo", "dr_grpo"]
    scale_advantages: Literal["group", "batch", "none"]

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigError(
                f"method.samples={self.samples} must be at least 2, because replies to the same prompt are compared"
            )
        if self.top_p == 0.0:
            raise ConfigError("method.top_p=0 excludes all tokens; use a number in (0, 1]")
        self.optimizer.check_batch(
            self.prompts * self.samples, f"method.prompts={self.prompts} x method.samples={self.samples}"
        )

    def plan(self) -> list[tuple[str, str]]:
        steps = self.optimizer.steps
        n_replies = -(-steps // self.updates) * self.prompts * self.samples
        return [
            ("  steps", f"{steps:,}, each of {self.prompts} prompts x {self.samples} replies"),
            ("  replies", f"{n_replies:,}, {self.optimizer.batch} at once in training"),
        ]

    def check_prompt_count(self, n_available: int) -> None:
        if n_available < self.prompts:
            raise ConfigError(
                f"there are {n_available} prompts, but a step needs method.prompts={self.prompts}; increase "
                "dataset.prompts"
            )

    @property
    def resume_interval(self) -> int:
        return self.updates  # a checkpoint does not contain the replies that these steps share

    def build_trainer(self, job: TrainingJob, **options: Any) -> Any:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        arguments = GRPOConfig(
            **self.make_training_arguments(self.prompts * self.samples, job),
            num_generations=self.samples,
            max_completion_length=job.chat.settings.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            num_iterations=self.updates,
            epsilon=self.clip,
            epsilon_high=self.clip_high,
            beta=self.kl,
            loss_type=self.loss,
            scale_rewards=self.scale_advantages,
            reward_weights=list(job.rewards.weights.values()),
        )
        dataset_rows = [{"prompt": list(prompt.messages), "prompt_index": i} for i, prompt in enumerate(job.prompts)]
        reward_functions = [_TrlReward(name, job) for name in job.rewards.weights]
        return make_trainer_class(GRPOTrainer)(
            args=arguments, train_dataset=Dataset.from_list(dataset_rows), reward_funcs=reward_functions, **options
        )


class _TrlReward:
    """One named reward as a reward function of trl. `ReplyEvaluator` plays each batch once for all of them."""

    def __init__(self, name: str, job: TrainingJob) -> None:
        self.__name__ = name
        self._reward, self._job = REWARDS[name], job

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        prompt_index: Sequence[int],
        trainer_state: Any,
        **_: Any,
    ) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        batch_prompts = [self._job.prompts[i] for i in prompt_index]
        evaluated_replies = self._job.evaluator(batch_prompts, texts, f"step {trainer_state.global_step}")
        return [self._reward(reply, self._job.scale) for reply in evaluated_replies]
