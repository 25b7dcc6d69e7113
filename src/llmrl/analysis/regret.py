"""Regret of the settings of a landscape in each group, and of recommendations in other societies than their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.results.table_format import NumberFormat, ReportTable, format_estimate, interval_to_cells
from llmrl.statistics.intervals import Band, mean_interval

TRANSFER_ROW_LABELS = ("recommended to the society", "recommended to others", "difference")
"""Labels of rows below those of settings: mean regret of the recommendation to the same society, mean regret of those
to other societies, and the difference."""


@dataclass(frozen=True)
class GroupValues:
    """The measurements of a group.

    Attributes:
        values: objective of each of n settings in each run, [n, n_runs].
        units: label of the top-level unit of each run.
        seeds: seed of each run.
    """

    values: np.ndarray
    units: Sequence[object]
    seeds: Sequence[int]

    @property
    def regret(self) -> np.ndarray:
        """Regret of each setting in each run, [n, n_runs]: objective of the best setting minus that of the setting.

        The best setting of a run is the one with the highest mean over the runs of other units, so the regret has no
        selection bias and may be negative.
        """
        regret = np.empty_like(self.values)
        for label in dict.fromkeys(self.units):
            is_in_unit = np.array([unit == label for unit in self.units])
            best_index = int(self.values[:, ~is_in_unit].mean(axis=1).argmax())
            regret[:, is_in_unit] = self.values[best_index, is_in_unit] - self.values[:, is_in_unit]
        return regret


@dataclass(frozen=True)
class RegretMatrix:
    """The regret of settings in several groups.

    Attributes:
        row_labels: settings and, if there is a recommendation for each society, `TRANSFER_ROW_LABELS`.
        group_names: names of the groups.
        bands: for each group, mean regret of each row with its interval, [n_rows].
        unit: unit of the objective.
    """

    row_labels: tuple[str, ...]
    group_names: tuple[str, ...]
    bands: tuple[Band, ...]
    unit: str

    @property
    def table(self) -> ReportTable:
        """Table with a row for each setting and a column for each group."""
        fmt = NumberFormat(np.concatenate([band.estimate for band in self.bands]))
        cells = [[format_estimate(band[i], fmt) for band in self.bands] for i in range(len(self.row_labels))]
        csv_rows: list[list[object]] = [["setting", "group", "regret", "low", "high"]]
        csv_rows += [
            [row, group, *interval_to_cells(band[i])]
            for i, row in enumerate(self.row_labels)
            for group, band in zip(self.group_names, self.bands, strict=True)
        ]
        caption = (
            f"Regret ({self.unit}): objective of the best setting, chosen by the other societies of the group, minus "
            "that of the setting; means over societies with 95% intervals"
        )
        rows = [[label, *row_cells] for label, row_cells in zip(self.row_labels, cells, strict=True)]
        return ReportTable("study_regret", caption, csv_rows, ["setting", *self.group_names], rows)


def compute_regret(
    groups: Mapping[str, GroupValues], settings: Sequence[str], n_recommendations: int, unit: str
) -> RegretMatrix | None:
    """Return the regret of settings in each group; None unless there are several groups of two or more units each.

    Args:
        groups: measurements of the same settings, by name of the group.
        settings: labels of the settings, [n].
        n_recommendations: number of recommendations, which are the first settings: setting i is the recommendation for
            the society of seed i.
        unit: unit of the objective.
    """
    if len(groups) < 2 or any(len(set(group.units)) < 2 for group in groups.values()):
        return None
    has_transfer_rows = n_recommendations > 1 and all(max(group.seeds) < n_recommendations for group in groups.values())
    bands = []
    for group in groups.values():
        regret = group.regret
        if has_transfer_rows:
            regret = np.concatenate([regret, _compare_recommendations(regret, group.seeds, n_recommendations)])
        bands.append(mean_interval(regret, group.units))
    names = (*settings, *(TRANSFER_ROW_LABELS if has_transfer_rows else ()))
    return RegretMatrix(names, tuple(groups), tuple(bands), unit)


def _compare_recommendations(regret: np.ndarray, seeds: Sequence[int], n: int) -> np.ndarray:
    """Return the rows `TRANSFER_ROW_LABELS` of each run, [3, n_runs], for `n` recommendations and seeds below `n`."""
    own_regret = regret[list(seeds), np.arange(len(seeds))]
    mean_other_regret = (regret[:n].sum(axis=0) - own_regret) / (n - 1)
    return np.stack([own_regret, mean_other_regret, mean_other_regret - own_regret])
