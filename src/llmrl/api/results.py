"""Loading of the results of finished and unfinished runs as tables."""

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

TABLE_NAMES = ("runs", "metrics", "proposals", "episodes", "llm_calls")


def load(runs: StrPath | Iterable[StrPath] = "outputs") -> Results:
    """Load the runs in one or several folders as tables.

    Args:
        runs: a folder that contains runs directly or in subfolders (`outputs`, `outputs/<name>`), a run folder, a
            `RunResult`, or several of these; paths are relative to the working directory.

    Returns:
        The runs in their current state. Tables are read at first access and cached; call `load` again to refresh them.

    Raises:
        RunFolderError: a folder does not exist.
        ConfigError: pandas is not installed.

    Example:
        >>> results = llmrl.load("outputs/cleanup")  # doctest: +SKIP
        >>> results.runs.groupby("label").result.describe()  # doctest: +SKIP
    """
    dataframes.import_pandas()
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    folders = [Path(path).expanduser().absolute() for path in paths]
    run_folders = dict.fromkeys(run for folder in folders for run in find_runs(folder))
    root = Path(os.path.commonpath(folders)) if folders else Path.cwd()
    return Results([read_run(folder) for folder in run_folders], root)


class Results:
    """Tables of runs. The columns `run`, `label` and `seed` of all tables are the keys for joins.

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

        Columns: `run`, a unique name; `name` (folder under the output root); `label`, the overrides that distinguish
        its experiment from the others; `seed`, `hash` (of the config), `state` (finished, running, failed, ...),
        `is_prerequisite` (whether another of the runs needs it: pre-training, reference lines), `result` (NaN unless
        finished), `recommendation` (its objective on fresh seeds) and `online_performance` (both NaN without a
        principal), `environment`, `model` (language model), `attempts` (number of starts), `done` of `total` `unit`,
        `started` and `updated` (UTC), `error`, `folder`; and every override that differs between the runs, such as
        `principal` or `design.steps`, missing for runs without this override.
        """
        return dataframes.build_runs_frame(self._labeled_runs)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Table with one row for each logged number.

        Columns: `kind` of the logged row (update, evaluation, proposal, ...), `axis` (name of the counter that is the x
        axis of this kind) and `axis_value` (its value), `env_steps`, `elapsed_s` (seconds), `metric` (name), `value`.
        """
        return dataframes.read_table("metrics", self._labeled_runs)

    @cached_property
    def proposals(self) -> pd.DataFrame:
        """Table with one row for each proposal of a principal.

        Columns: `step`, `candidate`, `context`, `objective` with its `standard_error` and number of `episodes`,
        `fallback` (whether the vector replaces a proposal that the principal failed to make), `reasoning`, and the
        proposed value of each parameter, `parameter.<name>`.
        """
        return dataframes.read_table("proposals", self._labeled_runs)

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """Table with one row for each recorded episode.

        Columns: `source` (`training`; `final`: the evaluation episodes at the end of a run, or all episodes of a run
        without learning; or the folder of an evaluation, such as `evaluation`); `policy`, `mode` (`stochastic` or
        `deterministic`) and `mechanism`, missing where unknown; `episode`, its number in the source; `start`, for
        training episodes the step of the game at which it started; `return` and `base_return` (mean over agents),
        `length`, `objective`, and the metrics of the environment.
        """
        return dataframes.read_table("episodes", self._labeled_runs)

    @cached_property
    def llm_calls(self) -> pd.DataFrame:
        """Table with one row for each call to a chat model.

        Columns: `time` (UTC), `model`, `purpose`, `prompt` (name of its file); `outcome` (`reply`, `failed`, or `lost`:
        it is unknown whether the call was charged); `valid` and `parse_error`, the result of parsing the reply;
        `cached`, `attempts` (requests sent), tokens; `cost` in US dollars, 0 from the cache and NaN if it is unknown;
        `possible_cost`, the maximum cost of a lost call; `latency` in seconds; `finish`, the provider's stop reason;
        `repeat`, the index among independent replies to one request; `sample_seed`, the seed whose runs share the reply
        (missing: all seeds); `hash` of request and model; `reply`, `thoughts`, `error`.
        """
        return dataframes.read_table("llm_calls", self._labeled_runs)

    def where(self, **column_values: Any) -> Results:
        """Return the runs whose columns of `runs` have given values; their rows of `runs` are unchanged.

        Args:
            column_values: accepted value of each column, or a list, tuple or set of them, e.g. `seed=[0, 1]`.

        Raises:
            ConfigError: a column does not exist.
        """
        table = self.runs
        for column, value in column_values.items():
            if column not in table:
                raise ConfigError(f"where({column}=...): the table of runs has no such column; use {', '.join(table)}")
            table = table[table[column].isin(list(value) if isinstance(value, list | tuple | set) else [value])]
        subset = Results([self.records[i] for i in table.index], self.root)
        # Labels and columns of overrides would differ if they were determined from the selected runs alone.
        subset.runs, subset._labeled_runs = table.reset_index(drop=True), [self._labeled_runs[i] for i in table.index]
        return subset

    def save(self, folder: StrPath) -> list[Path]:
        """Write every table to `folder` as a Parquet file with Apache Arrow's types: `runs.parquet`, ...

        Returns:
            Paths of the files.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        files = {name: Path(folder).expanduser() / f"{name}.parquet" for name in TABLE_NAMES}
        for name, path in files.items():
            dataframes.write_frame(getattr(self, name), path, "parquet")
        return list(files.values())

    @cached_property
    def _labeled_runs(self) -> LabeledRuns:
        """Records of the runs, each with the values of the columns that identify it in tables."""
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
