"""A run that is over, told to a sink that it did not have."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.core.plain_data import read_object
from llmrl.core.secrets import redact, redact_all
from llmrl.run.artifacts import read_config
from llmrl.run.folder_names import seed_of
from llmrl.run.metrics import FILE_NAME, final_numbers, place_of, read_metrics, row_of
from llmrl.run.sinks.sink import Ending, Opening, Sink
from llmrl.run.status import SUMMARY_NAME, read_status
from llmrl.run.tensorboard_file import hyperparameters_of


def retell(
    folder: Path,
    sink: Sink,
    texts: Mapping[str, Callable[[Mapping[str, Any]], str | None]] | None = None,
    pictures: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Path]]] | None = None,
) -> int:
    """Tell a sink all that it would have been told while the run went on; return the number of rows.

    What the sink has of this run already is replaced, as after a resume, since it is told under the run's own `run_id`.

    Args:
        folder: of a finished run.
        sink: is opened and closed here.
        texts, pictures: by tag, what belongs to a line of `metrics.jsonl`, asked in the order of the lines.

    Raises:
        RunFolderError: the run is not finished, or a file of it cannot be read.
    """
    status = read_status(folder)
    if status is None or status.state != "finished":
        state = "has not begun" if status is None else f"is {status.state}"
        raise RunFolderError(f"{folder} {state}; only finished runs are exported, the others have loggers=...")
    lines = read_metrics(folder / FILE_NAME)
    rows = [row_of(number, line) for number, line in enumerate(lines)]
    label = "/".join(folder.absolute().parts[-2:])
    sink.open(
        Opening(
            folder,
            folder.absolute().parents[2],
            folder.absolute().parents[1].name,
            label,
            redact_all(read_config(folder, [])),
            redact_all(hyperparameters_of(status.overrides, seed_of(folder) or 0)),
            started=rows[0].unix if rows else status.started,
        )
    )
    if rows:
        sink.rows(rows)
    for row, line in zip(rows, lines, strict=True):
        for tag, text_of in (texts or {}).items():
            if (text := text_of(line)) is not None:
                sink.text(row, tag, redact(text))
        for tag, pictures_of in (pictures or {}).items():
            for path in pictures_of(line):
                sink.picture(row, tag, path)
    summary = {"result": status.result} | redact_all(_summary(folder))
    ended = status.updated or time.time()
    sink.close(Ending("finished", "", final_numbers(summary), place_of(lines), ended, summary))
    return len(rows)


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / SUMMARY_NAME)
    except FileNotFoundError:
        return {}
