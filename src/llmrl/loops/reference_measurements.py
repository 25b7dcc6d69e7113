"""Reference lines of a design run: no mechanism, untrained agents, and a coarse scan of the mechanism's space."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llmrl.analysis.statistics import Variance, analysis_of_variance, standard_error_of_mean
from llmrl.core.pooling import PooledEstimates

LEVEL = 0.05
"""Significance level of the F test whether an objective responds to the mechanism."""
SURE = 3.0
"""Number of standard errors above which a difference counts as more than noise."""

Rows = Sequence[Mapping[str, Any]]
"""Rows of a summary's `history`."""


@dataclass(frozen=True)
class Measured:
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
class Situation:
    """The reference lines of one context.

    Attributes:
        context: name of the context; None without contexts.
        no_mechanism: measurements of the neutral vector in the scan.
        untrained: measurements of the neutral vector with untrained agents; None without them.
        scan: measurements of all vectors of the scan, in order, beginning with the neutral vector.
    """

    context: str | None
    no_mechanism: Measured
    untrained: Measured | None
    scan: list[Measured]

    @property
    def best(self) -> Measured | None:
        """Measurements of the vector with the highest mean, which is biased upwards, because the means are noisy; None
        if the scan has the neutral vector only."""
        return max(self.scan, key=lambda each: each.value) if len(self.scan) > 1 else None


@dataclass(frozen=True)
class References:
    """The reference measurements of a society without a principal.

    Attributes:
        situations: reference lines of each context.
        variance: analysis of variance of the scan's vectors within contexts; None if the scan has the neutral vector
            only.
    """

    situations: list[Situation]
    variance: Variance | None

    @classmethod
    def of(cls, scan: Rows, untrained: Rows) -> References:
        """Create the references from the histories of two runs; that of the scan begins with the neutral vector, that
        of untrained agents may be empty."""
        lines: dict[str | None, list[Measured]] = {}
        strata = []
        for context, rows in _by_context(scan).items():
            groups: dict[tuple[float, ...], list[Mapping[str, Any]]] = {}
            for row in rows:
                groups.setdefault(tuple(row["mechanism"].values()), []).append(row)
            lines[context] = [_measured(own) for own in groups.values()]
            strata.append([np.array([row["objective"] for row in own]) for own in groups.values()])
        before = {context: _measured(rows) for context, rows in _by_context(untrained).items()}
        situations = [Situation(context, found[0], before.get(context), found) for context, found in lines.items()]
        varied = any(len(groups) > 1 for groups in strata)
        return cls(situations, analysis_of_variance(strata) if varied else None)

    @property
    def noise(self) -> float | None:
        """Standard error of the mean of a vector of the scan, pooled over vectors; None if unknown."""
        return None if self.variance is None else self.variance.noise

    @property
    def without(self) -> dict[str | None, float]:
        """Objective of the neutral vector by context."""
        return {each.context: each.no_mechanism.value for each in self.situations}

    @property
    def responds(self) -> bool | None:
        """Whether the objective differs significantly between the vectors of the scan; None if unknown."""
        return None if self.variance is None or self.variance.p is None else self.variance.p < LEVEL

    def range(self, context: str | None) -> float:
        """Return the range of the scan's means in a context."""
        values = [each.value for each in self._own(context).scan]
        return max(values) - min(values)

    def metrics(self, context: str | None) -> dict[str, float]:
        """Return the reference lines of a context as metrics, for comparison with curves of the objective."""
        own = self._own(context)
        lines = {"no_mechanism": own.no_mechanism, "untrained": own.untrained, "scan_best": own.best}
        return {f"reference/{name}": line.value for name, line in lines.items() if line is not None}

    def summary(self, named: Rows, history: Rows, last: int) -> dict[str, Any]:
        """Return the reference lines for `summary.json`, and the results of the run relative to them.

        Args:
            named: evaluated recommendation of each context.
            history: history of the run.
            last: number of proposals in the last fifth of its steps.
        """
        return {
            "contexts": [self._beside(each, named, history, last) for each in self.situations],
            "spread": None if self.variance is None else self.variance.spread,
            "noise": self.noise,
            "p": None if self.variance is None else self.variance.p,
            "responds": self.responds,
            "warning": self.warning,
            "learned": self._learned(history, last),
        }

    def _beside(self, own: Situation, named: Rows, history: Rows, last: int) -> dict[str, Any]:
        """Return the lines of a context, and the run's results in it; None where the run has none."""
        told = asdict(own) | {"scan_best": None if own.best is None else asdict(own.best)}
        told |= dict.fromkeys(("last_proposals", "recommendation", "gain"))
        ended = [row for row in history[-last:] if row["context"] == own.context]
        if ended:
            error = self._error(ended) if len(ended) > 1 else ended[0]["standard_error"]
            told["last_proposals"] = {"value": _mean(ended), "standard_error": error, "proposals": len(ended)}
        for best in named:
            if best["context"] == own.context:
                value, error = best["objective"], best["standard_error"]
                told["recommendation"] = {"mechanism": best["mechanism"], "value": value, "standard_error": error}
                told["gain"] = {"value": value - own.no_mechanism.value} | self._of_gain(best, history)
        return told

    def _of_gain(self, best: Mapping[str, Any], history: Rows) -> dict[str, Any]:
        """Return the standard error of the best proposal's gain over no mechanism, and whether the gain exceeds noise.

        A few measurements of one vector, or the episodes of one society, estimate their variance poorly. So both means
        get the noise of the scan's measurements; the best proposal's own standard error is used if it is larger.
        """
        noise = self.noise
        if noise is None:
            return {"standard_error": None, "beyond_noise": None}
        one = self._of_one(history) / math.sqrt(best["evaluations"])
        error = math.hypot(noise, max(one, best["standard_error"] or 0.0))
        value = best["objective"] - self._own(best["context"]).no_mechanism.value
        return {"standard_error": error, "beyond_noise": value > SURE * error}

    def _learned(self, history: Rows, last: int) -> bool | None:
        """Return whether the last proposals are better than as many first ones, or than the scan's mean. None: this is
        unknown, or only one vector was tried in each context."""
        tried = {(row["context"], *row["mechanism"].values()) for row in history}
        if self.noise is None or len(history) < 2 * last or len(tried) == len(_by_context(history)):
            return None
        gains = []
        for row in history:
            scan = np.mean([each.value for each in self._own(row["context"]).scan])
            gains.append({**row, "objective": row["objective"] - float(scan)})
        first, ended = gains[:last], gains[-last:]
        errors = [max(self._error(rows), self._of_one(history) / math.sqrt(last)) for rows in (first, ended)]
        return bool(_mean(ended) > SURE * errors[1] or _mean(ended) - _mean(first) > SURE * math.hypot(*errors))

    def _of_one(self, history: Rows) -> float:
        """Return the standard error of one measurement of a run, from the noise of the scan."""
        societies = len(history[0].get("societies", [0]))
        return (self.noise or 0.0) * math.sqrt(self.situations[0].scan[0].measurements / societies)

    def _error(self, rows: Rows) -> float:
        return standard_error_of_mean(np.array([row["objective"] for row in rows])) or 0.0

    def _own(self, context: str | None) -> Situation:
        return next(each for each in self.situations if each.context == context)

    @property
    def warning(self) -> str | None:
        """Warning that the objective does not respond, a sentence without a full stop; None without one."""
        if self.responds is not False or self.variance is None:
            return None
        noise, p = self.variance.noise, self.variance.p
        return (
            "this objective does not respond to the mechanism, as far as a coarse scan tells: between its "
            f"{len(self.situations[0].scan)} vectors it differs by {self.variance.spread:.3g} (sd), and the noise of "
            f"each is {noise:.3g} (F test, p = {p:.2g})"
        )


def _mean(rows: Rows) -> float:
    return float(np.mean([row["objective"] for row in rows]))


def _by_context(rows: Rows) -> dict[str | None, list[Mapping[str, Any]]]:
    found: dict[str | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["context"], []).append(row)
    return found


def _measured(rows: Rows) -> Measured:
    """Return all measurements of one vector in one context as one."""
    pool, vector = PooledEstimates(), list(rows[0]["mechanism"].values())
    for row in rows:
        pool.add(vector, row["objective"], row["standard_error"], 1, len(row["values"]))
    found = pool.of(vector)
    told = (found.value, found.standard_error, found.measurements, found.episodes)
    return Measured(dict(rows[0]["mechanism"]), *told)
