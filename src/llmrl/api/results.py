"""Loading of the results of runs as tables, also of unfinished runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.api import dataframes
from llmrl.api.dataframes import LabeledRuns
from llmrl.core.errors import ConfigError
from llmrl.results.groups import group_into_tasks
from llmrl.results.run_records import RunRecord, find_runs, read_run
from llmrl.run.shared_factors import get_run_name

if TYPE_CHECKING:
    import pandas as pd

    StrPath = str | os.PathLike[str]

TABLES = ("runs", "metrics", "proposals", "episodes", "llm_calls")


def load(runs: StrPath | Iterable[StrPath] = "outputs") -> Results:
    """Load the runs in one or several folders as tables.

    Args:
        runs: folder of runs at any level (`outputs`, `outputs/<name>`), run folder, result of a run, or several of
            these; relative to the working directory.

    Returns:
        The runs in their current state. Tables are read at first access and cached; load again to refresh them.

    Raises:
        RunFolderError: there is no such folder.
        ConfigError: pandas is not installed.

    Example:
        >>> results = llmrl.load("outputs/cleanup")  # doctest: +SKIP
        >>> results.runs.groupby("label").result.describe()  # doctest: +SKIP
    """
    dataframes.import_pandas()
    places = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    folders = [Path(place).expanduser().absolute() for place in places]
    run_folders = dict.fromkeys(run for folder in folders for run in find_runs(folder))
    root = Path(os.path.commonpath(folders)) if folders else Path.cwd()
    return Results([read_run(folder) for folder in run_folders], root)


class Results:
    """Runs as tables. All tables but `runs` start with `run`, `label` and `seed`, by which they can be joined.

    Args:
        records: records of the runs.
        root: common parent folder of the runs.
    """

    def __init__(self, records: Sequence[RunRecord], root: Path) -> None:
        self.records = tuple(records)
        self.root = root

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in Counter(record.state for record in self.records).items())
        return f"Results({len(self)} runs in {self.root}{': ' if states else ''}{states})"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Table with one row for each run.

        Columns: `run`, a unique name; `name` (folder under the output root); `label`, the overrides of its group that
        differ from other groups; `seed`, `hash`, `state` (finished, running, failed, ...), `is_prerequisite` (whether
        another of the runs needs it: pre-training, reference lines), `result` (NaN unless finished), `recommendation`
        and `online_performance` (of runs with a principal, else NaN), `environment`, `model` (language model),
        `attempts`, `done` of `total` `unit`, `started` and `updated` (UTC), `error`, `folder`; and every override that
        differs between the runs, such as `principal` or `design.steps`, missing for runs without this override.
        """
        return dataframes.build_runs_frame(self._labeled_runs)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Table with one row for each measured number.

        Columns: `kind` of the logged row (update, evaluation, proposal, ...), `axis` and `place` (the counter of the x
        axis of this kind, and its value), `env_steps`, `elapsed_s`, `metric` (its name) and `value`.
        """
        return dataframes.read_table("metrics", self._labeled_runs)

    @cached_property
    def proposals(self) -> pd.DataFrame:
        """Table with one row for each proposal of a principal.

        Columns: `step`, `candidate`, `context`, `objective` with its `standard_error` and number of `episodes`,
        `fallback`, `reasoning`, and the proposed numbers, `parameter.<name>`.
        """
        return dataframes.read_table("proposals", self._labeled_runs)

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """Table with one row for each recorded episode.

        Columns: `source` (`training`; `final`, the episodes at the end of a run or of players that do not learn; the
        folder of an evaluation, such as `evaluation`), the player (`policy`, `mode`) and the `mechanism`, if they are
        known; `episode`, its number in the source; `start`, the step of its game at which it started, in training;
        `return` and `base_return` (mean over agents), `length`, `objective`, and the metrics of the environment.
        """
        return dataframes.read_table("episodes", self._labeled_runs)

    @cached_property
    def llm_calls(self) -> pd.DataFrame:
        """Table with one row for each call to a chat model.

        Columns: `time` (UTC), `model`, `purpose`, `prompt`; `outcome` (`reply`, `failed`, or `lost`: it is unknown
        whether the call was charged); `valid` and `fault`, the result of parsing the reply; `cached`, `attempts`,
        tokens; `cost` in US dollars, 0 from the cache and NaN if it is unknown; `possible_cost`, the maximum cost of a
        lost call; `latency` in seconds; `finish`, `repeat`, `stream`, `hash`, `reply`, `error`.
        """
        return dataframes.read_table("llm_calls", self._labeled_runs)

    def where(self, **column_values: Any) -> Results:
        """Return the runs with given values in columns of `runs`.

        `results.where(name="cleanup", state="finished", seed=[0, 1])`

        Args:
            column_values: value of a column, or list of values.

        Raises:
            ConfigError: there is no such column.
        """
        table, mask = self.runs, [True] * len(self)
        for column, value in column_values.items():
            if column not in table:
                raise ConfigError(f"where({column}=...): the table of runs has no such column; use {', '.join(table)}")
            values = list(value) if isinstance(value, list | tuple | set) else [value]
            mask = [selected and bool(x) for selected, x in zip(mask, table[column].isin(values), strict=True)]
        return Results([record for record, selected in zip(self.records, mask, strict=True) if selected], self.root)

    def save(self, folder: StrPath) -> list[Path]:
        """Write every table to `folder` as a Parquet file with Apache Arrow's types: `runs.parquet`, ...

        Returns:
            The files.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        files = {name: Path(folder).expanduser() / f"{name}.parquet" for name in TABLES}
        for name, path in files.items():
            dataframes.write_frame(getattr(self, name), path, "parquet")
        return list(files.values())

    @cached_property
    def _labeled_runs(self) -> LabeledRuns:
        """The runs with the columns that identify them in tables."""
        labels = {
            run.folder: group.display_name
            for task in group_into_tasks(self.records, self.root)
            for group in task.groups
            for run in group.runs
        }
        names = [get_run_name(str(record.folder)) for record in self.records]
        counts = Counter(names)
        unique_names = [
            name if counts[name] == 1 else str(record.folder) for record, name in zip(self.records, names, strict=True)
        ]
        return [
            (record, {"run": name, "label": labels[record.folder], "seed": record.seed})
            for record, name in zip(self.records, unique_names, strict=True)
        ]
