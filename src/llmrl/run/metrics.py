"""`metrics.jsonl`, the one true record of what a run measured, and the TensorBoard curves drawn from it.

One JSON object a line: `step`, further axes such as `env_steps`, the metrics by name, and `time/unix` (seconds) and
`time/elapsed_s` (seconds the run has been running, over all attempts). Wall-clock numbers live only under `time/`, so
all else of two runs of the same config and seed can be compared bit for bit. A number that is not finite is `null` in
the file and NaN when read: JSON has neither NaN nor infinity.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.run.tensorboard import EventFile, HyperParameters

log = logging.getLogger(__name__)

FILE_NAME = "metrics.jsonl"
TIME = "time/"
SPENT = "spent/"
FINAL = "Final/"
"""Of the tags of final numbers. Capital, because TensorBoard's HParams tab shows the five metrics that sort first, and
leaves out of its plots the runs that lack one of them: so only what all runs have in common should be there."""
_NO_CURVES = ("step", "env_steps")
"""Axes. A chart of `env_steps` would mix rows that count different things in `step`."""

TextOf = Callable[[Mapping[str, Any]], str | None]
"""From a line of metrics to the Markdown to show beside it, if any. Asked once for each line, in their order."""


class MetricLog:
    """Appends to `metrics.jsonl` in `folder` and to TensorBoard events beside it.

    Args:
        folder: the run folder.
        hyperparameters: what TensorBoard's HParams table shows of this run.
        lines: length to which an existing file is cut back first: `position()` at the checkpoint that is resumed, or
            0. The events are rewritten from what remains, so that both files continue as if uninterrupted.

    Attributes:
        digest: of all that was logged since, the clock's numbers aside.

    Raises:
        RunFolderError: the file has fewer lines, or cannot be written.
    """

    def __init__(self, folder: Path, hyperparameters: HyperParameters | None = None, lines: int = 0) -> None:
        self._path = folder / FILE_NAME
        self._not_finite: set[str] = set()
        try:
            self._file = self._path.open("ab")
            self._truncate(lines)
        except OSError as error:
            raise RunFolderError(f"cannot write {self._path}: {error.strerror or error}") from error
        kept = read_metrics(self._path)
        self._elapsed = float(kept[-1].get(TIME + "elapsed_s", 0.0)) if kept else 0.0
        self._started = time.monotonic()
        self._step = int(kept[-1]["step"]) if kept else 0
        self.digest = 0
        self._texts: dict[str, TextOf] = {}
        self._events = _rewrite_events(folder, kept, hyperparameters or {})

    def attach(self, tag: str, text_of: TextOf) -> None:
        """Show a text beside lines in TensorBoard's Text tab, under `tag`: beside those there are and those to come."""
        self._texts[tag] = text_of
        for line in read_metrics(self._path):
            self._show(tag, text_of, line)

    def log(self, step: int, metrics: Mapping[str, Any], **axes: int) -> None:
        """Record `metrics` (anything `float()` takes) at `step`; `axes` are further counters, e.g. `env_steps=800`.

        Raises:
            ValueError: a metric has the name of an axis.
        """
        line: dict[str, Any] = {"step": int(step)} | {name: int(value) for name, value in axes.items()}
        taken = line.keys() & metrics.keys()
        if taken:
            raise ValueError(f"metric names taken by axes: {', '.join(sorted(taken))}")
        line |= {name: self._finite(step, name, float(value)) for name, value in metrics.items()}
        self.digest = _digest(line, self.digest)
        line[TIME + "elapsed_s"] = round(self.elapsed_s, 3)
        line[TIME + "unix"] = round(time.time(), 6)  # fine enough to tell what came before the line and what after
        self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
        self._file.flush()
        self._lines += 1
        self._step = line["step"]
        _to_events(self._events, line)
        for tag, text_of in self._texts.items():
            self._show(tag, text_of, line)

    @property
    def elapsed_s(self) -> float:
        """Seconds this run has been running: up to the resumed checkpoint, and since this attempt's start."""
        return self._elapsed + time.monotonic() - self._started

    def position(self) -> int:
        """Lines written so far, synced to disk: what a checkpoint stores as the place to resume from.

        Lines rather than bytes, because how long the clock's numbers are differs from run to run.
        """
        os.fsync(self._file.fileno())
        return self._lines

    def close(self, succeeded: bool = True, final: Mapping[str, Any] | None = None) -> None:
        """Close both files.

        Args:
            succeeded: what TensorBoard's HParams table shows as the run's state.
            final: what the run found; its floats become metrics of that table, as `Final/<name>` at the last step. Not
                counts, and not what has a curve, whose last value the table has anyway: names with a slash or `llm_`.
        """
        if not self._file.closed:
            self._file.close()
            numbers = {
                FINAL + name: value
                for name, value in (final or {}).items()
                if isinstance(value, float) and "/" not in name and not name.startswith("llm_")
            }
            if numbers:
                self._events.scalars(self._step, time.time(), numbers)
            self._events.end(succeeded)
            self._events.close()

    def _show(self, tag: str, text_of: TextOf, line: Mapping[str, Any]) -> None:
        text = text_of(line)
        if text is not None:
            self._events.text(int(line["step"]), float(line[TIME + "unix"]), tag, text)

    def _truncate(self, lines: int) -> None:
        whole = [line for line in self._path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        if len(whole) < lines:
            raise RunFolderError(
                f"{self._path} has {len(whole)} lines but the checkpoint was written at {lines}: the file has been cut "
                "or replaced. Start this run anew with rerun=true, which moves the old content aside."
            )
        if len(whole) > lines:
            log.info("%s: dropping %d lines written after the checkpoint", self._path, len(whole) - lines)
        self._file.truncate(sum(len(line) for line in whole[:lines]))
        self._file.seek(0, os.SEEK_END)
        self._lines = lines

    def _finite(self, step: int, name: str, value: float) -> float | None:
        if math.isfinite(value):
            return value
        if name not in self._not_finite:
            self._not_finite.add(name)
            log.warning("metric %s is %s at step %d (told once for each metric)", name, value, step)
        return None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`, `null` as NaN; a last line that is still being written is left out.

    Raises:
        RunFolderError: a whole line is not a JSON object.
    """
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not text.endswith("\n"):
            break
        try:
            line = json.loads(text)
            lines.append({name: math.nan if value is None else value for name, value in line.items()})
        except (ValueError, AttributeError) as error:
            raise RunFolderError(f"{path}, line {number} is not a JSON object: {error}") from error
    return lines


def _digest(line: Mapping[str, Any], before: int) -> int:
    same = {name: value for name, value in line.items() if not name.startswith((TIME, SPENT))}
    return zlib.crc32(json.dumps(same).encode(), before)


def _rewrite_events(folder: Path, lines: list[dict[str, Any]], hyperparameters: HyperParameters) -> EventFile:
    """A new event file with all of `lines`, in place of those of earlier attempts, whose ends nobody can trust."""
    events = EventFile(folder, started=lines[0][TIME + "unix"] if lines else time.time())
    if hyperparameters:
        events.hyperparameters(hyperparameters)
    for line in lines:
        _to_events(events, line)
    events.publish()
    return events


def _to_events(events: EventFile, line: Mapping[str, Any]) -> None:
    values = {
        key: math.nan if value is None else float(value)
        for key, value in line.items()
        if key not in _NO_CURVES and not key.startswith(TIME)
    }
    events.scalars(int(line["step"]), float(line[TIME + "unix"]), values)
