"""Observers of a run's steps that update its progress display and its file of training episodes."""

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
        games: number of games that are stepped together.
    """

    def __init__(self, display: ProgressBar, games: int) -> None:
        self.display, self.games = display, games

    def on_progress(self, steps: int) -> None:
        self.display.advance(steps * self.games)


class EpisodeProgress(Observer):
    """Counter of finished episodes, which also displays the newest return, or of their steps.

    Args:
        display: progress display of the run.
        in_steps: whether steps are counted instead of episodes.
    """

    def __init__(self, display: ProgressBar, in_steps: bool = False) -> None:
        self.display, self.in_steps = display, in_steps

    def on_progress(self, steps: int) -> None:
        self.display.advance(0)  # updates the elapsed time

    def on_episode_end(self, episode: Episode) -> None:
        self.display.advance(episode.length if self.in_steps else 1)
        if not self.in_steps:
            self.display.show_result(float(episode.base_returns.mean()))


class GraceWatch(Observer):
    """Observer that stops a run during a rollout if the next safe point is too far away.

    Args:
        run: run that has been asked to stop.
        resumable: returns the position to resume from and a function that builds its state, as
            `Run.within_grace` expects them.
    """

    def __init__(self, run: Run, resumable: Callable[[], tuple[int, Callable[[], State]]]) -> None:
        self.run, self.resumable = run, resumable

    def on_progress(self, steps: int) -> None:
        self.run.within_grace(*self.resumable())


class TrainingEpisodeWriter(Observer):
    """Observer that writes every training episode to a file (`llmrl.run.training_episodes`).

    Args:
        spec: spec of the environment.
        folder: folder of the run.
        state: state from the run's checkpoint; None: a new run.
    """

    def __init__(self, spec: EnvSpec, folder: Path, state: State | None) -> None:
        position = None if state is None else state["position"]
        columns = ("return", "base_return", *spec.metrics)
        self._file = TrainingEpisodes(folder, spec.n_envs, spec.horizon, columns, position)
        self._begin_step: int = 0 if state is None else state["begun"]  # step at which all games last restarted

    def begin_anew(self, step: int) -> None:
        """Record that all games restart at their step `step`; episodes in progress are discarded."""
        self._begin_step = step
        self._file.begin_anew(step)

    def on_rollout(self, rollout: Rollout) -> None:
        self._file.write_episodes(
            [(e.game, self._begin_step + e.start, e.length) for e in rollout.episodes],
            [(e.returns.mean(), e.base_returns.mean(), *e.summaries.values()) for e in rollout.episodes],
        )

    def close(self) -> None:
        self._file.close()

    def state_dict(self) -> State:
        return {"position": self._file.position(), "begun": self._begin_step}
