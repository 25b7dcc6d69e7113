"""Curves of training over bins of equal numbers of frames, from the recorded episodes.

The episodes that end in a period of training are a biased sample of the episodes played in it: if successful episodes
are short, more of them end in the period, and in the first period only they do. Here each frame (a step of one game)
gets the value of the next episode that starts in its game, at that frame or after it. The start of that episode does
not depend on its own outcome, so the value is unbiased for any lengths: if every episode succeeds with probability p,
each bin's mean has expectation p. The value of a bin is the mean over its frames. The mean over all bins (sample
efficiency, the area under the curve) is therefore the mean over all frames.

An episode that had not ended when all games were reset (for an evaluation, or at the end of training) has no value, and
short episodes are more likely to have ended before. So a frame counts only if the next episode had certainly ended.
With a horizon of H steps and a reset of all games at step e, frame t counts if t <= e - 2 H + 1, which does not depend
on outcomes. Without a horizon, H is the length of the longest finished episode, and bins near a reset may still be
biased.
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
"""Default number of bins of the run with the fewest training frames in a task."""

MIN_COVERAGE = 0.5
"""Minimum share of the frames of a bin that must count for the bin to have a mean."""


@dataclass(frozen=True)
class TrainingHistory:
    """The training episodes of a run, and the number of steps in which they were played.

    Attributes:
        episodes: finished episodes.
        n_steps: number of steps that have been played in each game.
    """

    episodes: TrainingEpisodeTable
    n_steps: int

    @property
    def n_frames(self) -> int:
        """Number of steps of all games."""
        return self.n_steps * self.episodes.n_games

    @property
    def n_covered_frames(self) -> int:
        """Number of frames from the start of training to the last frame that counts; 0 without episodes."""
        if not len(self.episodes.indices["start"]):
            return 0
        ends = [end for start, end in self._iterate_counted_ranges() if end > start]
        return min(max(ends, default=0), self.n_steps) * self.episodes.n_games

    def compute_means(self, metric: str, edges: np.ndarray) -> np.ndarray:
        """Return the mean of a metric over the frames of each bin.

        Args:
            metric: name in `episodes.metrics`.
            edges: edges of the bins, in frames, increasing, [n_bins + 1].

        Returns:
            Means, [n_bins]; NaN if too few of a bin's frames count (`MIN_COVERAGE`). Frames of episodes whose metric is
            NaN are not part of the mean.
        """
        # Before each edge: the sum of the values, the number of frames with a value, and the number that count.
        value_sums, n_with_value, n_counted = (np.zeros(len(edges)) for _ in range(3))
        values = self.episodes.metrics[metric]
        for game, start, stop, index in self._iterate_episode_frames():
            is_finite = ~np.isnan(values[index])
            # Number of this game's steps before each edge: frame f is step f // games of the game f % games.
            game_steps = np.clip(-(-(edges - game) // self.episodes.n_games), 0, self.n_steps)
            value_sums += _integrate(game_steps, start[is_finite], stop[is_finite], values[index][is_finite])
            n_with_value += _integrate(game_steps, start[is_finite], stop[is_finite], np.ones(int(is_finite.sum())))
            n_counted += _integrate(game_steps, start, stop, np.ones(len(start)))
        n_values, widths = np.diff(n_with_value), np.diff(edges)
        is_covered = (np.diff(n_counted) >= MIN_COVERAGE * widths) & (n_values > 0)
        return np.divide(np.diff(value_sums), n_values, out=np.full(len(widths), np.nan), where=is_covered)

    def _iterate_counted_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges [start, end) of steps whose frames count, one after each reset of all games."""
        starts = self.episodes.reset_steps
        ends = np.append(starts[1:], self.n_steps)
        max_length = self.episodes.horizon or int(self.episodes.indices["length"].max(initial=1))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield start, end - 2 * max_length + 2

    def _iterate_episode_frames(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for each game the steps whose frames get the values of its episodes.

        Each tuple has the number of the game, and for each of its episodes the first of these steps, the step after the
        last one, and the index of the episode, [n_episodes] each.
        """
        indices = self.episodes.indices
        order = np.lexsort((indices["start"], indices["game"]))
        game, start = indices["game"][order], indices["start"][order]
        period = np.searchsorted(self.episodes.reset_steps, start, side="right") - 1  # number of the reset before it
        has_predecessor = np.zeros(len(order), dtype=bool)
        has_predecessor[1:] = (game[1:] == game[:-1]) & (period[1:] == period[:-1])
        # Steps after the start of the previous episode of the same game and period, up to the start of this one.
        first_step, stop_step = np.where(has_predecessor, np.append(0, start[:-1] + 1), start), start + 1
        limit = np.array([end for _, end in self._iterate_counted_ranges()], dtype=np.int64)[period]
        first_step, stop_step = np.minimum(first_step, limit), np.minimum(stop_step, limit)
        for game_order in np.split(np.arange(len(order)), np.flatnonzero(np.diff(game)) + 1):
            if len(game_order):
                yield int(game[game_order[0]]), first_step[game_order], stop_step[game_order], order[game_order]


@dataclass(frozen=True)
class FrameBudget:
    """Frames over which the runs of a task are compared.

    Attributes:
        budget: number of frames, from the start of training, over which sample efficiency is averaged.
        bin_width: number of frames of each bin of a curve.
    """

    budget: int
    bin_width: int


def read_training_history(folder: Path) -> TrainingHistory | None:
    """Return the training history of a run folder; None if it has no training episodes.

    Raises:
        RunFolderError: a file of the run is damaged.
    """
    episodes = read_training_episodes(folder)
    return None if episodes is None else TrainingHistory(episodes, _read_env_steps(folder) // episodes.n_games)


def is_training_metric(folder: Path, metric: str) -> bool:
    """Return whether a metric of a report is a metric of a run's training episodes."""
    return metric.startswith(TRAIN_PREFIX) and metric.removeprefix(TRAIN_PREFIX) in read_training_metric_names(folder)


def find_frame_budget(folders: Iterable[Path], budget: int | None, bin_width: int | None) -> FrameBudget | None:
    """Return the frames over which the runs in `folders` can be compared; None without training episodes.

    Args:
        folders: run folders.
        budget: number of frames for sample efficiency; None: the smallest `n_covered_frames` of a run.
        bin_width: number of frames of a bin; None: 1 / `N_BINS` of the frames of the shortest training.
    """
    trainings = []
    for folder in folders:
        with suppress(RunFolderError):  # raised again when the curve or score of the run is read
            training = read_training_history(folder)
            trainings += [training] if training is not None and training.n_covered_frames > 0 else []
    if not trainings:
        return None
    return FrameBudget(
        budget or min(training.n_covered_frames for training in trainings),
        bin_width or max(1, min(training.n_frames for training in trainings) // N_BINS),
    )


def compute_binned_curve(training: TrainingHistory, metric: str, bin_width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the centers (in frames) of the bins that have a mean, and the means of a metric in them, [n_bins] each."""
    edges = np.arange(0, training.n_frames // bin_width + 1) * bin_width
    means = training.compute_means(metric, edges)
    is_finite = ~np.isnan(means)
    return (edges[:-1] + bin_width / 2)[is_finite], means[is_finite]


def compute_mean(training: TrainingHistory, metric: str, start: int, stop: int) -> float | str:
    """Return the mean of a metric over the frames in [start, stop), or the reason why there is none."""
    if stop > training.n_covered_frames:
        return (
            f"episodes cover the first {training.n_covered_frames:,} frames of training, of {stop:,} requested (frames "
            "within two horizons of its end do not count)"
        )
    [mean] = training.compute_means(metric, np.array([start, stop]))
    return f"too few frames of training have a value of {metric}" if np.isnan(mean) else float(mean)


def _read_env_steps(folder: Path) -> int:
    """Return the environment steps, summed over games, at the last update that a run has logged; 0 without updates."""
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


def _integrate(limits: np.ndarray, start: np.ndarray, stop: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Integrate a piecewise constant function from 0 to each of the upper `limits`.

    The function has the value `values[i]` in [start[i], stop[i]) and 0 elsewhere. The intervals are sorted and do not
    overlap.
    """
    nodes = np.stack([start, stop], axis=1).ravel()
    if not len(nodes):
        return np.zeros(len(limits))
    sums = np.cumsum((stop - start) * values)
    integral_at_nodes = np.stack([np.append(0.0, sums[:-1]), sums], axis=1).ravel()
    return np.interp(limits, nodes, integral_at_nodes, left=0.0, right=float(sums[-1]))
