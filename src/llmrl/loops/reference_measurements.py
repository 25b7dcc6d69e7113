"""Reference lines of a design run: the objective without a mechanism, with untrained agents, and of a coarse scan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.statistics.estimators import AnalysisOfVariance, analysis_of_variance, standard_error_of_mean

SIGNIFICANCE_LEVEL = 0.05
"""Significance level of the F test of whether an objective responds to the mechanism."""
MIN_SIGNIFICANT_ERRORS = 3.0
"""Number of standard errors that a difference must exceed to be called significant."""

HistoryRows = Sequence[Mapping[str, Any]]
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
        contexts: reference lines of each context.
        variance: analysis of variance of the scan's vectors within contexts; None if the scan has the neutral vector
            only.
    """

    contexts: list[ContextReferences]
    variance: AnalysisOfVariance | None

    @classmethod
    def from_histories(cls, scan: HistoryRows, untrained: HistoryRows) -> References:
        """Create the references from the histories of two runs.

        Args:
            scan: history of the scan, which begins with the neutral vector.
            untrained: history of untrained agents; may be empty.
        """
        scans_by_context: dict[str | None, list[VectorMeasurements]] = {}
        strata = []
        for rows in _group_rows(scan, "context"):
            groups = _group_rows(rows, "mechanism")
            scans_by_context[rows[0]["context"]] = [_pool_measurements(group) for group in groups]
            strata.append([np.array([row["objective"] for row in group]) for group in groups])
        untrained_by_context = {
            rows[0]["context"]: _pool_measurements(rows) for rows in _group_rows(untrained, "context")
        }
        contexts = [
            ContextReferences(context, vectors[0], untrained_by_context.get(context), vectors)
            for context, vectors in scans_by_context.items()
        ]
        has_several_vectors = any(len(groups) > 1 for groups in strata)
        return cls(contexts, analysis_of_variance(strata) if has_several_vectors else None)

    @property
    def noise(self) -> float | None:
        """Standard error of the mean of a vector of the scan, pooled over vectors; None if unknown."""
        return None if self.variance is None else self.variance.noise

    def measurement_error(self, societies: int = 1) -> float | None:
        """Return the standard error of one measurement over `societies`, from the noise of the scan; None: unknown."""
        if self.noise is None:
            return None
        return self.noise * math.sqrt(self.contexts[0].scan[0].measurements / societies)

    @property
    def no_mechanism_values(self) -> dict[str | None, float]:
        """Objective of the neutral vector by context."""
        return {references.context: references.no_mechanism.value for references in self.contexts}

    @property
    def objective_responds(self) -> bool | None:
        """True if the objective differs significantly between the vectors of the scan; None if unknown."""
        return None if self.variance is None or self.variance.p is None else self.variance.p < SIGNIFICANCE_LEVEL

    def scan_range(self, context: str | None) -> float:
        """Return the range of the scan's means in a context."""
        values = [measurement.value for measurement in self._references_in_context(context).scan]
        return max(values) - min(values)

    def metrics(self, context: str | None) -> dict[str, float]:
        """Return the reference lines of a context as metrics, for comparison with curves of the objective."""
        references = self._references_in_context(context)
        lines = {"no_mechanism": references.no_mechanism, "untrained": references.untrained}
        lines["scan_best"] = references.best
        return {f"reference/{name}": line.value for name, line in lines.items() if line is not None}

    def summary(self, recommendations: HistoryRows, history: HistoryRows, n_last_proposals: int) -> dict[str, Any]:
        """Return the reference lines for `summary.json`, and the results of the run relative to them.

        Args:
            recommendations: evaluated recommendation of each context.
            history: history of the run.
            n_last_proposals: number of proposals in the last fifth of its steps.
        """
        return {
            "contexts": [
                self._context_summary(references, recommendations, history, n_last_proposals)
                for references in self.contexts
            ],
            "spread": None if self.variance is None else self.variance.spread,
            "noise": self.noise,
            "p": None if self.variance is None else self.variance.p,
            "responds": self.objective_responds,
            "warning": self.warning,
            "learned": self._has_learned(history, n_last_proposals),
        }

    def _context_summary(
        self, references: ContextReferences, recommendations: HistoryRows, history: HistoryRows, n_last_proposals: int
    ) -> dict[str, Any]:
        """Return the reference lines of a context and the run's results in it; None for results it lacks."""
        summary = asdict(references) | {"scan_best": None if references.best is None else asdict(references.best)}
        summary |= dict.fromkeys(("last_proposals", "recommendation", "gain"))
        last_rows = [row for row in history[-n_last_proposals:] if row["context"] == references.context]
        if last_rows:
            error = _standard_error(last_rows) if len(last_rows) > 1 else last_rows[0]["standard_error"]
            mean = _mean_objective(last_rows)
            summary["last_proposals"] = {"value": mean, "standard_error": error, "proposals": len(last_rows)}
        for best in recommendations:
            if best["context"] == references.context:
                value, error = best["objective"], best["standard_error"]
                summary["recommendation"] = {"mechanism": best["mechanism"], "value": value, "standard_error": error}
                gain = value - references.no_mechanism.value
                summary["gain"] = {"value": gain} | self._gain_summary(gain, best, history)
        return summary

    def _gain_summary(self, gain: float, best: Mapping[str, Any], history: HistoryRows) -> dict[str, Any]:
        """Return the standard error of the `gain` of the best proposal over no mechanism, and whether it exceeds noise.

        A few measurements of one vector, or the episodes of one society, estimate their variance poorly. So both means
        get the noise of the scan's measurements; the best proposal's own standard error is used if it is larger.
        """
        noise = self.noise
        if noise is None:
            return {"standard_error": None, "beyond_noise": None}
        pooled_error = (self.measurement_error(_count_societies(history)) or 0.0) / math.sqrt(best["evaluations"])
        error = math.hypot(noise, max(pooled_error, best["standard_error"] or 0.0))
        return {"standard_error": error, "beyond_noise": gain > MIN_SIGNIFICANT_ERRORS * error}

    def _has_learned(self, history: HistoryRows, n_last_proposals: int) -> bool | None:
        """Return whether the last proposals are better than the first ones, or than the scan's mean.

        None: this is unknown, or only one vector was tried in each context.
        """
        vectors = {(row["context"], *row["mechanism"].values()) for row in history}
        contexts = {row["context"] for row in history}
        if self.noise is None or len(history) < 2 * n_last_proposals or len(vectors) == len(contexts):
            return None
        means = {
            references.context: float(np.mean([measurements.value for measurements in references.scan]))
            for references in self.contexts
        }
        gains = [{**row, "objective": row["objective"] - means[row["context"]]} for row in history]
        first_gains, last_gains = gains[:n_last_proposals], gains[-n_last_proposals:]
        measurement_error = (self.measurement_error(_count_societies(history)) or 0.0) / math.sqrt(n_last_proposals)
        errors = [max(_standard_error(rows), measurement_error) for rows in (first_gains, last_gains)]
        return bool(
            _mean_objective(last_gains) > MIN_SIGNIFICANT_ERRORS * errors[1]
            or _mean_objective(last_gains) - _mean_objective(first_gains) > MIN_SIGNIFICANT_ERRORS * math.hypot(*errors)
        )

    def _references_in_context(self, context: str | None) -> ContextReferences:
        return next(references for references in self.contexts if references.context == context)

    @property
    def warning(self) -> str | None:
        """Warning that the scan shows no response, a sentence without a full stop; None if it does."""
        if self.objective_responds is not False or self.variance is None:
            return None
        noise, p = self.variance.noise, self.variance.p
        return (
            "the coarse scan does not show that the objective responds to the mechanism: its standard deviation "
            f"between {len(self.contexts[0].scan)} vectors is {self.variance.spread:.3g}, and the noise of each is "
            f"{noise:.3g} (F test, p = {p:.2g})"
        )


def _count_societies(history: HistoryRows) -> int:
    """Return the number of societies of a measurement of a run."""
    return len(history[0].get("societies", [0]))


def _mean_objective(rows: HistoryRows) -> float:
    return float(np.mean([row["objective"] for row in rows]))


def _standard_error(rows: HistoryRows) -> float:
    return standard_error_of_mean(np.array([row["objective"] for row in rows])) or 0.0


def _group_rows(rows: HistoryRows, key: str) -> list[HistoryRows]:
    """Return the rows in groups with equal entries `key`, in the order of their first occurrence."""
    entries = [row[key] for row in rows]
    first_indices = [entries.index(entry) for entry in entries]
    return [[rows[j] for j, first in enumerate(first_indices) if first == i] for i in sorted(set(first_indices))]


def _pool_measurements(rows: HistoryRows) -> VectorMeasurements:
    """Return the pooled measurements of one vector in one context."""
    pool, vector = PooledEstimates(), list(rows[0]["mechanism"].values())
    for row in rows:
        pool.add(vector, row["objective"], row["standard_error"], 1, len(row["values"]))
    estimate = pool.get(vector)
    fields = (estimate.value, estimate.standard_error, estimate.measurements, estimate.episodes)
    return VectorMeasurements(dict(rows[0]["mechanism"]), *fields)
