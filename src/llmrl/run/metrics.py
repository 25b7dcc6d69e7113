"""`metrics.jsonl`, the record of everything that a run measures, from which its sinks get their rows.

The file has one JSON object per line, a row. A row has `kind`, the kind of its metrics (`ROW_KINDS`); `x`, the name of
the counter that is its x coordinate; the counters by name, whole numbers such as `env_steps`; the metrics by name; and
`time/unix` (Unix time, seconds) and `time/elapsed_s` (running time of the run, over all attempts). Within a run, all
rows of a kind have the same counter as x coordinate, and a metric is in rows of one kind only.

Wall-clock numbers are only under `time/`, so everything else of two runs of the same config and seed can be compared
bit for bit. A number that is not finite is `null` in the file and NaN when read: JSON has neither NaN nor infinity.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.core.metrics import CounterName, RowKind
from llmrl.run.files import FilePosition, LineFile
from llmrl.run.sink import Ending, Opening, Row, Sink
from llmrl.run.sink_fan_out import SinkFanOut

log = logging.getLogger(__name__)

FILE_NAME = "metrics.jsonl"
TIME_PREFIX = "time/"
USAGE_PREFIX = "usage/"
FINAL_PREFIX = "Final/"
"""Prefix of the tags of final numbers. It is capitalized to sort first: TensorBoard's HParams tab shows the first five
metrics, and its plots omit runs that lack one of them, so these should be metrics that all runs have."""
ROW_KINDS: tuple[RowKind, ...] = get_args(RowKind)
COUNTER_NAMES: tuple[CounterName, ...] = get_args(CounterName)
KIND_KEY, X_KEY = "kind", "x"
_NON_METRIC_KEYS = frozenset({KIND_KEY, X_KEY, *COUNTER_NAMES})
_SHARED_PREFIXES = (TIME_PREFIX, USAGE_PREFIX)
"""Prefixes of metrics that rows of every kind may have."""

TextFunction = Callable[[Mapping[str, Any]], str | None]
"""Function from a row of metrics to its Markdown text, or None. It is called once for each row, in order."""
PicturesFunction = Callable[[Mapping[str, Any]], Iterable[Path]]
"""Function from a row of metrics to its picture and video files. It is called once for each row, in order."""


class MetricLog(LineFile):
    """A writer that appends to `metrics.jsonl` in `folder` and passes rows on to the run's sinks.

    Args:
        folder: run folder.
        position: `position()` at the resumed checkpoint, to which an existing file is cut; None: it is emptied. The
            remaining rows are passed to the sinks, so that these also continue as if uninterrupted.
        sinks: sinks by the names of their options. Their exceptions are logged, not raised.
        opening: description of the run for the sinks; None: a description that has only the folder.

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
        super().__init__(folder / FILE_NAME, position, drop_nondeterministic_metrics)
        self._non_finite_metric_names: set[str] = set()
        rows = read_metrics(self._path)
        self._start_time = time.monotonic()
        self._counter_by_kind: dict[str, str] = {}
        self._kind_by_metric: dict[str, str] = {}
        try:
            for row in rows:
                _check_numbers(row)
                self._register_row(row)
            if missing_names := [
                name for name in ("elapsed_s", "unix") for row in rows if TIME_PREFIX + name not in row
            ]:
                raise ValueError(f"a row has no {TIME_PREFIX}{missing_names[0]}")
        except ValueError as error:
            raise RunFolderError(
                f"{self._path} cannot be continued: {error}. Start this run anew with rerun=true, which moves the old "
                "content aside."
            ) from error
        self._earlier_elapsed_s = float(rows[-1][TIME_PREFIX + "elapsed_s"]) if rows else 0.0
        self._last_x = _get_x(rows[-1]) if rows else 0
        self._row_callbacks: list[Callable[[Row, Mapping[str, Any]], None]] = []
        opening = opening or Opening(folder, folder.parent, folder.parent.name, folder.name, started=time.time())
        self._sinks = SinkFanOut(sinks or {}, opening)
        self._n_rows = len(rows)
        if self._sinks:
            self._sinks.open([to_sink_row(row_number, line) for row_number, line in enumerate(rows)])

    def attach_text(self, tag: str, make_text: TextFunction) -> None:
        """Send the text of each row, earlier rows included, to the sinks under `tag`."""

        def send(row: Row, line: Mapping[str, Any]) -> None:
            if (text := make_text(line)) is not None:
                self._sinks.text(row, tag, text)

        self._add_row_callback(send)

    def attach_pictures(self, tag: str, list_pictures: PicturesFunction) -> None:
        """Send the pictures and videos of each row, earlier rows included, to the sinks under `tag`."""

        def send(row: Row, line: Mapping[str, Any]) -> None:
            for path in list_pictures(line):
                self._sinks.picture(row, tag, path)

        self._add_row_callback(send)

    def _add_row_callback(self, send: Callable[[Row, Mapping[str, Any]], None]) -> None:
        self._row_callbacks.append(send)
        if self._sinks:
            for row_number, line in enumerate(read_metrics(self._path)):
                send(to_sink_row(row_number, line), line)

    def log(self, kind: RowKind, x: CounterName, metrics: Mapping[str, Any], **counters: int) -> None:
        """Record a row of `metrics` (anything that `float()` accepts).

        Args:
            kind: kind of the row, one of `ROW_KINDS`.
            x: counter that is the x coordinate of the row, one of `counters`.
            metrics: metrics by name.
            counters: whole numbers by their names in `COUNTER_NAMES`, such as `env_steps=800`.

        Raises:
            ValueError: a kind or counter is unknown; `x` is not among the counters; earlier rows of this kind have
                another x coordinate; a metric has the name of a counter, or is in rows of another kind.
        """
        line: dict[str, Any] = {KIND_KEY: kind, X_KEY: x} | {name: int(value) for name, value in counters.items()}
        if unknown_counters := counters.keys() - set(COUNTER_NAMES):
            raise ValueError(
                f"counters of a row must be among {', '.join(COUNTER_NAMES)}, not {', '.join(sorted(unknown_counters))}"
            )
        if reserved_names := {KIND_KEY, X_KEY, *COUNTER_NAMES} & metrics.keys():
            raise ValueError(f"metrics cannot have the names of counters: {', '.join(sorted(reserved_names))}")
        self._register_row(line | dict(metrics))
        line |= {name: self._replace_non_finite(line[x], name, float(value)) for name, value in metrics.items()}
        line[TIME_PREFIX + "elapsed_s"] = round(self.elapsed_s, 3)
        line[TIME_PREFIX + "unix"] = round(time.time(), 6)  # precise enough to order rows and other events
        self.write([json.dumps(line, allow_nan=False)])
        self._last_x = line[x]
        if self._sinks:
            row = to_sink_row(self._n_rows, line)
            self._sinks.row(row)
            for send in self._row_callbacks:
                send(row, line)
        self._n_rows += 1

    @property
    def elapsed_s(self) -> float:
        """Seconds that this run has been running: up to the resumed checkpoint, and since this attempt's start."""
        return self._earlier_elapsed_s + time.monotonic() - self._start_time

    def close(self, state: str = "finished", final_results: Mapping[str, Any] | None = None, error: str = "") -> None:
        """Close the file and the sinks once. Sinks with a thread may close later (`wait_for_sinks`).

        Args:
            state: state of the run, as in `status.json`.
            final: findings of the run, which sinks get as its summary. Sinks also get the floats among them as metrics
                `Final/<name>` at the x coordinate of the last row, except names that contain a slash or start with
                `llm_`, because rows have these metrics already.
            error: reason why the run ended, in one line.
        """
        if not self._file.closed:
            super().close()
            summary = dict(final_results or {})
            final_metrics = {
                FINAL_PREFIX + name: value
                for name, value in summary.items()
                if isinstance(value, float) and "/" not in name and not name.startswith("llm_")
            }
            self._sinks.close(Ending(state, error, final_metrics, self._last_x, time.time(), summary))

    def wait_for_sinks(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Wait a limited time for sinks that are still closing, less if `is_stopping()`, and report incomplete ones."""
        self._sinks.wait_until_closed(is_stopping)

    def _register_row(self, row: Mapping[str, Any]) -> None:
        """Raise ValueError if a row breaks the rules of the file; register its kind and metrics."""
        kind, x = row.get(KIND_KEY), row.get(X_KEY)
        if kind not in ROW_KINDS:
            raise ValueError(f"the kind of a row must be one of {', '.join(ROW_KINDS)}, not {kind!r}")
        if x not in COUNTER_NAMES or x not in row:
            raise ValueError(f"the x coordinate {x!r} of a row of kind {kind} is not one of its counters")
        if (counter := self._counter_by_kind.setdefault(kind, x)) != x:
            raise ValueError(f"the x coordinate of a row of kind {kind} is {x}, but {counter} in earlier rows")
        for name in list_metric_names_of_row(row):
            if (
                not name.startswith(_SHARED_PREFIXES)
                and (earlier_kind := self._kind_by_metric.setdefault(name, kind)) != kind
            ):
                raise ValueError(f"metric {name} is in rows of kind {earlier_kind}, and now in one of kind {kind}")

    def _replace_non_finite(self, x: int, name: str, value: float) -> float | None:
        if math.isfinite(value):
            return value
        if name not in self._non_finite_metric_names:
            self._non_finite_metric_names.add(name)
            log.warning("metric %s is %s at %d (logged once for each metric)", name, value, x)
        return None


@dataclass(frozen=True)
class MetricTable:
    """The rows of one kind, in order.

    Attributes:
        kind: kind of the rows.
        x: counter that is their x coordinate.
        columns: arrays by name, [n_rows] each: the counter `x`, the other counters, then the metrics in the order of
            their first rows; NaN where a row has no such number, or one that was not finite.
    """

    kind: RowKind
    x: CounterName
    columns: dict[str, np.ndarray]


def read_metrics(path: Path, kind: RowKind | None = None) -> list[dict[str, Any]]:
    """Return the rows of the file `path`, or only those of `kind`; `null` becomes NaN.

    A last line that is still being written is left out.

    Raises:
        RunFolderError: the file cannot be read, or a complete line is not a JSON object.
    """
    rows = []
    try:
        lines = read_bytes(path).split(b"\n")[:-1]
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    for line_number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line.decode("utf-8"))
            rows.append({name: math.nan if value is None else value for name, value in row.items()})
        except UnicodeDecodeError as error:
            raise RunFolderError(f"{path}, line {line_number} is not UTF-8 (byte {error.start} of it)") from error
        except (ValueError, AttributeError, RecursionError) as error:
            raise RunFolderError(f"{path}, line {line_number} is not a JSON object: {error}") from error
    return rows if kind is None else [row for row in rows if row.get(KIND_KEY) == kind]


def read_metric_tables(path: Path) -> dict[RowKind, MetricTable]:
    """Return the rows of a `metrics.jsonl` as one tidy table for each kind.

    Raises:
        RunFolderError: a complete line is not a JSON object, has no valid `kind` or `x`, or has a metric that is not
            a number.
    """
    rows: dict[RowKind, list[dict[str, Any]]] = {}
    for line_number, row in enumerate(read_metrics(path), start=1):
        if row.get(KIND_KEY) not in ROW_KINDS or row.get(X_KEY) not in COUNTER_NAMES or row[X_KEY] not in row:
            raise RunFolderError(f"{path}, line {line_number} has no valid {KIND_KEY} or {X_KEY}")
        try:
            _check_numbers(row)
        except ValueError as error:
            raise RunFolderError(f"{path}, line {line_number}: {error}") from error
        rows.setdefault(row[KIND_KEY], []).append(row)
    tables = {}
    for kind, rows_of_kind in rows.items():
        x = rows_of_kind[0][X_KEY]
        counters = [name for name in COUNTER_NAMES if name != x and any(name in row for row in rows_of_kind)]
        metrics = dict.fromkeys(name for row in rows_of_kind for name in list_metric_names_of_row(row))
        columns = {n: np.array([row.get(n, math.nan) for row in rows_of_kind]) for n in (x, *counters, *metrics)}
        tables[kind] = MetricTable(kind, x, columns)
    return tables


def _check_numbers(row: Mapping[str, Any]) -> None:
    """Raise ValueError if a counter or metric of a row is not a number."""
    for name, value in row.items():
        if name not in (KIND_KEY, X_KEY) and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ValueError(f"{name} is {repr(value)[:60]}, not a number")


def list_metric_names_of_row(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics of a row, including those under `time/`."""
    return [name for name in row if name not in _NON_METRIC_KEYS]


def _get_x(row: Mapping[str, Any]) -> int:
    return int(row[row[X_KEY]])


def drop_nondeterministic_metrics(lines: bytes) -> bytes:
    """Return complete lines of a `metrics.jsonl` without times and usage, which differ between repetitions of a run.

    A line that is not a JSON object remains unchanged.
    """
    return b"".join(map(_drop_nondeterministic_metrics_of_line, lines.splitlines(keepends=True)))


def _drop_nondeterministic_metrics_of_line(line: bytes) -> bytes:
    try:
        row = json.loads(line)
        return json.dumps(
            {name: value for name, value in row.items() if not name.startswith((TIME_PREFIX, USAGE_PREFIX))}
        ).encode()
    except (ValueError, AttributeError, RecursionError):
        return line


def to_sink_row(row_number: int, line: Mapping[str, Any]) -> Row:
    """Return a line of the file as a `Row` for sinks; `row_number` is its index, from 0."""
    return Row(
        number=row_number,
        kind=line[KIND_KEY],
        x=line[X_KEY],
        x_value=_get_x(line),
        unix_time=float(line[TIME_PREFIX + "unix"]),
        counters={name: int(line[name]) for name in COUNTER_NAMES if name in line},
        metrics={
            name: math.nan if line[name] is None else float(line[name])
            for name in list_metric_names_of_row(line)
            if not name.startswith(TIME_PREFIX)
        },
    )
