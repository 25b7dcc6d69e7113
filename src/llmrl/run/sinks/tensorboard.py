"""A sink for TensorBoard: an event file in the run folder, with the tags of `llmrl.run.tensorboard_tags`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from llmrl.run.sink import Ending, Opening, Row, Sink
from llmrl.run.tensorboard_evaluations import pictures
from llmrl.run.tensorboard_file import EventFile
from llmrl.run.tensorboard_tags import Tags, finals


class TensorBoard(Sink):
    """A sink that writes scalars, hyperparameters, texts and pictures for TensorBoard, which shows no MP4 videos.

    Resuming: the event file is written anew from the rows that are kept and replaces those of earlier attempts, which
        may
    be incomplete. TensorBoard sees it once all of these rows are in it.
    """

    background = False

    def open(self, opening: Opening) -> None:
        self._events = EventFile(opening.folder, started=opening.started or time.time())
        if opening.hyperparameters:
            self._events.hyperparameters(opening.hyperparameters)
        self._n_kept_rows = opening.kept
        self._tags = Tags()
        if not self._n_kept_rows:
            self._events.publish()

    def rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for earlier, values in self._tags.of(row):
                self._events.scalars(earlier.place, earlier.unix, values)
            if row.number + 1 == self._n_kept_rows:
                self._events.publish()

    def text(self, row: Row, tag: str, markdown: str) -> None:
        self._events.text(row.place, row.unix, tag, markdown)

    def picture(self, row: Row, tag: str, path: Path) -> None:
        if path.suffix == ".gif":
            animation, _, size = pictures(path)
            self._events.image(row.place, row.unix, tag, animation, size)
        elif path.suffix == ".png":
            import imageio.v3 as iio

            height, width = iio.improps(path).shape[:2]
            self._events.image(row.place, row.unix, tag, path.read_bytes(), (height, width))

    def close(self, ending: Ending) -> None:
        if ending.final:
            self._events.scalars(ending.place, ending.unix, finals(ending.final))
        self._events.end(ending.succeeded)
        self._events.close()
