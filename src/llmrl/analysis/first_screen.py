"""What TensorBoard shows first of a sweep: one run a group, its mean over seeds with a band, and the link to just that.

TensorBoard knows neither groups nor intervals. So a group's mean is written as a run of its own, `mean/<group>`, beside
the sweep's run folders; the ends of its 95% interval are two more, which have the colour of the mean. The parameters of
the link are those of TensorBoard's time series page: `runFilter`, `tagFilter`, `runColorGroup` and `smoothing`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import numpy as np

from llmrl.analysis.bootstrap import bootstrap_bands
from llmrl.analysis.curves import on_common_grid
from llmrl.analysis.groups import Group, ReportTask, tasks_of
from llmrl.analysis.principal_scores import ANYTIME
from llmrl.analysis.reference_lines import LINES, OBJECTIVE, references_of
from llmrl.analysis.resampling_levels import clusters_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.statistics import Levels, mean
from llmrl.analysis.story.story import short_names
from llmrl.core.atomic_files import remove
from llmrl.core.privacy import OWNER_ONLY, kept_private
from llmrl.core.run_context import Kind
from llmrl.run.folder_names import safe
from llmrl.run.metrics import FILE_NAME, metric_tables
from llmrl.run.sinks.tensorboard_tags import COMPARE, tag_of
from llmrl.run.tensorboard_file import PATTERN, EventFile

FOLDER = "mean"
"""Beside the run folders of a sweep: the event files of its groups."""
LOW, HIGH = "low95", "high95"
REFERENCE = "vs"
"""Of lines that a principal has to beat. Short, because TensorBoard hides the colours of its list where a name has more
than about twenty characters; and late in the alphabet, so that groups stand first."""
MOST_BANDS = 3
"""Groups up to which the link shows bands: more of them hide the means."""
SMOOTHING = 0.6
"""Of TensorBoard, in [0, 1): the measurements stay behind it, fainter."""
RESAMPLES = 1_000
PORT = 6006

Points = dict[int, dict[str, float]]
"""Values by tag, by step."""


@dataclass(frozen=True)
class FirstScreen:
    """What was written.

    Attributes:
        folder: for `tensorboard --logdir`.
        groups: runs that are means.
        bands: whether the link shows intervals.
    """

    folder: Path
    groups: int
    bands: bool

    @property
    def link(self) -> str:
        """The address of TensorBoard's page on this machine, at its usual port."""
        return link(self.bands)


def link(bands: bool, port: int = PORT) -> str:
    """Return the address of a TensorBoard that shows means of groups alone, coloured by group.

    Args:
        bands: whether the ends of intervals are among the runs.
        port: TensorBoard's.
    """
    ends = "" if bands else f"(?!.*/({LOW}|{HIGH})$)"
    query = {
        "runFilter": f"^{ends}(.*/)?{FOLDER}/",
        "tagFilter": f"^{COMPARE}",
        "runColorGroup": f"regex:{FOLDER}/({REFERENCE}/[^/]+|[^/]+)",
        "smoothing": str(SMOOTHING),
    }
    return f"http://localhost:{port}/?{urlencode(query, quote_via=quote, safe='')}#timeseries"


def write_first_screen(folder: Path, runs: Sequence[RunRecord]) -> FirstScreen | None:
    """Write the means of all groups of a folder of runs; None where there is nothing to compare in TensorBoard.

    Args:
        folder: of the runs.
        runs: in and under it; finished ones that have event files are looked at.

    Raises:
        RunFolderError: metrics cannot be read, or an event file cannot be written.
    """
    finished = [run for run in runs if run.state == "finished" and any(run.folder.glob(PATTERN))]
    groups = 0
    for task in tasks_of(finished, folder):
        own = [run.folder for group in task.groups for run in group.runs]
        if len(own) > 1:
            with kept_private(not own[0].stat().st_mode & OWNER_ONLY):  # as the runs are
                groups += _write_task(task)
    return FirstScreen(folder, groups, groups <= MOST_BANDS) if groups else None


def _write_task(task: ReportTask) -> int:
    """Write the groups of a task; returns how many have something to compare."""
    root = task.groups[0].runs[0].folder.parent.parent / FOLDER
    short = short_names(task)
    names = {group.label: group.display_name(short[group.label]) for group in task.groups}
    written: set[Path] = set()
    last = 1
    for group in task.groups:
        points, low, high = _means(group)
        if not any(tag.startswith(COMPARE) for values in points.values() for tag in values):
            continue
        place = root / (safe(names[group.label]) or "all")
        for path, told in ((place, points), (place / LOW, low), (place / HIGH, high)):
            if told:
                _write(path, told)
                written.add(path)
        last = max(last, *low, *(step for step, values in points.items() if any(t.startswith(COMPARE) for t in values)))
    groups = len([path for path in written if path.parent == root])
    lines, _ = references_of([(group, group.runs) for group in task.groups])
    if groups and len(lines) == len(LINES):  # else groups have lines of their own
        tags = [tag_of("recommendation", ANYTIME), tag_of("proposal", OBJECTIVE)]
        for line in lines:
            path = root / REFERENCE / line.line
            _write(path, {step: {tag: line.value for tag in tags if tag is not None} for step in (1, last)})
            written.add(path)
    for path in root.rglob(PATTERN):
        if path.parent not in written:
            remove(path)  # of a group that is no more
    return groups


def _means(group: Group) -> tuple[Points, Points, Points]:
    """Means of what every run of a group has measured, and the ends of the intervals of what runs are compared by."""
    told: dict[tuple[Kind, str], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for run in group.runs:
        for kind, table in metric_tables(run.folder / FILE_NAME).items():
            places = table.columns[table.x]
            for metric, values in table.columns.items():
                known = np.isfinite(values)
                if "/" in metric and not metric.startswith("time/") and known.any():
                    told[kind, metric].append((places[known], values[known]))
    points: tuple[Points, Points, Points] = (defaultdict(dict), defaultdict(dict), defaultdict(dict))
    levels = [Levels(clusters_of(group.runs))]
    for (kind, metric), series in told.items():
        tag = tag_of(kind, metric)
        common = on_common_grid(series) if tag is not None and len(series) == len(group.runs) else None
        if tag is None or common is None:
            continue
        places, values = common
        if not tag.startswith(COMPARE):
            curves = [mean(values)]
        else:
            band = bootstrap_bands(values, {"": mean}, resamples=RESAMPLES, levels=levels)[""]
            curves = [band.estimate, band.low, band.high]
        for found, curve in zip(points, curves, strict=False):
            for place, value in zip(places, curve, strict=True):
                if np.isfinite(value):
                    found[round(float(place))][tag] = float(value)
    return points


def _write(folder: Path, points: Points) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    started = 0.0
    events = EventFile(folder, started=started)
    for step in sorted(points):
        events.scalars(step, started, points[step])
    events.publish()
    events.close()
