"""Recurrent policies: states reset between episodes, and training reproduces the states of the rollout."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.algorithms.minibatches import SequenceMinibatches, index_network_samples
from llmrl.algorithms.ppo import PPO, PPOSettings
from llmrl.core.seeding import Seeds
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.layers import RecurrentLayer
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from recall_game import RecallGame

SETTINGS = {
    "learning_rate": 3e-3, "adam_eps": 1e-8, "gamma": 0.99, "gae_lambda": 0.95, "epochs": 2, "minibatch_size": 64,
    "clip": 0.2, "value_clip": None, "normalize_advantage": True, "entropy_coefficient": 0.01,
    "value_coefficient": 0.5, "max_grad_norm": 0.5, "target_kl": None, "bootstrap_truncation": True,
}  # fmt: skip


def make(env, share=True, memory=8, layers=2, critic="own", **changes):
    generator = Seeds(0).torch("weights")
    n = 1 if share else env.spec.n_agents
    networks = [
        ActorCritic(env.spec, generator, NetworkSettings(8, [8], [], None, memory, layers, critic)) for _ in range(n)
    ]
    policy = SocietyPolicy(env.spec, networks, core_frozen=False)
    collector = Collector(env, policy, "cpu")
    collector.reset(0)
    return policy, PPO(policy, PPOSettings(**{**SETTINGS, **changes})), collector


def test_unrolling_is_stepping():
    memory = RecurrentLayer(3, 5, 2, Seeds(0).torch("weights"))
    lengths = torch.tensor([4, 1, 3])
    features = torch.randn(8, 3, generator=Seeds(1).torch("features"))
    start = torch.randn(3, memory.state_size, generator=Seeds(2).torch("state"))
    expected = []
    for sequence, state in zip(torch.split(features, lengths.tolist()), start, strict=True):
        state = state[None]
        for row in sequence:
            output, state = memory.step(row[None], state)
            expected.append(output[0])
    torch.testing.assert_close(memory.unroll(features, lengths, start), torch.stack(expected))


def test_zero_state_equals_no_state():
    memory = RecurrentLayer(3, 5, 2, Seeds(0).torch("weights"))
    row = torch.ones(2, 3)
    torch.testing.assert_close(memory.step(row, None)[0], memory.step(row, torch.zeros(2, memory.state_size))[0])


@given(
    first=st.integers(1, 12).flatmap(
        lambda t: st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=t, max_size=t)
    ),
    size=st.one_of(st.none(), st.integers(1, 40)),
)
@settings(max_examples=60)
def test_sequences_cover_samples_once(first, size):
    first = torch.tensor(first)
    steps, rows = first.shape
    place = torch.arange(steps * rows)
    state = torch.arange(1.0, rows + 1)[:, None]
    minibatches = SequenceMinibatches({"action": place, "place": place}, place, size, first, state)
    batches = list(minibatches.iterate_batches(torch.randperm(minibatches.n_units, generator=Seeds(3).torch("order"))))
    assert sorted(torch.cat([b["place"] for b in batches]).tolist()) == place.tolist()
    assert all(len(b["place"]) >= (size or steps * rows) for b in batches[:-1])
    assert size is None or all(len(b["place"]) - b["lengths"][-1] < size for b in batches), (
        "one stretch fewer is enough"
    )
    for batch in batches:
        for stretch, initial_state in zip(
            torch.split(batch["place"], batch["lengths"].tolist()), batch["state"], strict=True
        ):
            time, row = stretch // rows, stretch % rows
            assert (row == row[0]).all() and (time.diff() == 1).all()
            assert not first[time[1:], row[0]].any(), "a stretch goes on over the start of an episode"
            assert time[0] == 0 or first[time[0], row[0]]
            is_carried = time[0] == 0 and not first[0, row[0]]
            assert initial_state.item() == (row[0] + 1 if is_carried else 0)


@pytest.mark.parametrize("share", [True, False], ids=["shared", "separate"])
def test_training_states_equal_rollout_states(share):
    """Compare log-probabilities and values of the first minibatches with the recorded ones."""
    env = RecallGame([3, 5, 7], n_agents=2)
    policy, ppo, collector = make(env, share=share)
    for i in range(3):
        rollout = collector.collect(4, Seeds(i).torch("actions"))
        assert i == 0 or (~rollout.episode_start[0]).any(), "no episode goes on into this rollout"
        advantage, _ = ppo.estimate_advantages(rollout)
        data = ppo.build_samples(rollout) | {"advantage": advantage.flatten()}
        groups = policy.list_networks()
        indices = index_network_samples(rollout.reward.shape, 1, len(groups))
        for (network, agents), samples in zip(groups, indices, strict=True):
            minibatches = ppo.make_minibatches(rollout, data, samples, agents)
            for batch in minibatches.iterate_batches(
                next(ppo.sample_permutations(minibatches.n_units, Seeds(9).torch("order")))
            ):
                logits, value = network(batch)
                log_prob = logits.log_softmax(-1).gather(1, batch["action"][:, None])[:, 0]
                torch.testing.assert_close(log_prob, batch["log_prob"])
                torch.testing.assert_close(value, batch["value"])
        ppo.update(rollout, Seeds(i).torch("minibatches"))


def test_all_segments_are_used():
    """Check that `drop_last` has no effect, because minibatches of sequences differ in size."""
    updated = []
    for drop_last in (False, True):
        policy, ppo, collector = make(RecallGame([3, 5, 4, 6, 2]), minibatch_size=16, drop_last=drop_last)
        ppo.update(collector.collect(13, Seeds(1).torch("actions")), Seeds(0).torch("minibatches"))
        updated.append(torch.nn.utils.parameters_to_vector(policy.parameters()).detach())
    assert torch.equal(*updated)


def test_state_resets_with_episode():
    """Check that equal observations after a reset give equal actions."""
    env = RecallGame([3, 3])
    _, _, collector = make(env)
    rollout = collector.collect(9, Seeds(0).torch("actions"))
    signals = rollout.observation["vector"]
    at_start = rollout.episode_start[:, :, None]
    assert at_start.sum() == 6
    actions_by_signal = {}
    for t, game in itertools.product((0, 3, 6), range(2)):
        actions_by_signal.setdefault(int(signals[t, game, 0].argmax()), []).append(float(rollout.value[t, game, 0]))
    assert len(actions_by_signal) == 2, "both signals should have been drawn"
    for values in actions_by_signal.values():
        np.testing.assert_allclose(values, values[0], rtol=1e-6)


@pytest.mark.slow
def test_recall_game_requires_memory():
    def score(memory):
        env = RecallGame([4] * 16)
        _, ppo, collector = make(env, memory=memory, layers=1, learning_rate=1e-2)
        for i in range(60):
            rollout = collector.collect(8, Seeds(i).torch("actions"))
            ppo.update(rollout, Seeds(i).torch("minibatches"))
        return np.mean([e.summaries["correct"] for e in collector.collect(40, Seeds(99).torch("a")).episodes])

    assert score(8) > 0.9
    assert score(None) < 0.7


def test_resume_within_episode():
    env = RecallGame([5, 7])
    policy, _, collector = make(env)
    collector.collect(3, Seeds(0).torch("actions"))
    state = collector.state_dict()
    expected = collector.collect(6, Seeds(1).torch("actions"))
    expected = expected.copy()
    second_collector = Collector(RecallGame([5, 7], seed=5), policy, "cpu")
    second_collector.load_state_dict(state)
    restart = second_collector.collect(6, Seeds(1).torch("actions"))
    assert torch.equal(restart.action, expected.action) and torch.equal(restart.episode_start, expected.episode_start)
    assert torch.equal(restart.value, expected.value) and torch.equal(restart.state, expected.state)
