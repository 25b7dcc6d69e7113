"""`training_episodes.tsv`, the episodes that agents played while they learned, one per line.

The file has a comment with the number of games and the horizon (`# {"games": 64, "horizon": 64}`), the names of the
columns, and the numbers, separated by tabs. Each reset of all games adds a comment (`# begun anew at step 120`). Curves
are computed from this file (`analysis.training_curves`), because rows of `metrics.jsonl` have means over the episodes
that ended in a rollout, which depend on the lengths of episodes.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_file, read_bytes
from llmrl.run.files import FilePosition, LineFile

FILE_NAME = "training_episodes.tsv"
INDEX_COLUMNS = ("game", "start", "length")
_RESET_COMMENT_PREFIX = "# begun anew at step "
_RESET_PATTERN = re.compile(f"^{_RESET_COMMENT_PREFIX}(\\d+)$", re.MULTILINE)
_N_HEADER_LINES = 2  # lines before the episodes


class TrainingEpisodes(LineFile):
    """A writer that appends training episodes to the file in a run folder.

    Args:
        folder: run folder.
        n_games: number of games that are played side by side.
        horizon: maximum number of steps of an episode; None if unknown.
        metrics: names of the metrics of each episode.
        position: `position()` at the resumed checkpoint, to which an existing file is cut; None: a new file.

    Raises:
        RunFolderError: the file has other lines before `position`, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        n_games: int,
        horizon: int | None,
        metrics: Sequence[str],
        position: FilePosition | None = None,
    ) -> None:
        super().__init__(folder / FILE_NAME, position)
        if position is None:
            header = json.dumps({"games": n_games, "horizon": horizon})
            self.write([f"# {header}", "\t".join((*INDEX_COLUMNS, *metrics))])

    def record_reset(self, step: int) -> None:
        """Record that all games were reset after `step` steps of every game; episodes in progress have no end."""
        self.write([f"{_RESET_COMMENT_PREFIX}{step}"])

    def write_episodes(self, indices: Sequence[tuple[int, int, int]], metric_values: Sequence[Sequence[float]]) -> None:
        """Append finished episodes.

        Args:
            indices: index of the game, first step and length of each episode, in steps. The first step is counted in
                steps of the game from the beginning of the run.
            metric_values: metrics of each episode, in the order of their names; NaN where a metric is undefined.
        """
        rows = zip(indices, metric_values, strict=True)
        self.write("\t".join((*map(str, index), *(f"{x:.9g}" for x in row_values))) for index, row_values in rows)


@dataclass(frozen=True)
class TrainingEpisodeTable:
    """The content of a `training_episodes.tsv`.

    Attributes:
        n_games: number of games that were played side by side.
        horizon: maximum number of steps of an episode; None if unknown.
        reset_steps: steps of a game at which all games were reset, increasing, the first is 0, [n_resets] int64.
        indices: columns of `INDEX_COLUMNS` by name, [n_episodes] int64 each.
        metrics: metrics by name, including `length`, [n_episodes] float64 each.
    """

    n_games: int
    horizon: int | None
    reset_steps: np.ndarray
    indices: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]


def read_training_episodes(folder: Path) -> TrainingEpisodeTable | None:
    """Return the content of a run's file up to its last complete line; None without a file or without its header.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = folder / FILE_NAME
    try:
        header_text, column_text, *body_parts = read_bytes(path).decode("utf-8").split("\n", _N_HEADER_LINES)
        if not body_parts:
            return None
        header = json.loads(header_text.removeprefix("#"))
        column_names = column_text.split("\t")
        complete_lines = body_parts[0][: body_parts[0].rfind("\n") + 1]
        reset_steps = np.unique([0, *(int(step) for step in _RESET_PATTERN.findall(complete_lines))])
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # NumPy issues it for text that is not a number
            flat_numbers = np.fromstring(_RESET_PATTERN.sub("", complete_lines), dtype=np.float64, sep=" ")
        table = flat_numbers.reshape(-1, len(column_names))
        indices = {name: table[:, column_names.index(name)].astype(np.int64) for name in INDEX_COLUMNS}
        metrics = {name: table[:, i].copy() for i, name in enumerate(column_names) if name not in INDEX_COLUMNS}
        metrics["length"] = table[:, column_names.index("length")].copy()
        return TrainingEpisodeTable(int(header["games"]), header["horizon"], reset_steps, indices, metrics)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, DeprecationWarning) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error


def read_training_metric_names(folder: Path) -> list[str]:
    """Return the names of the metrics of a run's episodes, without reading the episodes; empty without such a file."""
    try:
        with open_file(folder / FILE_NAME, "r") as file:
            file.readline()
            column_names = file.readline().rstrip("\n").split("\t")
            return [name for name in column_names if name == "length" or (name and name not in INDEX_COLUMNS)]
    except (OSError, UnicodeDecodeError):
        return []
