"""Observers of a run's steps that keep its display and its training episodes up to date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmrl.core.observers import Observer
from llmrl.core.records import State
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.run_context import ProgressDisplay, RunContext
from llmrl.core.spaces import EnvSpec
from llmrl.run.training_episodes import TrainingEpisodes


class StepProgress(Observer):
    """Counts environment steps, summed over games.

    Args:
        display: of the run.
        games: that are stepped at once.
    """

    def __init__(self, display: ProgressDisplay, games: int) -> None:
        self.display, self.games = display, games

    def on_progress(self, steps: int) -> None:
        self.display.advance(steps * self.games)


class EpisodeProgress(Observer):
    """Counts episodes that are over, and tells the return of the last one.

    Args:
        display: of the run.
    """

    def __init__(self, display: ProgressDisplay) -> None:
        self.display = display

    def on_progress(self, steps: int) -> None:
        self.display.advance(0)  # its clock goes on

    def on_episode_end(self, episode: Episode) -> None:
        self.display.advance(1)
        self.display.tell(float(episode.base_returns.mean()))


class GraceWatch(Observer):
    """Gives up the way to the next safe point, in the midst of a collection, where a stop takes too long.

    Args:
        run: that is to stop.
        resumable: tells the place to go on from and what makes its state, as `RunContext.within_grace` takes them.
    """

    def __init__(self, run: RunContext, resumable: Callable[[], tuple[int, Callable[[], State]]]) -> None:
        self.run, self.resumable = run, resumable

    def on_progress(self, steps: int) -> None:
        self.run.within_grace(*self.resumable())


class TrainingEpisodeWriter(Observer):
    """Writes down every training episode (`llmrl.run.training_episodes`).

    Args:
        spec: of the environment.
        folder: of the run.
        state: of the run's checkpoint; None: a new run.
    """

    def __init__(self, spec: EnvSpec, folder: Path, state: State | None) -> None:
        position = None if state is None else state["position"]
        told = ("return", "base_return", *spec.metrics)
        self._file = TrainingEpisodes(folder, spec.n_envs, spec.horizon, told, position)
        self._begun: int = (
            0 if state is None else state["begun"]
        )  # step of every game at which all were last begun anew

    def begin_anew(self, step: int) -> None:
        """Write down that all games are begun anew at `step` of each: the episodes in progress are given up."""
        self._begun = step
        self._file.begin_anew(step)

    def on_rollout(self, rollout: Rollout) -> None:
        self._file.write(
            [(e.game, self._begun + e.start, e.length) for e in rollout.episodes],
            [(e.returns.mean(), e.base_returns.mean(), *e.summaries.values()) for e in rollout.episodes],
        )

    def close(self) -> None:
        self._file.close()

    def state_dict(self) -> State:
        return {"position": self._file.position(), "begun": self._begun}
