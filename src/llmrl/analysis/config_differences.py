"""Options in which groups of runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.results.groups import Group, ReportTask
from llmrl.results.table_format import NOTHING, ReportTable
from llmrl.run.artifacts import read_config
from llmrl.run.config_hash import is_excluded
from llmrl.run.sink import flat

_MAX_COLUMNS = 4


def config_differences(task: ReportTask) -> ReportTable:
    """Return the options in which the groups of a task differ, with the value of each group's first run.

    Up to four groups are columns. With more groups there is a row for each value, which lists its groups.

    Raises:
        RunFolderError: the config of a run cannot be read.
    """
    configs = [_config(group) for group in task.groups]
    keys = sorted({key for config in configs for key in config})
    values = {key: [config.get(key, NOTHING) for config in configs] for key in keys}
    differences = {key: cells for key, cells in values.items() if len(set(cells)) > 1}
    differences = _drop_absent_parts(differences, configs)
    names = [group.shown for group in task.groups]
    columns, rows = ["option", *names], [[key, *cells] for key, cells in differences.items()]
    if len(names) > _MAX_COLUMNS:
        columns = ["option", "value", "groups"]
        rows = [
            [key, value, ", ".join(name for name, cell in zip(names, cells, strict=True) if cell == value)]
            for key, cells in differences.items()
            for value in dict.fromkeys(cells)
        ]
    caption = f"Options of {task.title} in which groups differ"
    return ReportTable("config_differences", caption, [columns, *rows], columns, rows, len(columns))


def _drop_absent_parts(
    differences: Mapping[str, list[str]], configs: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """Replace the options of a part that only some groups have by one row, with the class of the part.

    Options in which the groups that have the part differ from each other stay.
    """
    present = {
        part: [any(key.startswith(f"{part}.") for key in config) for config in configs]
        for part in dict.fromkeys(key.partition(".")[0] for key in differences if "." in key)
    }
    rows: dict[str, list[str]] = {}
    for key, cells in differences.items():
        part = key.partition(".")[0]
        if part not in present or all(present[part]):
            rows[key] = cells
            continue
        classes = [config.get(f"{part}._target_", "set").rpartition(".")[2] for config in configs]
        rows[part] = [name if is_present else NOTHING for name, is_present in zip(classes, present[part], strict=True)]
        within = {cell for cell, is_present in zip(cells, present[part], strict=True) if is_present}
        if len(within) > 1 and not key.endswith("._target_"):
            rows[key] = cells
    return rows


def _config(group: Group) -> dict[str, str]:
    config: dict[str, Any] = flat(read_config(group.runs[0].folder, ()))
    return {key: _text(value) for key, value in config.items() if key != "seed" and not is_excluded(key)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
