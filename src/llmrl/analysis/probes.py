"""The figure of a run's probes: probabilities of the agent's actions in fixed situations over training."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.analysis.figures import COLORS, make_figure, render_figure, use_unit_prefixes
from llmrl.core.errors import RunFolderError
from llmrl.core.plain_data import read_json_object
from llmrl.run import metrics
from llmrl.run.artifacts import PROBES_NAME
from llmrl.run.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

FIGURE_NAME = "probes.png"
_MAX_COLUMNS = 3  # maximum number of panels in a row


def draw_probes(folder: Path) -> Path | None:
    """Write `probes.png` into a run folder; return None if the run has no probes, or matplotlib is not installed.

    The figure has a panel for each probe and a line for each action, thicker for the correct action (`intended`).

    Raises:
        RunFolderError: the files of the run cannot be read, or the figure cannot be written.
    """
    if not (folder / PROBES_NAME).is_file():
        return None
    if find_spec("matplotlib") is None:
        log.warning("%s is not drawn: figures need matplotlib (pip install 'llmrl[plots]')", FIGURE_NAME)
        return None
    try:
        content = read_json_object(folder / PROBES_NAME)
    except (FileNotFoundError, ValueError) as error:
        raise RunFolderError(f"{folder / PROBES_NAME} cannot be read: {error}") from error
    rows = metrics.read_metrics(folder / metrics.FILE_NAME, "probe")
    try:
        figure = render_figure("probes", "", lambda: _draw_panels(content["probes"], content["actions"], rows))
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{folder / PROBES_NAME} or the probes' metrics are damaged: {error!r}") from error
    write_bytes(folder / FIGURE_NAME, figure.png)
    return folder / FIGURE_NAME


def _draw_panels(probes: Sequence[dict[str, Any]], actions: Sequence[str], rows: Sequence[dict[str, Any]]) -> Figure:
    from matplotlib.lines import Line2D

    n_columns = min(_MAX_COLUMNS, len(probes))
    n_rows = math.ceil(len(probes) / n_columns)
    figure = make_figure(4.2 * n_columns, 2.5 * n_rows + 0.9)
    axes = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False).ravel()
    styles: list[dict[str, Any]] = [
        {"color": COLORS[k % len(COLORS)], "linestyle": "solid" if k < len(COLORS) else "dashed"}
        for k in range(len(actions))
    ]
    for i, (ax, probe) in enumerate(zip(axes, probes, strict=False)):
        for action, style in zip(actions, styles, strict=True):
            name = f"probe/{probe['name']}/{action.replace(' ', '_')}"
            probe_rows = [row for row in rows if name in row]
            ax.plot(
                [row["env_steps"] for row in probe_rows],
                [row[name] for row in probe_rows],
                **style,
                linewidth=3 if action == probe["intended"] else 1.3,
                marker="o" if len(probe_rows) == 1 else "",
            )
        title = probe["name"].replace("_", " ")
        ax.set_title(title + (f"\nintended: {probe['intended']}" if probe["intended"] else ""), fontsize=10)
        ax.set_ylim(-0.02, 1.02)
        use_unit_prefixes(ax)
        if i + n_columns >= len(probes):  # the lowest panel of its column
            ax.set_xlabel("environment steps")
            ax.tick_params(labelbottom=True)
        if i % n_columns == 0:
            ax.set_ylabel("probability")
    for ax in axes[len(probes) :]:
        ax.set_visible(False)
    handles = [Line2D([], [], label=action, **style) for action, style in zip(actions, styles, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(actions), 6), fontsize=10)
    return figure
