"""TensorBoard event files, written record by record with TensorBoard's own protocol buffers (no TensorFlow, no torch).

Writing them here rather than through a summary writer keeps one file a run, without a background thread whose queue a
killed process would lose, and lets hyperparameters live in the same file as the curves.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HyperParameters = Mapping[str, bool | int | float | str]

PATTERN = "events.out.tfevents.*"


class EventFile:
    """One event file. Its folder, seen from TensorBoard's log directory, is the run's name there.

    `started` is the Unix time at which the run's clock begins, in seconds.
    """

    def __init__(self, path: Path, started: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.path = path
        self._started = started
        self._file = path.open("wb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=started, file_version="brain.Event:2"))

    @staticmethod
    def new_name() -> str:
        """A name TensorBoard recognises and sorts after those of earlier attempts."""
        return PATTERN.replace("*", f"{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}")

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """All `values` of one step as one record; `wall_time` is Unix time in seconds."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(Event(step=step, wall_time=wall_time, summary=summary))

    def hyperparameters(self, values: HyperParameters, name: str) -> None:
        """Make the run a row `name` of TensorBoard's HParams table."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._summary(hparams_pb(dict(values), trial_id=name, start_time_secs=self._started))

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
        self._records.close()

    def _summary(self, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._write(Event(step=0, wall_time=self._started, summary=summary))

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()
