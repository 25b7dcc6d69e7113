"""Metrics over environment steps, proposals or time, aggregated over a group's seeds: how fast, not only how far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.groups import Group
from llmrl.analysis.intervals import Band, mean_interval
from llmrl.analysis.replication import units_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.scores import AXES, DEFAULT_CURVES, Series, series
from llmrl.core.errors import RunFolderError

GRID = 101
"""Places at which curves are compared when the runs of a group logged at different ones."""

MOST_PLACES = 200
_WITH_SUCCESS = ("train/return", "train/success")
"""Of agents that learn by playing both are drawn, the second where episodes can succeed."""


@dataclass(frozen=True)
class Line:
    """One group's curve.

    Attributes:
        label: the group's.
        places: on the axis of the curve, [n_places].
        band: mean over the top-level units with pointwise 95% intervals, [n_places].
        runs: how many runs it is made of.
    """

    label: str
    places: np.ndarray
    band: Band
    runs: int


@dataclass(frozen=True)
class Curve:
    """A metric of all groups that have it, over one of `scores.AXES`."""

    metric: str
    lines: tuple[Line, ...]
    over: str = "env_steps"


def curves_of(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    metrics: Sequence[str],
    over: str = "env_steps",
    width: int | None = None,
) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    """A curve of each metric, and notes about what is not in them.

    Args:
        groups: each group with its finished runs.
        metrics: names in `metrics.jsonl`; none: the first of `DEFAULT_CURVES` that a run has.
        over: the axis, one of `scores.AXES`.
        width: frames of a bin, of metrics of training episodes.
    """
    curves, notes = [], []
    for metric in metrics or (*DEFAULT_CURVES, *_WITH_SUCCESS[1:]):
        lines = []
        about = []
        for group, runs in groups:
            found, units, lacking = _series_of(runs, metric, over, width)
            about += [f"Curve of {metric}, {group.shown}: {why}." for why in lacking]
            if found:
                line = _line(group.label, found, units)
                if line is None:
                    about.append(
                        f"Curve of {metric}, {group.shown}: no stretch of {AXES[over][1]} is covered by all its runs."
                    )
                else:
                    lines.append(line)
        if lines:
            curves.append(Curve(metric, tuple(lines), over))
        if lines or metrics:
            notes += about
        if lines and not metrics and metric != _WITH_SUCCESS[0]:
            break
    return tuple(curves), tuple(notes)


def on_common_grid(runs: Sequence[Series]) -> tuple[np.ndarray, np.ndarray] | None:
    """Curves of several runs at common places, [n_places] and [n_places, n_runs]; None if no place is common to all.

    Only where every run has values on both sides: nothing is extrapolated. Places that all runs logged at are kept,
    thinned evenly to `MOST_PLACES`; otherwise values are interpolated linearly on an even grid.
    """
    first, last = max(places[0] for places, _ in runs), min(places[-1] for places, _ in runs)
    if first > last:
        return None
    shared = runs[0][0]
    if all(np.array_equal(places, shared) for places, _ in runs):
        kept = np.unique(np.linspace(0, len(shared) - 1, min(len(shared), MOST_PLACES)).round().astype(int))
        grid = shared[kept]
    else:
        grid = np.unique(np.linspace(first, last, GRID))
    return grid, np.stack([np.interp(grid, places, values) for places, values in runs], axis=-1)


def _series_of(
    runs: Sequence[RunRecord], metric: str, over: str, width: int | None
) -> tuple[list[Series], list[object], list[str]]:
    """Curves of the runs that have one, what each of these shares with others, and what is to be said of the rest."""
    found, having, without, damaged = [], [], [], []
    for run in runs:
        try:
            places, values = series(run.folder, metric, over, width)
        except RunFolderError as error:
            damaged.append(f"left out, {error}")
            continue
        if len(places):
            found.append((places, values))
            having.append(run)
        else:
            without.append(run.seed)
    lacking = [f"seed {', '.join(map(str, without))} logged none"] if without else []
    return found, units_of(having), lacking + damaged


def _line(label: str, runs: Sequence[Series], units: list[object]) -> Line | None:
    common = on_common_grid(runs)
    if common is None:
        return None
    grid, values = common
    return Line(label, grid, mean_interval(values, units), len(runs))
