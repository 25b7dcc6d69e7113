"""Training of a small chat model by group-relative policy optimization."""

import copy

import numpy as np
import pytest
import torch

from learning_chats import compute_log_probs, make_settings, sample_trajectories
from llmrl.chat_learning.token_network import TokenNetwork
from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.llms.local.learning import build_token_sequences
from llmrl.llms.local.lora import Lora
from llmrl.llms.local.prefix_cache import MIN_PREFIX_LENGTH, shared_prefix_length


def weights(chat):
    return {name: parameter.detach().clone() for name, parameter in chat.module.named_parameters()}


@pytest.mark.parametrize("reuse_prefix", [True, False])
def test_network_equals_plain_passes(reuse_prefix, make_chat):
    chat = make_chat(learn=make_settings())
    samples = [turn.sample for t in sample_trajectories(chat) for turn in t.turns]
    sequences = [sequence for s in samples for sequence in build_token_sequences([s])]
    assert shared_prefix_length([sequence.tokens for sequence in sequences]) > MIN_PREFIX_LENGTH
    network = TokenNetwork(chat.module, 1.0, 4096, "float32", reuse_prefix, recompute=False, processes=ProcessGroup())
    log_probs = network(sequences)
    tokens = torch.tensor([token for s in samples for token in s.tokens])
    expected = np.concatenate(compute_log_probs(chat, sequences))
    np.testing.assert_allclose(log_probs.gather(1, tokens[:, None]).squeeze(1).detach().numpy(), expected, atol=1e-5)
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(len(tokens)), atol=1e-5)


def test_gradient_is_invariant_to_pieces_and_prefix(make_chat):
    """The gradient of an update is that of the whole minibatch, for any split and with or without a shared prefix."""
    gradients = []
    for options in ({}, {"piece_tokens": 150}, {"recompute": True}):
        chat = make_chat(learn=make_settings(kl=0.1, **options))
        trajectories = sample_trajectories(chat, reward=lambda game, step, reply: float(game % 3))
        chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(0))
        gradients.append(torch.cat([p.grad.flatten() for p in chat.module.parameters()]))
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("tune", ["full", "lora"])
@pytest.mark.parametrize("advantage", ["episode", "turn", "anchor"])
def test_rewarded_replies_become_more_likely(advantage, tune, make_chat):
    chat = make_chat(learn=make_settings(advantage=advantage, tune=tune, kl=0.0, learning_rate=1e-2))
    trajectories = sample_trajectories(chat, reward=lambda game, step, reply: float(game == 0))
    log_prob = {}
    sequences = [s for t in trajectories for s in build_token_sequences([turn.sample for turn in t.turns])]
    for stage in ("before", "after"):
        log_prob[stage] = [x.sum() for x in compute_log_probs(chat, sequences)]
        if stage == "before":
            metrics = chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(0))
    rewarded = len(build_token_sequences([turn.sample for turn in trajectories[0].turns]))
    change = np.array(log_prob["after"]) - np.array(log_prob["before"])
    assert change[:rewarded].mean() > change[rewarded:].mean()
    assert metrics["learn/log_prob_error"] < 1e-5
    assert metrics["learn/reward"] == 2 / 8 and metrics["learn/invalid"] == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "grpo", "ratio": "reply", "clip_high": 0.3},
        {"loss": "dr_grpo", "kl_estimator": "sampled", "scale": "group"},
        {"entropy": 0.01, "epochs": 2, "minibatch_replies": 4, "scale": "none"},
        {"precision": "bfloat16", "advantage": "anchor", "gamma": 0.9},
    ],
)
def test_options_train(options, make_chat):
    chat = make_chat(learn=make_settings(**options))
    initial = weights(chat)
    trajectories = sample_trajectories(chat, reward=lambda game, step, reply: float(game))
    metrics = chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(0))
    assert all(np.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(parameter, initial[name]) for name, parameter in weights(chat).items())


def test_invalid_replies_are_punished(make_chat):
    learner = make_chat(learn=make_settings(advantage="episode", scale="none", invalid_reward=-2.0)).learners.learner(
        ""
    )
    trajectories = sample_trajectories(learner.chat)
    trajectories[0].turns[1].is_valid = False
    advantages = learner.compute_advantages(trajectories)
    np.testing.assert_allclose(advantages, [-2.0 + 0.25] * 2 + [0.25] * 14)


def test_groups_are_compared_separately(make_chat):
    learner = make_chat(learn=make_settings(advantage="episode", scale="none", group_size=4)).learners.learner("")
    trajectories = sample_trajectories(learner.chat, reward=lambda game, step, reply: float(game >= 4))
    assert not learner.compute_advantages(trajectories).any()


def test_kl_pulls_towards_initial_model(make_chat):
    """Without rewards, the divergence from the initial model falls again."""
    for tune in ("full", "lora"):
        chat = make_chat(learn=make_settings(tune=tune, kl=1.0, learning_rate=3e-3, clip=100.0))
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            chat.learners.learner("").update(
                sample_trajectories(chat, reward=lambda game, step, reply: 10.0 * game), generator
            )
        divergences = [
            chat.learners.learner("").update(sample_trajectories(chat, seed=k), generator)["learn/kl"]
            for k in range(12)
        ]
        assert divergences[-1] < 0.5 * divergences[0]


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_resume_is_exact(tune, make_chat):
    """Three updates equal two updates, a checkpoint, and one update of the restored learner, bit for bit."""

    def update(chat, k):
        trajectories = sample_trajectories(chat, seed=k, reward=lambda game, step, reply: float(len(reply.text) % 3))
        return chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(k))

    options = make_settings(tune=tune, kl=0.1, kl_final=0.01, schedule_updates=3)
    chat = make_chat(learn=options)
    for k in range(2):
        update(chat, k)
    state = copy.deepcopy(chat.learners.learner("").state_dict())
    metrics = update(chat, 2)
    restored = make_chat(learn=options)
    restored.learners.learner("").load_state_dict(state)
    assert update(restored, 2) == metrics
    for name, parameter in weights(chat).items():
        assert torch.equal(parameter, weights(restored)[name])


def test_reset_restores_initial_weights(make_chat):
    chat = make_chat(learn=make_settings())
    initial = weights(chat)
    trajectories = sample_trajectories(chat, reward=lambda game, step, reply: float(game))
    chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(0))
    assert any(not torch.equal(parameter, initial[name]) for name, parameter in weights(chat).items())
    chat.learners.learner("").reset()
    assert all(torch.equal(parameter, initial[name]) for name, parameter in weights(chat).items())
    again = sample_trajectories(chat, reward=lambda game, step, reply: float(game))
    assert [t.turns[0].sample.tokens for t in again] == [t.turns[0].sample.tokens for t in trajectories]


@pytest.mark.parametrize(
    ("options", "learn", "message"),
    [
        ({}, {"group_size": 1}, "group_size"),
        ({"temperature": 0.0}, {}, "temperature"),
        ({"top_p": 0.9}, {}, "top_p"),
        ({"dtype": "bfloat16"}, {}, "dtype"),
        ({}, {"kl_final": 0.1}, "schedule_updates"),
        ({}, {"kl": 0.0, "kl_final": 0.1, "schedule_updates": 3}, "kl"),
        ({}, {"tune": "lora", "lora": Lora(dropout=0.1)}, "dropout"),
    ],
)
def test_incompatible_options_raise(options, learn, message, make_chat):
    with pytest.raises(ConfigError, match=message):
        make_chat(learn=make_settings(**learn), **options)


def test_turn_credit_beats_episode_credit(make_chat):
    """A large reward of the first step, independent of any reply, hides the reward of the second reply.

    The return to go of the second reply does not contain it. So credit for turns makes rewarded second replies more
    likely, and credit for episodes those that follow a lucky first step.
    """
    advantages_of_reply = {}
    for advantage in ("episode", "turn"):
        options = {"group_size": 32, "kl": 0.0, "scale": "none", "learning_rate": 1e-3, "epochs": 4}
        chat = make_chat(learn=make_settings(advantage=advantage, **options))
        luck = np.random.default_rng(0).choice([-5.0, 5.0], size=32)
        trajectories = sample_trajectories(
            chat,
            32,
            reward=lambda game, step, reply, luck=luck: float(reply.sample.tokens[0] % 2) if step else luck[game],
        )
        sequences = build_token_sequences([])
        for trajectory in trajectories:
            sequences += build_token_sequences([trajectory.turns[1].sample])
        before = compute_log_probs(chat, sequences)
        chat.learners.learner("").update(trajectories, torch.Generator().manual_seed(0))
        after = compute_log_probs(chat, sequences)
        change = np.array([(y - x).sum() for x, y in zip(before, after, strict=True)])
        is_rewarded = np.array([trajectory.turns[1].reward > 0 for trajectory in trajectories])
        assert 0 < is_rewarded.sum() < 32
        advantages_of_reply[advantage] = change[is_rewarded].mean() - change[~is_rewarded].mean()
    assert advantages_of_reply["turn"] > 0.05
    assert advantages_of_reply["turn"] > advantages_of_reply["episode"] + 0.05
