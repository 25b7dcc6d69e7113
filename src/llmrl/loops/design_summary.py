"""The summary of a design run: its two scores, its recommendations and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.loops.recommendation import Context, VectorEvaluation
from llmrl.run.artifacts import RESULT_EPISODES

if TYPE_CHECKING:
    from llmrl.loops.design import DesignLoop


def design_summary(loop: DesignLoop) -> tuple[dict[str, Any], float]:
    """Return the summary of a finished design run, and its result.

    The result is the mean evaluated objective of the recommendations over contexts, or the online performance if they
    are not evaluated. The online performance is the mean objective of the last fifth of the proposals.
    """
    history, n = loop.history, loop.history.measurements
    proposals = history.proposals
    last = max(1, loop.proposal_steps // 5) * loop.candidates
    online = float(np.mean([row["objective"] for row in proposals[-last:]]))
    evaluations = {} if loop.evaluator is None else loop.evaluator.of(n)
    scores: dict[str, Any] = {}
    if loop.evaluator is not None:
        final = loop.evaluator.summary(n)
        scores["recommendation"] = final["objective"]
        scores["recommendation_standard_error"] = final.get("standard_error")
        episodes = [part for each in evaluations.values() for part in each.episodes]
    else:
        played = [np.array_split(row["values"], loop.societies.several) for row in proposals[-last:]]
        episodes = [np.concatenate(society).tolist() for society in zip(*played, strict=True)]
    recommendations = _recommendations(loop, evaluations)
    summary = {
        **scores,
        "online_performance": online,
        "principal_steps": loop.step,
        "proposals": len(proposals),
        "confirmed": len(history.confirmations),
        "measurements": n,
        "env_steps": loop.env_steps_played,
        "evaluation_env_steps": loop.env_steps_of(0, loop.evaluation_trials),
        "recommendations": recommendations,
        "history": proposals,
        "confirmations": history.confirmations,
        RESULT_EPISODES: episodes,
    }
    if loop.references is not None:
        evaluated = [row for row in recommendations if row["evaluations"]]
        summary["references"] = loop.references.summary(evaluated, proposals, last)
    return summary, float(scores.get("recommendation", online))


def recommended_rows(loop: DesignLoop) -> list[dict[str, Any]]:
    """Return rows with `mechanism` and `context` of the vectors that the run recommends so far, best first.

    Before the end of the run these are the vectors with the highest mean of all measurements.
    """
    history = loop.history
    final = loop.recommendations.get(history.measurements) if loop.step >= loop.proposal_steps else None
    if final is None:
        incumbents = [history.estimates.best(context) for context in loop.contexts]
        leading = sorted((each for each in incumbents if each is not None), key=lambda each: -each.value)
        return [history.describe(each.vector, _index(each.context)) for each in leading]
    rows = [(_value(loop, vector, context), history.describe(vector, context)) for context, vector in final.items()]
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _recommendations(loop: DesignLoop, evaluations: dict[Context, VectorEvaluation]) -> list[dict[str, Any]]:
    """Return the rows of `recommendations`, one a context, best first."""
    history, vectors = loop.history, loop.recommendations[loop.history.measurements]
    rows = []
    for context, vector in vectors.items():
        evaluation = evaluations.get(context)
        measured = evaluation is not None and bool(evaluation.values)
        row = {
            "objective": evaluation.mean if evaluation and measured else None,
            "standard_error": evaluation.standard_error if evaluation and measured else None,
            "evaluations": len(evaluation.values) if evaluation else 0,
            "values": list(evaluation.values) if evaluation else [],
            "measurements": history.estimates.count(vector, context),
        }
        rows.append((_value(loop, vector, context), history.describe(vector, context) | row))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _value(loop: DesignLoop, vector: np.ndarray, context: Context) -> float:
    """Return the best estimate of a vector: its evaluations, else its measurements, else minus infinity."""
    evaluation = None if loop.evaluator is None else loop.evaluator.of(loop.history.measurements).get(context)
    if evaluation is not None and evaluation.values:
        return evaluation.mean
    estimates = loop.history.estimates
    return estimates.of(vector, context).value if estimates.count(vector, context) else -np.inf


def _index(context: int | str | None) -> Context:
    assert not isinstance(context, str)
    return context
