"""A sink for MLflow: a run in the experiment of a tracking server, or of a database in the output folder."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from llmrl.run.sink import Ending, Opening, Row, Sink, flatten_config, require_library

_RUN_ID_TAG, _N_ROWS_TAG = "llmrl.run_id", "llmrl.rows"
"""Tags of an MLflow run: id of the llmrl run, and number of its rows that MLflow has."""
_BATCH_SIZE = 1000
"""Maximum number of metrics of one request to MLflow."""
FOLDER = "mlflow"
"""Folder below the output folder with the database and its artifacts."""
_MAX_PARAMETERS = 100
"""Maximum number of parameters of one request to MLflow."""
_MAX_VALUE_LENGTH = 6000
"""Maximum number of characters of a parameter's value in MLflow."""
_MLFLOW_STATES = {"finished": "FINISHED", "failed": "FAILED"}
_DEFAULT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # With few retries, a request to a server that is down fails before the run ends, so the failure is reported.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def get_database_uri(root: Path) -> str:
    """Return the address of the database below an output folder."""
    return f"sqlite:///{root.absolute() / FOLDER / 'mlflow.db'}"


class MLflow(Sink):
    """A sink that sends metrics, parameters, texts and pictures of a run to MLflow; texts and pictures are artifacts.

    Resuming: the sink continues the same MLflow run and skips the rows that MLflow has. If these include rows that were
    logged after the checkpoint, which are computed again, it deletes the MLflow run, and a new one gets all rows.

    Args:
        tracking_uri: address of a server or a database; None: `<output_root>/mlflow/mlflow.db`, with artifacts in the
            same folder.
        experiment: name of the MLflow experiment; None: the value of the option `name`.

    Raises:
        ConfigError: MLflow is not installed.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        require_library("mlflow", "mlflow", "loggers")
        self._tracking_uri, self._experiment = tracking_uri, experiment

    def open(self, opening: Opening) -> None:
        for name, value in _DEFAULT_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for library in ("mlflow", "alembic"):  # both log every table of a new database
            logging.getLogger(library).setLevel(logging.WARNING)

        folder = opening.root / FOLDER
        if self._tracking_uri is None:
            folder.mkdir(parents=True, exist_ok=True)
        with _hold_database_lock(folder) if self._tracking_uri is None else nullcontext():
            self._client = MlflowClient(self._tracking_uri or get_database_uri(opening.root))
            experiment_id = self._get_or_create_experiment(
                self._experiment or opening.name, None if self._tracking_uri else (folder / "artifacts").as_uri()
            )
        self._n_logged_rows = 0
        run_id = opening.get_run_id()
        reopened_run_id = self._reopen_run(experiment_id, run_id, opening.n_kept_rows)
        self._mlflow_run_id = reopened_run_id or self._create_run(experiment_id, run_id, opening)

    def rows(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric, RunTag

        metrics: list[Any] = []
        for row in rows:
            if row.number < self._n_logged_rows:
                continue
            timestamp_ms = int(row.unix_time * 1000)
            batch = [Metric(_clean_name(tag), value, timestamp_ms, row.x_value) for tag, value in row.metrics.items()]
            if len(metrics) + len(batch) > _BATCH_SIZE:
                self._log_batches(metrics, [RunTag(_N_ROWS_TAG, str(row.number))])
                metrics = []
            metrics += batch
        if metrics:
            self._log_batches(metrics, [RunTag(_N_ROWS_TAG, str(rows[-1].number + 1))])

    def text(self, row: Row, tag: str, markdown: str) -> None:
        if row.number >= self._n_logged_rows:
            self._client.log_text(self._mlflow_run_id, markdown, f"{_clean_name(tag)}/{row.number:08d}.md")

    def picture(self, row: Row, tag: str, path: Path) -> None:
        if row.number >= self._n_logged_rows:
            artifact_folder = f"{_clean_name(tag)}/{row.x_value}/{path.parent.name}"
            self._client.log_artifact(self._mlflow_run_id, str(path), artifact_folder)

    def close(self, ending: Ending) -> None:
        from mlflow.entities import Metric

        timestamp_ms = int(ending.unix_time * 1000)
        final_metrics = ending.final_metrics.items()
        metrics = [Metric(_clean_name(tag), value, timestamp_ms, ending.x_value) for tag, value in final_metrics]
        self._log_batches(metrics, tags=[])
        if ending.summary:
            self._client.log_dict(self._mlflow_run_id, ending.summary, "summary.json")
        if ending.error:
            self._client.set_tag(self._mlflow_run_id, "llmrl.error", ending.error[:_MAX_VALUE_LENGTH])
        self._client.set_tag(self._mlflow_run_id, "llmrl.state", ending.state)
        self._client.set_terminated(self._mlflow_run_id, _MLFLOW_STATES.get(ending.state, "KILLED"), timestamp_ms)

    def _get_or_create_experiment(self, name: str, artifacts_uri: str | None) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifacts_uri))
            except MlflowException:  # another run of the sweep has just created it
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _reopen_run(self, experiment_id: str, run_id: str, n_rows: int) -> str | None:
        """Reopen and return the MLflow run of an earlier attempt; delete it and return None if it has too many rows."""
        runs = self._client.search_runs([experiment_id], f"tags.`{_RUN_ID_TAG}` = '{run_id}'", max_results=1)
        if not runs:
            return None
        mlflow_run_id, self._n_logged_rows = runs[0].info.run_id, int(runs[0].data.tags.get(_N_ROWS_TAG, 0))
        if self._n_logged_rows > n_rows:
            self._client.delete_run(mlflow_run_id)
            self._n_logged_rows = 0
            return None
        self._client.update_run(mlflow_run_id, status="RUNNING")
        return str(mlflow_run_id)

    def _create_run(self, experiment_id: str, run_id: str, opening: Opening) -> str:
        from mlflow.entities import Param

        tags = {_RUN_ID_TAG: run_id, "llmrl.folder": str(opening.folder)}
        run = self._client.create_run(experiment_id, int(opening.started * 1000), tags, opening.label).info.run_id
        parameters = [
            Param(_clean_name(key), str(x)[:_MAX_VALUE_LENGTH]) for key, x in flatten_config(opening.config).items()
        ]
        for i in range(0, len(parameters), _MAX_PARAMETERS):
            self._client.log_batch(run, params=parameters[i : i + _MAX_PARAMETERS])
        return str(run)

    def _log_batches(self, metrics: list[Any], tags: list[Any]) -> None:
        for i in range(0, len(metrics), _BATCH_SIZE):
            is_last = i + _BATCH_SIZE >= len(metrics)
            batch = metrics[i : i + _BATCH_SIZE]
            self._client.log_batch(self._mlflow_run_id, metrics=batch, tags=tags if is_last else [])


def _clean_name(tag: str) -> str:
    """Return a tag with only the characters that MLflow allows in names."""
    return re.sub(r"[^\w\-./ :]", "_", tag)[:250]


@contextmanager
def _hold_database_lock(folder: Path) -> Iterator[None]:
    """Return a context that only one process enters at a time, because two cannot create the tables of a database."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
