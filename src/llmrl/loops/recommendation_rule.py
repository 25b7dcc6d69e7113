"""The rule by which a principal's recommendation follows from its measurements."""

from __future__ import annotations

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.protocols import Proposer, Recommender
from llmrl.core.spaces import ParameterSpace
from llmrl.loops.confirmation import Confirmation
from llmrl.loops.recommendation import Context


def ranking(principal: Proposer, mechanism: ParameterSpace, estimates: PooledEstimates, context: Context) -> np.ndarray:
    """Return the candidates of a context, best first and each once, [m, d] with m >= 1.

    First those of the principal's own rule (`Recommender`), then all measured vectors by the mean of their
    measurements. If there are none, the neutral vector.
    """
    vectors = [each.vector for each in estimates.ranked(context)]
    if isinstance(principal, Recommender):
        leading = np.asarray(principal.recommend(context, max(1, len(vectors)), estimates), dtype=np.float64)
        vectors = [*map(tuple, leading.tolist()), *vectors]
    vectors = list(dict.fromkeys(vectors)) or [tuple(mechanism.neutral.tolist())]
    return np.array(vectors, dtype=np.float64)


def recommended(
    candidates: np.ndarray, principal: Proposer, confirmation: Confirmation | None, context: Context
) -> np.ndarray:
    """Return the recommendation of a context, [d].

    Before confirmation it is the first of `candidates`, the ranking by the principal's rule. Afterwards it is one of
    the survivors: the first by the rule if the principal learned from the confirmations, otherwise the one with the
    highest mean of all measurements.
    """
    survivors = None if confirmation is None else confirmation.survivors(context)
    if survivors is None:
        return np.array(candidates[0])
    if getattr(principal, "learns_from_others", False):
        allowed = {tuple(vector) for vector in survivors.tolist()}
        for vector in candidates.tolist():
            if tuple(vector) in allowed:
                return np.array(vector)
    return np.array(survivors[0])
