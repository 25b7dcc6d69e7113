"""Proposals of the principals or policy searches of a task, and the best recommendation or proposal of each group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.story.group_tables import (
    Estimate,
    NamedRuns,
    choose_number_format,
    estimate_mean_over_runs,
    format_mean,
    read_metric_rows,
    select_informative_metrics,
)
from llmrl.core.errors import CheckpointError, RunFolderError
from llmrl.results.principal_scores import RECOMMENDATION, read_principal_scores
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import EMPTY_CELL, NumberFormat, ReportTable
from llmrl.run.proposals import MeasuredProposal, read_measured_proposals

MAX_PARAMETERS = 6
"""Proposals with more parameters, such as weights of policies, are shown without the values of their parameters."""
MAX_BEHAVIOR_METRICS = 4
"""Maximum number of behavior metrics in the table of best recommendations or proposals."""
_PROPOSAL_PREFIX, _VALIDATION_PREFIX = "principal/", "validation/"


@dataclass(frozen=True)
class GroupProposals:
    """The proposals of one group.

    Attributes:
        name: short name of the group.
        runs: finished runs that have proposals.
        proposals: proposals of each run, in order.
    """

    name: str
    runs: tuple[RunRecord, ...]
    proposals: tuple[tuple[MeasuredProposal, ...], ...]

    @property
    def numbered_proposals(self) -> Iterator[tuple[int, MeasuredProposal]]:
        """Each proposal of each run, with its number within the run, from 1."""
        for run_proposals in self.proposals:
            yield from enumerate(run_proposals, start=1)


@dataclass(frozen=True)
class BestProposal:
    """The recommendation (without recommendations, the proposal) with the highest objective among a group's runs.

    Attributes:
        run: run of the recommendation or proposal.
        parameters: values of the vector by parameter name.
        objective: measured objective.
        standard_error: standard error of the objective; NaN if it is unknown.
        n_measurements: number of evaluations of the recommendation, or of measurements of the proposal.
        context: context of the vector; empty without contexts.
        behavior: behavior metrics of the agents under the vector, by name; empty if they are unknown.
        is_recommendation: whether the vector is a recommendation.
    """

    run: RunRecord
    parameters: Mapping[str, float]
    objective: float
    standard_error: float
    n_measurements: int
    context: str
    behavior: Mapping[str, float]
    is_recommendation: bool


def read_group_proposals(groups: NamedRuns) -> tuple[GroupProposals, ...]:
    """Return the proposals of each group that has any."""
    named_pairs = (
        (name, [(run, tuple(proposals)) for run in runs if (proposals := _read_proposals(run))])
        for name, runs in groups
    )
    return tuple(GroupProposals(name, *zip(*pairs, strict=True)) for name, pairs in named_pairs if pairs)


def find_shared_parameters(groups: Sequence[GroupProposals]) -> list[str]:
    """Return the parameter names of the proposals; empty if these differ or are more than `MAX_PARAMETERS`."""
    names = [
        tuple(proposal.parameters)
        for group in groups
        for run_proposals in group.proposals
        for proposal in run_proposals
    ]
    return list(names[0]) if len(set(names)) == 1 and len(names[0]) <= MAX_PARAMETERS else []


def build_best_table(groups: Sequence[GroupProposals]) -> ReportTable:
    """Return a table with a row for the best recommendation or proposal of each group and context."""
    names = find_shared_parameters(groups)
    best_by_group = {group.name: _find_best_per_context(group) for group in groups}
    best_proposals = [best for bests in best_by_group.values() for best in bests]
    has_recommendations = all(best.is_recommendation for best in best_proposals)
    metrics = select_informative_metrics([best.behavior for best in best_proposals])[:MAX_BEHAVIOR_METRICS]
    has_contexts = any(best.context for best in best_proposals)
    fmt = choose_number_format([(best.objective, best.standard_error) for best in best_proposals])
    means = {group.name: _estimate_best_objective(group, has_recommendations) for group in groups}
    columns = ["group", "run", *(["context"] if has_contexts else []), *names, "objective"]
    columns += ["evaluations", "mean of the runs"] if has_recommendations else ["rounds", "highest of a run, mean"]
    columns += [*(name.replace("_", " ") for name in metrics)]
    rows, data = [], []
    formats = {
        name: NumberFormat(np.array([x.behavior[name] for x in best_proposals if name in x.behavior]))
        for name in metrics
    }
    sorted_pairs = [
        (group, best) for group in sorted(groups, key=lambda x: -means[x.name][0]) for best in best_by_group[group.name]
    ]
    for group, best in sorted_pairs:
        cells = [group.name, best.run.run_reference, *([best.context] if has_contexts else [])]
        cells += [f"{best.parameters[name]:.3g}" for name in names]
        cells += [format_mean((best.objective, best.standard_error), fmt), str(best.n_measurements)]
        cells += [format_mean(means[group.name], fmt)]
        cells += [formats[name](best.behavior[name]) if name in best.behavior else EMPTY_CELL for name in metrics]
        rows.append(cells)
        numbers = [best.objective, best.standard_error, best.n_measurements, *means[group.name]]
        data.append(
            [group.name, best.run.run_reference, best.context, *(best.parameters.get(name) for name in names), *numbers]
            + [best.behavior.get(name) for name in metrics]
        )
    header: list[object] = ["group", "run", "context", *names, "objective", "standard_error"]
    header += ["evaluations" if has_recommendations else "rounds"]
    mean_key = "mean_of_runs" if has_recommendations else "highest_of_a_run"
    header += [mean_key, f"{mean_key}_standard_error", *metrics]
    if has_recommendations:
        context_text = " in a context" if has_contexts else ""
        best_text = f"the highest recommendation{context_text}"
        notes = [f"A row is the run of a group with {best_text}; groups are sorted by their mean."]
    else:
        notes = [
            "The highest of many noisy measurements is biased upward, and less so with more rounds of measurement."
        ]
    if metrics:
        notes.append("The last columns are means of behavior metrics over the episodes under the vector of the row.")
    return ReportTable(
        "best",
        "The highest recommendation of each group" if has_recommendations else "The best proposal of each group",
        [header, *data],
        columns,
        rows,
        2 + has_contexts,
        notes=notes,
    )


def _read_proposals(run: RunRecord) -> Sequence[MeasuredProposal]:
    try:
        return read_measured_proposals(run.folder)
    except (CheckpointError, RunFolderError, ValueError, KeyError, TypeError):
        return ()  # the tables of scores report the error


def compute_mean_score(group: GroupProposals) -> float:
    """Return the mean over runs of the recommendation's objective; without any, of the highest one of a proposal."""
    return float(_read_best_objectives(group, use_recommendations=True).mean())


def _estimate_best_objective(group: GroupProposals, use_recommendations: bool) -> Estimate:
    """Return the mean over runs of `_read_best_objectives`, with its standard error."""
    return estimate_mean_over_runs(_read_best_objectives(group, use_recommendations).tolist(), group.runs)


def _read_best_objectives(group: GroupProposals, use_recommendations: bool) -> np.ndarray:
    """Return each run's objective of the recommendation, or the highest one of its proposals, [n_runs]."""
    values = read_principal_scores(group.runs, RECOMMENDATION) if use_recommendations else None
    if values is None:
        values = np.array([max(proposal.objective for proposal in run_proposals) for run_proposals in group.proposals])
    return values


def _find_best_per_context(group: GroupProposals) -> list[BestProposal]:
    """Return a group's best recommendation or proposal in each context, sorted by context."""
    best_by_context: dict[str, BestProposal] = {}
    for run, run_proposals in zip(group.runs, group.proposals, strict=True):
        for best in _read_recommendations(run) or [_find_highest_proposal(run, run_proposals)]:
            if best.context not in best_by_context or best.objective > best_by_context[best.context].objective:
                best_by_context[best.context] = best
    proposals = dict(zip((run.folder for run in group.runs), group.proposals, strict=True))
    for context, best in best_by_context.items():
        if best.is_recommendation:
            best_by_context[context] = replace(best, behavior=_read_behavior_metrics(best, proposals[best.run.folder]))
    return [best for _, best in sorted(best_by_context.items())]


def _read_recommendations(run: RunRecord) -> list[BestProposal]:
    """Return the evaluated recommendations of a run, without responses; empty if it has none."""
    try:
        return [
            BestProposal(
                run,
                {str(name): float(x) for name, x in row["mechanism"].items()},
                float(row["objective"]),
                math.nan if row["standard_error"] is None else float(row["standard_error"]),
                int(row["evaluations"]),
                row["context"] or "",
                {},
                True,
            )
            for row in run.compact_summary.get("recommendations", [])
            if row["evaluations"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _find_highest_proposal(run: RunRecord, proposals: Sequence[MeasuredProposal]) -> BestProposal:
    best = max(proposals, key=lambda proposal: proposal.objective)
    return BestProposal(run, best.parameters, best.objective, best.standard_error, 1, best.context, {}, False)


def _read_behavior_metrics(best: BestProposal, proposals: Sequence[MeasuredProposal]) -> dict[str, float]:
    """Return the behavior metrics of the last proposal that equals a recommendation; empty if they are unknown."""
    # Metrics of a step with several proposals are means over these.
    if len({proposal.step for proposal in proposals}) < len(proposals):
        return {}
    behavior = {}
    for row in read_metric_rows(best.run.folder, "proposal"):
        vector = [row.get(_PROPOSAL_PREFIX + name) for name in best.parameters]
        if all(
            isinstance(x, int | float) and math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-6)
            for x, y in zip(vector, best.parameters.values(), strict=True)
        ):
            prefix = _VALIDATION_PREFIX
            behavior = {name.removeprefix(prefix): x for name, x in row.items() if name.startswith(prefix)}
    return behavior
