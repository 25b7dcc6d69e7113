"""Trackio: runs in a database below the output folder, with a dashboard that needs no account (`trackio show`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.run.sinks.sink import Ending, Opening, Row, Sink, flat, need


class Trackio(Sink):
    """Metrics, config, texts and videos of a run for Trackio.

    It is written as Trackio's own importers write, straight into the database of its project: `trackio.init` belongs to
    one run a process, talks on the terminal, and measures the machine.

    Resuming: the run is written anew from the rows that are kept.

    Args:
        folder: of Trackio's databases, one for all runs of a process; None: `<output_root>/trackio`. Its commands find
            it by the environment variable TRACKIO_DIR.
        project: None: the name of the experiment here.

    Raises:
        ConfigError: Trackio is not installed.
    """

    def __init__(self, folder: str | None = None, project: str | None = None) -> None:
        need("trackio", "trackio", "trackio")
        self._folder, self._project = folder, project

    def open(self, opening: Opening) -> None:
        folder = opening.root / "trackio" if self._folder is None else Path(self._folder).expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(folder)  # read when it is imported
        import trackio
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import TRACKIO_DIR, project_media_dir

        if Path(TRACKIO_DIR).absolute() != folder:
            raise ConfigError(
                f"Trackio writes to {TRACKIO_DIR} in this process, and cannot write to {folder}, too; "
                "start these runs by commands of their own, or set loggers.trackio.folder"
            )
        self._library: Any = trackio
        self._storage: Any = SQLiteStorage
        self._name = (self._project or opening.name).replace("/", "-")
        self._run, self._id = opening.label.replace("/", " "), opening.run_id()
        self._config = {
            **flat(opening.config),
            **opening.hyperparameters,
            "_Username": None,
            "_Created": _iso(opening.started),
            "_Group": opening.label.rpartition("/")[0],
        }
        self._storage.validate_project_name(self._name)
        self._storage.delete_run(self._name, self._run, run_id=self._id)
        shutil.rmtree(project_media_dir(self._name) / self._run, ignore_errors=True)

    def rows(self, rows: Sequence[Row]) -> None:
        self._write(
            [dict(row.metrics) for row in rows],
            [row.place for row in rows],
            [row.unix for row in rows],
        )

    def text(self, row: Row, tag: str, markdown: str) -> None:
        self._write([{tag: self._library.Markdown(markdown)._to_dict()}], [row.place], [row.unix])

    def picture(self, row: Row, tag: str, path: Path) -> None:
        make = self._library.Image if path.suffix == ".png" else self._library.Video
        media = make(str(path), caption=path.parent.name)
        media._save(self._name, self._run, row.place)
        self._write([{tag: media._to_dict()}], [row.place], [row.unix])

    def close(self, ending: Ending) -> None:
        found = {key: value for key, value in flat(ending.summary).items() if isinstance(value, int | float | str)}
        self._config |= {f"summary.{key}": value for key, value in found.items()}
        self._config |= {"state": ending.state, "error": ending.error}
        self._write([dict(ending.final)], [ending.place], [ending.unix])

    def _write(self, values: list[dict[str, Any]], places: list[int], times: list[float]) -> None:
        self._storage.bulk_log(
            self._name,
            self._run,
            values,
            steps=places,
            timestamps=[_iso(each) for each in times],
            config=self._config,
            run_id=self._id,
        )


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat()
