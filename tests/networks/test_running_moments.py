"""Running moments of what networks read and predict."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, only_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.experiment.parts import build_parts
from llmrl.networks.running_moments import RunningMoments, RunningNormalizer
from llmrl.run.artifacts import saved_state


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_they_are_those_of_everything_seen(sizes, seed):
    rng, moments, seen = np.random.default_rng(seed), RunningMoments((3,)), []
    for n in sizes:
        seen.append(rng.normal(5, [1, 20, 0], (n, 3)))
        moments.see(torch.from_numpy(seen[-1]))
    every = np.concatenate(seen)
    deviation = np.where(every.std(0) > 1e-8, every.std(0), 1)
    np.testing.assert_allclose(moments.mean, every.mean(0), rtol=1e-9)
    np.testing.assert_allclose(moments.deviation, deviation, rtol=1e-9)
    x = torch.from_numpy(rng.normal(size=(2, 3)))
    torch.testing.assert_close(moments.restored(moments.normalized(x)), x)


def test_far_out_numbers_are_clipped():
    normalizer = RunningNormalizer((1,))
    assert normalizer(torch.tensor([[3.0], [99.0]])).tolist() == [[3.0], [10.0]]
    normalizer.see(torch.tensor([[0.0], [2.0]]))
    assert normalizer(torch.tensor([[3.0], [-99.0]])).tolist() == [[2.0], [-10.0]]


ROOM = ("env=escape_room", "env.n_envs=4", "learn.env_steps=100", "learn.evaluate_episodes=4")


@pytest.mark.parametrize("critic", ["own", "separate", "central"])
def test_an_agent_keeps_the_moments_of_what_it_saw(tmp_path, critic):
    run(*ROOM, "agent.normalize_observations=true", f"agent.critic={critic}", f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    saved = saved_state(folder)[1]["agents"][0]["policy"]
    counts = [float(x) for name, x in saved.items() if name.endswith("normalizer.count")]
    assert len(counts) == (2 if critic == "central" else 1) and min(counts) >= 100
    loaded = build_parts(
        compose(*ROOM, "agent.normalize_observations=true", f"agent.critic={critic}", f"agent.init_from='{folder}'"),
        None,
    )
    assert all(torch.equal(loaded.agents[0].policy.state_dict()[name], x) for name, x in saved.items())
    loaded.close()


def test_a_frozen_core_is_given_what_it_was_given():
    with pytest.raises(ConfigError, match="normalize_observations"):
        build_parts(compose(*ROOM, "agent.normalize_observations=true", "agent.freeze=core"), None)
