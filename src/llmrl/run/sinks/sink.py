"""What a sink is: a place that a run's metrics, texts and pictures go to beside `metrics.jsonl`.

`metrics.jsonl` stays the record of a run. A sink shows it to people: TensorBoard, a tracking server, a file of yours.

What a run tells a sink, in this order:

1. `open`, with what the run is. A run that goes on from a checkpoint opens its sinks again.
2. `rows`: all rows of the run from number 0 on, each once, in batches. The first `Opening.kept` of them are those that
   an earlier attempt has told already.
3. `text` and `picture`, each beside a row that was told before; those that belong to rows of earlier attempts again.
4. `close`, once; not if the process is killed.

**Resuming.** The rows that were logged after the checkpoint are cut from `metrics.jsonl` and computed anew, so a sink
must forget them or leave out their second telling. Either it writes everything anew, in place of what it had, or it
goes on: it leaves out texts, pictures and rows whose number it has. Each sink of this package says what it does.

**Failing.** Whatever a method raises ends neither the run nor another sink. It is reported once, and the sink is told
nothing more. If it works in the background, it is opened again after a while, with the rows of the run so far.

**Secrets.** What a sink is told has been redacted (`llmrl.core.secrets`).
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
from llmrl.run.files import write_atomic

FOLDER = "loggers"
"""Folder, in a run folder, of what sinks keep there."""
_ID = "run_id"
_making_id = threading.Lock()

HyperParameters = Mapping[str, bool | int | float | str]


@dataclass(frozen=True)
class Row:
    """A line of `metrics.jsonl` (`llmrl.run.metrics`).

    Attributes:
        number: of the line, from 0: what identifies a row of a run, also after a resume.
        kind: what the row is about, such as `update`.
        x: name of the counter that it is placed at, such as `env_steps`.
        place: that counter's value, the row's place on its axis.
        unix: when it was measured, Unix time in seconds.
        counters: all that the row counts, by name, `x` among them.
        metrics: by tag, without the clock's numbers; NaN where one was not finite. A tag is in rows of one kind only.
    """

    number: int
    kind: str
    x: str
    place: int
    unix: float
    counters: Mapping[str, int]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Opening:
    """What a run is.

    Attributes:
        folder: the run folder.
        root: folder of all outputs.
        name: of the experiment or sweep, which runs that are compared share.
        label: the run's short name within it, `<label>-<hash>/s<n>`.
        config: resolved, plain data, redacted.
        hyperparameters: what was typed for the run, by key, and its seed.
        started: when the run's clock began, Unix time in seconds.
        kept: so many rows are told again; 0 for a new run.
    """

    folder: Path
    root: Path
    name: str
    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: HyperParameters = field(default_factory=dict)
    started: float = 0.0
    kept: int = 0

    def own_folder(self, sink: str) -> Path:
        """Return the folder for what `sink` keeps of this run alone; created if it is not there."""
        folder = self.folder / FOLDER / sink
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run_id(self) -> str:
        """Return 16 hexadecimal digits that stay the run's over all its attempts, until it is begun anew with
        `rerun=true`."""
        path = self.folder / FOLDER / _ID
        with _making_id:  # sinks are opened in threads of their own
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, secrets.token_hex(8))
        return path.read_text(encoding="utf-8").strip()


@dataclass(frozen=True)
class Ending:
    """How an attempt ended.

    Attributes:
        state: `finished`, `failed`, `stopped`, `preempted` or `budget_exhausted`, as in `status.json`.
        error: what ended it, in a line; empty for a finished run.
        final: the final numbers of a finished run by tag, `Final/result` among them.
        place: where the last row is placed.
        unix: Unix time, seconds.
        summary: what a finished run found, plain data.
    """

    state: str = "finished"
    error: str = ""
    final: Mapping[str, float] = field(default_factory=dict)
    place: int = 0
    unix: float = 0.0
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether the run is finished."""
        return self.state == "finished"


class Sink(ABC):
    """Base class of sinks. A constructor only keeps its options; libraries are imported and files opened in `open`.

    Attributes:
        background: whether all methods are called in a thread of the sink's own, so that a slow server does not slow
            the run. False for what writes to local files within microseconds: it is called by the run itself.
    """

    background: bool = True

    @abstractmethod
    def open(self, opening: Opening) -> None:
        """Get ready for the rows of a run; also after a failure, when whatever was open is to be forgotten."""

    @abstractmethod
    def rows(self, rows: Sequence[Row]) -> None:
        """Take rows, at least one, in their order."""

    def text(self, row: Row, tag: str, markdown: str) -> None:  # noqa: B027 (not every sink shows texts)
        """Take a text that belongs to a row; by default it is left out."""

    def picture(self, row: Row, tag: str, path: Path) -> None:  # noqa: B027 (not every sink shows pictures)
        """Take a picture or film that belongs to a row, a .png, .gif or .mp4 file; by default it is left out."""

    def close(self, ending: Ending) -> None:  # noqa: B027 (not every sink has something to close)
        """Write what is left. A run that is told to stop waits a few seconds for it, see `llmrl.run.sinks.fan_out`."""

    def abandon(self) -> None:  # noqa: B027 (few libraries hold up a process)
        """Let go of what would hold up the end of the process: `close`, or what came before it, took too long. Called
        by the run, beside the method that takes so long, and is to return at once."""


def need(module: str, option: str, extra: str) -> None:
    """Raise ConfigError if a library is not installed; it is not imported.

    Args:
        module: name of the library's top-level module.
        option: of `loggers=` that needs it.
        extra: of this package that installs it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"loggers={option} needs {module}: pip install 'llmrl[{extra}]'; or leave {option} out")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config as one mapping from dotted keys to values; lists stay as they are, empty mappings are left out.

    >>> flat({"a": {"b": 1, "c": {"d": [2]}}, "e": None})
    {'a.b': 1, 'a.c.d': [2], 'e': None}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
