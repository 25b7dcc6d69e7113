"""History of a principal's proposals, and the selection of records for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llmrl.core.pooling import PooledEstimates, VectorKey, make_vector_key
from llmrl.core.records import Outcome
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.core.welfare_measures import MEASURES

SelectionPolicy = Literal["all", "last", "best", "best_and_last"]
Record = dict[str, Any]

MIN_VALUES_FOR_ERROR = 3
"""Minimum number of independent values for which a standard error is shown; of two values it is too uncertain."""

CHRONOLOGICAL_POLICIES: tuple[SelectionPolicy, ...] = ("all", "last")
"""Selections that do not depend on payoffs, so that the records shown do not change."""

CURVE_POINTS = 4
"""Number of evenly spaced steps of an episode at which a level is reported, including the last."""

TYPICAL_PAYOFF = 123.456
"""Example value for estimates, with as many digits as a real one."""

AGGREGATE_DESCRIPTIONS = {
    "sum": "as the total of an episode",
    "mean": "as the mean over its steps",
    "last": "as a level",
}
"""Descriptions of the aggregates in `EnvSpec.principal_metrics`, for prompts."""

WELFARE_DESCRIPTIONS = {
    measure.name: measure.shown for measure in MEASURES if measure.shown and measure.name != "spending"
}
"""Measures of welfare that are shown with a payoff, with their descriptions for prompts."""
SPENDING_DESCRIPTION = {measure.name: measure.shown for measure in MEASURES if measure.name == "spending"}
"""Spending, which is shown if the principal is charged for it."""


class History(StateFields):
    """Outcomes in chronological order, as plain records (see `_record`) that a checkpoint can hold.

    Args:
        spec: spec of the environment.
        pooled: whether equal vectors of a context are pooled into one record with the mean over their measurements, at
            the position of the newest. This applies if records are selected by payoff. If all or the newest are shown,
            each measurement keeps its record, so that a prompt extends the previous one, and `pool_repeated` returns
            the means.
        sliding: whether exactly the newest records of a window are shown. Otherwise the window grows to less than twice
            its size before it is cut back, so that most prompts begin like the previous one.

    Attributes:
        records: records of all outcomes.
    """

    _state_fields = ("records",)

    def __init__(self, spec: EnvSpec, pooled: bool = True, sliding: bool = False) -> None:
        self.spec, self.pooled, self.sliding = spec, pooled, sliding
        self.records: list[Record] = []
        # For a payoff that is a sum over agents and steps, measures of welfare add nothing.
        welfare = {} if spec.objective.step is not None else WELFARE_DESCRIPTIONS
        self.welfare = welfare | (SPENDING_DESCRIPTION if spec.spending_cost else {})

    @property
    def generations(self) -> int:
        """Number of generations so far."""
        return int(self.records[-1]["generation"]) if self.records else 0

    def add(self, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> None:
        """Add the outcomes of one generation, in the order of its proposals.

        Args:
            outcomes: outcomes of the proposals.
            notes: remark on each for the reader, "" for none; empty: there are no remarks.
        """
        generation = self.generations + 1
        for proposal, outcome in enumerate(outcomes, 1):
            identity = {"index": len(self.records), "generation": generation, "proposal": proposal, "of": len(outcomes)}
            note = {"note": notes[proposal - 1]} if notes and notes[proposal - 1] else {}
            self.records.append(identity | self._record(outcome) | note)

    def selectable_records(self, context: str | None, policy: SelectionPolicy) -> list[Record]:
        """Return the records of a context that can be shown.

        `measured` lists the indices of the records that each represents.
        """
        if self.pooled and policy not in CHRONOLOGICAL_POLICIES:
            return self._pool_by_vector(context)
        return [record | {"measured": [record["index"]]} for record in self.records_in_context(context)]

    def pool_repeated(self, policy: SelectionPolicy) -> list[Record]:
        """Return the vectors that were measured more than once, one record per vector and context with means.

        It is empty if `selectable_records` have the means already.
        """
        if not self.pooled or policy not in CHRONOLOGICAL_POLICIES:
            return []
        return [record for record in self._pool_all() if len(record["measured"]) > 1]

    @property
    def noise(self) -> float | None:
        """Standard deviation of payoffs of the same vector, pooled over vectors and contexts.

        None: measurements are not pooled, or there are fewer than `MIN_VALUES_FOR_ERROR` - 1 repetitions, which are too
        few for an estimate.
        """
        if not self.pooled:
            return None
        records = self._pool_all()
        repetitions = np.array([len(record["measured"]) - 1 for record in records])
        if repetitions.sum() < MIN_VALUES_FOR_ERROR - 1:
            return None
        variances = np.array([record.get("spread", 0.0) ** 2 for record in records])
        return float(np.sqrt(np.average(variances, weights=repetitions)))

    def _pool_by_vector(self, context: str | None) -> list[Record]:
        """Return one record for each vector of a context, in the order of their newest measurements."""
        groups: dict[VectorKey, list[Record]] = {}
        for record in self.records_in_context(context):
            groups.setdefault(make_vector_key(record["vector"]), []).append(record)
        return sorted((_merge_records(group) for group in groups.values()), key=_record_index)

    def _pool_all(self) -> list[Record]:
        """Return one record for each vector and context."""
        return [record for context in self.contexts for record in self._pool_by_vector(context)]

    def select(self, policy: SelectionPolicy, window: int, newest: int = 0) -> list[Record]:
        """Return the records to show, oldest first.

        For each context these are `all` records, the `last` `window`, the `window` with the highest payoffs (`best`),
        or these and the `newest` last ones (`best_and_last`). Unless `sliding`, up to twice as many of the last ones
        are shown (`_count_recent`).
        """
        selection = [
            record for context in self.contexts for record in self._select_from(policy, window, newest, context)
        ]
        return sorted(selection, key=_record_index)

    def trim(self, records: list[Record], policy: SelectionPolicy, n: int) -> list[Record]:
        """Return the `n` of `records` that are shown if there is no room for all, oldest first.

        For `last` these are the newest, for `best` the best. Otherwise half of them are the best, and half the newest
        of the others.
        """
        n_best = {"best": n, "last": 0}.get(policy, -(-n // 2))
        # The sort is stable: of equal payoffs the earlier ones come first.
        indices = {record["index"] for record in sorted(records, key=_negative_payoff)[:n_best]}
        rest = [record["index"] for record in records if record["index"] not in indices]
        indices |= set(rest[len(rest) - (n - len(indices)) :])
        return [record for record in records if record["index"] in indices]

    @property
    def contexts(self) -> list[str | None]:
        """Contexts with proposals."""
        return list(dict.fromkeys(record["context"] for record in self.records))

    def records_in_context(self, context: str | None) -> list[Record]:
        return [record for record in self.records if record["context"] == context]

    def best(self, context: str | None) -> np.ndarray | None:
        """Return the vector with the highest mean payoff in a context; None if there is none yet.

        Only vectors with at least as many episodes as the longest measurement are considered.
        """
        records = self.records_in_context(context)
        best = _pool_estimates(records, max((record["episodes"] for record in records), default=1)).best(context)
        return None if best is None else np.array(best.vector)

    def best_record(self, context: str | None) -> Record | None:
        """Return the record of the vector `best`, with the means over all its measurements; None if there is none."""
        best = self.best(context)
        if best is None:
            return None
        return _merge_records(
            [
                record
                for record in self.records_in_context(context)
                if make_vector_key(record["vector"]) == make_vector_key(best)
            ]
        )

    def describe_measures(self) -> list[tuple[str, list[str]]]:
        """Return (description, names) of each kind of metric shown with a payoff; kinds without names are omitted."""
        grouped = [
            (
                description,
                [name for name, aggregate in self.spec.principal_metrics.items() if aggregate == aggregate_name],
            )
            for aggregate_name, description in AGGREGATE_DESCRIPTIONS.items()
        ]
        grouped.append(("of an episode", [f"{name} ({description})" for name, description in self.welfare.items()]))
        return [(description, names) for description, names in grouped if names]

    def make_typical_outcome(self, space: ParameterSpace, generation: int) -> Outcome:
        """Return an outcome with as many numbers as a real one, for estimates of the lengths of prompts.

        Its payoff is the highest so far in its context about as often as that of a random vector.
        """
        steps = np.full(self.spec.horizon or 1000, TYPICAL_PAYOFF)
        contexts = max(len(self.spec.contexts), 1)
        # Among t random payoffs, about log t are new maxima.
        payoff = TYPICAL_PAYOFF + (generation // contexts + 1).bit_length()
        return Outcome(
            vector=space.round_values(space.low + (space.high - space.low) * 0.12345),
            value=payoff,
            values=np.full(MIN_VALUES_FOR_ERROR, payoff),
            standard_error=TYPICAL_PAYOFF,
            context=generation % contexts if self.spec.contexts else None,
            returns=np.full(self.spec.n_agents, TYPICAL_PAYOFF),
            trajectories=dict.fromkeys(self.spec.principal_metrics, steps),
            summaries=dict.fromkeys(self.spec.principal_metrics, TYPICAL_PAYOFF),
            welfare=dict.fromkeys(self.welfare, TYPICAL_PAYOFF),
            training=(TYPICAL_PAYOFF, TYPICAL_PAYOFF),
        )

    def _select_from(self, policy: SelectionPolicy, window: int, newest: int, context: str | None) -> list[Record]:
        records = self.selectable_records(context, policy)
        if policy == "best":
            return sorted(records, key=_negative_payoff)[:window]
        if policy == "best_and_last":
            split = len(records) - self._count_recent(len(records), newest)
            return sorted(records[:split], key=_negative_payoff)[:window] + records[split:]
        if policy == "last":
            return records[len(records) - self._count_recent(len(records), window) :]
        return records

    def _count_recent(self, n_records: int, window: int) -> int:
        """Return how many of `n_records` are shown as the last ones: `window`, or up to twice as many minus one.

        The first record shown moves by `window` records at a time.
        """
        if self.sliding or window == 0:
            return min(n_records, window)
        return n_records if n_records < 2 * window else window + n_records % window

    def _record(self, outcome: Outcome) -> Record:
        """Convert an outcome to plain numbers, strings and lists.

        Curves are stored only for levels (metrics whose last value counts).
        """
        curves = {
            name: _sample_curve(outcome.trajectories[name])
            for name, aggregate in self.spec.principal_metrics.items()
            if aggregate == "last" and len(outcome.trajectories.get(name, ())) > 0
        }
        # The last value of a curve is its summary, which is not repeated.
        summaries = {name: float(value) for name, value in outcome.summaries.items() if name not in curves}
        # Four decimals, so that rounding errors of a redistributed tax are shown as 0.
        welfare = {name: round(outcome.welfare[name], 4) for name in self.welfare if name in outcome.welfare}
        return {
            "context": None if outcome.context is None else self.spec.contexts[outcome.context],
            "vector": np.asarray(outcome.vector, dtype=np.float64).tolist(),
            "payoff": float(outcome.value),
            "standard_error": outcome.standard_error,
            "episodes": len(outcome.values),
            "units": outcome.units or len(outcome.values),
            "draw": outcome.draw,
            "training": outcome.training,
            "curves": curves,
            "summaries": summaries | welfare,
            "returns": [float(value) for value in outcome.returns],
        }


def _pool_estimates(records: Sequence[Record], min_episodes: int = 1) -> PooledEstimates:
    pool = PooledEstimates(min_episodes)
    for record in records:
        estimate = (record["vector"], record["payoff"], record["standard_error"], record["units"], record["episodes"])
        pool.add(*estimate, record["context"], record["draw"])
    return pool


def _merge_records(group: Sequence[Record]) -> Record:
    """Merge the records of one vector: the newest, with means over all measurements, weighted by episodes."""
    newest = group[-1]
    # Equal proposals measured with the same random numbers count once.
    draw_records = {record["draw"] or f"record {record['index']}": record for record in reversed(group)}
    repeats = sorted(draw_records.values(), key=_record_index)
    row = newest | {"measured": [record["index"] for record in repeats]}
    if len(repeats) == 1:
        return row
    estimate = _pool_estimates(repeats).get(newest["vector"], newest["context"])
    weights = [record["episodes"] for record in repeats]

    def mean(values: Sequence[Any]) -> Any:
        averaged = np.average(np.array(values, dtype=np.float64), axis=0, weights=weights)
        return averaged.tolist()

    return row | {
        "payoff": estimate.value,
        "standard_error": estimate.standard_error,
        "episodes": estimate.episodes,
        "units": sum(record["units"] for record in repeats),
        "training": None,
        "generations": [record["generation"] for record in repeats],
        "spread": float(np.std([record["payoff"] for record in repeats], ddof=1)),
        "returns": mean([record["returns"] for record in repeats]),
        **{
            kind: {name: mean([record[kind][name] for record in repeats]) for name in newest[kind]}
            for kind in ("curves", "summaries")
        },
    }


def _record_index(record: Record) -> int:
    return int(record["index"])


def _negative_payoff(record: Record) -> float:
    return -float(record["payoff"])


def _sample_curve(trajectory: np.ndarray) -> list[float]:
    """Return the values at a quarter, half, three quarters and the end of an episode."""
    ends = np.linspace(0, len(trajectory), CURVE_POINTS + 1)[1:]
    return [float(trajectory[max(round(end) - 1, 0)]) for end in ends]
