"""Reference lines of a design run: no mechanism, untrained agents, and a coarse scan of the mechanism's space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.statistics.estimators import Variance, analysis_of_variance, standard_error_of_mean

LEVEL = 0.05
"""Significance level of the F test of whether an objective responds to the mechanism."""
SIGNIFICANT_ERRORS = 3.0
"""Number of standard errors above which a difference counts as more than noise."""

Rows = Sequence[Mapping[str, Any]]
"""Rows of a summary's `history`."""


@dataclass(frozen=True)
class VectorMeasurements:
    """The measurements of one vector.

    Attributes:
        mechanism: values of the vector by parameter name.
        value, standard_error: mean objective and its standard error over measurements; with a single measurement, over
            its episodes. None if the error is unknown.
        measurements, episodes: number of measurements and of episodes.
    """

    mechanism: dict[str, float]
    value: float
    standard_error: float | None
    measurements: int
    episodes: int


@dataclass(frozen=True)
class ContextReferences:
    """The reference lines of one context.

    Attributes:
        context: name of the context; None without contexts.
        no_mechanism: measurements of the neutral vector in the scan.
        untrained: measurements of the neutral vector with untrained agents; None without them.
        scan: measurements of all vectors of the scan, in order, beginning with the neutral vector.
    """

    context: str | None
    no_mechanism: VectorMeasurements
    untrained: VectorMeasurements | None
    scan: list[VectorMeasurements]

    @property
    def best(self) -> VectorMeasurements | None:
        """Measurements of the vector with the highest mean; None if the scan has the neutral vector only.

        The highest mean is biased upward, because the means are noisy.
        """
        return max(self.scan, key=lambda measurement: measurement.value) if len(self.scan) > 1 else None


@dataclass(frozen=True)
class References:
    """The reference measurements of a society without a principal.

    Attributes:
        situations: reference lines of each context.
        variance: analysis of variance of the scan's vectors within contexts; None if the scan has the neutral vector
            only.
    """

    situations: list[ContextReferences]
    variance: Variance | None

    @classmethod
    def from_histories(cls, scan: Rows, untrained: Rows) -> References:
        """Create the references from the histories of two runs.

        Args:
            scan: history of the scan, which begins with the neutral vector.
            untrained: history of untrained agents; may be empty.
        """
        lines: dict[str | None, list[VectorMeasurements]] = {}
        strata = []
        for rows in _group_rows(scan, "context"):
            groups = _group_rows(rows, "mechanism")
            lines[rows[0]["context"]] = [_pool_measurements(group) for group in groups]
            strata.append([np.array([row["objective"] for row in group]) for group in groups])
        baselines = {rows[0]["context"]: _pool_measurements(rows) for rows in _group_rows(untrained, "context")}
        situations = [
            ContextReferences(context, line[0], baselines.get(context), line) for context, line in lines.items()
        ]
        varied = any(len(groups) > 1 for groups in strata)
        return cls(situations, analysis_of_variance(strata) if varied else None)

    @property
    def noise(self) -> float | None:
        """Standard error of the mean of a vector of the scan, pooled over vectors; None if unknown."""
        return None if self.variance is None else self.variance.noise

    def measurement_error(self, societies: int = 1) -> float | None:
        """Return the standard error of one measurement over `societies`, from the noise of the scan; None: unknown."""
        if self.noise is None:
            return None
        return self.noise * math.sqrt(self.situations[0].scan[0].measurements / societies)

    @property
    def no_mechanism_values(self) -> dict[str | None, float]:
        """Objective of the neutral vector by context."""
        return {situation.context: situation.no_mechanism.value for situation in self.situations}

    @property
    def responds(self) -> bool | None:
        """True if the objective differs significantly between the vectors of the scan; None if unknown."""
        return None if self.variance is None or self.variance.p is None else self.variance.p < LEVEL

    def range(self, context: str | None) -> float:
        """Return the range of the scan's means in a context."""
        values = [measurement.value for measurement in self._references_of(context).scan]
        return max(values) - min(values)

    def metrics(self, context: str | None) -> dict[str, float]:
        """Return the reference lines of a context as metrics, for comparison with curves of the objective."""
        situation = self._references_of(context)
        lines = {"no_mechanism": situation.no_mechanism, "untrained": situation.untrained, "scan_best": situation.best}
        return {f"reference/{name}": line.value for name, line in lines.items() if line is not None}

    def summary(self, recommendations: Rows, history: Rows, last: int) -> dict[str, Any]:
        """Return the reference lines for `summary.json`, and the results of the run relative to them.

        Args:
            recommendations: evaluated recommendation of each context.
            history: history of the run.
            last: number of proposals in the last fifth of its steps.
        """
        return {
            "contexts": [
                self._context_summary(situation, recommendations, history, last) for situation in self.situations
            ],
            "spread": None if self.variance is None else self.variance.spread,
            "noise": self.noise,
            "p": None if self.variance is None else self.variance.p,
            "responds": self.responds,
            "warning": self.warning,
            "learned": self._learned(history, last),
        }

    def _context_summary(
        self, situation: ContextReferences, recommendations: Rows, history: Rows, last: int
    ) -> dict[str, Any]:
        """Return the reference lines of a context and the run's results in it; None for results it lacks."""
        line = asdict(situation) | {"scan_best": None if situation.best is None else asdict(situation.best)}
        line |= dict.fromkeys(("last_proposals", "recommendation", "gain"))
        last_rows = [row for row in history[-last:] if row["context"] == situation.context]
        if last_rows:
            error = _error(last_rows) if len(last_rows) > 1 else last_rows[0]["standard_error"]
            line["last_proposals"] = {"value": _mean(last_rows), "standard_error": error, "proposals": len(last_rows)}
        for best in recommendations:
            if best["context"] == situation.context:
                value, error = best["objective"], best["standard_error"]
                line["recommendation"] = {"mechanism": best["mechanism"], "value": value, "standard_error": error}
                line["gain"] = {"value": value - situation.no_mechanism.value} | self._gain_summary(best, history)
        return line

    def _gain_summary(self, best: Mapping[str, Any], history: Rows) -> dict[str, Any]:
        """Return the standard error of the best proposal's gain over no mechanism, and whether it exceeds noise.

        A few measurements of one vector, or the episodes of one society, estimate their variance poorly. So both means
        get the noise of the scan's measurements; the best proposal's own standard error is used if it is larger.
        """
        noise = self.noise
        if noise is None:
            return {"standard_error": None, "beyond_noise": None}
        single_error = (self.measurement_error(_societies(history)) or 0.0) / math.sqrt(best["evaluations"])
        error = math.hypot(noise, max(single_error, best["standard_error"] or 0.0))
        value = best["objective"] - self._references_of(best["context"]).no_mechanism.value
        return {"standard_error": error, "beyond_noise": value > SIGNIFICANT_ERRORS * error}

    def _learned(self, history: Rows, last: int) -> bool | None:
        """Return whether the last proposals are better than the first ones, or than the scan's mean.

        None: this is unknown, or only one vector was tried in each context.
        """
        vectors = {(row["context"], *row["mechanism"].values()) for row in history}
        contexts = {row["context"] for row in history}
        if self.noise is None or len(history) < 2 * last or len(vectors) == len(contexts):
            return None
        scans = {situation.context: [line.value for line in situation.scan] for situation in self.situations}
        means = {context: float(np.mean(values)) for context, values in scans.items()}
        gains = [{**row, "objective": row["objective"] - means[row["context"]]} for row in history]
        first_gains, last_gains = gains[:last], gains[-last:]
        measurement_error = (self.measurement_error(_societies(history)) or 0.0) / math.sqrt(last)
        errors = [max(_error(rows), measurement_error) for rows in (first_gains, last_gains)]
        return bool(
            _mean(last_gains) > SIGNIFICANT_ERRORS * errors[1]
            or _mean(last_gains) - _mean(first_gains) > SIGNIFICANT_ERRORS * math.hypot(*errors)
        )

    def _references_of(self, context: str | None) -> ContextReferences:
        return next(situation for situation in self.situations if situation.context == context)

    @property
    def warning(self) -> str | None:
        """Warning that the scan shows no response, a sentence without a full stop; None if it does."""
        if self.responds is not False or self.variance is None:
            return None
        noise, p = self.variance.noise, self.variance.p
        return (
            "the coarse scan does not show that the objective responds to the mechanism: its standard deviation "
            f"between {len(self.situations[0].scan)} vectors is {self.variance.spread:.3g}, and the noise of each is "
            f"{noise:.3g} (F test, p = {p:.2g})"
        )


def _societies(history: Rows) -> int:
    """Return the number of societies of a measurement of a run."""
    return len(history[0].get("societies", [0]))


def _mean(rows: Rows) -> float:
    return float(np.mean([row["objective"] for row in rows]))


def _error(rows: Rows) -> float:
    return standard_error_of_mean(np.array([row["objective"] for row in rows])) or 0.0


def _group_rows(rows: Rows, key: str) -> list[Rows]:
    """Return the rows in groups with equal entries `key`, in the order of their first occurrence."""
    entries = [row[key] for row in rows]
    first_indices = [entries.index(entry) for entry in entries]
    return [[rows[j] for j, first in enumerate(first_indices) if first == i] for i in sorted(set(first_indices))]


def _pool_measurements(rows: Rows) -> VectorMeasurements:
    """Return the pooled measurements of one vector in one context."""
    pool, vector = PooledEstimates(), list(rows[0]["mechanism"].values())
    for row in rows:
        pool.add(vector, row["objective"], row["standard_error"], 1, len(row["values"]))
    estimate = pool.of(vector)
    fields = (estimate.value, estimate.standard_error, estimate.measurements, estimate.episodes)
    return VectorMeasurements(dict(rows[0]["mechanism"]), *fields)
