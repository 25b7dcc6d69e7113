"""Group-relative policy optimization (DeepSeekMath, arXiv 2402.03300).

Replies are rewarded by playing their parameters, and the better replies to each prompt are made more likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.finetuning.optimizer import Optimizer
from llmrl.finetuning.rewards import REWARDS
from llmrl.finetuning.trainer import run_trainer, trainer_class
from llmrl.finetuning.training_job import TrainingJob
from llmrl.llms.local.lora import Lora


@dataclass(frozen=True)
class GRPO:
    """Training by `method=grpo` (GRPOTrainer of trl).

    A step samples `samples` replies to each of `prompts` prompts. A reply's advantage is its reward minus the mean of
    its group and, with `scale_advantages`, divided by the group's standard deviation. The objective is PPO's clipped
    one over the tokens of the replies.

    Replies are sampled as with `llm=local_chat`, with `temperature` and `top_p` from here, up to `llm.max_tokens`.

    Attributes:
        lora: adapter whose weights are trained.
        optimizer: settings of the optimizer.
        prompts: number of prompts per step.
        samples: number of replies to each prompt, G >= 2.
        temperature, top_p: settings of sampling.
        updates: passes over the replies of a step; each counts as an optimizer step.
        clip: distance of probability ratios from 1 at which the objective is clipped.
        clip_high: the same above 1; None: `clip`.
        kl: weight of the divergence from the model without the adapter; 0: it is not computed.
        loss: weights of tokens: `grpo`, equal for each reply, as published; `dapo`, equal for each token of the step;
            `dr_grpo`, equal for each token, divided by the length of the longest reply.
        scale_advantages: standard deviation that advantages are divided by, that of the `group` or the `batch`; `none`:
            they are not divided.

    Raises:
        ConfigError: there are fewer than two samples, or a step is not a multiple of the optimizer's batch.
    """

    name = "grpo"
    needs_replies = False

    lora: Lora
    optimizer: Optimizer
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
        self.optimizer.accumulation(
            self.prompts * self.samples, f"method.prompts={self.prompts} x method.samples={self.samples}"
        )

    @property
    def steps(self) -> int:
        """Number of optimizer steps."""
        return self.optimizer.steps

    def plan(self) -> list[tuple[str, str]]:
        """Return rows (item, amount) that describe the planned training."""
        replies = self.prompts * self.samples
        rounds = -(-self.steps // self.updates)
        return [
            ("  steps", f"{self.steps:,}, each of {self.prompts} prompts x {self.samples} replies"),
            ("  replies", f"{rounds * replies:,}, {self.optimizer.batch} at once in training"),
        ]

    def check(self, prompts: int) -> None:
        """Raise ConfigError if there are fewer prompts than a step needs."""
        if prompts < self.prompts:
            raise ConfigError(
                f"there are {prompts} prompts, but a step needs method.prompts={self.prompts}; increase dataset.prompts"
            )

    def train(self, job: TrainingJob) -> Any:
        """Train to the last step and return the trained `PeftModel`."""
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        self.check(len(job.questions))
        replies = self.prompts * self.samples
        arguments = GRPOConfig(
            **self.optimizer.arguments(replies, "method.prompts x method.samples", *job.place),
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
        rows = [{"prompt": list(q.messages), "row": i} for i, q in enumerate(job.questions)]
        trainer = trainer_class(GRPOTrainer)(
            model=job.module,
            args=arguments,
            reward_funcs=[_TrainerReward(name, job) for name in job.rewards.weights],
            train_dataset=Dataset.from_list(rows),
            processing_class=job.chat.tokenizer,
            peft_config=self.lora.config(),
        )
        return run_trainer(trainer, job, job.judge.metrics, every=self.updates)


class _TrainerReward:
    """Reward function for the trainer. All reward functions share the evaluation of a batch of replies."""

    def __init__(self, name: str, job: TrainingJob) -> None:
        self.__name__ = name
        self._reward, self._job = REWARDS[name], job

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], row: Sequence[int], trainer_state: Any, **_: Any
    ) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        questions = [self._job.questions[i] for i in row]
        attempts = self._job.judge(questions, texts, f"step {trainer_state.global_step}")
        return [self._reward(attempt, self._job.scale) for attempt in attempts]
