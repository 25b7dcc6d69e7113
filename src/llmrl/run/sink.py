"""Sinks: further destinations of a run's metrics, texts and pictures, in addition to `metrics.jsonl`.

`metrics.jsonl` is the record of a run. A sink displays or stores it elsewhere: in TensorBoard, on a tracking server, in
a file of your own.

A run calls a sink in this order:

1. `open`, with a description of the run. A run that resumes from a checkpoint opens its sinks again.
2. `rows`: all rows of the run from number 0 on, each once, in batches. Earlier attempts have already passed the first
   `Opening.n_kept_rows` rows.
3. `text` and `picture`, each for a row that was passed before. Those of rows of earlier attempts are passed again.
4. `close`, once; not if the process is killed.

**Resuming.** Rows logged after the checkpoint are cut from `metrics.jsonl` and computed again, so a sink gets them
twice. Either it replaces everything that it has stored, or it skips texts, pictures and rows with numbers that it has
already stored. Each sink of this package documents its choice.

**Failing.** An exception in a method ends neither the run nor other sinks, and is reported once. The sink is then not
called again.

**Secrets.** Everything that a sink gets has been redacted (`llmrl.core.secrets`).
"""

from __future__ import annotations

import importlib.util
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.folder_files import create_folder, read_bytes
from llmrl.run.files import write_atomic

FOLDER = "loggers"
"""Folder inside a run folder for the files of sinks."""
_RUN_ID_FILE_NAME = "run_id"
_run_id_lock = threading.Lock()

HyperParameters = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class Row:
    """A line of `metrics.jsonl` (`llmrl.run.metrics`).

    Attributes:
        number: number of the line, from 0; it identifies the row in its run, also after a resume.
        kind: kind of the row, such as `update`.
        x: name of the counter that is its x coordinate, such as `env_steps`.
        x_value: value of that counter.
        unix_time: time of the measurement, Unix seconds.
        counters: all counters of the row by name, including `x`.
        metrics: metrics by tag, without those under `time/`; NaN if not finite. A tag is in rows of one kind only.
    """

    number: int
    kind: str
    x: str
    x_value: int
    unix_time: float
    counters: Mapping[str, int]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Opening:
    """The description of a run that its sinks are opened with.

    Attributes:
        folder: run folder.
        root: folder of all outputs.
        name: name of the experiment or sweep, which compared runs share.
        label: short name of the run within that experiment or sweep, `<label>-<hash>/s<n>`.
        config: resolved config as plain data, redacted.
        hyperparameters: overrides of the run by key, and its seed.
        started: start of this attempt, Unix time in seconds.
        n_kept_rows: number of rows that an earlier attempt has passed on already; 0 for a new run.
    """

    folder: Path
    root: Path
    name: str
    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: HyperParameters = field(default_factory=dict)
    started: float = 0.0
    n_kept_rows: int = 0

    def make_sink_folder(self, sink: str) -> Path:
        """Return the folder for the files of `sink` in this run; create it if it is missing."""
        folder = self.folder / FOLDER / sink
        create_folder(folder, self.folder)
        return folder

    def get_run_id(self) -> str:
        """Return the random id of the run, 16 hexadecimal digits. All attempts share it until one with `rerun=true`."""
        path = self.folder / FOLDER / _RUN_ID_FILE_NAME
        with _run_id_lock:  # sinks are opened in threads of their own
            if not path.is_file():
                create_folder(path.parent, self.folder)
                write_atomic(path, secrets.token_hex(8))
        return read_bytes(path, self.folder).decode("utf-8").strip()


@dataclass(frozen=True)
class Ending:
    """The end of an attempt.

    Attributes:
        state: `finished`, `failed`, `stopped`, `preempted` or `budget_exhausted`, as in `status.json`.
        error: reason why it ended, in one line; empty for a finished run.
        final_metrics: final numbers of a finished run by tag, including `Final/result`.
        x_value: x coordinate of the last row; 0 without rows.
        unix_time: time of the end, Unix seconds.
        summary: findings of a finished run as plain data.
    """

    state: str = "finished"
    error: str = ""
    final_metrics: Mapping[str, float] = field(default_factory=dict)
    x_value: int = 0
    unix_time: float = 0.0
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """True if the run is finished."""
        return self.state == "finished"


class Sink(ABC):
    """Base class of sinks. The constructor only stores options; `open` imports libraries and opens files.

    Attributes:
        background: whether methods are called in a thread of the sink's own, so that a slow server does not slow the
            run. False: the thread of the run calls them; for sinks that write local files within microseconds.
    """

    background: bool = True

    @abstractmethod
    def open(self, opening: Opening) -> None:
        """Prepare for the rows of a run."""

    @abstractmethod
    def rows(self, rows: Sequence[Row]) -> None:
        """Store one row or more, in order."""

    def text(self, row: Row, tag: str, markdown: str) -> None:  # noqa: B027 (not every sink shows texts)
        """Store a Markdown text that belongs to `row`; by default it is ignored."""

    def picture(self, row: Row, tag: str, path: Path) -> None:  # noqa: B027 (not every sink shows pictures)
        """Store a picture or video (.png, .gif or .mp4 file) that belongs to `row`; by default it is ignored."""

    def close(self, ending: Ending) -> None:  # noqa: B027 (not every sink has something to close)
        """Write what is not written yet. A stopped run waits for this a few seconds (`llmrl.run.sink_fan_out`)."""

    def abandon(self) -> None:  # noqa: B027 (few libraries hold up a process)
        """Release everything that would delay the end of the process, because `close` or an earlier call took too long.

        The run calls this in another thread while that call is still in progress; it must return at once.
        """


def require_library(module: str, option: str, extra: str) -> None:
    """Raise ConfigError if a library is not installed; it is not imported.

    Args:
        module: name of the library's top-level module.
        option: option of `loggers=` that needs the library.
        extra: extra of this package that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"loggers={option} needs {module}: pip install 'llmrl[{extra}]'; or leave {option} out")


def flatten_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config as one mapping from dotted keys to values; lists are kept, empty mappings are left out.

    >>> flatten_config({"a": {"b": 1, "c": {"d": [2]}}, "e": None})
    {'a.b': 1, 'a.c.d': [2], 'e': None}
    """
    flat_values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat_values |= flatten_config(value, f"{prefix}{key}.")
        else:
            flat_values[f"{prefix}{key}"] = value
    return flat_values
