"""Warnings about principals whose proposals do not depend on the seed."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.analysis.groups import Group
from llmrl.analysis.runs import RunRecord

_GIVEN = ("fixed", "listed")
"""Principals whose proposals are part of the config."""

_Sequence = tuple[tuple[object, ...], ...]


def identical_proposals(finished: Sequence[tuple[Group, Sequence[RunRecord]]]) -> tuple[str, ...]:
    """Return a warning for each group whose runs of different seeds proposed the same vectors in the same order.

    Groups with a single vector, and with `principal=fixed` or `listed`, are left out.

    Args:
        finished: groups and their finished runs.
    """
    return tuple(
        f"{group.shown}: all {len({run.seed for run in runs})} seeds proposed the same vectors in the same order. A "
        "principal that draws random numbers takes them from its argument `seeds` (docs/extending.md)."
        for group, runs in finished
        if _are_identical(runs)
    )


def _are_identical(runs: Sequence[RunRecord]) -> bool:
    if len({run.seed for run in runs}) < 2 or any(run.overrides.get("principal") in _GIVEN for run in runs):
        return False
    sequences = {_vectors(run) for run in runs}
    [first, *others] = sequences
    return not others and len(set(first)) > 1


def _vectors(run: RunRecord) -> _Sequence:
    rows = run.summary().get("history") or []
    return tuple((row.get("context"), *(row.get("mechanism") or {}).values()) for row in rows)
