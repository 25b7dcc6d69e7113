"""Replication of a group of runs: top-level units, and reasons why an interval over them is missing or too narrow."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.results.run_records import RunRecord
from llmrl.run.shared_factors import PRETRAINING, REPLIES, SOCIETY
from llmrl.statistics.intervals import MINIMUM_UNITS


def units_of(runs: Sequence[RunRecord]) -> list[object]:
    """Return the label of the top-level unit of each run, [n_runs]: its pre-training run, or else its own folder."""
    return [tuple(run.shared.get(PRETRAINING, ())) or run.folder for run in runs]


def pretrainings_of(runs: Sequence[RunRecord]) -> int:
    """Return the number of different pre-training runs that some runs started from."""
    return len({tuple(run.shared[PRETRAINING]) for run in runs if PRETRAINING in run.shared})


def replication_remarks(runs: Sequence[RunRecord]) -> list[str]:
    """Return reasons why the score of a group has no interval, or one that does not cover all variation.

    Args:
        runs: finished runs of the group.
    """
    n_units, remarks = len(set(units_of(runs))), []
    if n_units < MINIMUM_UNITS:
        unit = "run" if n_units == len(runs) or not pretrainings_of(runs) else "pre-training run"
        remarks.append(f"{n_units} {unit}{'' if n_units == 1 else 's'}: no interval below {MINIMUM_UNITS}")
    replies = [name for run in runs for name in run.shared.get(REPLIES, ())]
    if len(replies) > len(set(replies)):
        remarks.append("seeds share a model's replies: the interval does not cover their variation")
    societies = [name for run in runs for name in set(run.shared.get(SOCIETY, ()))]
    if len(societies) > len(set(societies)):
        remarks.append("seeds share societies: interval too narrow")
    return remarks
