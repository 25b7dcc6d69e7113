"""Trajectories: observed texts, actions and rewards of each step, as arrays that can be read without pickle.

trajectories/<k>.npz    one row for each step of a player (columns: see `Trajectories`)
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from llmrl.core.atomic_files import atomic_write
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import create_folder
from llmrl.core.records import State
from llmrl.run.files import report_write_errors

FOLDER = "trajectories"
FORMAT_VERSION = 1
# `zipfile` raises NotImplementedError for an unsupported compression method.
_READ_ERRORS = (OSError, ValueError, KeyError, EOFError, NotImplementedError, zlib.error, zipfile.BadZipFile)
"""Exceptions of NumPy and the standard library for files that are cut off, altered, or not archives."""


@dataclass
class Trajectories:
    """Steps of agents as columns of n rows, in the order of a file.

    Attributes:
        prompts: distinct observed texts.
        action_names: name of each action; empty if actions are vectors.
        prompt: index in `prompts` of the observed text, [n] int64; -1 if it was not recorded.
        action: index in `action_names`, [n] int64; or action vector, [n, a] float32.
        log_prob, value: log-probability of the action, and value estimate, [n] float32; NaN where there is none.
        reward, base_reward: reward with and without the mechanism, [n] float32.
        terminated, truncated: whether the step terminated or truncated the episode, [n] bool.
        episode: number of the episode in its run, [n] int64.
        step: index of the step in its episode, from 0, [n] int64.
        game, agent: index of the game and of the agent, [n] int64.
        success: metric `success` of the whole episode, [n] float32; NaN where there is none.
        kind, mission: the environment's names of the kind and mission of the episode, [n] str; "" without a name.
    """

    prompts: list[str]
    action_names: list[str]
    prompt: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    value: np.ndarray
    reward: np.ndarray
    base_reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    game: np.ndarray
    agent: np.ndarray
    success: np.ndarray
    kind: np.ndarray = field(repr=False)
    mission: np.ndarray = field(repr=False)

    LOOKUP_TABLE_FIELDS: ClassVar = ("prompts", "action_names")  # not columns: they have a length of their own
    TEXT_COLUMN_FIELDS: ClassVar = ("kind", "mission")  # columns of texts

    def __len__(self) -> int:
        return len(self.prompt)

    def text(self, row: int) -> str:
        """Return the observed text of a row; "" if it was not recorded."""
        index = int(self.prompt[row])
        return "" if index < 0 else self.prompts[index]

    def select(self, selection: np.ndarray) -> Trajectories:
        """Return the rows in `selection` (indices, or [n] bool), with all prompts and action names."""
        columns = {name: getattr(self, name)[selection] for name in _list_column_names()}
        return Trajectories(self.prompts, self.action_names, **columns)


def _list_column_names() -> list[str]:
    return [column.name for column in fields(Trajectories) if column.name not in Trajectories.LOOKUP_TABLE_FIELDS]


class TrajectoryFiles:
    """The trajectory files of a folder.

    Args:
        folder: folder of the run or the evaluation.
        state: `state_dict()` at the resumed checkpoint; files that were written later are removed. None: a new run.

    Raises:
        RunFolderError: the folder cannot be written, or a file of the checkpoint is missing.
    """

    def __init__(self, folder: Path, state: State | None = None) -> None:
        self._folder = folder / FOLDER
        self._file_indices: list[int] = [] if state is None else list(state["written"])
        with report_write_errors(self._folder):
            # `mkdir` follows links, but run folders, which contain those of evaluations, were searched for links.
            folder.mkdir(parents=True, exist_ok=True)
            create_folder(self._folder, folder)
            for path in self._folder.glob(".*.tmp"):
                path.unlink()
            for path in self._folder.glob("*.npz"):
                if path.stem.isdecimal() and int(path.stem) not in self._file_indices:
                    path.unlink()
        missing_paths = [path for path in map(self._get_path, self._file_indices) if not path.is_file()]
        if missing_paths:
            raise RunFolderError(
                f"{missing_paths[0]} existed at the checkpoint, but is missing now. Start this run anew "
                "with rerun=true, which moves the old content aside."
            )

    def write(self, trajectories: Trajectories) -> None:
        """Write the next file atomically.

        Raises:
            RunFolderError: the file cannot be written.
        """
        file_index = max(self._file_indices, default=-1) + 1
        path = self._get_path(file_index)
        with report_write_errors(path), atomic_write(path, self._folder.parent) as file:
            np.savez_compressed(file, **_to_arrays(trajectories))
        self._file_indices.append(file_index)

    def state_dict(self) -> State:
        """Return the indices of the files written so far, for a checkpoint."""
        return {"written": list(self._file_indices)}

    def _get_path(self, file_index: int) -> Path:
        return self._folder / f"{file_index}.npz"


def find_trajectory_files(path: Path) -> list[Path]:
    """Return the trajectory files of `path` in order: a run folder, its folder `trajectories`, or a single file.

    Raises:
        RunFolderError: there are no trajectory files.
    """
    if path.is_file():
        return [path]
    folder = path if path.name == FOLDER else path / FOLDER
    paths = [path for path in folder.glob("*.npz") if path.stem.isdecimal()] if folder.is_dir() else []
    if not paths:
        raise RunFolderError(
            f"{path} has no trajectories ({FOLDER}/<k>.npz): a run keeps them with play.trajectories=true, an "
            "evaluation with --trajectories"
        )
    return sorted(paths, key=lambda path: int(path.stem))


def read_trajectories(path: Path | str) -> Trajectories:
    """Return the steps of all trajectory files of `path` (`find_trajectory_files`), with one list of prompts.

    Raises:
        RunFolderError: there are no such files, or a file was not written by this module.
    """
    trajectories = [_read_trajectory_file(file) for file in find_trajectory_files(Path(path))]
    return concatenate_trajectories(trajectories) if len(trajectories) > 1 else trajectories[0]


def concatenate_trajectories(parts: Sequence[Trajectories]) -> Trajectories:
    """Return the concatenation of `parts`, with one list of prompts.

    Raises:
        RunFolderError: their action names differ.
    """
    if any(part.action_names != parts[0].action_names for part in parts):
        raise RunFolderError("trajectories with different action names cannot be concatenated")
    index_by_prompt: dict[str, int] = {}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in _list_column_names()}
    for part in parts:
        # The last element, at index -1, maps missing prompts to themselves.
        new_prompt_indices = [*(index_by_prompt.setdefault(text, len(index_by_prompt)) for text in part.prompts), -1]
        for name, arrays in columns.items():
            array = getattr(part, name)
            arrays.append(np.array(new_prompt_indices, dtype=np.int64)[array] if name == "prompt" else array)
    concatenated = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    return Trajectories(list(index_by_prompt), parts[0].action_names, **concatenated)


def _to_arrays(trajectories: Trajectories) -> dict[str, Any]:
    arrays: dict[str, Any] = {"format": np.array(FORMAT_VERSION)}
    for array_field in fields(trajectories):
        value = getattr(trajectories, array_field.name)
        if array_field.name in (*Trajectories.LOOKUP_TABLE_FIELDS, *Trajectories.TEXT_COLUMN_FIELDS):
            value = np.array([str(text).encode("utf-8", errors="replace") for text in value], dtype=np.bytes_)
        arrays[array_field.name] = value
    return arrays


def _decode_texts(array: np.ndarray) -> list[str]:
    return [text.decode("utf-8") for text in array.tolist()]


def _read_trajectory_file(path: Path) -> Trajectories:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except _READ_ERRORS as error:
        raise RunFolderError(f"{path} cannot be read as trajectories: {error}") from error
    names = [array_field.name for array_field in fields(Trajectories)]
    if missing_names := [name for name in ("format", *names) if name not in arrays]:
        raise RunFolderError(f"{path} is not a file of trajectories: it has no array {missing_names[0]!r}")
    if (version := int(arrays["format"])) > FORMAT_VERSION:
        raise RunFolderError(f"{path} is of a newer version ({version}) than this llmrl reads ({FORMAT_VERSION})")
    lengths = {name: len(arrays[name]) for name in _list_column_names()}
    if len(set(lengths.values())) > 1:
        raise RunFolderError(
            f"{path} is damaged: its columns have {min(lengths.values())} to {max(lengths.values())} rows"
        )
    prompt = arrays["prompt"]
    if len(prompt) and not -1 <= prompt.min() <= prompt.max() < len(arrays["prompts"]):
        raise RunFolderError(f"{path} is damaged: it refers to texts that it does not contain")
    field_values: dict[str, Any] = {name: arrays[name] for name in names}
    field_values |= {name: _decode_texts(arrays[name]) for name in Trajectories.LOOKUP_TABLE_FIELDS}
    for name in Trajectories.TEXT_COLUMN_FIELDS:
        distinct_texts, inverse_indices = np.unique(arrays[name], return_inverse=True)
        field_values[name] = np.array(_decode_texts(distinct_texts), dtype=object)[inverse_indices]
    return Trajectories(**field_values)
