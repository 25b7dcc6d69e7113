"""Warnings that the scores of a task may be misleading, as sentences for its report."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.results.groups import FinishedGroups
from llmrl.results.run_records import RunRecord

_FIXED_PROPOSALS = ("fixed", "listed")
"""Principals whose proposals are part of the config."""
_OBJECTIVE = ("design.objective", "design.spending_cost")
"""Options that define what a score is."""


def task_warnings(finished: FinishedGroups) -> tuple[str, ...]:
    """Return warnings about runs of a debug preset, and about groups with different objectives."""
    warnings = []
    debug_groups = [group.shown for group, runs in finished if any("debug" in run.overrides for run in runs)]
    if debug_groups:
        warnings.append(
            f"{'; '.join(debug_groups)}: runs of a debug preset have minimal sizes, so their scores are not meaningful."
        )
    for option in _OBJECTIVE:
        if len({runs[0].overrides.get(option) for _, runs in finished}) > 1:
            warnings.append(
                f"The groups differ in {option}: their scores are different quantities and cannot be ranked."
            )
    return tuple(warnings)


def identical_proposals(finished: FinishedGroups) -> tuple[str, ...]:
    """Return a warning for each group whose runs of different seeds proposed the same vectors in the same order.

    Groups with a single vector, and with `principal=fixed` or `listed`, are left out.

    Args:
        finished: groups and their finished runs.
    """
    return tuple(
        f"{group.shown}: all {len({run.seed for run in runs})} seeds proposed the same vectors in the same order. A "
        "principal with random proposals must draw them from its argument `seeds` (docs/extending.md)."
        for group, runs in finished
        if _are_identical(runs)
    )


def _are_identical(runs: Sequence[RunRecord]) -> bool:
    if len({run.seed for run in runs}) < 2 or any(run.overrides.get("principal") in _FIXED_PROPOSALS for run in runs):
        return False
    sequences = {_vectors(run) for run in runs}
    [sequence, *further_sequences] = sequences
    return not further_sequences and len(set(sequence)) > 1


def _vectors(run: RunRecord) -> tuple[tuple[object, ...], ...]:
    rows = run.summary().get("history") or []
    return tuple((row.get("context"), *(row.get("mechanism") or {}).values()) for row in rows)
