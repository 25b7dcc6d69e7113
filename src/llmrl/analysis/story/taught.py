"""Tables of teachers: their plans, invalid replies, and the agreement of students."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.analysis.story.means import Estimate, has_text, mean_over_runs, read_rows
from llmrl.core.plain_data import read_object
from llmrl.results.groups import Group
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import NOTHING, ReportTable

PLANS = "plans.json"
"""File of a run whose teacher is a language model: its plans by sentence, with their shares."""
MAX_SENTENCES = 12
_MAX_PLANS = 3
_NUMBERS = {
    "teacher/states": "states",
    "teacher/requested_states": "states asked about",
    "llm/parsed_replies": "replies",
    "llm/invalid_share": "invalid replies",
    "teacher/fallbacks": "fallbacks",
    "teacher/agreement": "agreement of the student",
}
_IN_PERCENT = ("llm/invalid_share", "teacher/agreement")


def teacher_table(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> ReportTable | None:
    """Return a table with the requests to each group's teacher and the agreement of its student.

    The result is None without teachers.

    Args:
        groups: short name, group and finished runs of each.
    """
    estimates_by_group: dict[str, dict[str, Estimate]] = {}
    counts: dict[str, int] = {}
    for name, _, runs in groups:
        last = [_last(run) for run in runs]
        if any(last):
            counts[name] = len(runs)
            estimates_by_group[name] = {
                key: mean_over_runs([row.get(key, np.nan) for row in last], runs) for key in _NUMBERS
            }
    keys = [key for key in _NUMBERS if any(np.isfinite(estimates[key][0]) for estimates in estimates_by_group.values())]
    if not estimates_by_group:
        return None
    rows = [
        [name, str(counts[name]), *(_cell(key, estimates[key]) for key in keys)]
        for name, estimates in estimates_by_group.items()
    ]
    header: list[object] = ["group", "runs", *(cell for key in keys for cell in (key, f"{key}_standard_error"))]
    data: list[list[object]] = [
        [name, counts[name], *(x for key in keys for x in estimates[key])]
        for name, estimates in estimates_by_group.items()
    ]
    notes = ["Means over runs, ± standard error, at the end of training."]
    if "teacher/agreement" in keys:
        notes.append(
            "Agreement: share of states in which the student's most probable action is the teacher's, when the teacher "
            "last taught."
        )
    return ReportTable(
        "teacher",
        "Teachers",
        [header, *data],
        ["group", "runs", *(_NUMBERS[key] for key in keys)],
        rows,
        1,
        notes=notes,
    )


def plans_table(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> ReportTable | None:
    """Return a table of the plans of language models by the student's situation, shares averaged over runs.

    The result is None if no run has plans.

    Args:
        groups: short name, group and finished runs of each.
    """
    data: list[list[object]] = [["group", "sentence", "plan", "share", "runs"]]
    rows = []
    for name, _, runs in groups:
        plans, run_counts = _plans(runs)
        for place, (sentence, shared) in enumerate(plans.items()):
            ordered = sorted(shared.items(), key=lambda item: (-item[1], item[0]))
            data += [[name, sentence, plan, share, run_counts[sentence]] for plan, share in ordered]
            if place < MAX_SENTENCES:
                plan_texts = [
                    f"{plan} ({share:.0%})" if share < 0.995 else plan for plan, share in ordered[:_MAX_PLANS]
                ]
                n_omitted = len(ordered) - _MAX_PLANS
                rows.append([name, sentence, "; ".join(plan_texts) + (f"; {n_omitted} more" if n_omitted > 0 else "")])
    if not rows:
        return None
    n_unlisted = len({(line[0], line[1]) for line in data[1:]}) - len(rows)
    notes = ["Shares of its answers, averaged over runs."]
    notes += [f"The first {MAX_SENTENCES} of each group; {n_unlisted} more are in the file."] if n_unlisted else []
    return ReportTable(
        "plans", "Plans of the teacher", data, ["group", "the student sees", "plans"], rows, 3, notes=notes
    )


def _last(run: RunRecord) -> dict[str, float]:
    """Return the newest value of each of a teacher's metrics; agreement was last logged while the teacher taught."""
    newest: dict[str, float] = {}
    if not has_text(run.folder, '"teacher/'):  # most runs have no teacher, and parsing takes much longer
        return newest
    for row in read_rows(run.folder):
        newest |= {key: row[key] for key in _NUMBERS if key in row}
    return newest if any(key.startswith("teacher/") for key in newest) else {}


def _plans(runs: Sequence[RunRecord]) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Return plans by sentence, and the number of runs with each sentence.

    The share of a plan is the mean over the runs that have the sentence.
    """
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    run_counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for sentence, shared in _read(run).items():
            run_counts[sentence] += 1
            for plan, share in shared.items():
                sums[sentence][plan] += share
    sentences = sorted(sums, key=lambda sentence: (-run_counts[sentence], sentence))
    return {s: {plan: total / run_counts[s] for plan, total in sums[s].items()} for s in sentences}, run_counts


def _read(run: RunRecord) -> Mapping[str, Mapping[str, float]]:
    try:
        plans = read_object(run.folder / PLANS).get("plans", {})
        return {str(s): {str(plan): float(p) for plan, p in shares.items()} for s, shares in plans.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def _cell(key: str, estimate: Estimate) -> str:
    value, error = estimate
    if not np.isfinite(value):
        return NOTHING
    scale, form, unit = (100, ".1f", " %") if key in _IN_PERCENT else (1, ",.0f", "")
    return f"{scale * value:{form}}" + (f" ± {scale * error:{form}}" if np.isfinite(error) else "") + unit
