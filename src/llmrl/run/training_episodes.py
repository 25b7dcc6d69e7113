"""`training_episodes.tsv`: the episodes that agents played while they learned, one line each.

A comment with what all of them share (`# {"games": 64, "horizon": 64}`), the names of the columns, and the numbers,
parted by tabs; in between, a comment wherever all games were begun anew (`# begun anew at step 120`). It is written
beside `metrics.jsonl`, whose rows hold means over the episodes that ended in a rollout: which these are depends on how
long they took, so curves are made from the episodes themselves (`analysis.training_curves`).
A line takes about 40 bytes.
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
from llmrl.run.line_file import FilePosition, LineFile

FILE_NAME = "training_episodes.tsv"
PLACE = ("game", "start", "length")
_ANEW = "# begun anew at step "
_MARK = re.compile(f"^{_ANEW}(\\d+)$", re.MULTILINE)
_HEAD = 2  # lines before the episodes


class TrainingEpisodes:
    """Appends to the file in a run folder.

    Args:
        folder: the run folder.
        games: that are played side by side.
        horizon: most steps of an episode; None if nobody knows.
        metrics: what is told of every episode, by name.
        position: `position()` at the resumed checkpoint, to which an existing file is cut; None: it is begun.

    Raises:
        RunFolderError: the file has other lines before `position`, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        games: int,
        horizon: int | None,
        metrics: Sequence[str],
        position: FilePosition | None = None,
    ) -> None:
        self._file = LineFile(folder / FILE_NAME, position)
        if position is None:
            shared = json.dumps({"games": games, "horizon": horizon})
            self._file.write([f"# {shared}", "\t".join((*PLACE, *metrics))])

    def begin_anew(self, step: int) -> None:
        """Write down that all games were begun anew at `step` of every game: episodes in progress never end."""
        self._file.write([f"{_ANEW}{step}"])

    def write(self, places: Sequence[tuple[int, int, int]], values: Sequence[Sequence[float]]) -> None:
        """Write down episodes that are over.

        Args:
            places: of each, its game, the step of the game with which it began, counted from the beginning of the run,
                and its length in steps.
            values: of each, its metrics in their order; NaN where one says nothing of it.
        """
        rows = zip(places, values, strict=True)
        self._file.write("\t".join((*map(str, place), *(f"{x:.9g}" for x in told))) for place, told in rows)

    def position(self) -> FilePosition:
        """Sync the file to disk and return its end, which a checkpoint stores as the place to resume from."""
        return self._file.position()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class TrainingEpisodeTable:
    """What a `training_episodes.tsv` holds.

    Attributes:
        games: that were played side by side.
        horizon: most steps of an episode; None if nobody knows.
        begun: steps of every game at which all games were begun anew, increasing, 0 first, int64.
        places: the columns of `PLACE` by name, [n_episodes] int64 each.
        metrics: by name, [n_episodes] float64 each; the length is one, too.
    """

    games: int
    horizon: int | None
    begun: np.ndarray
    places: dict[str, np.ndarray]
    metrics: dict[str, np.ndarray]


def read_training_episodes(folder: Path) -> TrainingEpisodeTable | None:
    """The whole lines of a run's file; None where there is no such file, or it has just been begun.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = folder / FILE_NAME
    try:
        shared, names, *rest = read_bytes(path).decode("utf-8").split("\n", _HEAD)
        if not rest:
            return None
        about = json.loads(shared.removeprefix("#"))
        columns = names.split("\t")
        whole = rest[0][: rest[0].rfind("\n") + 1]
        begun = np.unique([0, *(int(step) for step in _MARK.findall(whole))])
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # NumPy's word for text that is no number
            numbers = np.fromstring(_MARK.sub("", whole), dtype=np.float64, sep=" ")
        table = numbers.reshape(-1, len(columns))
        places = {name: table[:, columns.index(name)].astype(np.int64) for name in PLACE}
        metrics = {name: table[:, i].copy() for i, name in enumerate(columns) if name not in PLACE}
        metrics["length"] = table[:, columns.index("length")].copy()
        return TrainingEpisodeTable(int(about["games"]), about["horizon"], begun, places, metrics)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, DeprecationWarning) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from error


def training_metrics(folder: Path) -> list[str]:
    """What a run's file tells of every episode, without reading the episodes; nothing where there is no such file."""
    try:
        with open_file(folder / FILE_NAME, "r") as file:
            file.readline()
            names = file.readline().rstrip("\n").split("\t")
            return [name for name in names if name == "length" or (name and name not in PLACE)]
    except (OSError, UnicodeDecodeError):
        return []
