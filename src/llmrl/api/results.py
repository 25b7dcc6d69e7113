"""Load what runs left behind as tables, whatever state the runs are in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.analysis.groups import tasks_of
from llmrl.analysis.runs import RunRecord, find_runs, read_run
from llmrl.api import dataframes
from llmrl.api.dataframes import NamedRun
from llmrl.core.errors import ConfigError
from llmrl.run.shared_factors import run_name

if TYPE_CHECKING:
    import pandas as pd

    Place = str | os.PathLike[str]

TABLES = ("runs", "metrics", "proposals", "episodes", "llm_calls")


def load(runs: Place | Iterable[Place] = "outputs") -> Results:
    """Load the runs in and under a folder, or several, as tables.

    Args:
        runs: a folder of runs at any level (`outputs`, `outputs/<name>`), one run folder, the result of a run, or
            several of these; relative to the working directory.

    Returns:
        The runs as they are now. Tables are read when they are first asked for, and kept: load again for news.

    Raises:
        RunFolderError: there is no such folder.
        ConfigError: pandas is not installed.

    Example:
        >>> results = llmrl.load("outputs/cleanup")  # doctest: +SKIP
        >>> results.runs.groupby("label").result.describe()  # doctest: +SKIP
    """
    dataframes.pandas()
    places = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    folders = [Path(place).expanduser().absolute() for place in places]
    found = dict.fromkeys(run for folder in folders for run in find_runs(folder))
    root = Path(os.path.commonpath(folders)) if folders else Path.cwd()
    return Results([read_run(folder) for folder in found], root)


class Results:
    """Runs, as tables. All tables but `runs` begin with `run`, `label` and `seed`, by which they can be joined.

    Args:
        records: of the runs.
        root: folder above all of them.
    """

    def __init__(self, records: Sequence[RunRecord], root: Path) -> None:
        self.records = tuple(records)
        self.root = root

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in Counter(each.state for each in self.records).items())
        return f"Results({len(self)} runs in {self.root}{': ' if states else ''}{states})"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run.

        Columns: `run`, which tells it from all others; `name` (folder under the output root); `label`, what was typed
        for its group and not for the others; `seed`, `hash`, `state` (finished, running, failed, ...), `result`
        (NaN unless finished), `recommendation` and `online_performance` (of runs with a principal, else NaN),
        `environment`, `model` (of language), `attempts`, `done` of `total` `unit`, `started` and `updated`
        (UTC), `error`, `folder`; and every override that differs between the runs, such as `principal` or
        `design.steps`, missing where it was not typed.
        """
        return dataframes.runs_frame(self._named)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row a number that was measured.

        Columns: `kind` of row (update, evaluation, proposal, ...), `axis` and `place` (the counter that rows of this
        kind are placed at, and its value), `env_steps`, `elapsed_s`, `metric` (its name) and `value`.
        """
        return dataframes.metrics_frame(self._named)

    @cached_property
    def proposals(self) -> pd.DataFrame:
        """One row a proposal of a principal.

        Columns: `step`, `candidate`, `context`, `objective` with its `standard_error` over so many `episodes`,
        `fallback`, `reasoning`, and the numbers that were proposed, `parameter.<name>`.
        """
        return dataframes.proposals_frame(self._named)

    @cached_property
    def episodes(self) -> pd.DataFrame:
        """One row an episode that was written down.

        Columns: `source` (`training`; `final`, the episodes at the end of a run or of players that do not learn; the
        folder of an evaluation, such as `evaluation`), who played (`policy`, `mode`) under which `mechanism`, where
        that is known; `episode`, its number in the source; `start`, the step of its game it began with, in training;
        `return` and `base_return` (mean over agents), `length`, `objective`, and what the environment measures.
        """
        return dataframes.episodes_frame(self._named)

    @cached_property
    def llm_calls(self) -> pd.DataFrame:
        """One row a call to a chat model.

        Columns: `time` (UTC), `model`, `purpose`, `prompt`; `outcome` (`reply`, `failed`, or `lost`: nobody knows
        whether it was charged); `valid` and `fault`, what came of reading the reply; `cached`, `attempts`, tokens;
        `cost` in US dollars, 0 from the cache and NaN where it is not known; `possible_cost`, the most that a lost one
        may come to; `latency` in seconds; `finish`, `repeat`, `stream`, `hash`, `reply`, `error`.
        """
        return dataframes.calls_frame(self._named)

    def where(self, **wanted: Any) -> Results:
        """Select runs by columns of `runs`: `where(name="cleanup", state="finished", seed=[0, 1])`.

        Args:
            wanted: a value for a column, or a list of values.

        Raises:
            ConfigError: there is no such column.
        """
        table, chosen = self.runs, [True] * len(self)
        for column, value in wanted.items():
            if column not in table:
                raise ConfigError(f"where({column}=...): runs have no such column, but {', '.join(table)}")
            values = list(value) if isinstance(value, list | tuple | set) else [value]
            chosen = [yes and bool(x) for yes, x in zip(chosen, table[column].isin(values), strict=True)]
        return Results([each for each, yes in zip(self.records, chosen, strict=True) if yes], self.root)

    def save(self, folder: Place) -> list[Path]:
        """Write every table into `folder` as a Parquet file with Apache Arrow's types: `runs.parquet`, ...

        Returns:
            The files.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        try:
            from pyarrow import Table, parquet
        except ImportError as error:
            raise ConfigError(f"pyarrow cannot be imported ({error}): pip install 'llmrl[analysis]'") from error
        place = Path(folder).expanduser()
        place.mkdir(parents=True, exist_ok=True)
        files = []
        for name in TABLES:
            files.append(place / f"{name}.parquet")
            parquet.write_table(Table.from_pandas(getattr(self, name), preserve_index=False), files[-1])
        return files

    @cached_property
    def _named(self) -> list[NamedRun]:
        """The runs with what tables call them."""
        labels = {
            run.folder: group.shown
            for task in tasks_of(self.records, self.root)
            for group in task.groups
            for run in group.runs
        }
        short = Counter(run_name(str(each.folder)) for each in self.records)
        names = [run_name(str(each.folder)) for each in self.records]
        return [
            NamedRun(each, name if short[name] == 1 else str(each.folder), labels[each.folder])
            for each, name in zip(self.records, names, strict=True)
        ]
