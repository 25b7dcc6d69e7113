"""The mechanism timeline of a run: what was proposed, what it was worth, what the society did, and the talks behind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.conversations import Texts, answer_of, conversations, told
from llmrl.llms.call_log import FILE_NAME, read_calls
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import read_metrics
from llmrl.run.proposals import Proposed, read_proposed

PURPOSES = ("principal", "search")
"""Of questions that ask for proposals."""
CHUNK = 25
"""Talks in a file: a question shows the proposals before it, so talks grow with their number."""
Z = 1.959964
"""Standard errors that a 95 % interval of a mean reaches to either side, by the normal distribution."""

_WELFARE, _BEHAVIOUR = "welfare/", "validation/"
Talk = list[Mapping[str, Any]]


def timeline(folder: Path) -> tuple[dict[str, Any], list[Talk]]:
    """Return the proposals and measures of a run, and the talks behind them.

    The first is `{proposals, welfare, behaviour}`. A proposal has the place of its talk, `talk`, or null, and
    `fallback`: no reply was valid, and something else took its place. Measures are, by name, pairs of the number of
    proposals so far and a mean over those of a step.

    Raises:
        RunFolderError, CheckpointError, ValueError, KeyError, TypeError: a file is damaged.
    """
    proposals = read_proposed(folder)
    talks = _talks(folder) if proposals else []
    rows = [
        {
            "step": each.step,
            "candidate": each.candidate,
            "context": each.context,
            "objective": each.objective,
            "low": each.objective - Z * each.standard_error,
            "high": each.objective + Z * each.standard_error,
            "episodes": len(each.values),
            "parameters": dict(each.parameters),
            "reasoning": each.reasoning or _reasoning(talk, talks),
            "fallback": each.fallback or (talk is not None and answer_of(talks[talk]) is None),
            "talk": talk,
        }
        for each, talk in zip(proposals, matched(proposals, talks), strict=True)
    ]
    return {"proposals": rows, **_measures(folder)}, talks


def chunks(talks: Sequence[Talk]) -> Iterator[dict[str, Any]]:
    """Yield the talks in pieces of `CHUNK`, `{texts, talks}` each, as `conversations.told` has them."""
    for start in range(0, len(talks), CHUNK):
        texts = Texts()
        yield {
            "talks": [[told(call, texts) for call in talk] for talk in talks[start : start + CHUNK]],
            "texts": texts.all,
        }


def matched(proposals: Sequence[Proposed], talks: Sequence[Talk]) -> list[int | None]:
    """Return for each proposal the place of the talk that it came from; None where there is none.

    A talk belongs to the next proposals whose numbers are those that were understood. Proposals that no talk explains
    take, in order, the talks between their neighbours' in which nothing was understood.
    """
    found: list[int | None] = [None] * len(proposals)
    at = 0
    for place, talk in enumerate(talks):
        for vector in _understood(talk):
            for i in range(at, len(proposals)):
                if found[i] is None and _alike(vector, list(proposals[i].parameters.values())):
                    found[i], at = place, _first_open(found, at)
                    break
    taken = {place for place in found if place is not None}
    silent = [place for place, talk in enumerate(talks) if place not in taken and answer_of(talk) is None]
    for i, own in enumerate(found):
        if own is None:
            after = max((each for each in found[:i] if each is not None), default=-1)
            before = min((each for each in found[i + 1 :] if each is not None), default=len(talks))
            fits = next((each for each in silent if after <= each < before), None)
            if fits is not None:
                silent.remove(fits)
                found[i] = fits
    return found


def _first_open(found: Sequence[int | None], at: int) -> int:
    while at < len(found) and found[at] is not None:
        at += 1
    return at


def _talks(folder: Path) -> list[Talk]:
    path = folder / FILE_NAME
    if not path.is_file():
        return []
    return conversations(call for call in read_calls(path) if call.get("purpose") in PURPOSES)


def _understood(talk: Talk) -> list[list[float]]:
    answer = answer_of(talk)
    said = answer.get("understood") if answer is not None else None
    vectors = said.get("vectors") if isinstance(said, Mapping) else None
    return [list(each) for each in vectors or []]


def _alike(vector: Sequence[float], other: Sequence[float]) -> bool:
    return len(vector) == len(other) and all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(vector, other, strict=True)
    )


def _reasoning(talk: int | None, talks: Sequence[Talk]) -> str:
    answer = None if talk is None else answer_of(talks[talk])
    said = None if answer is None else answer.get("understood")
    return str(said.get("reasoning") or "") if isinstance(said, Mapping) else ""


def _measures(folder: Path) -> dict[str, dict[str, list[list[float]]]]:
    """Welfare and behaviour by name: `[proposals so far, mean]`, finite ones only."""
    found: dict[str, dict[str, list[list[float]]]] = {"welfare": {}, "behaviour": {}}
    path = folder / METRICS_NAME
    for row in read_metrics(path, "proposal") if path.is_file() else ():
        for name, value in row.items():
            kind = "welfare" if name.startswith(_WELFARE) else "behaviour" if name.startswith(_BEHAVIOUR) else ""
            if kind and math.isfinite(value):
                found[kind].setdefault(name.partition("/")[2], []).append([row["proposals"], value])
    return found
