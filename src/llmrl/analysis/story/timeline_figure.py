"""Figure of proposals over time: a row for each group, a column for each parameter, a dot for each proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.figures import Drawing, new_figure, styled
from llmrl.analysis.group_styles import COLORS
from llmrl.analysis.report import MAX_GROUPS_SHOWN
from llmrl.analysis.story.proposed import GroupProposals, mean_score, shared_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAP = "cividis"
_COLOR_QUANTILE = 0.05
"""Quantile of the objectives with the darkest color; that of the lightest is one minus it. So outliers do not reduce
the contrast of the others."""


def timeline_drawing(groups: Sequence[GroupProposals], name: str, unit: str = "objective") -> Drawing:
    """Return the figure of the proposals of groups.

    It shows parameters, colored by the objective, or for policies the best objective so far.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    best_groups = sorted(groups, key=mean_score, reverse=True)[:MAX_GROUPS_SHOWN]
    names = shared_parameters(groups)
    selection_note = (
        f" The {MAX_GROUPS_SHOWN} groups with the highest score, of {len(groups)}."
        if len(groups) > MAX_GROUPS_SHOWN
        else ""
    )
    if names:
        caption = (
            f"Proposals over time: a dot is a proposal of a run, its color is the measured {unit}.{selection_note}"
        )
        return styled(name, caption, lambda: _dots(best_groups, names, unit))
    caption = f"Best {unit} so far, over the proposals of a run: thin lines are runs, thick ones means.{selection_note}"
    return styled(name, caption, lambda: _best(best_groups, unit))


def _dots(groups: Sequence[GroupProposals], names: Sequence[str], unit: str) -> Figure:
    objectives = np.array([proposal.objective for group in groups for _, proposal in group.numbered])
    low, high = np.quantile(objectives, [_COLOR_QUANTILE, 1 - _COLOR_QUANTILE])
    figure = new_figure(1.9 + 2.4 * len(names), 0.9 + 0.85 * len(groups))
    panels = figure.subplots(len(groups), len(names), squeeze=False, sharex=True, sharey="col")
    image: Any = None
    for row, group in enumerate(groups):
        places = np.array([place for place, _ in group.numbered])
        objectives_of_group = np.array([proposal.objective for _, proposal in group.numbered])
        order = np.argsort(objectives_of_group)  # the best are on top
        for column, parameter in enumerate(names):
            panel = panels[row, column]
            values = np.array([proposal.parameters[parameter] for _, proposal in group.numbered])
            image = panel.scatter(
                places[order],
                values[order],
                c=objectives_of_group[order],
                s=9,
                cmap=_MAP,
                vmin=low,
                vmax=high,
                linewidths=0,
                rasterized=True,
            )
            panel.tick_params(labelsize=8)
            panel.margins(y=0.12)
        panels[row, 0].set_ylabel(group.name, rotation=0, ha="right", va="center", fontsize=10)
    for column, parameter in enumerate(names):
        panels[0, column].set_title(parameter, fontsize=11)
        panels[-1, column].set_xlabel("proposal", fontsize=9)
    figure.colorbar(image, ax=panels.ravel().tolist(), label=unit, shrink=min(1.0, 3.0 / len(groups)), extend="both")
    return figure


def _best(groups: Sequence[GroupProposals], unit: str) -> Figure:
    figure = new_figure(8, 3.6 + 0.23 * len(groups))
    panel = figure.subplots()
    for k, group in enumerate(groups):
        color = COLORS[k % len(COLORS)]
        runs = [
            np.maximum.accumulate([proposal.objective for proposal in best_values]) for best_values in group.proposals
        ]
        for best_values in runs if len(runs) > 1 else ():
            panel.plot(np.arange(1, len(best_values) + 1), best_values, color=color, alpha=0.25, linewidth=0.8)
        length = min(map(len, runs))
        mean_values = np.mean([best_values[:length] for best_values in runs], axis=0)
        panel.plot(np.arange(1, length + 1), mean_values, color=color, linewidth=2.2, label=group.name)
    panel.set_xlabel("proposals of a run")
    panel.set_ylabel(f"best {unit} so far")
    figure.legend(loc="outside lower center", ncols=4, fontsize=10)
    return figure
