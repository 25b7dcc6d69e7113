"""Options in which groups of runs differ."""

from __future__ import annotations

import json
from typing import Any

from llmrl.analysis.groups import Group, ReportTask
from llmrl.analysis.table_format import NOTHING, ReportTable
from llmrl.run.artifacts import read_config
from llmrl.run.config_hash import is_excluded
from llmrl.run.sinks.sink import flat

_MOST_COLUMNS = 4


def config_differences(task: ReportTask) -> ReportTable:
    """Return the options in which the groups of a task differ, with the value of each group's first run.

    Up to four groups are columns. With more groups there is a row for each value, which lists its groups.

    Raises:
        RunFolderError: the config of a run cannot be read.
    """
    configs = [_config(group) for group in task.groups]
    keys = sorted({key for config in configs for key in config})
    values = {key: [config.get(key, NOTHING) for config in configs] for key in keys}
    differing = {key: cells for key, cells in values.items() if len(set(cells)) > 1}
    names = [group.shown for group in task.groups]
    columns, rows = ["option", *names], [[key, *cells] for key, cells in differing.items()]
    if len(names) > _MOST_COLUMNS:
        columns = ["option", "value", "groups"]
        rows = [
            [key, value, ", ".join(name for name, cell in zip(names, cells, strict=True) if cell == value)]
            for key, cells in differing.items()
            for value in dict.fromkeys(cells)
        ]
    caption = f"Options of {task.title} in which groups differ"
    return ReportTable("config_differences", caption, [columns, *rows], columns, rows, len(columns))


def _config(group: Group) -> dict[str, str]:
    config: dict[str, Any] = flat(read_config(group.runs[0].folder, ()))
    return {key: _text(value) for key, value in config.items() if key != "seed" and not is_excluded(key)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
