"""What teachers said: their plans, how often they were not understood, and how far students came to agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.analysis.groups import Group
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.story.means import Estimate, over_runs
from llmrl.analysis.story.records import rows_of
from llmrl.analysis.table_format import NOTHING, ReportTable
from llmrl.core.plain_data import read_object

PLANS = "plans.json"
"""Of a run whose teacher is a language model: its plans by sentence, with their shares."""
MOST_SENTENCES = 12
_MOST_PLANS = 3
_NUMBERS = {
    "teacher/states": "states",
    "teacher/asked": "states asked about",
    "llm/judged_replies": "replies",
    "llm/invalid_share": "invalid replies",
    "teacher/fallbacks": "fallbacks",
    "teacher/agreement": "agreement of the student",
}
_IN_PERCENT = ("llm/invalid_share", "teacher/agreement")


def teacher_table(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> ReportTable | None:
    """Return a line for each group with a teacher: what it was asked, and how far the student agreed; None without.

    Args:
        groups: short name, group and finished runs of each.
    """
    found: dict[str, dict[str, Estimate]] = {}
    counts: dict[str, int] = {}
    for name, _, runs in groups:
        last = [_last(run) for run in runs]
        if any(last):
            counts[name] = len(runs)
            found[name] = {key: over_runs([row.get(key, np.nan) for row in last], runs) for key in _NUMBERS}
    known = [key for key in _NUMBERS if any(np.isfinite(own[key][0]) for own in found.values())]
    if not found:
        return None
    rows = [[name, str(counts[name]), *(_cell(key, own[key]) for key in known)] for name, own in found.items()]
    header: list[object] = ["group", "runs", *(cell for key in known for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, counts[name], *(x for key in known for x in own[key])] for name, own in found.items()
    ]
    notes = ["Means over runs, ± standard error, at the end of training."]
    if "teacher/agreement" in known:
        notes.append(
            "Agreement: where the teacher was heard last, how often the student's likeliest action was the teacher's."
        )
    return ReportTable(
        "teacher",
        "Teachers",
        [header, *data],
        ["group", "runs", *(_NUMBERS[key] for key in known)],
        rows,
        1,
        notes=notes,
    )


def plans_table(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> ReportTable | None:
    """Return the plans of language models by what students saw, shares averaged over runs; None where no run has any.

    Args:
        groups: short name, group and finished runs of each.
    """
    data: list[list[object]] = [["group", "sentence", "plan", "share", "runs"]]
    rows = []
    for name, _, runs in groups:
        plans, had = _plans(runs)
        for place, (sentence, shared) in enumerate(plans.items()):
            ordered = sorted(shared.items(), key=lambda item: (-item[1], item[0]))
            data += [[name, sentence, plan, share, had[sentence]] for plan, share in ordered]
            if place < MOST_SENTENCES:
                told = [f"{plan} ({share:.0%})" if share < 0.995 else plan for plan, share in ordered[:_MOST_PLANS]]
                more = len(ordered) - _MOST_PLANS
                rows.append([name, sentence, "; ".join(told) + (f"; {more} more" if more > 0 else "")])
    if not rows:
        return None
    left = len({(line[0], line[1]) for line in data[1:]}) - len(rows)
    notes = ["Shares of its answers, averaged over runs."]
    notes += [f"The first {MOST_SENTENCES} of each group; {left} more are in the file."] if left else []
    return ReportTable(
        "plans", "What the teacher advised", data, ["group", "the student sees", "plans"], rows, 3, notes=notes
    )


def _last(run: RunRecord) -> dict[str, float]:
    """The newest value of each of a teacher's numbers; agreement while the teacher had a say."""
    newest: dict[str, float] = {}
    for row in rows_of(run.folder):
        newest |= {key: row[key] for key in _NUMBERS if key in row}
    return newest if any(key.startswith("teacher/") for key in newest) else {}


def _plans(runs: Sequence[RunRecord]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Plans by sentence, each with the mean share over the runs that have the sentence; how many those are."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    had: dict[str, int] = defaultdict(int)
    for run in runs:
        for sentence, shared in _read(run).items():
            had[sentence] += 1
            for plan, share in shared.items():
                sums[sentence][plan] += share
    often = sorted(sums, key=lambda sentence: (-had[sentence], sentence))
    return {s: {plan: total / had[s] for plan, total in sums[s].items()} for s in often}, had


def _read(run: RunRecord) -> Mapping[str, Mapping[str, float]]:
    try:
        plans = read_object(run.folder / PLANS).get("plans", {})
        return {str(s): {str(plan): float(p) for plan, p in own.items()} for s, own in plans.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def _cell(key: str, estimate: Estimate) -> str:
    value, error = estimate
    if not np.isfinite(value):
        return NOTHING
    scale, form, unit = (100, ".1f", " %") if key in _IN_PERCENT else (1, ",.0f", "")
    return f"{scale * value:{form}}" + (f" ± {scale * error:{form}}" if np.isfinite(error) else "") + unit
