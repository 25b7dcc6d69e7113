"""Group-relative policy optimisation (DeepSeekMath, arXiv 2402.03300): replies are played, and the better ones of each
prompt made likelier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.finetuning.optimiser import Optimiser
from llmrl.finetuning.rewards import REWARDS
from llmrl.finetuning.trainer import run_trainer, trainer_class
from llmrl.finetuning.training_job import TrainingJob
from llmrl.llms.local.lora import Lora


class GRPO:
    """`method=grpo` (trl's GRPOTrainer).

    A step samples `samples` replies to each of `prompts` prompts. A reply's advantage is its reward less the mean of
    its group, and, with `scale_advantages`, divided by the group's standard deviation. The objective is PPO's clipped
    one over the tokens of the replies.

    Replies are sampled as `llm=local_chat` samples them with `temperature` and `top_p` here, up to `llm.max_tokens`.

    Args:
        lora: which weights are trained.
        optimiser: how.
        prompts: of a step.
        samples: replies to each, G >= 2.
        temperature, top_p: of sampling.
        updates: passes over the replies of a step; each counts as a step of the optimiser.
        clip: how far probability ratios may leave 1 before the objective is flat.
        clip_high: the same upwards; None: as `clip`.
        kl: weight of the divergence from the model without the adapter; 0 computes none.
        loss: how tokens are weighted: `grpo`, each reply alike, as published; `dapo`, each token of the step alike;
            `dr_grpo`, each token alike, divided by the longest reply.
        scale_advantages: divide by the standard deviation of the `group`, of the `batch`, or by none (`none`).

    Raises:
        ConfigError: fewer than two samples, or a step that is no multiple of the optimiser's batch.
    """

    name = "grpo"
    needs_replies = False

    def __init__(
        self,
        lora: Lora,
        optimiser: Optimiser,
        prompts: PositiveInt = 4,
        samples: PositiveInt = 8,
        temperature: PositiveFloat = 1.0,
        top_p: UnitInterval = 1.0,
        updates: PositiveInt = 1,
        clip: PositiveFloat = 0.2,
        clip_high: PositiveFloat | None = None,
        kl: NonNegativeFloat = 0.0,
        loss: Literal["grpo", "dapo", "dr_grpo"] = "dapo",
        scale_advantages: Literal["group", "batch", "none"] = "group",
    ) -> None:
        if samples < 2:
            raise ConfigError(f"method.samples={samples}: replies are compared with others to their prompt; use >= 2")
        if top_p == 0.0:
            raise ConfigError("method.top_p=0 leaves no token to sample; use a number in (0, 1]")
        optimiser.accumulation(prompts * samples, f"method.prompts={prompts} x method.samples={samples}")
        self.lora, self.optimiser, self.prompts, self.samples = lora, optimiser, prompts, samples
        self.temperature, self.top_p, self.updates = temperature, top_p, updates
        self.clip, self.clip_high, self.kl, self.loss, self.scale = clip, clip_high, kl, loss, scale_advantages

    @property
    def steps(self) -> int:
        return self.optimiser.steps

    def plan(self) -> list[tuple[str, str]]:
        replies = self.prompts * self.samples
        rounds = -(-self.steps // self.updates)
        return [
            ("  steps", f"{self.steps:,}, each of {self.prompts} prompts x {self.samples} replies"),
            ("  replies", f"{rounds * replies:,}, {self.optimiser.batch} at once in training"),
        ]

    def check(self, prompts: int) -> None:
        """Raise ConfigError for fewer prompts than a step takes."""
        if prompts < self.prompts:
            raise ConfigError(
                f"there are {prompts} prompts, and a step takes method.prompts={self.prompts}; raise dataset.prompts"
            )

    def train(self, job: TrainingJob) -> Any:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        self.check(len(job.questions))
        replies = self.prompts * self.samples
        arguments = GRPOConfig(
            **self.optimiser.arguments(replies, "method.prompts x method.samples", *job.place),
            num_generations=self.samples,
            max_completion_length=job.chat.reply_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            num_iterations=self.updates,
            epsilon=self.clip,
            epsilon_high=self.clip_high,
            beta=self.kl,
            loss_type=self.loss,
            scale_rewards=self.scale,
            reward_weights=list(job.rewards.weights.values()),
        )
        rows = [{"prompt": list(q.messages), "row": i} for i, q in enumerate(job.questions)]
        trainer = trainer_class(GRPOTrainer)(
            model=job.module,
            args=arguments,
            reward_funcs=[_Named(name, job) for name in job.rewards.weights],
            train_dataset=Dataset.from_list(rows),
            processing_class=job.chat.tokenizer,
            peft_config=self.lora.config(),
        )
        return run_trainer(trainer, job, job.judge.metrics, every=self.updates)


class _Named:
    """One of the rewards, as the trainer calls it; what came of a batch of replies is found once for all of them."""

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
