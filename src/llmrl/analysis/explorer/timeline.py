"""Timeline of a run with a principal: proposals, their objectives, metrics of the society, conversations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.conversations import Texts, call_record, conversations, valid_call
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics
from llmrl.run.proposals import MeasuredProposal, read_proposed

PURPOSES = ("principal", "search")
"""Purposes of calls that request proposals."""
CHUNK = 25
"""Number of conversations in a file; prompts contain earlier proposals, so conversations grow with their number."""
Z = 1.959964
"""Half-width of a 95 % interval of a mean in standard errors, by the normal distribution."""

_WELFARE, _BEHAVIOR = "welfare/", "validation/"
Talk = list[Mapping[str, Any]]


def timeline(folder: Path) -> tuple[dict[str, Any], list[Talk]]:
    """Return the proposals and measures of a run, and the conversations with a language model behind them.

    The first is `{proposals, welfare, behavior}`. A proposal has the index of its conversation, `talk`, or null, and
    `fallback`: whether it replaced an invalid reply. Measures are, by name, pairs of the number of proposals so far and
    the mean over the proposals of a step.

    Raises:
        RunFolderError, CheckpointError, ValueError, KeyError, TypeError: a file is damaged.
    """
    proposals = read_proposed(folder)
    talks = _talks(folder) if proposals else []
    rows = [
        {
            "step": row.step,
            "candidate": row.candidate,
            "context": row.context,
            "objective": row.objective,
            "low": row.objective - Z * row.standard_error,
            "high": row.objective + Z * row.standard_error,
            "episodes": len(row.values),
            "parameters": dict(row.parameters),
            "reasoning": row.reasoning or _reasoning(talk, talks),
            "fallback": row.fallback or (talk is not None and valid_call(talks[talk]) is None),
            "talk": talk,
        }
        for row, talk in zip(proposals, match_talks(proposals, talks), strict=True)
    ]
    return {"proposals": rows, **_measures(folder)}, talks


def chunks(talks: Sequence[Talk]) -> Iterator[dict[str, Any]]:
    """Yield the conversations in chunks of `CHUNK`, each `{texts, talks}` as in `conversations.call_record`."""
    for start in range(0, len(talks), CHUNK):
        texts = Texts()
        yield {
            "talks": [[call_record(call, texts) for call in talk] for talk in talks[start : start + CHUNK]],
            "texts": texts.all,
        }


def match_talks(proposals: Sequence[MeasuredProposal], talks: Sequence[Talk]) -> list[int | None]:
    """Return for each proposal the index of the conversation that it came from; None if there is none.

    A conversation belongs to the next proposals with the vectors of its valid reply. Remaining proposals get, in order,
    conversations without a valid reply between those of their neighbors.
    """
    matches: list[int | None] = [None] * len(proposals)
    first_open = 0
    for place, talk in enumerate(talks):
        for vector in _parsed_values(talk):
            for i in range(first_open, len(proposals)):
                if matches[i] is None and _are_equal(vector, list(proposals[i].parameters.values())):
                    matches[i], first_open = place, _first_unmatched(matches, first_open)
                    break
    used_talks = {place for place in matches if place is not None}
    invalid = [place for place, talk in enumerate(talks) if place not in used_talks and valid_call(talk) is None]
    for i, match in enumerate(matches):
        if match is None:
            previous = max((index for index in matches[:i] if index is not None), default=-1)
            following = min((index for index in matches[i + 1 :] if index is not None), default=len(talks))
            candidate = next((index for index in invalid if previous <= index < following), None)
            if candidate is not None:
                invalid.remove(candidate)
                matches[i] = candidate
    return matches


def _first_unmatched(matches: Sequence[int | None], at: int) -> int:
    while at < len(matches) and matches[at] is not None:
        at += 1
    return at


def _talks(folder: Path) -> list[Talk]:
    path = folder / FILE_NAME
    if not path.is_file():
        return []
    return conversations(call for call in read_calls(path) if call.get("purpose") in PURPOSES)


def _parsed_values(talk: Talk) -> list[list[float]]:
    answer = valid_call(talk)
    values = answer.get("understood") if answer is not None else None
    vectors = values.get("vectors") if isinstance(values, Mapping) else None
    return [list(vector) for vector in vectors or []]


def _are_equal(vector: Sequence[float], other: Sequence[float]) -> bool:
    return len(vector) == len(other) and all(
        math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-6) for x, y in zip(vector, other, strict=True)
    )


def _reasoning(talk: int | None, talks: Sequence[Talk]) -> str:
    answer = None if talk is None else valid_call(talks[talk])
    values = None if answer is None else answer.get("understood")
    return str(values.get("reasoning") or "") if isinstance(values, Mapping) else ""


def _measures(folder: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Return finite welfare and behavior metrics by name, as pairs `[proposals so far, mean]`."""
    measures: dict[str, dict[str, list[list[float]]]] = {"welfare": {}, "behavior": {}}
    path = folder / METRICS_NAME
    for row in read_metrics(path, "proposal") if path.is_file() else ():
        for name, value in row.items():
            kind = "welfare" if name.startswith(_WELFARE) else "behavior" if name.startswith(_BEHAVIOR) else ""
            if kind and math.isfinite(value):
                measures[kind].setdefault(name.partition("/")[2], []).append([row["proposals"], value])
    return measures
