"""`metrics.jsonl`, the one true record of what a run measured; from it the run's sinks are told.

One JSON object a line, a row: `kind`, what the row is about (`KINDS`); `x`, the name of the counter that it is placed
at; the counters by name, whole numbers such as `env_steps`; the metrics by name; and `time/unix` (seconds) and
`time/elapsed_s` (seconds the run has been running, over all attempts). In one run all rows of a kind are placed at the
same counter, and a metric is in rows of one kind only, so what has one name counts and measures one thing.

Wall-clock numbers live only under `time/`, so all else of two runs of the same config and seed can be compared bit for
bit. A number that is not finite is `null` in the file and NaN when read: JSON has neither NaN nor infinity.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from llmrl.core.errors import Diverged, RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.core.run_context import Counter, Kind
from llmrl.run.line_file import FilePosition, LineFile
from llmrl.run.sinks.fan_out import FanOut
from llmrl.run.sinks.sink import Ending, Opening, Row, Sink

log = logging.getLogger(__name__)

FILE_NAME = "metrics.jsonl"
TIME = "time/"
SPENT = "spent/"
FINAL = "Final/"
"""Of the tags of final numbers. Capital, because TensorBoard's HParams tab shows the five metrics that sort first, and
leaves out of its plots the runs that lack one of them: so only what all runs have in common should be there."""
KINDS: tuple[Kind, ...] = get_args(Kind)
COUNTERS: tuple[Counter, ...] = get_args(Counter)
KIND, X = "kind", "x"
LOSS = "loss/"
"""What names of metrics of updates begin with."""
_NOT_FINAL: tuple[Kind, ...] = ("adaptation", "confirmation", "recommendation", "race")
"""Kinds of rows whose counter is not the x coordinate of final numbers."""
_NO_METRICS = frozenset({KIND, X, *COUNTERS})
_ANYWHERE = (TIME, SPENT)
"""Of metrics that rows of every kind may have."""

TextOf = Callable[[Mapping[str, Any]], str | None]
"""From a line of metrics to the Markdown to show beside it, if any. Asked once for each line, in their order."""
PicturesOf = Callable[[Mapping[str, Any]], Iterable[Path]]
"""The same for pictures and videos, as files."""


class MetricLog:
    """Appends to `metrics.jsonl` in `folder`, and tells the run's sinks.

    Args:
        folder: the run folder.
        position: `position()` at the resumed checkpoint, to which an existing file is cut; None: it is emptied. The
            sinks are told what remains, so that they, too, go on as if uninterrupted.
        sinks: by the names of their options; none of their failures is one of this log.
        opening: what the sinks are told of the run; None: its folder, and no more.

    Attributes:
        finite_only: whether a loss that is not finite ends the run.

    Raises:
        RunFolderError: the file has other lines before `position`, or cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        position: FilePosition | None = None,
        sinks: Mapping[str, Sink] | None = None,
        opening: Opening | None = None,
    ) -> None:
        self._path = folder / FILE_NAME
        self._not_finite: set[str] = set()
        self._file = LineFile(self._path, position, without_clock)
        kept = read_metrics(self._path)
        self._started = time.monotonic()
        self._placed: dict[str, str] = {}  # the counter of the rows of each kind
        self._kinds: dict[str, str] = {}  # the kind of row that each metric is in
        try:
            for row in kept:
                _check_numbers(row)
                self._check(row)
            if lacking := [name for name in ("elapsed_s", "unix") for row in kept if TIME + name not in row]:
                raise ValueError(f"a row has no {TIME}{lacking[0]}")
        except ValueError as error:
            raise RunFolderError(
                f"{self._path} cannot be gone on with: {error}. Start this run anew with rerun=true, which moves the "
                "old content aside."
            ) from error
        self._elapsed = float(kept[-1][TIME + "elapsed_s"]) if kept else 0.0
        self._x = _x(kept[-1]) if kept else 0
        self.finite_only = False
        self._texts: dict[str, TextOf] = {}
        self._pictures: dict[str, PicturesOf] = {}
        opening = opening or Opening(folder, folder.parent, folder.parent.name, folder.name, started=time.time())
        self._sinks = FanOut(sinks or {}, opening, self._rows)
        self._number = len(kept)
        if self._sinks:
            self._sinks.open([row_of(number, line) for number, line in enumerate(kept)])

    def attach(self, tag: str, text_of: TextOf) -> None:
        """Show a text beside rows, under `tag`: beside those there are and those to come."""
        self._texts[tag] = text_of
        self._attached({tag: text_of}, {})

    def attach_pictures(self, tag: str, pictures_of: PicturesOf) -> None:
        """Show pictures and videos beside rows, under `tag`: beside those there are and those to come."""
        self._pictures[tag] = pictures_of
        self._attached({}, {tag: pictures_of})

    def log(self, kind: Kind, x: Counter, metrics: Mapping[str, Any], **counters: int) -> None:
        """Record `metrics` (anything `float()` takes).

        Args:
            kind: what the row is about.
            x: the counter that the row is placed at, one of `counters`.
            metrics: by name.
            counters: whole numbers by their names in `COUNTERS`, such as `env_steps=800`.

        Raises:
            ValueError: an unknown kind or counter; `x` is not among the counters; rows of this kind were placed at
                another one; a metric has the name of a counter, or is in rows of another kind.
        """
        line: dict[str, Any] = {KIND: kind, X: x} | {name: int(value) for name, value in counters.items()}
        if unknown := counters.keys() - set(COUNTERS):
            raise ValueError(f"rows count {', '.join(COUNTERS)}, not {', '.join(sorted(unknown))}")
        if taken := {KIND, X, *COUNTERS} & metrics.keys():
            raise ValueError(f"no names for metrics, but of what a row counts: {', '.join(sorted(taken))}")
        self._check(line | dict(metrics))
        line |= {name: self._finite(line[x], name, float(value)) for name, value in metrics.items()}
        line[TIME + "elapsed_s"] = round(self.elapsed_s, 3)
        line[TIME + "unix"] = round(time.time(), 6)  # fine enough to tell what came before the line and what after
        self._file.write([json.dumps(line, allow_nan=False)])
        self._x = line[x]
        if self._sinks:
            row = row_of(self._number, line)
            self._sinks.row(row)
            self._show(self._texts, self._pictures, row, line)
        self._number += 1

    @property
    def elapsed_s(self) -> float:
        """Seconds this run has been running: up to the resumed checkpoint, and since this attempt's start."""
        return self._elapsed + time.monotonic() - self._started

    def position(self) -> FilePosition:
        """Sync the file to disk and return its end, which a checkpoint stores as the place to resume from."""
        return self._file.position()

    @property
    def digest(self) -> str:
        """SHA-256 of all rows without wall-clock numbers and costs, hexadecimal."""
        return self._file.digest

    def check(self) -> None:
        """Raise RunFolderError if the file has been removed, replaced or changed while the run went on."""
        self._file.check()

    def close(self, state: str = "finished", final: Mapping[str, Any] | None = None, error: str = "") -> None:
        """Close the file and the sinks; asked again, it does nothing. Some sinks go on closing (`wait`).

        Args:
            state: of the run, as `status.json` has it.
            final: what the run found, which sinks are told as its summary. Its floats are final numbers, too: metrics
                `Final/<name>` where the last row is. Not counts, and not what has a curve, whose last value sinks have
                anyway: names with a slash or `llm_`.
            error: what ended the run, in a line.
        """
        if not self._file.closed:
            self._file.close()
            summary = dict(final or {})
            self._sinks.close(Ending(state, error, final_numbers(summary), self._x, time.time(), summary))

    def wait(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait a while for sinks that go on closing, less long once `hurried`, and report those that lack something."""
        self._sinks.wait(hurried)

    def _rows(self) -> list[Row]:
        return [row_of(number, line) for number, line in enumerate(read_metrics(self._path))]

    def _attached(self, texts: Mapping[str, TextOf], pictures: Mapping[str, PicturesOf]) -> None:
        if self._sinks:
            for number, line in enumerate(read_metrics(self._path)):
                self._show(texts, pictures, row_of(number, line), line)

    def _show(
        self, texts: Mapping[str, TextOf], pictures: Mapping[str, PicturesOf], row: Row, line: Mapping[str, Any]
    ) -> None:
        for tag, text_of in texts.items():
            if (text := text_of(line)) is not None:
                self._sinks.text(row, tag, text)
        for tag, pictures_of in pictures.items():
            for path in pictures_of(line):
                self._sinks.picture(row, tag, path)

    def _check(self, row: Mapping[str, Any]) -> None:
        """Hold a row to what the file promises, and remember it."""
        kind, x = row.get(KIND), row.get(X)
        if kind not in KINDS:
            raise ValueError(f"rows of metrics are of kind {', '.join(KINDS)}, not {kind!r}")
        if x not in COUNTERS or x not in row:
            raise ValueError(f"a row of kind {kind} is to be placed at {x!r}, which it does not count")
        if self._placed.setdefault(kind, x) != x:
            raise ValueError(f"rows of kind {kind} are placed at {self._placed[kind]}, and now one at {x}")
        for name in metrics_of(row):
            if not name.startswith(_ANYWHERE) and self._kinds.setdefault(name, kind) != kind:
                raise ValueError(f"metric {name} is in rows of kind {self._kinds[name]}, and now in one of kind {kind}")

    def _finite(self, x: int, name: str, value: float) -> float | None:
        if math.isfinite(value):
            return value
        if self.finite_only and name.startswith(LOSS):
            raise Diverged(f"+debug=anomaly: {name} is {value} at {x}")
        if name not in self._not_finite:
            self._not_finite.add(name)
            log.warning("metric %s is %s at %d (told once for each metric)", name, value, x)
        return None


@dataclass(frozen=True)
class MetricTable:
    """The rows of one kind, in their order.

    Attributes:
        kind: of the rows.
        x: the counter they are placed at.
        columns: numbers by name, each [n_rows]: the counter `x` first, the other counters, then the metrics in the
            order in which they appeared; NaN where a row has none, or one that was not finite.
    """

    kind: Kind
    x: Counter
    columns: dict[str, np.ndarray]


def read_metrics(path: Path, kind: Kind | None = None) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, those of one kind if it is given; `null` as NaN.

    A last line that is still being written is left out.

    Raises:
        RunFolderError: the file cannot be read, or a whole line is not a JSON object.
    """
    lines = []
    try:
        whole = read_bytes(path).split(b"\n")[:-1]
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text.decode("utf-8"))
            lines.append({name: math.nan if value is None else value for name, value in line.items()})
        except UnicodeDecodeError as error:
            raise RunFolderError(f"{path}, line {number} is not UTF-8 (byte {error.start} of it)") from error
        except (ValueError, AttributeError, RecursionError) as error:
            raise RunFolderError(f"{path}, line {number} is not a JSON object: {error}") from error
    return lines if kind is None else [line for line in lines if line.get(KIND) == kind]


def metric_tables(path: Path) -> dict[Kind, MetricTable]:
    """A `metrics.jsonl` as one tidy table for each kind of row that it has.

    Raises:
        RunFolderError: a whole line is not a JSON object, has no `kind` and `x`, or a metric that is no number.
    """
    rows: dict[Kind, list[dict[str, Any]]] = {}
    for number, row in enumerate(read_metrics(path), start=1):
        if row.get(KIND) not in KINDS or row.get(X) not in COUNTERS or row[X] not in row:
            raise RunFolderError(f"{path}, line {number} does not say what it is about: it has no {KIND} or {X}")
        try:
            _check_numbers(row)
        except ValueError as error:
            raise RunFolderError(f"{path}, line {number}: {error}") from error
        rows.setdefault(row[KIND], []).append(row)
    tables = {}
    for kind, of_kind in rows.items():
        x = of_kind[0][X]
        counters = [name for name in COUNTERS if name != x and any(name in row for row in of_kind)]
        metrics = dict.fromkeys(name for row in of_kind for name in metrics_of(row))
        columns = {n: np.array([row.get(n, math.nan) for row in of_kind]) for n in (x, *counters, *metrics)}
        tables[kind] = MetricTable(kind, x, columns)
    return tables


def _check_numbers(row: Mapping[str, Any]) -> None:
    """Raise ValueError if a counter or metric of a row that was read is no number."""
    for name, value in row.items():
        if name not in (KIND, X) and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ValueError(f"{name} is {repr(value)[:60]}, not a number")


def place_of(rows: Sequence[Mapping[str, Any]]) -> int:
    """Where a run was after `rows`, on the counter that its evaluations, or its proposals, are placed at; 0 after none.

    Rows of `_NOT_FINAL` are placed at counters of their own.
    """
    return next((_x(row) for row in reversed(rows) if row[KIND] not in _NOT_FINAL), 0)


def metrics_of(row: Mapping[str, Any]) -> list[str]:
    """Names of the metrics of a row, the clock's numbers among them."""
    return [name for name in row if name not in _NO_METRICS]


def _x(row: Mapping[str, Any]) -> int:
    return int(row[row[X]])


def without_clock(lines: bytes) -> bytes:
    """Return whole lines of a `metrics.jsonl` without what differs between equal runs: wall-clock numbers and costs.

    A line that is not a JSON object stays as it is."""
    return b"".join(map(_without_clock, lines.splitlines(keepends=True)))


def _without_clock(line: bytes) -> bytes:
    try:
        row = json.loads(line)
        return json.dumps({name: value for name, value in row.items() if not name.startswith((TIME, SPENT))}).encode()
    except (ValueError, AttributeError, RecursionError):
        return line


def final_numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the floats of what a run found as metrics `Final/<name>`, without what has a curve."""
    return {
        FINAL + name: value
        for name, value in summary.items()
        if isinstance(value, float) and "/" not in name and not name.startswith("llm_")
    }


def row_of(number: int, line: Mapping[str, Any]) -> Row:
    """Return the line `number`, from 0, as sinks are told it."""
    return Row(
        number=number,
        kind=line[KIND],
        x=line[X],
        place=_x(line),
        unix=float(line[TIME + "unix"]),
        counters={name: int(line[name]) for name in COUNTERS if name in line},
        metrics={
            name: math.nan if line[name] is None else float(line[name])
            for name in metrics_of(line)
            if not name.startswith(TIME)
        },
    )
