"""Warnings that the scores of a task may be misleading, as sentences for its report."""

from __future__ import annotations

from llmrl.results.groups import FinishedGroups

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
