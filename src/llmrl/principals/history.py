"""History of a principal's proposals, and the selection of records for prompts."""

from __future__ import annotations

import itertools
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
"""Fields of an outcome (`History._make_record`) with its `index` among all records; `measured` in selected records."""

MIN_VALUES_FOR_ERROR = 3
"""Minimum number of independent values for which a standard error is shown, because that of two is too uncertain."""

CHRONOLOGICAL_POLICIES: tuple[SelectionPolicy, ...] = ("all", "last")
"""Selections that do not depend on payoffs, so that later payoffs do not change which old records are shown."""

CURVE_POINTS = 4
"""Number of evenly spaced steps of an episode, including the last, at which a metric's value is reported."""

TYPICAL_PAYOFF = 123.456
"""Placeholder for payoffs in estimates of prompt lengths, with a typical number of digits."""

AGGREGATE_DESCRIPTIONS = {
    "sum": "as the total of an episode",
    "mean": "as the mean over its steps",
    "last": "as a level",
}
"""Descriptions of the aggregates in `EnvSpec.principal_metrics`, for prompts."""

WELFARE_DESCRIPTIONS = {
    measure.name: measure.prompt_text for measure in MEASURES if measure.prompt_text and measure.name != "spending"
}
"""From the names of the welfare measures that are shown with a payoff to their descriptions for prompts."""
SPENDING_DESCRIPTIONS = {measure.name: measure.prompt_text for measure in MEASURES if measure.name == "spending"}
"""The same mapping for spending, which is shown only if the objective contains a cost of spending."""


class History(StateFields):
    """Outcomes in chronological order, as serializable records (see `_make_record`).

    Args:
        spec: specification of the environment.
        pooled: whether the measurements of equal vectors in a context are averaged. If records are selected by payoff,
            these measurements are one record, at the position of the newest. If all or the newest records are shown,
            each measurement is a record, so that a prompt extends the previous one; `pool_repeated` has the means.
        sliding: whether exactly `window` of the newest records are shown. If not, their number grows from `window` to
            2 `window` - 1 and then returns to `window`, so that most prompts begin like the previous one.

    Attributes:
        records: records of all outcomes.
    """

    _state_fields = ("records",)

    def __init__(self, spec: EnvSpec, pooled: bool = True, sliding: bool = False) -> None:
        self.spec, self.pooled, self.sliding = spec, pooled, sliding
        self.records: list[Record] = []
        # If the payoff is a sum over agents and steps, other measures of welfare are redundant.
        welfare = {} if spec.objective.step is not None else WELFARE_DESCRIPTIONS
        self.welfare_descriptions = welfare | (SPENDING_DESCRIPTIONS if spec.spending_cost else {})

    @property
    def n_generations(self) -> int:
        """Number of generations (calls of `add`) so far."""
        return int(self.records[-1]["generation"]) if self.records else 0

    def add(self, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> None:
        """Add the outcomes of one generation, in the order of its proposals.

        Args:
            outcomes: outcomes of the proposals.
            notes: remark on each outcome for the prompt, "" for no remark; empty: there are no remarks.
        """
        generation = self.n_generations + 1
        for proposal, outcome in enumerate(outcomes, 1):
            identifiers = {"index": len(self.records), "generation": generation, "proposal": proposal}
            note = {"note": notes[proposal - 1]} if notes and notes[proposal - 1] else {}
            self.records.append(identifiers | {"of": len(outcomes)} | self._make_record(outcome) | note)

    def list_selectable_records(self, context: str | None, policy: SelectionPolicy) -> list[Record]:
        """Return the records from which `policy` selects; `measured` lists the indices of records that each pools."""
        if self.pooled and policy not in CHRONOLOGICAL_POLICIES:
            return self._pool_by_vector(context)
        return [record | {"measured": [record["index"]]} for record in self.list_records_in_context(context)]

    def pool_repeated(self, policy: SelectionPolicy) -> list[Record]:
        """Return a record with means of each repeatedly measured vector; [] if they are selectable themselves."""
        if not self.pooled or policy not in CHRONOLOGICAL_POLICIES:
            return []
        return [record for record in self._pool_all() if len(record["measured"]) > 1]

    @property
    def payoff_noise(self) -> float | None:
        """Standard deviation of payoffs of the same vector, pooled over vectors and contexts.

        None: measurements are not pooled, or there are fewer than `MIN_VALUES_FOR_ERROR` - 1 repeated measurements.
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
        for record in self.list_records_in_context(context):
            groups.setdefault(make_vector_key(record["vector"]), []).append(record)
        return sorted((_merge_records(group) for group in groups.values()), key=_record_index)

    def _pool_all(self) -> list[Record]:
        """Return one record for each vector and context."""
        return [record for context in self.context_names for record in self._pool_by_vector(context)]

    def select(self, policy: SelectionPolicy, window: int, newest: int = 0) -> list[Record]:
        """Return the records to show, oldest first.

        The selection of each context is: `all` records; the `window` newest (`last`); the `window` with the highest
        payoffs (`best`); or the `newest` newest and the `window` best of the others (`best_and_last`). Unless
        `sliding`, the number of newest records varies up to almost twice this number (`_count_newest_records`).
        """
        selection = [self._select_from(policy, window, newest, context) for context in self.context_names]
        return sorted(itertools.chain(*selection), key=_record_index)

    def trim(self, records: list[Record], policy: SelectionPolicy, n: int) -> list[Record]:
        """Return `n` of `records`, oldest first, for a prompt that cannot contain all.

        With policy `last` these are the newest, with `best` the best. With other policies, half of them are the best,
        and half the newest of the others.
        """
        n_best = {"best": n, "last": 0}.get(policy, -(-n // 2))
        # Python's sort is stable, so of equal payoffs the earlier record comes first.
        indices = {record["index"] for record in sorted(records, key=_negative_payoff)[:n_best]}
        other_indices = [record["index"] for record in records if record["index"] not in indices]
        indices |= set(other_indices[len(other_indices) - (n - len(indices)) :])
        return [record for record in records if record["index"] in indices]

    @property
    def context_names(self) -> list[str | None]:
        """Names of the contexts that have records, in order of their first record; [None] without contexts."""
        return list(dict.fromkeys(record["context"] for record in self.records))

    def list_records_in_context(self, context: str | None) -> list[Record]:
        return [record for record in self.records if record["context"] == context]

    def find_best_vector(self, context: str | None) -> np.ndarray | None:
        """Return the vector with the highest mean payoff in a context, [d]; None without records.

        Only vectors with at least as many episodes as the measurement with the most episodes are considered.
        """
        records = self.list_records_in_context(context)
        estimate = _pool_estimates(records, max((record["episodes"] for record in records), default=1)).best(context)
        return None if estimate is None else np.array(estimate.vector)

    def pool_best_record(self, context: str | None) -> Record | None:
        """Return a record of `find_best_vector` with means over the vector's measurements; None without records."""
        best_vector = self.find_best_vector(context)
        if best_vector is None:
            return None
        return _merge_records(
            [
                record
                for record in self.list_records_in_context(context)
                if make_vector_key(record["vector"]) == make_vector_key(best_vector)
            ]
        )

    def describe_measures(self) -> list[tuple[str, list[str]]]:
        """Return (description, names) of each kind of metric shown with a payoff; kinds without metrics are omitted."""
        kinds = [
            (
                description,
                [name for name, aggregate in self.spec.principal_metrics.items() if aggregate == aggregate_name],
            )
            for aggregate_name, description in AGGREGATE_DESCRIPTIONS.items()
        ]
        welfare_names = [f"{name} ({description})" for name, description in self.welfare_descriptions.items()]
        kinds.append(("of an episode", welfare_names))
        return [(description, names) for description, names in kinds if names]

    def make_typical_outcome(self, space: ParameterSpace, generation: int) -> Outcome:
        """Return a placeholder outcome of generation `generation`, for estimates of the lengths of prompts.

        Its payoff exceeds those of earlier generations about as often as that of a random vector would.
        """
        n_contexts = max(len(self.spec.contexts), 1)
        # In a sequence of t independent payoffs, about log t exceed all earlier ones.
        payoff = TYPICAL_PAYOFF + (generation // n_contexts + 1).bit_length()
        return Outcome(
            vector=space.round_values(space.low + (space.high - space.low) * 0.12345),
            value=payoff,
            values=np.full(MIN_VALUES_FOR_ERROR, payoff),
            standard_error=TYPICAL_PAYOFF,
            context=generation % n_contexts if self.spec.contexts else None,
            returns=np.full(self.spec.n_agents, TYPICAL_PAYOFF),
            trajectories=dict.fromkeys(self.spec.principal_metrics, np.full(self.spec.horizon or 1000, TYPICAL_PAYOFF)),
            summaries=dict.fromkeys(self.spec.principal_metrics, TYPICAL_PAYOFF),
            welfare=dict.fromkeys(self.welfare_descriptions, TYPICAL_PAYOFF),
            training_objectives=(TYPICAL_PAYOFF, TYPICAL_PAYOFF),
        )

    def _select_from(self, policy: SelectionPolicy, window: int, newest: int, context: str | None) -> list[Record]:
        records = self.list_selectable_records(context, policy)
        if policy == "best":
            return sorted(records, key=_negative_payoff)[:window]
        if policy == "best_and_last":
            n_older_records = len(records) - self._count_newest_records(len(records), newest)
            return sorted(records[:n_older_records], key=_negative_payoff)[:window] + records[n_older_records:]
        if policy == "last":
            return records[len(records) - self._count_newest_records(len(records), window) :]
        return records

    def _count_newest_records(self, n_records: int, window: int) -> int:
        """Return the number of newest records to show; unless `sliding`, the first changes every `window` records."""
        if self.sliding or window == 0:
            return min(n_records, window)
        return n_records if n_records < 2 * window else window + n_records % window

    def _make_record(self, outcome: Outcome) -> Record:
        """Convert an outcome to numbers, strings and lists; only metrics with the aggregate `last` have curves."""
        curves = {
            name: _sample_curve(outcome.trajectories[name])
            for name, aggregate in self.spec.principal_metrics.items()
            if aggregate == "last" and len(outcome.trajectories.get(name, ())) > 0
        }
        # The summary of a metric with a curve is the last value of the curve, so it is omitted.
        summaries = {name: float(value) for name, value in outcome.summaries.items() if name not in curves}
        # Four decimals, so that the spending of a fully redistributed tax is 0 in spite of rounding errors.
        welfare = {
            name: round(outcome.welfare[name], 4) for name in self.welfare_descriptions if name in outcome.welfare
        }
        return {
            "context": self.spec.get_context_name(outcome.context),
            "vector": np.asarray(outcome.vector, dtype=np.float64).tolist(),
            "payoff": float(outcome.value),
            "standard_error": outcome.standard_error,
            "episodes": len(outcome.values),
            "units": outcome.n_units or len(outcome.values),
            "draw": outcome.draw,
            "training": outcome.training_objectives,
            "curves": curves,
            "summaries": summaries | welfare,
            "returns": [float(value) for value in outcome.returns],
        }


def _pool_estimates(records: Sequence[Record], min_episodes: int = 1) -> PooledEstimates:
    estimates = PooledEstimates(min_episodes)
    for record in records:
        numbers = (record["payoff"], record["standard_error"], record["units"], record["episodes"])
        estimates.add(record["vector"], *numbers, record["context"], record["draw"])
    return estimates


def _merge_records(group: Sequence[Record]) -> Record:
    """Merge the records of one vector: the newest, with means over all measurements, weighted by episodes."""
    newest = group[-1]
    # Measurements with the same random numbers are equal, so they count once.
    records_by_draw = {record["draw"] or f"record {record['index']}": record for record in reversed(group)}
    records = sorted(records_by_draw.values(), key=_record_index)
    merged_record = newest | {"measured": [record["index"] for record in records]}
    if len(records) == 1:
        return merged_record
    estimate = _pool_estimates(records).get(newest["vector"], newest["context"])
    weights = [record["episodes"] for record in records]

    def mean(values: Sequence[Any]) -> Any:
        return np.average(np.array(values, dtype=np.float64), axis=0, weights=weights).tolist()

    return merged_record | {
        "payoff": estimate.value,
        "standard_error": estimate.standard_error,
        "episodes": estimate.n_episodes,
        "units": sum(record["units"] for record in records),
        "training": None,
        "generations": [record["generation"] for record in records],
        "spread": float(np.std([record["payoff"] for record in records], ddof=1)),
        "returns": mean([record["returns"] for record in records]),
        **{
            kind: {name: mean([record[kind][name] for record in records]) for name in newest[kind]}
            for kind in ("curves", "summaries")
        },
    }


def _record_index(record: Record) -> int:
    return int(record["index"])


def _negative_payoff(record: Record) -> float:
    return -float(record["payoff"])


def _sample_curve(trajectory: np.ndarray) -> list[float]:
    """Return the values at a quarter, half, three quarters and the end of an episode."""
    return [float(trajectory[max(round(end) - 1, 0)]) for end in np.linspace(0, len(trajectory), CURVE_POINTS + 1)[1:]]
