"""Callback that connects a trainer of transformers to the run: progress, metrics, checkpoints, stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from llmrl.run.progress_bar import ProgressBar
from llmrl.run.run import Run
from llmrl.run.signals import Stopped

_UNLOGGED_KEYS = ("epoch", "num_tokens", "total_flos")
"""Metrics of the trainer that are not logged."""
_RENAMED_METRICS = {"step_time": "time/step_s"}


class CheckpointCallback(TrainerCallback):
    """Callback that logs every step, and saves when a checkpoint of the run is due.

    The trainer saves weights, optimizer and random states in a folder `checkpoint-<step>`. Then the run writes its own
    checkpoint, which contains this step. A resumed run uses the trainer's checkpoint of the step in its own checkpoint,
    so it never uses an incomplete one, and metrics and weights are of the same step.

    Args:
        run: run that receives metrics and checkpoints.
        progress: progress bar of optimizer steps.
        save_checkpoint: function that saves a checkpoint of the run, which refers to the given step.
        step_metrics_fn: function that returns metrics of the last step that the trainer does not compute.
        resume_interval: steps between two points from which the trainer can resume exactly, >= 1.
    """

    def __init__(
        self,
        run: Run,
        progress: ProgressBar,
        save_checkpoint: Callable[[int], None],
        step_metrics_fn: Callable[[], Mapping[str, float]],
        resume_interval: int,
    ) -> None:
        self.run, self.progress, self.save_checkpoint = run, progress, save_checkpoint
        self.step_metrics_fn, self.resume_interval = step_metrics_fn, resume_interval

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress.update(state.global_step)
        # No checkpoint after the last step, because a trainer that resumes from it would take one more step.
        can_resume = state.global_step < state.max_steps and state.global_step % self.resume_interval == 0
        control.should_save = (self.run.stop_flag.requested or self.run.checkpoint_timer.is_due()) and can_resume

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return  # the trainer's final summary, whose averages cover only the steps since the last resume
        metrics = {
            _metric_name(key): value for key, value in logs.items() if key not in _UNLOGGED_KEYS and value is not None
        }
        metrics |= self.step_metrics_fn()
        self.run.metrics.log("update", "updates", metrics, updates=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.save_checkpoint(state.global_step)
        if self.run.stop_flag.signal is not None:
            raise Stopped(self.run.folder, self.run.stop_flag.signal)


def _metric_name(key: str) -> str:
    """Return the run's name of a trainer's metric, e.g. `train/reward_valid` for `rewards/valid/mean`."""
    if key in _RENAMED_METRICS:
        return _RENAMED_METRICS[key]
    if key.startswith("rewards/"):
        _, reward, statistic = key.split("/")
        return f"train/reward_{reward}" + ("" if statistic == "mean" else f"_{statistic}")
    return f"train/{key.replace('completions/', 'reply_').replace('/', '_')}"
