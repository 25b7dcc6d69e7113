"""Exact returns of blackjack policies: golden values, and agreement with play."""

import blackjack_policy
import numpy as np
import pytest

import llmrl


def test_reference_policies():
    assert blackjack_policy.exact_return(None) == pytest.approx(-0.043, abs=1e-3)
    assert blackjack_policy.exact_return(lambda *_: 0.0) == pytest.approx(-0.183, abs=1e-3)
    assert blackjack_policy.exact_return(lambda *_: 0.5) == pytest.approx(-0.394, abs=1e-3)
    limit, threshold = blackjack_policy.best_threshold()
    assert limit == 16 and threshold == pytest.approx(-0.072, abs=1e-3)


def test_exact_return_agrees_with_play():
    env = llmrl.make_env("blackjack", n_envs=64)
    env = getattr(env, "env", env)
    returns = []
    for seed in range(30):
        env.reset(seed=seed)
        returns += np.asarray(env.step(np.zeros((64, 1), dtype=np.int64)).reward)[:, 0].tolist()
    env.close()
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - blackjack_policy.exact_return(lambda *_: 0.0)) < 4 * error
