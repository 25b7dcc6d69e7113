"""Observers that update the progress display, stop a run, or write training episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmrl.core.observers import Observer
from llmrl.core.records import State
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.spaces import EnvSpec
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.run import Run
from llmrl.run.training_episodes import TrainingEpisodes


class StepProgress(Observer):
    """Counter of environment steps, summed over games.

    Args:
        display: progress display of the run.
        n_games: number of games that are stepped together.
    """

    def __init__(self, display: ProgressBar, n_games: int) -> None:
        self.display, self.n_games = display, n_games

    def on_progress(self, steps: int) -> None:
        self.display.advance(steps * self.n_games)


class EpisodeProgress(Observer):
    """Counter of finished episodes, with display of the newest return; or counter of the steps of these episodes.

    Args:
        display: progress display of the run.
        counts_steps: whether steps are counted instead of episodes.
    """

    def __init__(self, display: ProgressBar, counts_steps: bool = False) -> None:
        self.display, self.counts_steps = display, counts_steps

    def on_progress(self, steps: int) -> None:
        self.display.advance(0)  # refreshes the displayed time

    def on_episode_end(self, episode: Episode) -> None:
        self.display.advance(episode.length if self.counts_steps else 1)
        if not self.counts_steps:
            self.display.show_result(float(episode.base_returns.mean()))


class GracePeriodObserver(Observer):
    """Observer that stops a run during a rollout if a signal requested it and the grace period has passed.

    Args:
        run: run to stop.
        get_resume_point: function that returns the arguments of `Run.stop_after_grace`: iteration from which the run
            resumes, and a function that returns the state at this iteration.
    """

    def __init__(self, run: Run, get_resume_point: Callable[[], tuple[int, Callable[[], State]]]) -> None:
        self.run, self.get_resume_point = run, get_resume_point

    def on_progress(self, steps: int) -> None:
        self.run.stop_after_grace(*self.get_resume_point())


class TrainingEpisodeWriter(Observer):
    """Observer that writes every training episode to a file (`llmrl.run.training_episodes`).

    Args:
        spec: specification of the environment.
        folder: folder of the run.
        state: state from the run's checkpoint; None: a new run.
    """

    def __init__(self, spec: EnvSpec, folder: Path, state: State | None) -> None:
        position = None if state is None else state["position"]
        columns = ("return", "base_return", *spec.metrics)
        self._file = TrainingEpisodes(folder, spec.n_envs, spec.horizon, columns, position)
        self._begin_step: int = 0 if state is None else state["begun"]  # step at which all games last restarted

    def record_reset(self, step: int) -> None:
        """Record that all games restart after `step` steps of each game; episodes in progress are discarded."""
        self._begin_step = step
        self._file.record_reset(step)

    def on_rollout(self, rollout: Rollout) -> None:
        self._file.write_episodes(
            [(e.game, self._begin_step + e.start_step, e.length) for e in rollout.episodes],
            [(e.returns.mean(), e.base_returns.mean(), *e.summaries.values()) for e in rollout.episodes],
        )

    def close(self) -> None:
        self._file.close()

    def state_dict(self) -> State:
        return {"position": self._file.position(), "begun": self._begin_step}
