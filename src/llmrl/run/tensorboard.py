"""TensorBoard event files, written record by record with TensorBoard's own protocol buffers (no TensorFlow, no torch).

Writing them here rather than through a summary writer keeps one file a run, without a background thread whose queue a
killed process would lose, and lets hyperparameters live in the same file as the curves.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrl.core.disk import remove, why
from llmrl.core.errors import RunFolderError
from llmrl.core.secrets import redact, redact_all
from llmrl.run.folder import split_overrides
from llmrl.run.sinks.sink import HyperParameters

PATTERN = "events.out.tfevents.*"
_UNPUBLISHED = ".events.tmp"


class EventFile:
    """The event file of `folder`. That folder, seen from TensorBoard's log directory, is the run's name there.

    TensorBoard sees the file, and no longer those that were there before, from `publish` on; what is written later
    appears as it is written.

    `started` is the Unix time at which the run's clock begins, in seconds, as is every `wall_time`.

    Raises:
        RunFolderError: it cannot be written; of every method that writes.
    """

    def __init__(self, folder: Path, started: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = folder / _UNPUBLISHED
        self._started = started
        with self._told():
            self._file = self._path.open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=started, file_version="brain.Event:2"))

    def publish(self) -> None:
        """Take the place of all earlier event files of the folder."""
        folder = self._path.parent
        earlier = list(folder.glob(PATTERN))
        # A name TensorBoard recognises and sorts after the earlier ones.
        name = PATTERN.replace("*", f"{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}")
        with self._told():
            self._path = self._path.rename(folder / name)
        for path in earlier:
            remove(path)

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """All `values` of one step as one record."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        value = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._summary(Summary(value=value), step, wall_time)

    def text(self, step: int, wall_time: float, tag: str, markdown: str) -> None:
        """One entry of the Text tab."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._summary(text_pb(tag, redact(markdown)), step, wall_time)

    def image(self, step: int, wall_time: float, tag: str, encoded: bytes, size: tuple[int, int]) -> None:
        """One entry of the Images tab: a PNG, JPEG or (animated) GIF file's bytes; `size` is (height, width)."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        height, width = size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded)
        self._summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step, wall_time)

    def hyperparameters(self, values: HyperParameters) -> None:
        """Make the run a row of TensorBoard's HParams table."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        # Without an id of its own the row has the run's name, so that runs of equal values stay apart.
        self._summary(hparams_pb(redact_all(values), trial_id="", start_time_secs=self._started))

    def end(self, succeeded: bool) -> None:
        """Tell the HParams table how the run ended."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        state = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
        data = plugin_data_pb2.HParamsPluginData(session_end_info=plugin_data_pb2.SessionEndInfo(status=state))
        value = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG,
            metadata=metadata.create_summary_metadata(data),
            tensor=metadata.NULL_TENSOR,
        )
        self._summary(Summary(value=[value]))

    def close(self) -> None:
        """Close the file; what was never published is removed."""
        with self._told():
            self._records.close()
        if self._path.name == _UNPUBLISHED:
            remove(self._path)

    def _summary(self, summary: Any, step: int = 0, wall_time: float | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._write(Event(step=step, wall_time=self._started if wall_time is None else wall_time, summary=summary))

    def _write(self, event: Any) -> None:
        with self._told():
            self._records.write(event.SerializeToString())
            self._file.flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._path.name == _UNPUBLISHED:
                remove(self._path)
            raise RunFolderError(f"cannot write the curves {self._path}: {why(self._path, error)}") from error


def hyperparameters_of(overrides: list[str], seed: int) -> HyperParameters:
    """The overrides as hyperparameters: numbers as numbers, so that charts can use them as axes."""
    values: dict[str, bool | int | float | str] = {}
    for key, text in split_overrides(overrides).items():
        try:
            values[key] = float(text)
        except ValueError:
            values[key] = text.lower() == "true" if text.lower() in ("true", "false") else text
    return values | {"seed": seed}
