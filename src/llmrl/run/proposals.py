"""Readers of `proposals.jsonl`, the log of all vectors of a policy search, and of the proposals of any run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl.core.plain_data import read_json_object
from llmrl.run.artifacts import load_saved_state
from llmrl.run.files import read_json_lines
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics
from llmrl.run.status import SUMMARY_NAME

FILE_NAME = "proposals.jsonl"


def read_proposal_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a run's `proposals.jsonl`; empty if there is no such file."""
    return read_json_lines(folder / FILE_NAME)


@dataclass(frozen=True)
class MeasuredProposal:
    """A vector that was proposed and measured.

    Attributes:
        step: principal step, or iteration of a search, from 1; 0 for vectors that were measured before a search.
        candidate: index of the vector in that step, from 0.
        objective, values: measured objective, which is the mean of `values`, the objectives of single episodes.
        standard_error: standard error of the objective; NaN if unknown.
        context: name of the context that the vector was proposed for; empty without contexts.
        parameters: elements of the vector by name; for parameters of a policy, which have no names, by index.
        reasoning: reason that the principal gave; may be empty.
        fallback: whether the vector replaces a proposal that the principal failed to make.
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


def read_measured_proposals(folder: Path) -> list[MeasuredProposal]:
    """Return the proposals of the run in `folder`, in order.

    Proposals of a search are in `proposals.jsonl`. Proposals of mechanism design are in the summary, or in the newest
    checkpoint while there is no summary.

    Raises:
        CheckpointError: no checkpoint can be read.
        ValueError, KeyError, TypeError: another file is damaged.
    """
    if lines := read_proposal_lines(folder):
        return [
            MeasuredProposal(
                line["iteration"],
                line["candidate"],
                line["return"],
                _none_to_nan(line["standard_error"]),
                line["returns"],
                parameters={str(i): float(x) for i, x in enumerate(line["vector"])},
                reasoning=line.get("reasoning", ""),
                fallback=line.get("fallback", False),
            )
            for line in lines
        ]
    return [
        MeasuredProposal(
            row["step"],
            row["candidate"],
            row["objective"],
            _none_to_nan(row["standard_error"]),
            row["values"],
            row["context"] or "",
            row["mechanism"],
        )
        for row in _read_proposal_history(folder)
    ]


def _read_proposal_history(folder: Path) -> list[dict[str, Any]]:
    try:
        return list(read_json_object(folder / SUMMARY_NAME).get("history", []))
    except FileNotFoundError:
        pass
    metrics_path = folder / METRICS_NAME
    if not metrics_path.is_file() or not read_metrics(metrics_path, "proposal"):
        return []  # the run has no proposals, so its checkpoint, which may be large, need not be read
    _, state = load_saved_state(folder)
    return list(state.get("history", []))


def _none_to_nan(value: float | None) -> float:
    return math.nan if value is None else value
