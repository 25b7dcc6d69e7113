"""Landscapes: the mean objective of societies under each of many settings of a mechanism's parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmrl.analysis.regret import GroupValues, RegretMatrix, compute_regret
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import count_pretrainings, find_replication_units
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import StudyResult, StudySettings
from llmrl.results.table_format import NumberFormat, ReportTable, format_estimate, interval_to_cells
from llmrl.statistics.estimators import average_by_unit
from llmrl.statistics.intervals import Band, mean_interval

_N_BEST, _N_WORST = 10, 5
"""Numbers of the best and the worst settings in the printed table."""
_Setting = tuple[tuple[str, float], ...]
"""Names and values of a mechanism's parameters."""


@dataclass(frozen=True)
class PlayerKindComparison:
    """The change of the return of each kind of players in mixed societies, during adaptation.

    A change is the mean return of players after the last validated round minus that after the first one, in the same
    run.

    Attributes:
        change_by_kind: change with its interval under each setting, [n].
        table: mean returns after both rounds, and changes.
        sentences: a sentence about each kind.
    """

    change_by_kind: Mapping[str, Band]
    table: ReportTable
    sentences: Sequence[str]


@dataclass(frozen=True)
class Landscape(StudyResult):
    """The measurements of a landscape.

    Attributes:
        names: names of the d parameters of a setting.
        vectors: values of the parameters in each of the n settings, [n, d].
        band: mean objective of each setting with its interval, [n].
        band_by_n_rounds: mean objective of each setting, [n], by number of adaptation rounds
            (`design.validation_rounds`); empty if it was measured only after the last round.
        regret: regret of the settings in each group; None for a single group.
        player_kinds: comparison of the kinds of players; None without mixed societies or with fewer than two validated
            rounds.
    """

    names: tuple[str, ...]
    vectors: np.ndarray
    band: Band
    band_by_n_rounds: Mapping[int, Band] = field(default_factory=dict)
    regret: RegretMatrix | None = None
    player_kinds: PlayerKindComparison | None = None

    @property
    def best_index(self) -> int:
        """Index of the setting with the highest mean."""
        return int(self.band.estimate.argmax())

    def build_heat_maps(self) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Return the heat maps of the landscape, one for each value of the third parameter in `settings.map`.

        Each is a tuple: title with the third parameter, empty without one; values on the x axis [nx] and on the y axis
        [ny]; index of the setting in each cell, [ny, nx] int, -1 for a cell without a setting.
        """
        x, y, *third = (self.names.index(name) for name in self.settings.map or ())
        xs, ys = np.unique(self.vectors[:, x]), np.unique(self.vectors[:, y])
        maps = []
        for value in np.unique(self.vectors[:, third[0]]) if third else [None]:
            indices = np.full((len(ys), len(xs)), -1)
            for i, vector in enumerate(self.vectors):
                if value is None or vector[third[0]] == value:
                    indices[np.searchsorted(ys, vector[y]), np.searchsorted(xs, vector[x])] = i
            maps.append(("" if value is None else f"{self.names[third[0]]} = {value:g}", xs, ys, indices))
        return maps


def build_landscape(settings: StudySettings, groups: Mapping[str, Sequence[RunRecord]]) -> Landscape:
    """Build the landscape of finished runs of `principal=listed`, which have all measured the same settings.

    The landscape contains the runs of the first baseline of the study that is a group, or without one all runs.

    Args:
        settings: settings of the study.
        groups: runs by short name of their group, at least one run each.

    Raises:
        RunFolderError: two runs have different settings, `settings.map` names no parameter, or a summary is unreadable.
    """
    all_runs = [run for group_runs in groups.values() for run in group_runs]
    runs = next((groups[name] for name in settings.baselines if name in groups), all_runs)
    history_by_folder = {run.folder: _read_history(run) for run in all_runs}
    values_by_folder = {folder: _average_by_setting(history) for folder, history in history_by_folder.items()}
    histories = [history_by_folder[run.folder] for run in runs]
    values_by_run = [values_by_folder[run.folder] for run in runs]
    first_run_values = values_by_run[0]
    for run in all_runs:
        if values_by_folder[run.folder].keys() != first_run_values.keys():
            raise RunFolderError(
                f"{run.folder} has measured other settings than {runs[0].folder}; move one of them to another folder"
            )
    names = tuple(name for name, _ in next(iter(first_run_values)))
    unknown_names = [name for name in settings.map or () if name not in names]
    if unknown_names:
        raise RunFolderError(f"report.map={settings.map}: {unknown_names[0]} is unknown; use {', '.join(names)}")
    vectors = np.array([[value for _, value in setting] for setting in first_run_values])
    units = find_replication_units(runs)

    def stack_by_setting(means_by_run: Sequence[Mapping[_Setting, float]]) -> np.ndarray:
        return np.array([[means[setting] for means in means_by_run] for setting in first_run_values])

    values = stack_by_setting(values_by_run)
    band = mean_interval(values, units)
    rounds_by_proposal = [{int(n) for n in row.get("validated", ())} for history in histories for row in history]
    band_by_n_rounds = {
        n: mean_interval(stack_by_setting([_average_by_setting(history, n) for history in histories]), units)
        for n in sorted(set.intersection(*rounds_by_proposal))
    }
    n_pretrainings = count_pretrainings(runs)
    basis = f"{len(runs)} runs" + (f" of {n_pretrainings} pre-trained societies" if n_pretrainings else "")
    unit = settings.unit or "objective"
    tables = [_build_settings_table(names, vectors, band, unit, basis)]
    tables += [_build_rounds_table(names, vectors, band_by_n_rounds, unit, basis)] if band_by_n_rounds else []
    best_index = int(band.estimate.argmax())
    zero_settings = np.flatnonzero((vectors == 0).all(axis=1))
    fmt = NumberFormat(band.estimate)
    # If there are more than three parameters, those with the value 0 are not mentioned.
    named_values = [(name, x) for name, x in zip(names, vectors[best_index], strict=True) if x != 0 or len(names) <= 3]
    setting_text = ", ".join(f"{name} {x:g}" for name, x in named_values) or "nothing"
    sentence = (
        f"The best of {len(vectors)} settings, {setting_text}, brings {format_estimate(band[best_index], fmt)} {unit}"
    )
    unbiased_best = _compute_unbiased_best(values)
    if unbiased_best is not None:
        sentence += f" (the best by one half of the runs, measured by the other half: {fmt(unbiased_best)})"
    if len(zero_settings):
        sentence += f"; no mechanism brings {format_estimate(band[int(zero_settings[0])], fmt)}"
    if len(zero_settings) and np.isfinite(band.low).all():
        n_better = int((band.low > band.high[zero_settings[0]]).sum())
        n_worse = int((band.high < band.low[zero_settings[0]]).sum())
        sentence += (
            f". Of the others, {n_better} are better than no mechanism and {n_worse} worse, with intervals that do not "
            "overlap"
        )
    regret = compute_regret(
        {
            name: GroupValues(
                stack_by_setting([values_by_folder[run.folder] for run in group_runs]),
                find_replication_units(group_runs),
                [run.seed for run in group_runs],
            )
            for name, group_runs in groups.items()
        },
        [", ".join(f"{x:g}" for x in vector) for vector in vectors],
        settings.recommendations,
        unit,
    )
    tables += [] if regret is None else [regret.table]
    player_kinds = _compare_player_kinds(names, vectors, histories, first_run_values, units, basis)
    sentences = [sentence + "."]
    if player_kinds is not None:
        tables.append(player_kinds.table)
        sentences += player_kinds.sentences
        caption = f"{player_kinds.table.caption}. Change of the return under each setting, with 95% intervals."
    else:
        caption = f"Mean {unit} under each setting, {basis}; intervals are in the table. "
        caption += "The lines connect measurements of one setting." if band_by_n_rounds else "The best is framed."
    caption += " All settings of a run were measured with the same random numbers."
    return Landscape(
        settings, tuple(sentences), tuple(tables), caption, names, vectors, band, band_by_n_rounds, regret, player_kinds
    )


def _compute_unbiased_best(values: np.ndarray) -> float | None:
    """Return the objective of the best setting without selection bias; None for a single run.

    One half of the runs selects the best setting, the other half measures it, and vice versa; the result is the mean of
    both measurements. The highest mean over all runs would be biased upwards by noise.

    Args:
        values: objective of each setting in each run, [n, n_runs].
    """
    if values.shape[1] < 2:
        return None
    halves = [values[:, 0::2].mean(axis=1), values[:, 1::2].mean(axis=1)]
    return float(np.mean([held_out_half[half.argmax()] for half, held_out_half in (halves, halves[::-1])]))


def _read_history(run: RunRecord) -> list[dict[str, Any]]:
    """Return the proposals in the summary of a run, with `mechanism` as a `_Setting`.

    Raises:
        RunFolderError: the summary cannot be read.
    """
    try:
        rows = run.summary()["history"]
        return [{**row, "mechanism": tuple((k, float(x)) for k, x in row["mechanism"].items())} for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run.folder}: the proposals of its summary cannot be read ({error!r})") from error


def _average_by_setting(
    history: Sequence[Mapping[str, Any]], n_rounds: int | None = None, kind: str | None = None
) -> dict[_Setting, float]:
    """Return the mean objective of each setting, or the mean return of players of a kind.

    Args:
        history: proposals of a run.
        n_rounds: number of adaptation rounds after which the objective or return was measured; None: all rounds.
        kind: kind of players in a mixed society, whose return is averaged; needs `n_rounds`. None: the objective.
    """
    values_by_setting: dict[_Setting, list[float]] = defaultdict(list)
    for row in history:
        if kind is not None:
            value = row["kinds"][str(n_rounds)][kind]
        else:
            value = row["objective"] if n_rounds is None else row["validated"][str(n_rounds)]
        values_by_setting[row["mechanism"]].append(float(value))
    return {setting: float(np.mean(values)) for setting, values in values_by_setting.items()}


def _build_settings_table(
    names: tuple[str, ...], vectors: np.ndarray, band: Band, unit: str, basis: str
) -> ReportTable:
    """Return a table of the best settings, the worst settings and zero; its CSV file contains all settings."""
    order = [int(i) for i in np.argsort(-band.estimate, kind="stable")]
    zero_settings = [int(i) for i in np.flatnonzero((vectors == 0).all(axis=1))]
    listed_settings = list(dict.fromkeys([*order[:_N_BEST], *zero_settings, *order[-_N_WORST:]]))
    fmt = NumberFormat(band.estimate)
    varying_columns = [k for k in range(len(names)) if len(np.unique(vectors[:, k])) > 1]
    rows = [
        [*(f"{vectors[i, k]:g}" for k in varying_columns), format_estimate(band[i], fmt), str(order.index(i) + 1)]
        for i in sorted(listed_settings, key=order.index)
    ]
    csv_rows: list[list[object]] = [[*names, "mean", "low", "high"]]
    csv_rows += [[*vectors[i], *interval_to_cells(band[i])] for i in range(len(vectors))]
    return ReportTable(
        "study_landscape",
        f"{unit} under {len(vectors)} settings, mean over {basis} with 95% intervals",
        csv_rows,
        [*(names[k] for k in varying_columns), unit, "rank"],
        rows,
        0,
    )


def _build_rounds_table(
    names: tuple[str, ...], vectors: np.ndarray, bands: Mapping[int, Band], unit: str, basis: str
) -> ReportTable:
    """Return a table of all settings with their objective after each number of adaptation rounds, best first."""
    order = [int(i) for i in np.argsort(-bands[max(bands)].estimate, kind="stable")]
    fmt = NumberFormat(np.concatenate([band.estimate for band in bands.values()]))
    rows = [
        [*(f"{x:g}" for x in vectors[i]), *(format_estimate(band[i], fmt) for band in bands.values())] for i in order
    ]
    csv_rows: list[list[object]] = [[*names, "rounds", "mean", "low", "high"]]
    csv_rows += [[*vectors[i], n, *interval_to_cells(x[i])] for n, x in bands.items() for i in range(len(vectors))]
    return ReportTable(
        "study_adaptation",
        f"{unit} after adaptation, mean over {basis} with 95% intervals",
        csv_rows,
        [*names, *(f"{n} rounds" for n in bands)],
        rows,
        0,
    )


def _compare_player_kinds(
    names: tuple[str, ...],
    vectors: np.ndarray,
    histories: Sequence[Sequence[Mapping[str, Any]]],
    settings: Iterable[_Setting],
    units: Sequence[object],
    basis: str,
) -> PlayerKindComparison | None:
    """Compare the kinds of players in mixed societies; None without these or with fewer than two validated rounds.

    Args:
        names: names of the d parameters of a setting.
        vectors: values of the parameters in each setting, [n, d].
        histories: proposals of each run.
        settings: keys of the settings, in the order of `vectors`.
        units: label of the top-level unit of each run.
        basis: text with the number of runs, for captions.
    """
    rounds = sorted(set.intersection(*({int(n) for n in row.get("kinds", ())} for rows in histories for row in rows)))
    if len(rounds) < 2:
        return None
    first_round, last_round = rounds[0], rounds[-1]
    header: list[object] = ["kind", *names, f"after_{first_round}", f"after_{last_round}", "change", "low", "high"]
    csv_rows, rows, sentences, keys = [header], [], [], list(settings)
    change_by_kind = {}
    for kind in histories[0][0]["kinds"][str(last_round)]:
        means = [[_average_by_setting(history, n, kind) for history in histories] for n in (first_round, last_round)]
        first_returns, last_returns = (np.array([[x[key] for x in by_run] for key in keys]) for by_run in means)
        change = change_by_kind[kind] = mean_interval(last_returns - first_returns, units)
        fmt = NumberFormat(np.concatenate([first_returns, last_returns]))
        for i, vector in enumerate(vectors):
            mean_returns = [float(average_by_unit(x[i], units).mean()) for x in (first_returns, last_returns)]
            rows.append([kind, *(f"{x:g}" for x in vector), *map(fmt, mean_returns), format_estimate(change[i], fmt)])
            csv_rows.append([kind, *vector, *mean_returns, *interval_to_cells(change[i])])
        n_gains, n_losses = int((change.low > 0).sum()), int((change.high < 0).sum())
        sentences.append(
            f"From {first_round} to {last_round} rounds, the return of {kind} rises under {n_gains} and falls under "
            f"{n_losses} of {len(vectors)} settings (intervals without 0); mean change "
            f"{fmt.format_signed(float(change.estimate.mean()))}."
        )
    caption = f"Return of a player of each kind, mechanism included: {first_round} and {last_round} rounds, {basis}"
    columns = ["kind", *names, f"{first_round} rounds", f"{last_round} rounds", "change"]
    return PlayerKindComparison(change_by_kind, ReportTable("study_kinds", caption, csv_rows, columns, rows), sentences)
