"""Reference lines of a design run: objectives without a mechanism, of untrained agents, and of a coarse scan."""

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
"""Rows of `history` in `summary.json`, one for each measurement (`DesignHistory`)."""


@dataclass(frozen=True)
class VectorMeasurements:
    """Pooled measurements of one vector.

    Attributes:
        mechanism: values of the vector by parameter name.
        value: mean objective.
        standard_error: standard error of `value` over measurements; of a single measurement, over its episodes; None if
            unknown.
        measurements, episodes: number of measurements and of episodes.
    """

    mechanism: dict[str, float]
    value: float
    standard_error: float | None
    measurements: int
    episodes: int


@dataclass(frozen=True)
class ContextReferences:
    """Reference lines of one context.

    Attributes:
        context: name of the context; None without contexts.
        no_mechanism: measurements of the neutral vector in the scan.
        untrained: measurements of the neutral vector with untrained agents; None if these were not measured.
        scan: measurements of each vector of the scan; the neutral vector is the first.
    """

    context: str | None
    no_mechanism: VectorMeasurements
    untrained: VectorMeasurements | None
    scan: list[VectorMeasurements]

    @property
    def best(self) -> VectorMeasurements | None:
        """Measurements of the vector with the highest mean, which is biased upward; None for a scan of one vector."""
        return max(self.scan, key=lambda measurement: measurement.value) if len(self.scan) > 1 else None


@dataclass(frozen=True)
class References:
    """Reference measurements, which are made without a principal.

    Attributes:
        contexts: reference lines of each context.
        anova: analysis of variance between the scan's vectors, stratified by context; None if the scan has
            only the neutral vector.
    """

    contexts: list[ContextReferences]
    anova: AnalysisOfVariance | None

    @classmethod
    def from_histories(cls, scan: HistoryRows, untrained: HistoryRows) -> References:
        """Create the references from the histories of two reference runs.

        Args:
            scan: history of the scan; its first row in each context measures the neutral vector.
            untrained: history of the run with untrained agents; empty without such a run.
        """
        scans_by_context: dict[str | None, list[VectorMeasurements]] = {}
        objectives_by_context = []
        for rows in _group_rows(scan, "context"):
            groups = _group_rows(rows, "mechanism")
            scans_by_context[rows[0]["context"]] = [_pool_measurements(group) for group in groups]
            objectives_by_context.append([np.array([row["objective"] for row in group]) for group in groups])
        untrained_by_context = {
            rows[0]["context"]: _pool_measurements(rows) for rows in _group_rows(untrained, "context")
        }
        contexts = [
            ContextReferences(context, measurements[0], untrained_by_context.get(context), measurements)
            for context, measurements in scans_by_context.items()
        ]
        has_several_vectors = any(len(groups) > 1 for groups in objectives_by_context)
        return cls(contexts, analysis_of_variance(objectives_by_context) if has_several_vectors else None)

    @property
    def noise(self) -> float | None:
        """Standard error of the mean objective of a vector of the scan, pooled over vectors; None if unknown."""
        return None if self.anova is None else self.anova.noise

    def compute_measurement_error(self, n_societies: int = 1) -> float | None:
        """Return the standard error of a measurement that averages `n_societies`; None if `noise` is unknown."""
        if self.noise is None:
            return None
        return self.noise * math.sqrt(self.contexts[0].scan[0].measurements / n_societies)

    @property
    def no_mechanism_values(self) -> dict[str | None, float]:
        """Objective of the neutral vector by context."""
        return {references.context: references.no_mechanism.value for references in self.contexts}

    @property
    def objective_responds(self) -> bool | None:
        """True if the objective differs significantly between the vectors of the scan; None if unknown."""
        return None if self.anova is None or self.anova.p is None else self.anova.p < SIGNIFICANCE_LEVEL

    def get_scan_range(self, context: str | None) -> float:
        """Return the difference between the highest and the lowest mean of the scan in a context."""
        values = [measurement.value for measurement in self._get_context_references(context).scan]
        return max(values) - min(values)

    def metrics(self, context: str | None) -> dict[str, float]:
        """Return the reference lines of a context as metrics, for comparison with curves of the objective."""
        references = self._get_context_references(context)
        measurements = {"no_mechanism": references.no_mechanism, "untrained": references.untrained}
        measurements["scan_best"] = references.best
        return {f"reference/{name}": pooled.value for name, pooled in measurements.items() if pooled is not None}

    def summary(self, recommendations: HistoryRows, history: HistoryRows, n_last_proposals: int) -> dict[str, Any]:
        """Return the reference lines for `summary.json`, and the results of the run relative to them.

        Args:
            recommendations: evaluated recommendation of each context.
            history: history of the run.
            n_last_proposals: number of proposals in the last fifth of the run's steps.
        """
        return {
            "contexts": [
                self._summarize_context(references, recommendations, history, n_last_proposals)
                for references in self.contexts
            ],
            "spread": None if self.anova is None else self.anova.spread,
            "noise": self.noise,
            "p": None if self.anova is None else self.anova.p,
            "responds": self.objective_responds,
            "warning": self.warning,
            "learned": self._has_learned(history, n_last_proposals),
        }

    def _summarize_context(
        self, references: ContextReferences, recommendations: HistoryRows, history: HistoryRows, n_last_proposals: int
    ) -> dict[str, Any]:
        """Return the reference lines of a context and the run's results in it; results that do not exist are None."""
        summary = asdict(references) | {"scan_best": None if references.best is None else asdict(references.best)}
        summary |= dict.fromkeys(("last_proposals", "recommendation", "gain"))
        last_rows = [row for row in history[-n_last_proposals:] if row["context"] == references.context]
        if last_rows:
            error = _compute_standard_error(last_rows) if len(last_rows) > 1 else last_rows[0]["standard_error"]
            mean = _mean_objective(last_rows)
            summary["last_proposals"] = {"value": mean, "standard_error": error, "proposals": len(last_rows)}
        for row in recommendations:
            if row["context"] == references.context:
                value, error = row["objective"], row["standard_error"]
                summary["recommendation"] = {"mechanism": row["mechanism"], "value": value, "standard_error": error}
                gain = value - references.no_mechanism.value
                summary["gain"] = {"value": gain} | self._summarize_gain(gain, row, history)
        return summary

    def _summarize_gain(self, gain: float, recommendation: Mapping[str, Any], history: HistoryRows) -> dict[str, Any]:
        """Return the standard error of the recommendation's `gain` over no mechanism, and whether it is significant.

        A few measurements, or the episodes of one society, estimate a variance poorly. So the standard errors of both
        means are derived from the pooled `noise`. The recommendation's own standard error is used if it is larger.
        """
        noise = self.noise
        if noise is None:
            return {"standard_error": None, "beyond_noise": None}
        n_evaluations, evaluation_error = recommendation["evaluations"], recommendation["standard_error"] or 0.0
        pooled_error = (self.compute_measurement_error(_count_societies(history)) or 0.0) / math.sqrt(n_evaluations)
        error = math.hypot(noise, max(pooled_error, evaluation_error))
        return {"standard_error": error, "beyond_noise": gain > MIN_SIGNIFICANT_ERRORS * error}

    def _has_learned(self, history: HistoryRows, n_last_proposals: int) -> bool | None:
        """Return whether the last proposals are significantly better than the first ones, or than the scan's mean.

        Return None if the noise is unknown, there are too few proposals, or each context has only one vector.
        """
        vectors = {(row["context"], *row["mechanism"].values()) for row in history}
        contexts = {row["context"] for row in history}
        if self.noise is None or len(history) < 2 * n_last_proposals or len(vectors) == len(contexts):
            return None
        scan_means = {
            references.context: float(np.mean([measurements.value for measurements in references.scan]))
            for references in self.contexts
        }
        gains = [{**row, "objective": row["objective"] - scan_means[row["context"]]} for row in history]
        first_gains, last_gains = gains[:n_last_proposals], gains[-n_last_proposals:]
        pooled_error = (self.compute_measurement_error(_count_societies(history)) or 0.0) / math.sqrt(n_last_proposals)
        errors = [max(_compute_standard_error(rows), pooled_error) for rows in (first_gains, last_gains)]
        return bool(
            _mean_objective(last_gains) > MIN_SIGNIFICANT_ERRORS * errors[1]
            or _mean_objective(last_gains) - _mean_objective(first_gains) > MIN_SIGNIFICANT_ERRORS * math.hypot(*errors)
        )

    def _get_context_references(self, context: str | None) -> ContextReferences:
        return next(references for references in self.contexts if references.context == context)

    @property
    def warning(self) -> str | None:
        """Warning, without a final full stop, that the scan shows no response; None if it shows one or is unknown."""
        if self.objective_responds is not False or self.anova is None:
            return None
        noise, p = self.anova.noise, self.anova.p
        return (
            "the coarse scan does not show that the objective responds to the mechanism: its standard deviation "
            f"between {len(self.contexts[0].scan)} vectors is {self.anova.spread:.3g}, and the noise of each is "
            f"{noise:.3g} (F test, p = {p:.2g})"
        )


def _count_societies(history: HistoryRows) -> int:
    """Return the number of societies over which each measurement of a run averages."""
    return len(history[0].get("societies", [0]))


def _mean_objective(rows: HistoryRows) -> float:
    return float(np.mean([row["objective"] for row in rows]))


def _compute_standard_error(rows: HistoryRows) -> float:
    return standard_error_of_mean(np.array([row["objective"] for row in rows])) or 0.0


def _group_rows(rows: HistoryRows, key: str) -> list[HistoryRows]:
    """Return groups of rows that are equal in column `key`, in the order of their first occurrence."""
    cells = [row[key] for row in rows]
    first_indices = [cells.index(cell) for cell in cells]
    return [[rows[j] for j, first in enumerate(first_indices) if first == i] for i in sorted(set(first_indices))]


def _pool_measurements(rows: HistoryRows) -> VectorMeasurements:
    """Return the pooled measurements of one vector in one context."""
    pool, vector = PooledEstimates(), list(rows[0]["mechanism"].values())
    for row in rows:
        pool.add(vector, row["objective"], row["standard_error"], 1, len(row["values"]))
    estimate = pool.get(vector)
    fields = (estimate.value, estimate.standard_error, estimate.n_measurements, estimate.n_episodes)
    return VectorMeasurements(dict(rows[0]["mechanism"]), *fields)
