"""What the principals of a task, or its searches, proposed over time, and the best of each group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.analysis.groups import Group
from llmrl.analysis.principal_scores import RECOMMENDATION, principal_scores
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.story.means import Estimate, bars, form_of, over_runs, written
from llmrl.analysis.story.records import rows_of
from llmrl.analysis.table_format import NOTHING, NumberFormat, ReportTable
from llmrl.core.errors import CheckpointError, RunFolderError
from llmrl.run.proposals import Proposed, read_proposed

MOST_PARAMETERS = 6
"""Parameters that fit beside each other; the many of a policy say nothing one by one."""
RESPONSES = 4
"""Measures of the agents' response in the table of the best."""
_PROPOSAL, _VALIDATION = "principal/", "validation/"


@dataclass(frozen=True)
class GroupProposals:
    """The proposals of one group.

    Attributes:
        name: the group's, short.
        runs: its finished runs that have proposals.
        proposals: of each run, in the order in which they were made.
    """

    name: str
    runs: tuple[RunRecord, ...]
    proposals: tuple[tuple[Proposed, ...], ...]

    @property
    def every(self) -> Iterator[tuple[int, Proposed]]:
        """Each proposal of each run, with its place in its run, from 1."""
        for own in self.proposals:
            yield from enumerate(own, start=1)


@dataclass(frozen=True)
class Best:
    """The highest recommendation of a group's runs; without recommendations, the proposal of the highest objective.

    Attributes:
        run: that made it.
        parameters: its numbers by name.
        objective, standard_error: its value; the error is NaN if it is unknown.
        measurements: number of evaluations of the recommendation, or of measurements of the proposal.
        context: it was proposed for; empty where there is none.
        response: what the agents did under it, by name; empty where the run does not tell.
    """

    run: RunRecord
    parameters: Mapping[str, float]
    objective: float
    standard_error: float
    measurements: int
    context: str
    response: Mapping[str, float]
    is_recommendation: bool


def proposals_of(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> tuple[GroupProposals, ...]:
    """Return the proposals of each group that has any.

    Args:
        groups: short name, group and finished runs of each.
    """
    found = []
    for name, _, runs in groups:
        pairs = [(run, tuple(own)) for run in runs if (own := _read(run))]
        if pairs:
            found.append(GroupProposals(name, tuple(run for run, _ in pairs), tuple(own for _, own in pairs)))
    return tuple(found)


def parameters_of(groups: Sequence[GroupProposals]) -> list[str]:
    """Return the names of the parameters that all proposals have; none where these are too many to show."""
    names = [tuple(each.parameters) for group in groups for own in group.proposals for each in own]
    same = len(set(names)) == 1
    return list(names[0]) if same and len(names[0]) <= MOST_PARAMETERS else []


def best_table(groups: Sequence[GroupProposals]) -> ReportTable:
    """Return a line for the highest recommendation of each group, or its best policy, and for each context."""
    names = parameters_of(groups)
    bests = {group.name: _bests(group) for group in groups}
    every = [best for own in bests.values() for best in own]
    recommended = all(best.is_recommendation for best in every)
    responses = _responses(every)
    contexts = any(best.context for best in every)
    form = form_of([(best.objective, best.standard_error) for best in every])
    reached = {group.name: _over_runs(group, recommended) for group in groups}
    columns = ["group", "run", *(["context"] if contexts else []), *names, "objective"]
    columns += ["evaluations", "mean of the runs"] if recommended else ["rounds", "highest of a run, mean"]
    columns += [*(name.replace("_", " ") for name in responses)]
    rows, data = [], []
    forms = {
        name: NumberFormat(np.array([b.response[name] for b in every if name in b.response])) for name in responses
    }
    ordered = [
        (group, best)
        for group in sorted(groups, key=lambda group: -reached[group.name][0])
        for best in bests[group.name]
    ]
    for group, best in ordered:
        cells = [group.name, best.run.reference, *([best.context] if contexts else [])]
        cells += [f"{best.parameters[name]:.3g}" for name in names]
        cells += [written((best.objective, best.standard_error), form), str(best.measurements)]
        cells += [written(reached[group.name], form)]
        cells += [forms[name](best.response[name]) if name in best.response else NOTHING for name in responses]
        rows.append(cells)
        numbers = [best.objective, best.standard_error, best.measurements, *reached[group.name]]
        data.append(
            [group.name, best.run.reference, best.context, *(best.parameters.get(name) for name in names), *numbers]
            + [best.response.get(name) for name in responses]
        )
    header: list[object] = ["group", "run", "context", *names, "objective", "standard_error"]
    header += ["evaluations" if recommended else "rounds"]
    mean = "mean_of_runs" if recommended else "highest_of_a_run"
    header += [mean, f"{mean}_standard_error", *responses]
    column = columns.index("objective")
    sizes = bars([(best.objective, math.nan) for _, best in ordered])
    if recommended:
        notes = [
            "A row is the run of a group whose recommendation has the highest value; groups are sorted by the mean."
        ]
    else:
        notes = ["The highest of many noisy measurements is partly luck. More rounds of measurement leave less of it."]
    if responses:
        notes.append("The last columns say what the agents did under it: means over its episodes.")
    return ReportTable(
        "best",
        "The highest recommendation of each group" if recommended else "The best proposal of each group",
        [header, *data],
        columns,
        rows,
        2 + contexts,
        notes=notes,
        bars=[[size if i == column else None for i in range(len(columns))] for size in sizes],
    )


def _read(run: RunRecord) -> Sequence[Proposed]:
    try:
        return read_proposed(run.folder)
    except (CheckpointError, RunFolderError, ValueError, KeyError, TypeError):
        return ()  # the tables of scores say what is wrong with a run


def mean_score(group: GroupProposals) -> float:
    """Return the mean recommendation of a group's runs; without recommendations, their highest objective."""
    scores = principal_scores(group.runs, RECOMMENDATION)
    return max(each.objective for _, each in group.every) if scores is None else float(scores.mean())


def _over_runs(group: GroupProposals, recommended: bool) -> Estimate:
    """Return the mean over runs of the recommendation, or of the highest objective of a proposal."""
    values = principal_scores(group.runs, RECOMMENDATION) if recommended else None
    if values is None:
        values = np.array([max(each.objective for each in own) for own in group.proposals])
    return over_runs(values.tolist(), group.runs)


def _bests(group: GroupProposals) -> list[Best]:
    """The best of each context, or the one of all."""
    found: dict[str, Best] = {}
    for run, own in zip(group.runs, group.proposals, strict=True):
        for best in _recommended(run, own) or [_highest(run, own)]:
            if best.context not in found or best.objective > found[best.context].objective:
                found[best.context] = best
    return [found[context] for context in sorted(found)]


def _recommended(run: RunRecord, own: Sequence[Proposed]) -> list[Best]:
    """Return the evaluated recommendations of a run; empty if it has none."""
    try:
        return [
            Best(
                run,
                row["mechanism"],
                float(row["objective"]),
                math.nan if row["standard_error"] is None else float(row["standard_error"]),
                int(row["evaluations"]),
                row["context"] or "",
                _response(run, own, row),
                True,
            )
            for row in run.summary().get("recommendations", [])
            if row["evaluations"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _highest(run: RunRecord, own: Sequence[Proposed]) -> Best:
    best = max(own, key=lambda each: each.objective)
    return Best(run, best.parameters, best.objective, best.standard_error, 1, best.context, {}, False)


def _response(run: RunRecord, own: Sequence[Proposed], best: Mapping[str, Any]) -> dict[str, float]:
    """What was measured beside the objective when the best was tried; empty where several were tried at once."""
    if len({each.step for each in own}) < len(own):
        return {}
    found = {}
    for row in rows_of(run.folder, "proposal"):
        tried = [row.get(_PROPOSAL + name) for name in best["mechanism"]]
        if all(
            x is not None and math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-6)
            for x, y in zip(tried, best["mechanism"].values(), strict=True)
        ):
            found = {name.removeprefix(_VALIDATION): x for name, x in row.items() if name.startswith(_VALIDATION)}
    return found


def _responses(bests: Sequence[Best]) -> list[str]:
    from llmrl.analysis.story.society import telling

    return telling([best.response for best in bests])[:RESPONSES]
