"""MLflow: a run in the experiment of a tracking server, or of a database below the output folder."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llmrl.run.sinks.sink import Ending, Opening, Row, Sink, flat, need

_ID, _ROWS = "llmrl.run_id", "llmrl.rows"
"""Tags of an MLflow run: which run it is, and how many of its rows it has."""
_MOST = 1000
"""Metrics of one request; MLflow refuses more."""
FOLDER = "mlflow"
"""Folder below the output folder with the database and its artifacts."""
_PARAMETERS = 100
_LONGEST = 6000
"""Characters of a parameter's value; MLflow refuses more."""
_STATES = {"finished": "FINISHED", "failed": "FAILED"}
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # A server that is down is asked again a while later (`fan_out`), not for minutes at the end of a run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def database_uri(root: Path) -> str:
    """Return the address of the database below an output folder."""
    return f"sqlite:///{root.absolute() / FOLDER / 'mlflow.db'}"


class MLflow(Sink):
    """Metrics, parameters, texts and pictures of a run for MLflow; texts and pictures are its artifacts.

    Resuming: it goes on in the same MLflow run, and leaves out what that has. Where that has rows that were logged
    after the checkpoint, and are computed anew, it is deleted (MLflow keeps it among the deleted ones), and a new one
    is written from the beginning.

    Args:
        tracking_uri: of a server, or a database; None: `<output_root>/mlflow/mlflow.db`, with artifacts beside it.
        experiment: name of the MLflow experiment; None: the name of the experiment here.

    Raises:
        ConfigError: MLflow is not installed.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        need("mlflow", "mlflow", "loggers")
        self._uri, self._experiment = tracking_uri, experiment

    def open(self, opening: Opening) -> None:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for library in ("mlflow", "alembic"):  # they tell of every table of a new database
            logging.getLogger(library).setLevel(logging.WARNING)

        folder = opening.root / FOLDER
        if self._uri is None:
            folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder) if self._uri is None else _anybody():
            self._client = MlflowClient(self._uri or database_uri(opening.root))
            experiment = self._experiment_id(
                self._experiment or opening.name, None if self._uri else (folder / "artifacts").as_uri()
            )
        self._had = 0
        run_id = opening.run_id()
        self._run = self._going_on(experiment, run_id, opening.kept) or self._begun(experiment, run_id, opening)

    def rows(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics: list[Any] = []
        for row in rows:
            if row.number < self._had:
                continue
            of_row = [Metric(_name(tag), value, int(row.unix * 1000), row.place) for tag, value in row.metrics.items()]
            if len(metrics) + len(of_row) > _MOST:
                self._log(metrics, [RunTag(_ROWS, str(row.number))])
                metrics = []
            metrics += of_row
        if metrics:
            self._log(metrics, [RunTag(_ROWS, str(rows[-1].number + 1))])

    def text(self, row: Row, tag: str, markdown: str) -> None:
        if row.number >= self._had:
            self._client.log_text(self._run, markdown, f"{_name(tag)}/{row.number:08d}.md")

    def picture(self, row: Row, tag: str, path: Path) -> None:
        if row.number >= self._had:
            self._client.log_artifact(self._run, str(path), f"{_name(tag)}/{row.place}/{path.parent.name}")

    def close(self, ending: Ending) -> None:
        from mlflow.entities import Metric

        now = int(ending.unix * 1000)
        self._log([Metric(_name(tag), value, now, ending.place) for tag, value in ending.final.items()], [])
        if ending.summary:
            self._client.log_dict(self._run, _plain(ending.summary), "summary.json")
        if ending.error:
            self._client.set_tag(self._run, "llmrl.error", ending.error[:_LONGEST])
        self._client.set_tag(self._run, "llmrl.state", ending.state)
        self._client.set_terminated(self._run, _STATES.get(ending.state, "KILLED"), now)

    def _experiment_id(self, name: str, artifacts: str | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifacts))
            except MlflowException:  # another run of the sweep was first
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _going_on(self, experiment: str, run_id: str, kept: int) -> str | None:
        """The MLflow run of an earlier attempt, unless it has rows that are computed anew."""
        found = self._client.search_runs([experiment], f"tags.`{_ID}` = '{run_id}'", max_results=1)
        if not found:
            return None
        mlflow_run, self._had = found[0].info.run_id, int(found[0].data.tags.get(_ROWS, 0))
        if self._had > kept:
            self._client.delete_run(mlflow_run)
            self._had = 0
            return None
        self._client.update_run(mlflow_run, status="RUNNING")
        return str(mlflow_run)

    def _begun(self, experiment: str, run_id: str, opening: Opening) -> str:
        from mlflow.entities import Param

        tags = {_ID: run_id, "llmrl.folder": str(opening.folder)}
        run = self._client.create_run(experiment, int(opening.started * 1000), tags, opening.label).info.run_id
        parameters = [Param(_name(key), str(value)[:_LONGEST]) for key, value in flat(opening.config).items()]
        for i in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(run, params=parameters[i : i + _PARAMETERS])
        return str(run)

    def _log(self, metrics: list[Any], tags: list[Any]) -> None:
        for i in range(0, len(metrics), _MOST):
            last = i + _MOST >= len(metrics)
            self._client.log_batch(self._run, metrics=metrics[i : i + _MOST], tags=tags if last else [])


def _name(tag: str) -> str:
    """A tag as MLflow allows names to be."""
    return re.sub(r"[^\w\-./ :]", "_", tag)[:250]


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that are making the database: only one of them can make its tables."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _anybody() -> Iterator[None]:
    yield
