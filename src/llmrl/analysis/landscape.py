"""A landscape: the objective under each setting of a mechanism, over societies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmrl.analysis.intervals import Band, mean_interval
from llmrl.analysis.replication import pretrainings_of, units_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.study_settings import StudyResult, StudySettings
from llmrl.analysis.table_format import NumberFormat, ReportTable, with_interval
from llmrl.core.errors import RunFolderError

_BEST, _WORST = 10, 5
_Setting = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Landscape(StudyResult):
    """What a landscape shows.

    Attributes:
        names: of the numbers of a setting.
        vectors: the settings, [n, d].
        band: the mean objective of each, with its interval, [n].
        rounds: mean objective after each number of adaptation rounds (`design.validate_at`); empty if not measured.
    """

    names: tuple[str, ...]
    vectors: np.ndarray
    band: Band
    rounds: Mapping[int, Band] = field(default_factory=dict)

    @property
    def best(self) -> int:
        """The setting of the highest mean."""
        return int(self.band.estimate.argmax())

    def sheets(self) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Return the heat maps: what each holds fixed, its values on the x axis [nx] and on the y axis [ny], and which
        setting stands there, [ny, nx] int, -1 for none."""
        x, y, *more = (self.names.index(name) for name in self.settings.map or ())
        xs, ys = np.unique(self.vectors[:, x]), np.unique(self.vectors[:, y])
        found = []
        for value in np.unique(self.vectors[:, more[0]]) if more else [None]:
            places = np.full((len(ys), len(xs)), -1)
            for i, vector in enumerate(self.vectors):
                if value is None or vector[more[0]] == value:
                    places[np.searchsorted(ys, vector[y]), np.searchsorted(xs, vector[x])] = i
            found.append(("" if value is None else f"{self.names[more[0]]} = {value:g}", xs, ys, places))
        return found


def landscape(settings: StudySettings, runs: Sequence[RunRecord]) -> Landscape:
    """Return the landscape that finished runs of `principal=listed` have measured, all of them the same settings.

    Raises:
        RunFolderError: a run has other settings than the others, or its summary cannot be read.
    """
    histories = [_history(run) for run in runs]
    measured = [_by_setting(history) for history in histories]
    first = measured[0]
    for run, found in zip(runs, measured, strict=True):
        if found.keys() != first.keys():
            raise RunFolderError(f"{run.folder} has not measured the settings that {runs[0].folder} has")
    names = tuple(name for name, _ in next(iter(first)))
    lacking = [name for name in settings.map or () if name not in names]
    if lacking:
        raise RunFolderError(f"report.map={settings.map}: {lacking[0]} is none of the numbers {', '.join(names)}")
    vectors = np.array([[value for _, value in setting] for setting in first])
    values = np.array([[found[setting] for found in measured] for setting in first])
    units = units_of(runs)
    band = mean_interval(values, units)
    rounds = {}
    in_each = [{int(n) for n in row.get("validated", ())} for history in histories for row in history]
    for n in sorted(set.intersection(*in_each)):
        after = [_by_setting(history, n) for history in histories]
        rounds[n] = mean_interval(np.array([[found[setting] for found in after] for setting in first]), units)
    pretrainings = pretrainings_of(runs)
    basis = f"{len(runs)} runs" + (f" of {pretrainings} pre-trained societies" if pretrainings else "")
    unit = settings.unit or "objective"
    tables = [_table(names, vectors, band, unit, basis)]
    if rounds:
        tables.append(_rounds_table(names, vectors, rounds, unit, basis))
    best = int(band.estimate.argmax())
    nothing = np.flatnonzero((vectors == 0).all(axis=1))
    form = NumberFormat(band.estimate)
    setting = _shown(names, vectors[best])
    said = f"The best of {len(vectors)} settings, {setting}, brings {_interval(band, best, form)} {unit}"
    honest = _chosen_by_half(values)
    if honest is not None:
        said += f" (the best by one half of the runs, measured by the other half: {form(honest)})"
    if len(nothing):
        said += f"; no mechanism brings {_interval(band, int(nothing[0]), form)}"
    if len(nothing) and np.isfinite(band.low).all():
        better = int((band.low > band.high[nothing[0]]).sum())
        worse = int((band.high < band.low[nothing[0]]).sum())
        said += f". Of the others {better} are better than none and {worse} worse, with intervals that do not touch"
    caption = f"Mean {unit} under each setting, {basis}; intervals are in the table. "
    caption += "The lines connect measurements of one setting." if rounds else "The best is framed."
    caption += " All settings of a run met the same random numbers."
    return Landscape(settings, (said + ".",), tuple(tables), caption, names, vectors, band, rounds)


def _chosen_by_half(values: np.ndarray) -> float | None:
    """What the best setting brings where it is chosen by every second run and measured by the others, the mean over
    both ways: free of the luck that the highest of many noisy means has; None of a single run.

    Args:
        values: of each setting in each run, [n, n_runs].
    """
    if values.shape[1] < 2:
        return None
    halves = [values[:, 0::2].mean(axis=1), values[:, 1::2].mean(axis=1)]
    return float(np.mean([other[one.argmax()] for one, other in (halves, halves[::-1])]))


def _history(run: RunRecord) -> list[dict[str, Any]]:
    """Return the proposals in the summary of a run.

    Raises:
        RunFolderError: the summary cannot be read.
    """
    try:
        return [{**row, "mechanism": _setting(row["mechanism"])} for row in run.summary()["history"]]
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run.folder}: its summary has no proposals that can be read ({error!r})") from error


def _by_setting(history: Sequence[Mapping[str, Any]], rounds: int | None = None) -> dict[_Setting, float]:
    """Return the mean objective of each setting.

    Args:
        history: proposals of a run.
        rounds: number of adaptation rounds after which it was measured; None: the last.
    """
    found: dict[_Setting, list[float]] = {}
    for row in history:
        value = row["objective"] if rounds is None else row["validated"][str(rounds)]
        found.setdefault(row["mechanism"], []).append(float(value))
    return {setting: float(np.mean(values)) for setting, values in found.items()}


def _setting(mechanism: Mapping[str, Any]) -> _Setting:
    return tuple((name, float(value)) for name, value in mechanism.items())


def _interval(band: Band, i: int, form: NumberFormat) -> str:
    return with_interval(float(band.estimate[i]), float(band.low[i]), float(band.high[i]), form)


def _shown(names: Sequence[str], vector: np.ndarray) -> str:
    """A setting in words: what is not zero of many numbers, all of few."""
    kept = [(name, x) for name, x in zip(names, vector, strict=True) if x != 0 or len(names) <= 3]
    return ", ".join(f"{name} {x:g}" for name, x in kept) or "nothing"


def _table(names: tuple[str, ...], vectors: np.ndarray, band: Band, unit: str, basis: str) -> ReportTable:
    """The best and the worst settings, and none; the CSV has all."""
    order = [int(i) for i in np.argsort(-band.estimate, kind="stable")]
    nothing = [int(i) for i in np.flatnonzero((vectors == 0).all(axis=1))]
    kept = list(dict.fromkeys([*order[:_BEST], *nothing, *order[-_WORST:]]))
    form = NumberFormat(band.estimate)
    varied = [k for k in range(len(names)) if len(np.unique(vectors[:, k])) > 1]
    rows = [
        [*(f"{vectors[i, k]:g}" for k in varied), _interval(band, i, form), str(order.index(i) + 1)]
        for i in sorted(kept, key=order.index)
    ]
    data: list[list[object]] = [[*names, "mean", "low", "high"]]
    data += [[*vectors[i], band.estimate[i], band.low[i], band.high[i]] for i in range(len(vectors))]
    return ReportTable(
        "study_landscape",
        f"{unit} under {len(vectors)} settings, mean over {basis} with 95% intervals",
        data,
        [*(names[k] for k in varied), unit, "rank"],
        rows,
        0,
    )


def _rounds_table(
    names: tuple[str, ...], vectors: np.ndarray, rounds: Mapping[int, Band], unit: str, basis: str
) -> ReportTable:
    """Return all settings with their objective after each number of adaptation rounds, best last round first."""
    last = max(rounds)
    order = [int(i) for i in np.argsort(-rounds[last].estimate, kind="stable")]
    form = NumberFormat(np.concatenate([band.estimate for band in rounds.values()]))
    rows = [[*(f"{x:g}" for x in vectors[i]), *(_interval(band, i, form) for band in rounds.values())] for i in order]
    data: list[list[object]] = [[*names, "rounds", "mean", "low", "high"]]
    data += [
        [*vectors[i], n, band.estimate[i], band.low[i], band.high[i]]
        for n, band in rounds.items()
        for i in range(len(vectors))
    ]
    return ReportTable(
        "study_adaptation",
        f"{unit} after adaptation, mean over {basis} with 95% intervals",
        data,
        [*names, *(f"{n} rounds" for n in rounds)],
        rows,
        0,
    )
