"""The figure of what was proposed over time: a row a group, a column a parameter, a dot a proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.figures import Drawing, new_figure, styled
from llmrl.analysis.group_styles import COLOURS
from llmrl.analysis.report import MOST_SHOWN
from llmrl.analysis.story.proposed import GroupProposals, mean_score, parameters_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAP = "cividis"
_FAINTEST = 0.05
"""Share of the objectives below which a colour is the darkest, and above one less which it is the lightest: a single
wild value would leave all others one colour."""


def timeline_drawing(groups: Sequence[GroupProposals], name: str, unit: str = "objective") -> Drawing:
    """Draw the proposals of groups: numbers coloured by what they gave or, of policies, the best so far.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    shown = sorted(groups, key=mean_score, reverse=True)[:MOST_SHOWN]
    names = parameters_of(groups)
    some = f" The {MOST_SHOWN} groups of the highest score, of {len(groups)}." if len(groups) > MOST_SHOWN else ""
    if names:
        caption = f"What was proposed over time: a dot is a proposal of a run, its colour the {unit} it gave.{some}"
        return styled(name, caption, lambda: _dots(shown, names, unit))
    caption = f"Best {unit} so far, over the proposals of a run: thin lines are runs, thick ones means.{some}"
    return styled(name, caption, lambda: _best(shown, unit))


def _dots(groups: Sequence[GroupProposals], names: Sequence[str], unit: str) -> Figure:
    objectives = np.array([each.objective for group in groups for _, each in group.every])
    low, high = np.quantile(objectives, [_FAINTEST, 1 - _FAINTEST])
    figure = new_figure(1.9 + 2.4 * len(names), 0.9 + 0.85 * len(groups))
    panels = figure.subplots(len(groups), len(names), squeeze=False, sharex=True, sharey="col")
    image: Any = None
    for row, group in enumerate(groups):
        places = np.array([place for place, _ in group.every])
        value = np.array([each.objective for _, each in group.every])
        order = np.argsort(value)  # what gave most is on top
        for column, parameter in enumerate(names):
            panel = panels[row, column]
            own = np.array([each.parameters[parameter] for _, each in group.every])
            image = panel.scatter(
                places[order],
                own[order],
                c=value[order],
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
        colour = COLOURS[k % len(COLOURS)]
        runs = [np.maximum.accumulate([each.objective for each in own]) for own in group.proposals]
        for own in runs if len(runs) > 1 else ():
            panel.plot(np.arange(1, len(own) + 1), own, color=colour, alpha=0.25, linewidth=0.8)
        length = min(map(len, runs))
        together = np.mean([own[:length] for own in runs], axis=0)
        panel.plot(np.arange(1, length + 1), together, color=colour, linewidth=2.2, label=group.name)
    panel.set_xlabel("proposals of a run")
    panel.set_ylabel(f"best {unit} so far")
    figure.legend(loc="outside lower center", ncols=4, fontsize=10)
    return figure
