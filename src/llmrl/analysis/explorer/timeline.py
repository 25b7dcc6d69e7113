"""Timeline of a run with a principal: proposals, their objectives, metrics of the society, conversations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.conversations import find_valid_call, group_conversations, to_call_record
from llmrl.core.text_array import TextTable
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics
from llmrl.run.proposals import MeasuredProposal, read_measured_proposals
from llmrl.statistics.estimators import Z95

PROPOSAL_PURPOSES = ("principal", "search")
"""Purposes of calls that request proposals."""
CONVERSATIONS_PER_FILE = 25
"""Number of conversations in a file; prompts contain earlier proposals, so conversations grow with their number."""

_MEASURE_KINDS = {"welfare": "welfare", "validation": "behavior"}
"""Kinds of measures by the prefix of their metrics."""

Conversation = list[Mapping[str, Any]]


def read_timeline(folder: Path) -> tuple[dict[str, Any], list[Conversation]]:
    """Return the proposals and measures of a run, and the conversations with a language model behind them.

    The first is `{proposals, welfare, behavior}`. A proposal has the index of its conversation, `talk`, or null, and
    `fallback`: whether it replaced an invalid reply. Measures are, by name, pairs of the number of proposals so far and
    the mean over the proposals of a step.

    Raises:
        RunFolderError, CheckpointError, ValueError, KeyError, TypeError: a file is damaged.
    """
    proposals = read_measured_proposals(folder)
    path = folder / FILE_NAME
    calls = read_calls(path) if proposals and path.is_file() else ()
    conversations = group_conversations(call for call in calls if call.get("purpose") in PROPOSAL_PURPOSES)
    replies = [_get_parsed_reply(conversation) for conversation in conversations]
    rows = [
        {
            "step": row.step,
            "candidate": row.candidate,
            "context": row.context,
            "objective": row.objective,
            "low": row.objective - Z95 * row.standard_error,
            "high": row.objective + Z95 * row.standard_error,
            "episodes": len(row.values),
            "parameters": dict(row.parameters),
            "reasoning": row.reasoning or ("" if k is None else str(replies[k].get("reasoning") or "")),
            "fallback": row.fallback or (k is not None and find_valid_call(conversations[k]) is None),
            "talk": k,
        }
        for row, k in zip(proposals, match_conversations(proposals, conversations), strict=True)
    ]
    return {"proposals": rows, **_read_measures(folder)}, conversations


def iterate_chunks(conversations: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
    """Yield the content of each file of conversations, `{texts, talks}` with `conversations.to_call_record`s."""
    for start in range(0, len(conversations), CONVERSATIONS_PER_FILE):
        texts, chunk = TextTable(), conversations[start : start + CONVERSATIONS_PER_FILE]
        records = [[to_call_record(call, texts) for call in conversation] for conversation in chunk]
        yield {"talks": records, "texts": texts.texts}


def match_conversations(
    proposals: Sequence[MeasuredProposal], conversations: Sequence[Conversation]
) -> list[int | None]:
    """Return for each proposal the index of the conversation that it came from; None if there is none.

    A conversation belongs to the next proposals with the vectors of its valid reply. Remaining proposals get, in order,
    conversations without a valid reply between those of their neighbors.
    """
    matches: list[int | None] = [None] * len(proposals)
    unmatched = {i: list(proposal.parameters.values()) for i, proposal in enumerate(proposals)}
    for conversation_index, conversation in enumerate(conversations):
        for vector in _get_parsed_reply(conversation).get("vectors") or ():
            match = next((i for i, parameters in unmatched.items() if _are_equal(list(vector), parameters)), None)
            if match is not None:
                matches[match] = conversation_index
                del unmatched[match]
    matched_indices = set(matches)
    invalid = [k for k, x in enumerate(conversations) if k not in matched_indices and find_valid_call(x) is None]
    for i in unmatched:
        previous = max((index for index in matches[:i] if index is not None), default=-1)
        following = min((index for index in matches[i + 1 :] if index is not None), default=len(conversations))
        candidate = next((index for index in invalid if previous <= index < following), None)
        if candidate is not None:
            invalid.remove(candidate)
            matches[i] = candidate
    return matches


def _get_parsed_reply(conversation: Conversation) -> Mapping[str, Any]:
    """Return what was parsed from the valid reply of a conversation; empty if there is none."""
    parsed = (find_valid_call(conversation) or {}).get("understood")
    return parsed if isinstance(parsed, Mapping) else {}


def _are_equal(vector: Sequence[float], other: Sequence[float]) -> bool:
    return len(vector) == len(other) and all(
        math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-6) for x, y in zip(vector, other, strict=True)
    )


def _read_measures(folder: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Return finite welfare and behavior metrics by name, as pairs `[proposals so far, mean]`."""
    measures: dict[str, dict[str, list[list[float]]]] = {"welfare": {}, "behavior": {}}
    path = folder / METRICS_NAME
    for row in read_metrics(path, "proposal") if path.is_file() else ():
        for name, value in row.items():
            prefix, _, measure = name.partition("/")
            if prefix in _MEASURE_KINDS and math.isfinite(value):
                measures[_MEASURE_KINDS[prefix]].setdefault(measure, []).append([row["proposals"], value])
    return measures
