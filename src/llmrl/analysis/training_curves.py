"""Curves of training over bins of equal numbers of frames, from the episodes that were played.

The episodes that end in a stretch of training are no fair sample of those that are played in it: where successful
episodes are short, more of them fit in, and the first stretch holds nothing else. Here each frame (a step of one game)
is judged by the next episode that begins in its game, at that frame or after it. When that episode begins is decided
before anything has happened in it, so its outcome is a fair draw whatever the lengths are: if every episode succeeds
with probability p, each bin's mean has expectation p. A bin is the mean over its frames, so each frame counts once, and
the mean over all bins (sample efficiency, the area under the curve) is one over frames.

An episode that had not ended when its games were begun anew (an evaluation, the end of training) tells nothing, and
those beside it that had ended were the short ones. So a frame counts only if the next episode had to be over in any
case. With a horizon of H steps and e the step at which games were begun anew, frame t counts if t <= e - 2 H + 1, which
does not depend on what happened. Without a horizon the longest episode that ended takes its place, and bins near such
an end may still be off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import KIND
from llmrl.run.training_episodes import TrainingEpisodeTable, read_training_episodes, training_metrics

PREFIX = "train/"
"""Of the names of metrics of training episodes in reports."""

EFFICIENCY = f"{PREFIX}success"
"""Whose mean over the frames of training is sample efficiency."""

BINS = 50
"""Bins of the shortest training of a task, unless a width is given."""

ENOUGH = 0.5
"""Share of a bin's frames that must count for the bin to be told."""


@dataclass(frozen=True)
class TrainingCurves:
    """The episodes of a run that learned.

    Attributes:
        episodes: those that are over.
        steps: of every game so far.
    """

    episodes: TrainingEpisodeTable
    steps: int

    @property
    def frames(self) -> int:
        """Steps of all games."""
        return self.steps * self.episodes.games

    @property
    def told(self) -> int:
        """Frames before which all is known that will be; 0 without episodes."""
        if not len(self.episodes.places["start"]):
            return 0
        ends = [end for first, end in self._stretches() if end > first]
        return min(max(ends, default=0), self.steps) * self.episodes.games

    def means(self, metric: str, edges: np.ndarray) -> np.ndarray:
        """Mean of a metric over the frames of each bin.

        Args:
            metric: a name in `episodes.metrics`.
            edges: of the bins, in frames, increasing, [n_bins + 1].

        Returns:
            [n_bins]; NaN where too few of a bin's frames count (`ENOUGH`). Episodes of which the metric says nothing
            (NaN) are left out of the mean, with the frames that they judge.
        """
        total, known_frames, frames = (np.zeros(len(edges)) for _ in range(3))
        values = self.episodes.metrics[metric]
        for game, first, last, index in self._judged():
            known = ~np.isnan(values[index])
            at = np.clip(-(-(edges - game) // self.episodes.games), 0, self.steps)  # steps of this game before an edge
            total += _integral(at, first[known], last[known], values[index][known])
            known_frames += _integral(at, first[known], last[known], np.ones(int(known.sum())))
            frames += _integral(at, first, last, np.ones(len(first)))
        counted, width = np.diff(known_frames), np.diff(edges)
        told = (np.diff(frames) >= ENOUGH * width) & (counted > 0)
        means: np.ndarray = np.divide(np.diff(total), counted, out=np.full(len(width), np.nan), where=told)
        return means

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Steps at which all games were begun anew, each with the step before which frames count; in order."""
        begun = self.episodes.begun
        ends = np.append(begun[1:], self.steps)
        longest = self.episodes.horizon or int(self.episodes.places["length"].max(initial=1))
        for first, end in zip(begun.tolist(), ends.tolist(), strict=True):
            yield first, end - 2 * longest + 2

    def _judged(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """For each game, the steps from `first` to before `last` that each episode judges, and the episode's place in
        the record; in their order."""
        places = self.episodes.places
        order = np.lexsort((places["start"], places["game"]))
        game, start = places["game"][order], places["start"][order]
        stretch = np.searchsorted(self.episodes.begun, start, side="right") - 1
        follows = np.zeros(len(order), dtype=bool)
        follows[1:] = (game[1:] == game[:-1]) & (stretch[1:] == stretch[:-1])
        first, last = np.where(follows, np.append(0, start[:-1] + 1), start), start + 1
        limit = np.array([end for _, end in self._stretches()], dtype=np.int64)[stretch]
        first, last = np.minimum(first, limit), np.minimum(last, limit)
        parts = np.flatnonzero(np.diff(game)) + 1
        for part in np.split(np.arange(len(order)), parts):
            if len(part):
                yield int(game[part[0]]), first[part], last[part], order[part]


@dataclass(frozen=True)
class FrameBudget:
    """What the runs of a task are compared over.

    Attributes:
        budget: frames, from the beginning, that sample efficiency is the mean over.
        width: frames of a bin of a curve.
    """

    budget: int
    width: int


def read_training(folder: Path) -> TrainingCurves | None:
    """The training episodes of a run folder; None where there are none.

    Raises:
        RunFolderError: a file of the run is damaged.
    """
    episodes = read_training_episodes(folder)
    if episodes is None:
        return None
    return TrainingCurves(episodes, _env_steps(folder) // episodes.games)


def is_told(folder: Path, metric: str) -> bool:
    """Whether a metric of a report is one of a run's training episodes."""
    return metric.startswith(PREFIX) and metric.removeprefix(PREFIX) in training_metrics(folder)


def common_frames(folders: Iterable[Path], budget: int | None, width: int | None) -> FrameBudget | None:
    """What the runs in `folders` can be compared over, the same for all of them; None if none has training episodes.

    Args:
        folders: of the runs.
        budget, width: as in `FrameBudget`; None: as many frames as are told of every run, and a fiftieth (`BINS`) of
            the shortest training.
    """
    trainings = []
    for folder in folders:
        try:
            training = read_training(folder)
        except RunFolderError:
            continue  # told where its curve or score would be
        if training is not None and training.told > 0:
            trainings.append(training)
    if not trainings:
        return None
    return FrameBudget(
        budget or min(training.told for training in trainings),
        width or max(1, min(training.frames for training in trainings) // BINS),
    )


def about_training(frames: FrameBudget) -> str:
    """What a reader must know of curves and means of training episodes."""
    return (
        f"{PREFIX}... are means over training episodes, in bins of {frames.width:,} frames, the same for all groups: "
        "each frame is judged by the next episode that begins in its game, so short episodes do not count more than "
        f"long ones. Sample efficiency is the mean over the first {frames.budget:,} frames."
    )


def curve(training: TrainingCurves, metric: str, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A metric over bins of `width` frames: their middles, and the means of those that are told, [n_bins] each."""
    edges = np.arange(0, training.frames // width + 1) * width
    means = training.means(metric, edges)
    known = ~np.isnan(means)
    middles: np.ndarray = (edges[:-1] + width / 2)[known]
    return middles, means[known]


def mean_over(training: TrainingCurves, metric: str, first: int, last: int) -> float | str:
    """The mean of a metric over the frames from `first` to before `last`, or why there is none."""
    if last > training.told:
        return (
            f"episodes tell of the first {training.told:,} frames of training, of {last:,} asked for (frames within "
            "two horizons of its end do not count)"
        )
    [mean] = training.means(metric, np.array([first, last]))
    return f"too few frames of training can be told by {metric}" if np.isnan(mean) else float(mean)


def _env_steps(folder: Path) -> int:
    """Environment steps of the newest update that a run has logged."""
    try:
        lines = read_bytes(folder / METRICS_NAME).splitlines(keepends=True)
    except OSError:
        return 0
    for line in reversed(lines):
        if b'"update"' in line and line.endswith(b"\n"):
            try:
                row = json.loads(line)
                if row[KIND] == "update":
                    return int(row["env_steps"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RunFolderError(f"{folder / METRICS_NAME} is damaged: {error!r}") from error
    return 0


def _integral(at: np.ndarray, first: np.ndarray, last: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum over the steps before each of `at` of a function that is `values` from `first` to before `last`, else 0.

    `first` and `last` do not decrease, and stretches do not overlap.
    """
    nodes = np.stack([first, last], axis=1).ravel()
    if not len(nodes):
        return np.zeros(len(at))
    sums = np.cumsum((last - first) * values)
    heights = np.stack([np.append(0.0, sums[:-1]), sums], axis=1).ravel()
    result: np.ndarray = np.interp(at, nodes, heights, left=0.0, right=float(sums[-1]))
    return result
