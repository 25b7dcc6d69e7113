"""How samples are cut into minibatches, and over which of them advantages are normalised."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.algorithms.advantages import normalized
from llmrl.algorithms.minibatches import Minibatches, split_minibatches
from llmrl.algorithms.societies.batched_trainer import StackedMinibatches
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds


@given(n=st.integers(1, 50), size=st.one_of(st.none(), st.integers(1, 60)), drop_last=st.booleans())
@settings(max_examples=150)
def test_every_sample_once_or_all_but_a_smaller_rest(n, size, drop_last):
    wanted = size or n
    samples = Minibatches({"action": torch.arange(n)}, size, drop_last)
    if drop_last and wanted > n:
        with pytest.raises(ConfigError, match=f"agent.ppo.drop_last .* {n} samples .* agent.ppo.minibatch_size={size}"):
            list(samples.epoch(Seeds(0).torch("order")))
        return
    sizes = [len(batch["action"]) for batch in samples.epoch(Seeds(0).torch("order"))]
    seen = torch.cat([batch["action"] for batch in samples.epoch(Seeds(0).torch("order"))])
    rest = n % wanted
    assert sizes == [wanted] * (n // wanted) + [rest] * bool(rest and not drop_last)
    assert len(set(seen.tolist())) == len(seen) == sum(sizes)


def test_what_is_left_out_differs_between_epochs():
    samples, generator = Minibatches({"action": torch.arange(11)}, 10, drop_last=True), Seeds(0).torch("order")
    left_out = set()
    for _ in range(20):
        [batch] = samples.epoch(generator)
        left_out |= set(range(11)) - set(batch["action"].tolist())
    assert len(left_out) > 5


def test_networks_side_by_side_are_dealt_as_each_alone():
    orders = torch.stack([torch.randperm(7, generator=Seeds(k).torch("order")) for k in range(2)])
    where = torch.arange(14).view(2, 7)
    for drop_last, sizes in ((False, [3, 3, 1]), (True, [3, 3])):
        [epoch] = StackedMinibatches({"place": torch.arange(14)}, where, orders[:, None], 3, drop_last).epochs()
        together = [batch["place"] for batch in epoch]
        assert [x.shape[1] for x in together] == sizes
        for k in range(2):
            alone = split_minibatches(orders[k], 3, drop_last)
            assert [x[k].tolist() for x in together] == [(7 * k + x).tolist() for x in alone]


def test_normalised_by_the_sample_standard_deviation():
    advantage = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 0.0]])
    # Variance 14 / 2 of the first row.
    torch.testing.assert_close(normalized(advantage, 0.5)[0], torch.tensor([-2.0, -1.0, 3.0]) / (7**0.5 + 0.5))
    assert normalized(advantage, 1e-8)[1].tolist() == [0.0, 0.0, 0.0]
    assert normalized(torch.tensor([3.0]), 1e-8).tolist() == [3.0]
