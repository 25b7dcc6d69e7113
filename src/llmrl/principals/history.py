"""What a principal that reads remembers of its proposals, and what of it goes into a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np

from llmrl.core.pooling import Key, PooledEstimates, key_of
from llmrl.core.records import Outcome, State, Trace
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.welfare_measures import MEASURES

Policy = Literal["all", "last", "best", "chain", "best_and_last"]
Contexts = Literal["all", "own"]
Record = dict[str, Any]

FEWEST_UNITS = 3
"""Independent numbers below which a standard error is not told: that of two says next to nothing."""

IN_ORDER: tuple[Policy, ...] = ("all", "last")
"""Ways of choosing rows that do not look at payoffs, so that rows shown stay as they are."""

CURVE_POINTS = 4
"""A level is reported at this many evenly spaced moments of the episode, the last one included."""

PAYOFF_SHOWN = 123.456
"""What estimates put where a history will hold a number that is not known yet."""

MEANINGS = {"sum": "as the total of an episode", "mean": "as the mean over its steps", "last": "as a level"}
"""How `EnvSpec.told` sums up an episode, in words for the prompt."""

WELFARE = {each.name: each.shown for each in MEASURES if each.shown and each.name != "spending"}
"""Measures of welfare that are shown beside a payoff, with their meaning in words for the prompt."""
SPENDING = {each.name: each.shown for each in MEASURES if each.name == "spending"}
"""Shown too where the principal is charged for it."""


class History:
    """Outcomes in the order they were told, each as a plain record (see `_record`) that a checkpoint can hold.

    Args:
        spec: of the environment.
        pooled: what is known of a vector is the mean over all its measurements in a context. Where rows are chosen by
            payoff it is one row then, in the place of the newest of them. Where all or the newest are shown each
            measurement keeps its row, so that a prompt only grows, and `repeated` has the means.
        sliding: exactly the newest rows are shown of a window; else they grow to less than twice as many and are cut
            back, so that most prompts begin as the one before did.

    Attributes:
        records: what was told.
        typical_steps: the beginning of an episode as long as those that will be told, for estimates; None: none is.
    """

    def __init__(self, spec: EnvSpec, pooled: bool = True, sliding: bool = False) -> None:
        self.spec, self.pooled, self.sliding = spec, pooled, sliding
        self.records: list[Record] = []
        self.typical_steps: Trace | None = None
        # Of a payoff that adds up over agents and steps they decide nothing.
        told = {} if spec.objective.step is not None else WELFARE
        self.welfare = told | (SPENDING if spec.spending_cost else {})

    @property
    def generations(self) -> int:
        """Generations told so far."""
        return int(self.records[-1]["generation"]) if self.records else 0

    def add(self, outcomes: Sequence[Outcome], notes: Sequence[str] = ()) -> None:
        """The outcomes of one generation, in the order of its proposals.

        Args:
            outcomes: of the proposals.
            notes: what a reader is to know of each, ""  for nothing; none: there are none.
        """
        generation = self.generations + 1
        for proposal, outcome in enumerate(outcomes, 1):
            identity = {"index": len(self.records), "generation": generation, "proposal": proposal, "of": len(outcomes)}
            note = {"note": notes[proposal - 1]} if notes and notes[proposal - 1] else {}
            self.records.append(identity | self._record(outcome) | note)

    def rows(self, context: str | None, policy: Policy) -> list[Record]:
        """What can be shown of a context: its records, with `measured`, the indices of those that each stands for."""
        if self.pooled and policy not in IN_ORDER:
            return self._distinct(context)
        return [record | {"measured": [record["index"]]} for record in self.in_context(context)]

    def repeated(self, policy: Policy, contexts: Contexts = "all", present: str | None = None) -> list[Record]:
        """What was measured more than once, one row a vector and context with its means; none where rows have them."""
        if not self.pooled or policy not in IN_ORDER:
            return []
        named = [present] if contexts == "own" else self.contexts
        return [record for context in named for record in self._distinct(context) if len(record["measured"]) > 1]

    def _distinct(self, context: str | None) -> list[Record]:
        """One row for each vector of a context, in the order of their newest measurements."""
        groups: dict[Key, list[Record]] = {}
        for record in self.in_context(context):
            groups.setdefault(key_of(record["vector"]), []).append(record)
        return sorted((_merged(group) for group in groups.values()), key=_index)

    def select(
        self,
        policy: Policy,
        window: int,
        contexts: Contexts = "all",
        present: str | None = None,
        newest: int = 0,
    ) -> list[Record]:
        """The records to show, oldest first, of all contexts or only of the `present` one.

        Of each context `all`, the `last` `window` or the `window` with the highest payoffs (`best`), these and the
        `newest` last ones (`best_and_last`), or the `chain` of the best so far: what beat every proposal of the
        generations before it, and the whole newest generation. The last ones are more, unless `sliding` (`_recent`).
        """
        named = [present] if contexts == "own" else self.contexts
        shown = [record for context in named for record in self._of_context(policy, window, newest, context)]
        return sorted(shown, key=_index)

    def trim(self, records: list[Record], policy: Policy, n: int) -> list[Record]:
        """The `n` records worth most to a reader who cannot take all, oldest first.

        The newest ones for `last` and the best for `best`; else the best half of them, and the newest of the rest. Of a
        chain that leaves its newest links, as each is better than the one before, and the newest generation.
        """
        n_best = {"best": n, "last": 0}.get(policy, -(-n // 2))
        # The sort is stable: of equal payoffs the earlier ones stay.
        kept = {record["index"] for record in sorted(records, key=_falling)[:n_best]}
        rest = [record["index"] for record in records if record["index"] not in kept]
        kept |= set(rest[len(rest) - (n - len(kept)) :])
        return [record for record in records if record["index"] in kept]

    @property
    def contexts(self) -> list[str | None]:
        """Those that something was proposed in."""
        return list(dict.fromkeys(record["context"] for record in self.records))

    def in_context(self, context: str | None) -> list[Record]:
        return [record for record in self.records if record["context"] == context]

    def best(self, context: str | None) -> np.ndarray | None:
        """The vector with the highest payoff in a context, mean over its measurements; None if there is none yet.

        Of those that were judged by at least as many episodes as any single measurement has.
        """
        own = self.in_context(context)
        best = _pool(own, max((record["episodes"] for record in own), default=1)).best(context)
        return None if best is None else np.array(best.vector)

    def best_record(self, context: str | None) -> Record | None:
        """`best` as one row, with the means over all its measurements."""
        best = self.best(context)
        if best is None:
            return None
        return _merged([record for record in self.in_context(context) if key_of(record["vector"]) == key_of(best)])

    def measures(self) -> list[tuple[str, list[str]]]:
        """What the numbers beside a payoff are: (meaning, names), meanings without names left out."""
        grouped = [
            (meaning, [name for name, aggregate in self.spec.told.items() if aggregate == kind])
            for kind, meaning in MEANINGS.items()
        ]
        grouped.append(("of an episode", [f"{name} ({meaning})" for name, meaning in self.welfare.items()]))
        return [(meaning, names) for meaning, names in grouped if names]

    def typical(self, space: ParameterSpace, generation: int) -> Outcome:
        """An outcome with as many numbers as a real one, for estimates; a new best of its context now and then."""
        steps = np.full(self.spec.horizon or 1000, PAYOFF_SHOWN)
        contexts = max(len(self.spec.contexts), 1)
        # Of t random payoffs about log t are the highest so far.
        payoff = PAYOFF_SHOWN + (generation // contexts + 1).bit_length()
        return Outcome(
            vector=space.rounded(space.low + (space.high - space.low) * 0.12345),
            value=payoff,
            values=np.full(FEWEST_UNITS, payoff),
            standard_error=PAYOFF_SHOWN,
            context=generation % contexts if self.spec.contexts else None,
            returns=np.full(self.spec.n_agents, PAYOFF_SHOWN),
            trajectories=dict.fromkeys(self.spec.told, steps),
            summaries=dict.fromkeys(self.spec.told, PAYOFF_SHOWN),
            welfare=dict.fromkeys(self.welfare, PAYOFF_SHOWN),
            training=(PAYOFF_SHOWN, PAYOFF_SHOWN),
            steps=self.typical_steps,
        )

    def state_dict(self) -> State:
        return {"records": [dict(record) for record in self.records]}

    def load_state_dict(self, state: State) -> None:
        self.records = [dict(record) for record in state["records"]]

    def _of_context(self, policy: Policy, window: int, newest: int, context: str | None) -> list[Record]:
        own = self.rows(context, policy)
        if policy == "best":
            return sorted(own, key=_falling)[:window]
        if policy == "best_and_last":
            cut = len(own) - self._recent(len(own), newest)
            return sorted(own[:cut], key=_falling)[:window] + own[cut:]
        if policy == "last":
            return own[len(own) - self._recent(len(own), window) :]
        return _chain(own) if policy == "chain" else own

    def _recent(self, made: int, window: int) -> int:
        """How many of `made` rows are the last ones: `window` of them, or up to twice as many less one.

        The first row shown moves by `window` rows at a time.
        """
        if self.sliding or window == 0:
            return min(made, window)
        return made if made < 2 * window else window + made % window

    def _record(self, outcome: Outcome) -> Record:
        """Plain numbers, strings and lists. Curves are kept of levels (entries whose last value counts) only."""
        curves = {
            name: _sample(outcome.trajectories[name])
            for name, aggregate in self.spec.told.items()
            if aggregate == "last" and len(outcome.trajectories.get(name, ())) > 0
        }
        # A curve ends with the level its summary would repeat.
        summaries = {name: float(value) for name, value in outcome.summaries.items() if name not in curves}
        # To four decimals, so that what rounding leaves of a tax that is shared out shows as nothing.
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
            **({} if outcome.steps is None else {"steps": _shortened(outcome.steps)}),
        }


def _shortened(trace: Trace) -> dict[str, Any]:
    """An episode's beginning as plain numbers, of as many digits as are told."""
    arrays = {"observations": trace.observations, "actions": trace.actions, "rewards": trace.rewards}
    return {
        name: array.tolist() if array.dtype.kind in "iu" else [_digits(row) for row in array.tolist()]
        for name, array in arrays.items()
    }


def _digits(value: Any) -> Any:
    return [_digits(each) for each in value] if isinstance(value, list) else float(f"{value:.3g}")


def _pool(records: Sequence[Record], fewest: int = 1) -> PooledEstimates:
    pool = PooledEstimates(fewest)
    for each in records:
        told = (each["vector"], each["payoff"], each["standard_error"], each["units"], each["episodes"])
        pool.add(*told, each["context"], each["draw"])
    return pool


def _merged(group: Sequence[Record]) -> Record:
    """The records of one vector as one: the newest, with means over all measurements, weighted by episodes."""
    last = group[-1]
    # Of equal proposals that met the same random numbers one counts.
    of_draw = {record["draw"] or f"record {record['index']}": record for record in reversed(group)}
    counted = sorted(of_draw.values(), key=_index)
    row = last | {"measured": [record["index"] for record in counted]}
    if len(counted) == 1:
        return row
    found = _pool(counted).of(last["vector"], last["context"])
    weights = [record["episodes"] for record in counted]

    def mean(values: Sequence[Any]) -> Any:
        averaged = np.average(np.array(values, dtype=np.float64), axis=0, weights=weights)
        return averaged.tolist()

    return row | {
        "payoff": found.value,
        "standard_error": found.standard_error,
        "episodes": found.episodes,
        "units": sum(record["units"] for record in counted),
        "training": None,
        "generations": [record["generation"] for record in counted],
        "spread": float(np.std([record["payoff"] for record in counted], ddof=1)),
        "returns": mean([record["returns"] for record in counted]),
        **{
            each: {name: mean([record[each][name] for record in counted]) for name in last[each]}
            for each in ("curves", "summaries")
        },
    }


def _index(record: Record) -> int:
    return int(record["index"])


def _falling(record: Record) -> float:
    return -float(record["payoff"])


def _chain(records: list[Record]) -> list[Record]:
    """Of the records of one context, the best of each generation that beat all before it, and the newest generation.

    Proposals of one generation were tried side by side, so only the best of them can be a step ahead.
    """
    newest = records[-1]["generation"] if records else 0
    chain: list[Record] = []
    best = -np.inf
    for generation, group in groupby(records, key=lambda record: int(record["generation"])):
        together = list(group)
        first = min(together, key=_falling)
        ahead = first["payoff"] > best
        best = max(best, first["payoff"])
        chain += [record for record in together if generation == newest or (ahead and record is first)]
    return chain


def _sample(trajectory: np.ndarray) -> list[float]:
    """The values at a quarter, half, three quarters and the end of an episode."""
    ends = np.linspace(0, len(trajectory), CURVE_POINTS + 1)[1:]
    return [float(trajectory[max(round(end) - 1, 0)]) for end in ends]
