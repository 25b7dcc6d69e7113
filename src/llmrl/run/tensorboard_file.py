"""TensorBoard event files, written record by record with TensorBoard's own protocol buffers (no TensorFlow, no torch).

Unlike a `SummaryWriter`, this module keeps one file for each run, has no background thread whose queue a killed process
would lose, and stores hyperparameters in the same file as the curves.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrl.core.atomic_files import describe_write_error, remove_file_ignoring_errors
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_file
from llmrl.core.secrets import redact, redact_nested
from llmrl.run.folder import split_overrides
from llmrl.run.sink import HyperParameters

EVENT_FILE_PATTERN = "events.out.tfevents.*"
_UNPUBLISHED_NAME = ".events.tmp"


class EventFile:
    """The event file of a run. After `publish`, TensorBoard shows this file instead of earlier ones.

    Every `wall_time` is a Unix time in seconds. All methods that write raise RunFolderError if the file cannot be
    written.

    Args:
        folder: run folder. TensorBoard shows its path relative to the log directory as the name of the run.
        started: start of the run, from which TensorBoard counts relative times, Unix seconds.

    Raises:
        RunFolderError: the file cannot be written.
    """

    def __init__(self, folder: Path, started: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = folder / _UNPUBLISHED_NAME
        self._run_start = started
        with self._reporting_errors():
            self._file = open_file(self._path, "wb")
        self._records = RecordWriter(self._file)
        self._write_event(Event(wall_time=started, file_version="brain.Event:2"))

    def publish(self) -> None:
        """Replace all earlier event files of the folder by this one."""
        folder = self._path.parent
        earlier_paths = list(folder.glob(EVENT_FILE_PATTERN))
        # A name that TensorBoard recognizes and sorts after the earlier ones.
        name = EVENT_FILE_PATTERN.replace("*", f"{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}")
        with self._reporting_errors():
            self._path = self._path.rename(folder / name)
        for path in earlier_paths:
            remove_file_ignoring_errors(path)

    def write_scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Write one record with the scalars of a step; `values` by tag."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write_summary(Summary(value=scalars), step, wall_time)

    def write_text(self, step: int, wall_time: float, tag: str, markdown: str) -> None:
        """Write a Markdown text for the Text tab."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._write_summary(text_pb(tag, redact(markdown)), step, wall_time)

    def write_image(self, step: int, wall_time: float, tag: str, encoded_image: bytes, size: tuple[int, int]) -> None:
        """Write an image for the Images tab: content of a PNG, JPEG or GIF file; `size` is (height, width), pixels."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        height, width = size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=encoded_image)
        self._write_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step, wall_time)

    def write_hyperparameters(self, values: HyperParameters) -> None:
        """Write the run's row of TensorBoard's HParams table."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        # With an empty trial id, TensorBoard identifies the row by the run's name and merges no runs of equal values.
        self._write_summary(hparams_pb(redact_nested(values), trial_id="", start_time_secs=self._run_start))

    def write_end(self, succeeded: bool) -> None:
        """Write the final status of the run for the HParams table."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
        plugin_data = plugin_data_pb2.HParamsPluginData(session_end_info=plugin_data_pb2.SessionEndInfo(status=status))
        value = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG,
            metadata=metadata.create_summary_metadata(plugin_data),
            tensor=metadata.NULL_TENSOR,
        )
        self._write_summary(Summary(value=[value]))

    def close(self) -> None:
        """Close the file, and remove it if it was not published."""
        with self._reporting_errors():
            self._records.close()
        if self._path.name == _UNPUBLISHED_NAME:
            remove_file_ignoring_errors(self._path)

    def _write_summary(self, summary: Any, step: int = 0, wall_time: float | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        wall_time = self._run_start if wall_time is None else wall_time
        self._write_event(Event(step=step, wall_time=wall_time, summary=summary))

    def _write_event(self, event: Any) -> None:
        with self._reporting_errors():
            self._records.write(event.SerializeToString())
            self._file.flush()

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._path.name == _UNPUBLISHED_NAME:
                remove_file_ignoring_errors(self._path)
            raise RunFolderError(
                f"cannot write the curves {self._path}: {describe_write_error(self._path, error)}"
            ) from error


def parse_hyperparameters(overrides: list[str], seed: int) -> HyperParameters:
    """Return overrides as hyperparameters, with numbers and booleans parsed, so that charts can use them as axes."""
    values: dict[str, bool | int | float | str] = {}
    for key, text in split_overrides(overrides).items():
        try:
            values[key] = float(text)
        except ValueError:
            values[key] = text.lower() == "true" if text.lower() in ("true", "false") else text
    return values | {"seed": seed}


MAX_GIF_BYTES = 5_000_000
"""Maximum size of an animation in the event file, bytes; TensorBoard sends all of it to each browser."""
_MAX_FRAMES_WITHOUT_SKIPPING = 40
"""Number of frames above which an animation is reduced by skipping frames, and below which by skipping pixels."""


def read_animation(gif_path: Path, max_bytes: int = MAX_GIF_BYTES) -> tuple[bytes, tuple[int, int]]:
    """Return a GIF animation, reduced to at most `max_bytes` bytes, and its (height, width) in pixels."""
    import imageio.v3 as iio

    animation = gif_path.read_bytes()
    frames = iio.imread(gif_path, index=None)  # [frames, height, width, 3]
    frame_duration_ms = float(iio.immeta(gif_path).get("duration", 50))
    while len(animation) > max_bytes and frames.size > frames.shape[-1]:
        if len(frames) > _MAX_FRAMES_WITHOUT_SKIPPING:
            frames, frame_duration_ms = frames[::2], 2 * frame_duration_ms
        else:
            frames = frames[:, ::2, ::2]
        animation = iio.imwrite("<bytes>", frames, extension=".gif", duration=frame_duration_ms, loop=0)
    return animation, (frames.shape[1], frames.shape[2])
