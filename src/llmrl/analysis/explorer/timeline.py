"""Timeline of a run with a principal: proposals, objectives, metrics of the society, and conversations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.conversations import find_valid_call, group_conversations, to_call_record
from llmrl.core.text_array import TextTable
from llmrl.llms.call_log import CALL_LOG_NAME, read_calls
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics
from llmrl.run.proposals import MeasuredProposal, read_measured_proposals
from llmrl.statistics.estimators import Z95

PROPOSAL_PURPOSES = ("principal", "search")
"""Purposes of calls that request proposals."""
CONVERSATIONS_PER_FILE = 25
"""Number of conversations in a data file; limited because later prompts contain earlier proposals, and so are long."""

_METRIC_KIND_BY_PREFIX = {"welfare": "welfare", "validation": "behavior"}
"""Kinds of metrics of the society by the prefix of their names in `metrics.jsonl`."""

Conversation = list[Mapping[str, Any]]
"""Calls of a conversation (`conversations.group_conversations`)."""


def read_timeline(folder: Path) -> tuple[dict[str, Any], list[Conversation]]:
    """Return the proposals and metrics of a run, and the conversations in which a language model proposed.

    The first value is `{proposals, welfare, behavior}`. In a proposal, `talk` is the index of its conversation or null,
    and `fallback` is true if it replaced an invalid reply. `welfare` and `behavior` contain for each metric a list of
    pairs: number of proposals up to a step, and mean of the metric over the proposals of that step.

    Raises:
        RunFolderError, CheckpointError, ValueError, KeyError, TypeError: a file is damaged.
    """
    proposals = read_measured_proposals(folder)
    path = folder / CALL_LOG_NAME
    calls = read_calls(path) if proposals and path.is_file() else ()
    conversations = group_conversations(call for call in calls if call.get("purpose") in PROPOSAL_PURPOSES)
    replies = [_get_parsed_reply(conversation) for conversation in conversations]
    rows = [
        {
            "step": proposal.step,
            "candidate": proposal.candidate,
            "context": proposal.context,
            "objective": proposal.objective,
            "low": proposal.objective - Z95 * proposal.standard_error,
            "high": proposal.objective + Z95 * proposal.standard_error,
            "episodes": len(proposal.values),
            "parameters": dict(proposal.parameters),
            "reasoning": proposal.reasoning or ("" if k is None else str(replies[k].get("reasoning") or "")),
            "fallback": proposal.fallback or (k is not None and find_valid_call(conversations[k]) is None),
            "talk": k,
        }
        for proposal, k in zip(proposals, match_conversations(proposals, conversations), strict=True)
    ]
    return {"proposals": rows, **_read_society_metrics(folder)}, conversations


def iterate_conversation_chunks(conversations: Sequence[Conversation]) -> Iterator[dict[str, Any]]:
    """Yield the content of each file of conversations: `talks`, lists of call records, and `texts`, their texts."""
    for start in range(0, len(conversations), CONVERSATIONS_PER_FILE):
        texts, chunk = TextTable(), conversations[start : start + CONVERSATIONS_PER_FILE]
        records = [[to_call_record(call, texts) for call in conversation] for conversation in chunk]
        yield {"talks": records, "texts": texts.texts}


def match_conversations(
    proposals: Sequence[MeasuredProposal], conversations: Sequence[Conversation]
) -> list[int | None]:
    """Return for each proposal the index of the conversation in which it was proposed, or None.

    A valid reply is matched with the first unmatched proposals that equal its vectors. Then each remaining proposal, a
    fallback, gets the first unmatched conversation without a valid reply that lies between the conversations of the
    proposals before and after it.
    """
    matches: list[int | None] = [None] * len(proposals)
    unmatched_vectors = {i: list(proposal.parameters.values()) for i, proposal in enumerate(proposals)}
    for conversation_index, conversation in enumerate(conversations):
        for vector in _get_parsed_reply(conversation).get("vectors") or ():
            equal_indices = (i for i, parameters in unmatched_vectors.items() if _are_close(list(vector), parameters))
            if (proposal_index := next(equal_indices, None)) is not None:
                matches[proposal_index] = conversation_index
                del unmatched_vectors[proposal_index]
    matched_indices = set(matches)
    unmatched_conversations = [(k, x) for k, x in enumerate(conversations) if k not in matched_indices]
    invalid_indices = [k for k, x in unmatched_conversations if find_valid_call(x) is None]
    for i in unmatched_vectors:
        previous = max((index for index in matches[:i] if index is not None), default=-1)
        following = min((index for index in matches[i + 1 :] if index is not None), default=len(conversations))
        match = next((index for index in invalid_indices if previous <= index < following), None)
        if match is not None:
            invalid_indices.remove(match)
            matches[i] = match
    return matches


def _get_parsed_reply(conversation: Conversation) -> Mapping[str, Any]:
    """Return the parsed content of the valid reply of a conversation; empty without a valid reply."""
    parsed = (find_valid_call(conversation) or {}).get("parsed_reply")
    return parsed if isinstance(parsed, Mapping) else {}


def _are_close(vector: Sequence[float], other: Sequence[float]) -> bool:
    return len(vector) == len(other) and all(
        math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-6) for x, y in zip(vector, other, strict=True)
    )


def _read_society_metrics(folder: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Return finite welfare and behavior metrics by name, as pairs `[number of proposals up to the step, mean]`."""
    metrics_by_kind: dict[str, dict[str, list[list[float]]]] = {"welfare": {}, "behavior": {}}
    path = folder / METRICS_NAME
    for row in read_metrics(path, "proposal") if path.is_file() else ():
        for name, value in row.items():
            prefix, _, metric = name.partition("/")
            if prefix in _METRIC_KIND_BY_PREFIX and math.isfinite(value):
                metrics_by_kind[_METRIC_KIND_BY_PREFIX[prefix]].setdefault(metric, []).append([row["proposals"], value])
    return metrics_by_kind
