"""Group-relative policy optimization (DeepSeekMath, arXiv 2402.03300).

Replies are rewarded by playing their parameters, and the better replies to each prompt are made more likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.finetuning.rewards import REWARDS
from llmrl.finetuning.training_method import TrainingJob, TrainingMethod, trainer_class


@dataclass(frozen=True)
class GRPO(TrainingMethod):
    """Training by `method=grpo` (GRPOTrainer of trl).

    A step samples `samples` replies to each of `prompts` prompts. A reply's advantage is its reward minus the mean of
    its group and, with `scale_advantages`, divided by the group's standard deviation. The objective is PPO's clipped
    one over the tokens of the replies.

    Replies are sampled as with `llm=local_chat`, with `temperature` and `top_p` from here, up to `llm.max_tokens`.

    Attributes:
        lora, optimizer: see `TrainingMethod`.
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
        self.optimizer.check_step(
            self.prompts * self.samples, f"method.prompts={self.prompts} x method.samples={self.samples}"
        )

    def plan(self) -> list[tuple[str, str]]:
        replies = self.prompts * self.samples
        steps = self.optimizer.steps
        rounds = -(-steps // self.updates)
        return [
            ("  steps", f"{steps:,}, each of {self.prompts} prompts x {self.samples} replies"),
            ("  replies", f"{rounds * replies:,}, {self.optimizer.batch} at once in training"),
        ]

    def check(self, prompts: int) -> None:
        if prompts < self.prompts:
            raise ConfigError(
                f"there are {prompts} prompts, but a step needs method.prompts={self.prompts}; increase dataset.prompts"
            )

    @property
    def resume_interval(self) -> int:
        return self.updates  # the steps between share their replies

    def step_metrics(self, job: TrainingJob) -> Mapping[str, float]:
        return job.judge.metrics()

    def trainer(self, job: TrainingJob, **options: Any) -> Any:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        arguments = GRPOConfig(
            **self.arguments(self.prompts * self.samples, job),
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
        reward_functions = [_TrainerReward(name, job) for name in job.rewards.weights]
        return trainer_class(GRPOTrainer)(
            args=arguments, train_dataset=Dataset.from_list(rows), reward_funcs=reward_functions, **options
        )


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
