"""`proposals.jsonl`: every vector that a search tried, what it returned and why it was proposed, as it happens; and the
proposals of a run, whichever loop it had, for readers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl.core.fields import read_object
from llmrl.run.content import SUMMARY_NAME, saved_state
from llmrl.run.files import read_lines
from llmrl.run.lines import LineFile
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics

FILE_NAME = "proposals.jsonl"


class ProposalLog:
    """Appends lines to `proposals.jsonl` in a run folder.

    Args:
        folder: the run folder.
        lines: length to which an existing file is cut back first: `position()` at the checkpoint that is resumed, or 0.

    Raises:
        RunFolderError: the file has fewer lines, or cannot be written.
    """

    def __init__(self, folder: Path, lines: int = 0) -> None:
        self._file = LineFile(folder / FILE_NAME, lines)

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of JSON."""
        self._file.write([json.dumps(line, allow_nan=False, ensure_ascii=False)])

    def position(self) -> int:
        """Lines written so far, synced to disk: what a checkpoint stores as the place to resume from."""
        return self._file.position()

    def close(self) -> None:
        self._file.close()


def read_proposals(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's `proposals.jsonl`; none where there is no such file."""
    return read_lines(folder / FILE_NAME)


@dataclass(frozen=True)
class Proposed:
    """A vector that was proposed and measured.

    Attributes:
        step: principal step, or iteration of a search, counted from 1; 0 for what was tried before a search.
        candidate: its number in that step, from 0.
        objective: what it was measured to give: the mean of `values`, the objective of each episode.
        standard_error: of the objective; NaN where it cannot be told.
        context: it was proposed for; empty where there is none.
        parameters: its numbers by name; of a policy, whose parameters have no names in the file, by their place.
        reasoning: why, where the principal says it.
        fallback: the principal could not answer, and this took the place of its proposal.
    """

    step: int
    candidate: int
    objective: float
    standard_error: float
    values: Sequence[float]
    context: str = ""
    parameters: Mapping[str, float] = field(default_factory=dict)
    reasoning: str = ""
    fallback: bool = False


def read_proposed(folder: Path) -> list[Proposed]:
    """The proposals of the run in `folder`, in their order: of a search from `proposals.jsonl`, of mechanism design
    from the summary or, while there is none, from the newest checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged.
        ValueError, KeyError, TypeError: a file is.
    """
    if lines := read_proposals(folder):
        return [
            Proposed(
                line["iteration"],
                line["candidate"],
                line["return"],
                _known(line["standard_error"]),
                line["returns"],
                parameters={str(i): float(x) for i, x in enumerate(line["vector"])},
                reasoning=line.get("reasoning", ""),
                fallback=line.get("fallback", False),
            )
            for line in lines
        ]
    return [
        Proposed(
            row["step"],
            row["candidate"],
            row["objective"],
            _known(row["standard_error"]),
            row["values"],
            row["context"] or "",
            row["mechanism"],
        )
        for row in _history(folder)
    ]


def _history(folder: Path) -> list[dict[str, Any]]:
    try:
        summary = read_object(folder / SUMMARY_NAME)
        return list(summary.get("history", []))
    except FileNotFoundError:
        pass
    metrics = folder / METRICS_NAME
    if not metrics.is_file() or not read_metrics(metrics, "proposal"):
        return []  # nobody proposes here, or nothing has been measured: a large checkpoint need not be read
    _, state = saved_state(folder)
    return list(state.get("history", []))


def _known(value: float | None) -> float:
    return math.nan if value is None else value
