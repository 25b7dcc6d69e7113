"""The figure of a run's probes: probabilities of actions in fixed situations, over training."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from llmrl.analysis.figures import COLORS, Drawing, check_installed, render_figure
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.plain_data import read_object
from llmrl.run.artifacts import PROBES_NAME
from llmrl.run.files import write_bytes
from llmrl.run.metrics import FILE_NAME, read_metrics

log = logging.getLogger(__name__)

FIGURE = "probes.png"
_COLUMNS = 3


def draw_probes(folder: Path) -> Path | None:
    """Write `probes.png` into a run folder; return None if the run has no probes, or matplotlib is not installed.

    Raises:
        RunFolderError: the files of the run cannot be read, or the figure cannot be written.
    """
    if not (folder / PROBES_NAME).is_file():
        return None
    try:
        check_installed()
    except ConfigError:
        log.warning("%s is not drawn: figures need matplotlib (pip install 'llmrl[plots]')", FIGURE)
        return None
    path = folder / FIGURE
    write_bytes(path, render_probes(folder).png)
    return path


def render_probes(folder: Path) -> Drawing:
    """Return the figure of the probes of a run, with one panel for each.

    Raises:
        ConfigError: matplotlib is not installed.
        RunFolderError: the files of the run cannot be read.
    """
    try:
        questions = read_object(folder / PROBES_NAME)
    except (FileNotFoundError, ValueError) as error:
        raise RunFolderError(f"{folder / PROBES_NAME} cannot be read: {error}") from error
    rows = read_metrics(folder / FILE_NAME, "probe")
    caption = "Probability of each action in the probes' situations; the thick line is the intended action."
    try:
        return render_figure("probes", caption, lambda: _figure(questions, rows))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{folder / PROBES_NAME} or the probes' metrics are damaged: {error!r}") from error


def _figure(questions: dict[str, Any], rows: list[dict[str, Any]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter

    probes, actions = questions["probes"], questions["actions"]
    columns = min(_COLUMNS, len(probes))
    lines = math.ceil(len(probes) / columns)
    figure = Figure(figsize=(4.2 * columns, 2.5 * lines + 0.9), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    styles: list[dict[str, Any]] = [
        {"color": COLORS[k % len(COLORS)], "linestyle": "solid" if k < len(COLORS) else "dashed"}
        for k in range(len(actions))
    ]
    for i, (panel, probe) in enumerate(zip(panels, probes, strict=False)):
        for action, style in zip(actions, styles, strict=True):
            name = f"probe/{probe['name']}/{action.replace(' ', '_')}"
            probe_rows = [row for row in rows if name in row]
            panel.plot(
                [row["env_steps"] for row in probe_rows],
                [row[name] for row in probe_rows],
                **style,
                linewidth=3 if action == probe["intended"] else 1.3,
                marker="o" if len(probe_rows) == 1 else "",
            )
        title = probe["name"].replace("_", " ")
        panel.set_title(title + (f"\nintended: {probe['intended']}" if probe["intended"] else ""), fontsize=10)
        panel.set_ylim(-0.02, 1.02)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        if i + columns >= len(probes):  # nothing below it
            panel.set_xlabel("environment steps")
            panel.tick_params(labelbottom=True)
        if i % columns == 0:
            panel.set_ylabel("probability")
    for panel in panels[len(probes) :]:
        panel.set_visible(False)
    handles = [Line2D([], [], label=action, **style) for action, style in zip(actions, styles, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(actions), 6), fontsize=10)
    return figure
