"""TensorBoard files of a sweep with one run for each group (its mean over seeds), and a link that shows only these.

TensorBoard has neither groups nor intervals. So a group's mean is written as a separate run, `mean/<group>`, in the
folder of the sweep's runs. The ends of its 95% interval, if it has one, are two more runs with the color of the mean.
The parameters of the link are those of TensorBoard's time series page: `runFilter`, `tagFilter`, `runColorGroup` and
`smoothing`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, urlencode

import numpy as np

from llmrl.analysis.curves import group_curve
from llmrl.analysis.story.story import short_names
from llmrl.core.atomic_files import remove_ignoring_errors
from llmrl.core.metric_kinds import Kind
from llmrl.core.privacy import OWNER_ONLY, kept_private
from llmrl.results.groups import Group, ReportTask, tasks_of
from llmrl.results.principal_scores import ANYTIME
from llmrl.results.reference_lines import LINES, OBJECTIVE, read_references
from llmrl.results.replication import units_of
from llmrl.results.run_records import RunRecord
from llmrl.run.folder_names import safe
from llmrl.run.metrics import FILE_NAME, metric_tables
from llmrl.run.status import FILE_NAME as STATUS_NAME
from llmrl.run.tensorboard_file import PATTERN, EventFile
from llmrl.run.tensorboard_tags import COMPARE, tag_of

FOLDER = "mean"
"""Folder of the groups' event files, next to the run folders of a sweep."""
LOW, HIGH = "low95", "high95"
REFERENCE = "vs"
"""Folder of the reference lines. The name is short, because TensorBoard hides the colors in its list if names have more
than about twenty characters, and late in the alphabet, so that groups come first."""
MAX_BANDS = 3
"""Maximum number of groups for which the link shows bands; more bands hide the means."""
SMOOTHING = 0.6
"""TensorBoard's smoothing, in [0, 1); the unsmoothed curve is shown fainter."""
PORT = 6006

Points = dict[int, dict[str, float]]
"""Values by step and tag."""


def link(bands: bool, port: int = PORT) -> str:
    """Return the address of a TensorBoard page that shows only means of groups, colored by group.

    Args:
        bands: whether to show the ends of intervals, too.
        port: port of TensorBoard.
    """
    ends = "" if bands else f"(?!.*/({LOW}|{HIGH})$)"
    query = {
        "runFilter": f"^{ends}(.*/)?{FOLDER}/",
        "tagFilter": f"^{COMPARE}",
        "runColorGroup": f"regex:{FOLDER}/({REFERENCE}/[^/]+|[^/]+)",
        "smoothing": str(SMOOTHING),
    }
    return f"http://localhost:{port}/?{urlencode(query, quote_via=quote, safe='')}#timeseries"


def find_first_screen(folders: Sequence[Path]) -> str | None:
    """Return a link to the means of groups if they were written after the last change of the runs; else None.

    Changes are those of the status of a run, and of the set of runs.

    Args:
        folders: run folders.
    """
    places = {folder.parent.parent / FOLDER for folder in folders}
    files = [path for place in places for path in place.rglob(PATTERN)]
    parents = {parent for folder in folders for parent in (folder.parent, folder.parent.parent)}
    changes = (path.stat().st_mtime_ns for path in (*parents, *(folder / STATUS_NAME for folder in folders)))
    if not files or min(path.stat().st_mtime_ns for path in files) < max(changes):
        return None
    groups = {path.parent for path in files if path.parent.parent in places}
    return link(bands=len(groups) <= MAX_BANDS)


def write_first_screen(folder: Path, runs: Sequence[RunRecord]) -> str | None:
    """Write the means of all groups of a folder of runs; return a link to them, None if there is nothing to compare.

    Args:
        folder: folder of the runs.
        runs: runs in it; only finished ones with event files are used.

    Raises:
        RunFolderError: metrics cannot be read, or an event file cannot be written.
    """
    finished = [run for run in runs if run.state == "finished" and any(run.folder.glob(PATTERN))]
    groups = 0
    for task in tasks_of(finished, folder):
        folders = [run.folder for group in task.groups for run in group.runs]
        if len(folders) > 1:
            with kept_private(not folders[0].stat().st_mode & OWNER_ONLY):  # with the permissions of the runs
                groups += _write_task(task)
    return link(bands=groups <= MAX_BANDS) if groups else None


def _write_task(task: ReportTask) -> int:
    """Write the groups of a task; return the number of groups with something to compare."""
    root = task.groups[0].runs[0].folder.parent.parent / FOLDER
    short = short_names(task)
    names = {group.label: group.display_name(short[group.label]) for group in task.groups}
    event_folders: set[Path] = set()
    last = 1
    for group in task.groups:
        points, low, high = _means(group)
        if not any(tag.startswith(COMPARE) for values in points.values() for tag in values):
            continue
        place = root / (safe(names[group.label]) or "all")
        for path, values in ((place, points), (place / LOW, low), (place / HIGH, high)):
            if values:
                _write(path, values)
                event_folders.add(path)
        last = max(last, *low, *(step for step, values in points.items() if any(t.startswith(COMPARE) for t in values)))
    groups = len([path for path in event_folders if path.parent == root])
    lines, _ = read_references([(group, group.runs) for group in task.groups])
    if groups and len(lines) == len(LINES):  # otherwise groups have different lines
        tags = [tag_of("recommendation", ANYTIME), tag_of("proposal", OBJECTIVE)]
        for line in lines:
            path = root / REFERENCE / line.line
            _write(path, {step: {tag: line.value for tag in tags if tag is not None} for step in (1, last)})
            event_folders.add(path)
    for path in root.rglob(PATTERN):
        if path.parent not in event_folders:
            remove_ignoring_errors(path)  # file of a group that no longer exists
    return groups


def _means(group: Group) -> tuple[Points, Points, Points]:
    """Return the means of the metrics that all runs of a group have, and the interval ends of compared metrics."""
    series_by_metric: dict[tuple[Kind, str], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for run in group.runs:
        for kind, table in metric_tables(run.folder / FILE_NAME).items():
            places = table.columns[table.x]
            for metric, values in table.columns.items():
                is_finite = np.isfinite(values)
                if "/" in metric and not metric.startswith("time/") and is_finite.any():
                    series_by_metric[kind, metric].append((places[is_finite], values[is_finite]))
    points: tuple[Points, Points, Points] = (defaultdict(dict), defaultdict(dict), defaultdict(dict))
    units = units_of(group.runs)
    for (kind, metric), series in series_by_metric.items():
        tag = tag_of(kind, metric)
        if tag is None or len(series) < len(group.runs) or (curve := group_curve(series, units)) is None:
            continue
        for place, *band in curve.points:
            for curve_points, value in zip(points, band if tag.startswith(COMPARE) else band[:1], strict=False):
                if np.isfinite(value):
                    curve_points[round(place)][tag] = value
    return points


def _write(folder: Path, points: Points) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    started = 0.0
    events = EventFile(folder, started=started)
    for step in sorted(points):
        events.scalars(step, started, points[step])
    events.publish()
    events.close()
