"""Running moments of inputs and targets of networks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, find_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.experiment.parts import build_parts
from llmrl.networks.layers import RunningMoments, RunningNormalizer
from llmrl.run.artifacts import load_saved_state


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_moments_match_numpy(sizes, seed):
    rng, moments, batches = np.random.default_rng(seed), RunningMoments((3,)), []
    for n in sizes:
        batches.append(rng.normal(5, [1, 20, 0], (n, 3)))
        moments.update(torch.from_numpy(batches[-1]))
    all_values = np.concatenate(batches)
    deviation = np.where(all_values.std(0) > 1e-8, all_values.std(0), 1)
    np.testing.assert_allclose(moments.mean, all_values.mean(0), rtol=1e-9)
    np.testing.assert_allclose(moments.deviation, deviation, rtol=1e-9)
    x = torch.from_numpy(rng.normal(size=(2, 3)))
    torch.testing.assert_close(moments.denormalize(moments.normalize(x)), x)


def test_outliers_are_clipped():
    normalizer = RunningNormalizer((1,))
    assert normalizer(torch.tensor([[3.0], [99.0]])).tolist() == [[3.0], [10.0]]
    normalizer.update(torch.tensor([[0.0], [2.0]]))
    assert normalizer(torch.tensor([[3.0], [-99.0]])).tolist() == [[2.0], [-10.0]]


ROOM = ("env=escape_room", "env.n_envs=4", "learn.env_steps=100", "learn.evaluate_episodes=4")


@pytest.mark.parametrize("critic", ["own", "separate", "central"])
def test_agent_saves_moments(tmp_path, critic):
    run(*ROOM, "agent.normalize_observations=true", f"agent.critic={critic}", f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    saved = load_saved_state(folder)[1]["agents"][0]["policy"]
    counts = [float(x) for name, x in saved.items() if name.endswith("normalizer.count")]
    assert len(counts) == (2 if critic == "central" else 1) and min(counts) >= 100
    loaded = build_parts(
        compose(*ROOM, "agent.normalize_observations=true", f"agent.critic={critic}", f"agent.init_from='{folder}'"),
        None,
    )
    assert all(torch.equal(loaded.agents[0].policy.state_dict()[name], x) for name, x in saved.items())
    loaded.close()


def test_frozen_core_rejects_normalization():
    with pytest.raises(ConfigError, match="normalize_observations"):
        build_parts(compose(*ROOM, "agent.normalize_observations=true", "agent.freeze=core"), None)
