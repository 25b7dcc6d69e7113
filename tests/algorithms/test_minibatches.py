"""Division of samples into minibatches, and normalization of advantages."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.algorithms.advantages_and_losses import normalize_advantages
from llmrl.algorithms.minibatches import Minibatches, split_minibatches
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds


def permutation(n, seed=0):
    return torch.randperm(n, generator=Seeds(seed).torch("order"))


@given(n=st.integers(1, 50), size=st.one_of(st.none(), st.integers(1, 60)), drop_last=st.booleans())
@settings(max_examples=150)
def test_epoch_covers_samples(n, size, drop_last):
    batch_size = size or n
    samples = Minibatches({"action": torch.arange(n)}, torch.arange(n), size, drop_last)
    if drop_last and batch_size > n:
        with pytest.raises(ConfigError, match=rf"drop_last=true .* {n} .*agent\.ppo\.minibatch_size={size}"):
            list(samples.iterate_batches(permutation(n)))
        return
    sizes = [len(batch["action"]) for batch in samples.iterate_batches(permutation(n))]
    actions = torch.cat([batch["action"] for batch in samples.iterate_batches(permutation(n))])
    rest = n % batch_size
    assert sizes == [batch_size] * (n // batch_size) + [rest] * bool(rest and not drop_last)
    assert len(set(actions.tolist())) == len(actions) == sum(sizes)


def test_omitted_samples_vary_between_epochs():
    samples = Minibatches({"action": torch.arange(11)}, torch.arange(11), 10, drop_last=True)
    omitted = set()
    for seed in range(20):
        [batch] = samples.iterate_batches(permutation(11, seed))
        omitted |= set(range(11)) - set(batch["action"].tolist())
    assert len(omitted) > 5


def test_stacked_networks_match_separate_minibatches():
    orders = torch.stack([torch.randperm(7, generator=Seeds(k).torch("order")) for k in range(2)])
    positions = torch.arange(14).view(2, 7)
    for drop_last, sizes in ((False, [3, 3, 1]), (True, [3, 3])):
        minibatches = Minibatches({"place": torch.arange(14)}, positions, 3, drop_last)
        stacked_batches = [batch["place"] for batch in minibatches.iterate_batches(orders)]
        assert [x.shape[1] for x in stacked_batches] == sizes
        for k in range(2):
            single_batches = split_minibatches(orders[k], 3, drop_last)
            assert [x[k].tolist() for x in stacked_batches] == [(7 * k + x).tolist() for x in single_batches]


def test_normalization_uses_sample_deviation():
    advantage = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 0.0]])
    # Variance 14 / 2 of the first row.
    torch.testing.assert_close(
        normalize_advantages(advantage, 0.5)[0], torch.tensor([-2.0, -1.0, 3.0]) / (7**0.5 + 0.5)
    )
    assert normalize_advantages(advantage, 1e-8)[1].tolist() == [0.0, 0.0, 0.0]
    assert normalize_advantages(torch.tensor([3.0]), 1e-8).tolist() == [3.0]
