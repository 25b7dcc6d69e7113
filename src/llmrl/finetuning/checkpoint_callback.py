"""The link between a trainer of transformers and the run: progress, metrics, saving, stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from llmrl.core.run_context import ProgressDisplay
from llmrl.finetuning.training_job import TrainingJob
from llmrl.run.signals import Stopped

_LEFT_OUT = ("epoch", "num_tokens", "total_flos")
_TIMES = {"step_time": "time/step_s"}


class CheckpointCallback(TrainerCallback):
    """Logs every step, and saves when the run wants it.

    Weights, optimiser and random numbers are saved by the trainer, into a folder of its own (`checkpoint-<step>`); then
    the run writes its own checkpoint, which names that step and makes it count. So a save that was cut short is never
    resumed from, and metrics are cut back to the same step as weights.

    Args:
        job: the training.
        progress: to be kept up to date.
        measured: further metrics of a step, asked after it.
        every: steps after which the trainer could go on exactly, >= 1: those that share replies are not parted.
    """

    def __init__(
        self,
        job: TrainingJob,
        progress: ProgressDisplay,
        measured: Callable[[], Mapping[str, float]] | None,
        every: int,
    ) -> None:
        self.job, self.run, self.progress, self.measured, self.every = job, job.run, progress, measured, every

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.update(state.global_step)
        wanted = self.run.stop.requested or self.run.checkpoint_due()
        # Not after the last step, whose weights become the adapter: a trainer resumed from there would take one more.
        between = state.global_step < state.max_steps and state.global_step % self.every == 0
        control.should_save = wanted and between

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return  # the trainer's summary at its end, which counts only what was done since a resume
        metrics = {_name(key): value for key, value in logs.items() if key not in _LEFT_OUT and value is not None}
        if self.measured is not None:
            metrics |= self.measured()
        self.run.metrics.log("update", "updates", metrics, updates=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.job.save(state.global_step)
        if self.run.stop.signal is not None:
            raise Stopped(self.run.folder, self.run.stop.signal)


def _name(key: str) -> str:
    """`rewards/valid/mean` of the trainer is `train/reward_valid` here."""
    if key in _TIMES:
        return _TIMES[key]
    if key.startswith("rewards/"):
        _, reward, statistic = key.split("/")
        return f"train/reward_{reward}" + ("" if statistic == "mean" else f"_{statistic}")
    return f"train/{key.replace('completions/', 'reply_').replace('/', '_')}"
