"""Curves of training over bins of equal numbers of frames, from the recorded episodes.

The episodes that end in a period of training are a biased sample of those played in it: if successful episodes are
short, more of them fit in, and the first period contains no others. Here each frame (a step of one game) gets the value
of the next episode that starts in its game, at that frame or after it. The start of that episode does not depend on its
own outcome, so the value is unbiased for any lengths: if every episode succeeds with probability p, each bin's mean has
expectation p. A bin is the mean over its frames, so each frame counts once, and the mean over all bins (sample
efficiency, the area under the curve) is one over frames.

An episode that had not ended when its games were restarted (an evaluation, the end of training) has no value, and those
that had ended by then were the short ones. So a frame counts only if the next episode must have ended in any case. With
a horizon of H steps and e the step at which games were restarted, frame t counts if t <= e - 2 H + 1, which does not
depend on outcomes. Without a horizon, the longest finished episode takes its place, and bins near a restart may still
be biased.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import KIND_KEY
from llmrl.run.training_episodes import TrainingEpisodeTable, read_training_episodes, read_training_metric_names

TRAIN_PREFIX = "train/"
"""Prefix of the names of metrics of training episodes in reports."""

EFFICIENCY_METRIC = f"{TRAIN_PREFIX}success"
"""Metric whose mean over the frames of training is the sample efficiency."""

N_BINS = 50
"""Number of bins of the shortest training of a task, unless a width is given."""

MIN_COVERAGE = 0.5
"""Minimum share of a bin's frames that must count for the bin to have a mean."""


@dataclass(frozen=True)
class TrainingCurves:
    """The training episodes of a run.

    Attributes:
        episodes: finished episodes.
        steps: number of steps of every game so far.
    """

    episodes: TrainingEpisodeTable
    steps: int

    @property
    def frames(self) -> int:
        """Number of steps of all games."""
        return self.steps * self.episodes.games

    @property
    def covered_frames(self) -> int:
        """Number of frames from the start that have final values; 0 without episodes."""
        if not len(self.episodes.indices["start"]):
            return 0
        ends = [end for start, end in self._find_counted_steps() if end > start]
        return min(max(ends, default=0), self.steps) * self.episodes.games

    def means(self, metric: str, edges: np.ndarray) -> np.ndarray:
        """Return the mean of a metric over the frames of each bin.

        Args:
            metric: name in `episodes.metrics`.
            edges: edges of the bins, in frames, increasing, [n_bins + 1].

        Returns:
            Means, [n_bins]; NaN if too few of a bin's frames count (`MIN_COVERAGE`). Episodes whose metric is NaN are
            left out, with their frames.
        """
        total, weights, frames = (np.zeros(len(edges)) for _ in range(3))
        values = self.episodes.metrics[metric]
        for game, start, stop, index in self._iterate_episode_frames():
            is_finite = ~np.isnan(values[index])
            # Steps of this game before each edge.
            game_steps = np.clip(-(-(edges - game) // self.episodes.games), 0, self.steps)
            total += _integrate(game_steps, start[is_finite], stop[is_finite], values[index][is_finite])
            weights += _integrate(game_steps, start[is_finite], stop[is_finite], np.ones(int(is_finite.sum())))
            frames += _integrate(game_steps, start, stop, np.ones(len(start)))
        bin_weights, widths = np.diff(weights), np.diff(edges)
        is_covered = (np.diff(frames) >= MIN_COVERAGE * widths) & (bin_weights > 0)
        means: np.ndarray = np.divide(np.diff(total), bin_weights, out=np.full(len(widths), np.nan), where=is_covered)
        return means

    def _find_counted_steps(self) -> Iterator[tuple[int, int]]:
        """Yield the intervals of steps whose frames count, each from a step at which all games were restarted."""
        starts = self.episodes.reset_steps
        ends = np.append(starts[1:], self.steps)
        max_length = self.episodes.horizon or int(self.episodes.indices["length"].max(initial=1))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield start, end - 2 * max_length + 2

    def _iterate_episode_frames(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the frames that get the values of a game's episodes.

        For each game these are: its number, the first step of each episode's frames, the step after the last, and the
        index of the episode.
        """
        places = self.episodes.indices
        order = np.lexsort((places["start"], places["game"]))
        game, start = places["game"][order], places["start"][order]
        period = np.searchsorted(self.episodes.reset_steps, start, side="right") - 1
        follows = np.zeros(len(order), dtype=bool)
        follows[1:] = (game[1:] == game[:-1]) & (period[1:] == period[:-1])
        start_frame, stop_frame = np.where(follows, np.append(0, start[:-1] + 1), start), start + 1
        limit = np.array([end for _, end in self._find_counted_steps()], dtype=np.int64)[period]
        start_frame, stop_frame = np.minimum(start_frame, limit), np.minimum(stop_frame, limit)
        parts = np.flatnonzero(np.diff(game)) + 1
        for part in np.split(np.arange(len(order)), parts):
            if len(part):
                yield int(game[part[0]]), start_frame[part], stop_frame[part], order[part]


@dataclass(frozen=True)
class FrameBudget:
    """Frames over which the runs of a task are compared.

    Attributes:
        budget: number of frames, from the start, over which sample efficiency is averaged.
        bin_width: number of frames of a bin of a curve.
    """

    budget: int
    bin_width: int


def read_training(folder: Path) -> TrainingCurves | None:
    """Return the training episodes of a run folder; None if it has none.

    Raises:
        RunFolderError: a file of the run is damaged.
    """
    episodes = read_training_episodes(folder)
    if episodes is None:
        return None
    return TrainingCurves(episodes, _read_env_steps(folder) // episodes.games)


def is_training_metric(folder: Path, metric: str) -> bool:
    """Return whether a metric of a report is one of a run's training episodes."""
    return metric.startswith(TRAIN_PREFIX) and metric.removeprefix(TRAIN_PREFIX) in read_training_metric_names(folder)


def find_common_frames(folders: Iterable[Path], budget: int | None, bin_width: int | None) -> FrameBudget | None:
    """Return the frames over which the runs in `folders` can be compared; None without training episodes.

    Args:
        folders: run folders.
        budget: frames for sample efficiency; None: all frames that every run covers.
        bin_width: frames of a bin; None: a fiftieth (`N_BINS`) of the shortest training.
    """
    trainings = []
    for folder in folders:
        with suppress(RunFolderError):  # reported in place of its curve or score
            training = read_training(folder)
            trainings += [training] if training is not None and training.covered_frames > 0 else []
    if not trainings:
        return None
    return FrameBudget(
        budget or min(training.covered_frames for training in trainings),
        bin_width or max(1, min(training.frames for training in trainings) // N_BINS),
    )


def compute_binned_curve(training: TrainingCurves, metric: str, bin_width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a metric over bins of `bin_width` frames: their middles, and the means of covered bins, [n_bins] each."""
    edges = np.arange(0, training.frames // bin_width + 1) * bin_width
    means = training.means(metric, edges)
    is_finite = ~np.isnan(means)
    middles: np.ndarray = (edges[:-1] + bin_width / 2)[is_finite]
    return middles, means[is_finite]


def compute_mean(training: TrainingCurves, metric: str, start: int, stop: int) -> float | str:
    """Return the mean of a metric over the frames from `start` to before `stop`, or the reason why there is none."""
    if stop > training.covered_frames:
        return (
            f"episodes cover the first {training.covered_frames:,} frames of training, of {stop:,} requested (frames "
            "within two horizons of its end do not count)"
        )
    [mean] = training.means(metric, np.array([start, stop]))
    return f"too few frames of training have a value of {metric}" if np.isnan(mean) else float(mean)


def _read_env_steps(folder: Path) -> int:
    """Return the environment steps of the newest update that a run has logged."""
    try:
        lines = read_bytes(folder / METRICS_NAME).splitlines(keepends=True)
    except OSError:
        return 0
    for line in reversed(lines):
        if b'"update"' in line and line.endswith(b"\n"):
            try:
                row = json.loads(line)
                if row[KIND_KEY] == "update":
                    return int(row["env_steps"])
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RunFolderError(f"{folder / METRICS_NAME} is damaged: {error!r}") from error
    return 0


def _integrate(at: np.ndarray, start: np.ndarray, stop: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the sum, before each of `at`, of a function that is `values` from `start` to before `stop`, else 0.

    `start` and `stop` do not decrease, and the ranges do not overlap.
    """
    nodes = np.stack([start, stop], axis=1).ravel()
    if not len(nodes):
        return np.zeros(len(at))
    sums = np.cumsum((stop - start) * values)
    heights = np.stack([np.append(0.0, sums[:-1]), sums], axis=1).ravel()
    result: np.ndarray = np.interp(at, nodes, heights, left=0.0, right=float(sums[-1]))
    return result
