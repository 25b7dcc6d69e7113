"""The ranking of candidates, and the recommendation before and after confirmation."""

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.loops.design_results import choose_recommendation, rank_candidates
from llmrl.loops.recommendation import Confirmation
from llmrl.principals.nonadaptive import FixedPrincipal
from societies import make_toy_spec

SPACE = make_toy_spec(d=1, low=-1.0, high=3.0).mechanism


def make_estimates(*pairs):
    estimates = PooledEstimates()
    for vector, value in pairs:
        estimates.add([vector], value, None, 1, 1)
    return estimates


def test_incumbents_follow_rule():
    estimates = make_estimates((0.0, 3.0), (1.0, 2.0), (2.0, 1.0))
    rule = FixedPrincipal(SPACE, values=[1.0])
    assert rank_candidates(rule, SPACE, estimates, None).tolist() == [[1.0], [0.0], [2.0]]
    assert rank_candidates(object(), SPACE, estimates, None).tolist() == [[0.0], [1.0], [2.0]]
    assert rank_candidates(FixedPrincipal(SPACE, values=[-0.0]), SPACE, estimates, None).tolist() == [
        [0.0],
        [1.0],
        [2.0],
    ]


def test_no_measurements_recommend_neutral_vector():
    assert rank_candidates(object(), SPACE, PooledEstimates(), None).tolist() == [SPACE.neutral.tolist()]


def test_confirmation_survivor_is_recommendation():
    candidates = np.array([[0.0], [1.0], [2.0]])
    confirmation = Confirmation({None: candidates}, 1, 4)
    assert choose_recommendation(candidates, object(), confirmation, None).tolist() == [0.0]
    confirmation.halvings[None].advance(lambda vector: float(vector[0]))
    assert choose_recommendation(candidates, object(), confirmation, None).tolist() == [1.0], "two of three take part"
    learns = FixedPrincipal(SPACE, values=[0.0])
    assert choose_recommendation(candidates, learns, confirmation, None).tolist() == [0.0], (
        "first by the rule of the principal"
    )
