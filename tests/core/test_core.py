"""Seed tree, mechanism bounds, categorical sampling."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds, make_generators
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.networks.action_distributions import CategoricalDistribution, mask_logits, sample_categorical

SPEC = ParameterSpace(
    "tax",
    (Parameter("low", 0.0, 1.0, "rate", "paid by the poor"), Parameter("high", -2.0, 3.0, "rate", "paid by the rich")),
)


@given(st.integers(0, 2**32), st.text(min_size=1), st.text(min_size=1))
def test_streams_are_reproducible(seed, first_pair, second_pair):
    assert Seeds(seed).integer(first_pair) == Seeds(seed).integer(first_pair)
    assert Seeds(seed).child(first_pair).integer(second_pair) == Seeds(seed).child(first_pair).integer(second_pair)
    assert (Seeds(seed).numpy(first_pair).random(4) == Seeds(seed).numpy(first_pair).random(4)).all()
    assert Seeds(seed).torch(first_pair).initial_seed() == Seeds(seed).integer(first_pair)
    if first_pair != second_pair:
        first, second = (Seeds(seed).numpy(name).random(4) for name in (first_pair, second_pair))
        assert (first != second).any()


def test_streams_match_stored_runs():
    """Check fixed numbers: a change would alter every run."""
    assert Seeds(3).child("loop").child(2).integer("env") == 1904692474
    assert Seeds(3).replicates(2)[1].integer("env") == 891335952


def test_child_streams_are_distinct_from_parent():
    seeds = Seeds(0)
    draws = [seeds.integer("a"), seeds.child("a").integer("a"), seeds.child("b").integer("a"), seeds.integer(0)]
    draws += [seeds.child(i).integer("a") for i in range(50)]
    assert len(set(draws)) == len(draws)


NODES = st.tuples(
    st.sampled_from([0, 1, 2**32, 2**32 + 1, 2**64, 2**96, 2**128 - 1]),
    st.lists(st.sampled_from([0, 1, 2, 2**32 - 1]), min_size=1, max_size=5),
)


@given(NODES, NODES)
def test_different_nodes_have_different_streams(first_pair, second_pair):
    """Include paths that differ only by trailing zeros."""

    def stream(seed, path):
        node = Seeds(seed)
        for name in path[:-1]:
            node = node.child(name)
        return node.sequence(path[-1]).generate_state(4).tolist()

    assert (stream(*first_pair) == stream(*second_pair)) == (first_pair == second_pair)


def test_rejects_large_seeds():
    """Check limits: NumPy would map index 2**32 to the stream of 0/1 and seed 2**128 to index 1 of seed 0."""
    for index in (-1, 2**32):
        with pytest.raises(ValueError, match=str(index)):
            Seeds(0).child(index)
        with pytest.raises(ValueError, match=str(index)):
            Seeds(0).integer(index)
    for seed in (-1, 2**128):
        with pytest.raises(ValueError, match=str(seed)):
            Seeds(seed)


def test_sweep_replicates_have_distinct_streams():
    """Compare all draws at all nodes of the tree; the first replicate is the run itself."""
    sweep = [tree for seed in range(20) for tree in Seeds(seed).replicates(16)]
    for node in (sweep, [tree.child("loop").child("step").child(3).child("adapt").child(0) for tree in sweep]):
        for name in ("env", "actions", "minibatches", "weights", 0):
            assert len({tree.integer(name) for tree in node}) == 320
            assert len({tuple(tree.numpy(name).integers(2**63, size=2)) for tree in node}) == 320
    assert len({tree.replicate_label for tree in sweep}) == 320
    loop = Seeds(3).child("loop")
    assert loop.replicates(2)[0].integer("env") == loop.integer("env")
    assert loop.replicates(2)[1].integer("env") == Seeds(3).replicates(2)[1].child("loop").integer("env")


def test_equal_seeds_give_equal_generators():
    separate, shared = make_generators([3, 3, 4]), make_generators([3, 3, 4], shared=True)
    draws = [torch.rand(1, generator=generator).item() for generator in separate]
    assert draws[0] == draws[1] != draws[2] and len(set(map(id, separate))) == 3
    assert shared[0] is shared[1] is not shared[2]
    shared_draws = [torch.rand(1, generator=generator).item() for generator in shared]
    assert (shared_draws[0], shared_draws[2]) == (draws[0], draws[2]) and shared_draws[1] != shared_draws[0]


@given(st.lists(st.floats(allow_nan=True, width=32), min_size=2, max_size=2))
def test_check_accepts_bounds(values):
    in_bounds = all(low <= v <= high for v, low, high in zip(values, SPEC.low, SPEC.high, strict=True))
    if in_bounds:
        assert SPEC.check(values).tolist() == values
    else:
        with pytest.raises(ConfigError, match="is outside"):
            SPEC.check(values)


def test_check_message_gives_bounds():
    with pytest.raises(ConfigError, match=r"high=4 .*\[-2, 3\] \(rate\)"):
        SPEC.check([0.5, 4])
    with pytest.raises(ConfigError, match="takes 2 numbers"):
        SPEC.check([[0.5], [0.5]])
    with pytest.raises(ConfigError, match="takes 2 numbers"):
        SPEC.check("lots")
    assert SPEC.check([[0.5, 3], [1, -2]]).shape == (2, 2)


def test_sampling_follows_distribution_and_mask():
    logits = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4])).expand(40_000, 4)
    draws = sample_categorical(logits, Seeds(0).torch("x"))
    shares = np.bincount(draws.numpy(), minlength=4) / len(draws)
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=0.01)
    masked = mask_logits(logits, torch.tensor([True, False, True, False]))
    shares = np.bincount(sample_categorical(masked, Seeds(0).torch("x")).numpy(), minlength=4) / len(draws)
    np.testing.assert_allclose(shares, [0.25, 0, 0.75, 0], atol=0.01)
    log_prob, entropy = CategoricalDistribution.log_prob_entropy(masked[:1], torch.tensor([2]))
    assert log_prob.exp().item() == pytest.approx(0.75, abs=1e-5)
    assert entropy.item() == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)), abs=1e-5)
