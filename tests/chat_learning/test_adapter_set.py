"""Adapters of one chat model: they are computed in one batch, learn separately, and share the model's weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from learning_chats import QUESTIONS, make_request, make_settings, sample_trajectories
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.llms.local.learning import build_token_sequences

NAMES = ("society_0", "society_1")


def trained_chat(make_chat):
    """Return a chat model with two adapters, of which the second one was trained to other replies."""
    chat = make_chat(learn=make_settings(tune="lora", kl=0.0, learning_rate=3e-2))
    for name in NAMES:
        chat.learners.learner(name)
    for seed in range(3):
        trajectories = sample_trajectories(chat, seed=seed, reward=lambda game, step, reply: float(game == 0))
        chat.learners.learner("society_1").update(trajectories, torch.Generator().manual_seed(0))
    return chat


def adapter_parameters(chat, name):
    return {key: x.detach().clone() for key, x in chat.learners.adapters.parameters(name).items()}


def test_batch_of_two_adapters_equals_separate_batches(make_chat):
    chat = trained_chat(make_chat)
    requests = [replace(make_request(QUESTIONS[i % 2], repeat=i), adapter=NAMES[i % 2]) for i in range(6)]
    mixed_batch = chat.complete(requests)
    for start in (0, 1):
        for reply, single in zip(mixed_batch[start::2], chat.complete(requests[start::2]), strict=True):
            assert reply.text == single.text
            np.testing.assert_allclose(reply.sample.log_probs, single.sample.log_probs, atol=1e-5)
    # The adapters differ, so the batch did not simply use one of them.
    exchanged = chat.complete([replace(r, adapter=NAMES[1 - i % 2]) for i, r in enumerate(requests)])
    assert any(a.text != b.text for a, b in zip(mixed_batch, exchanged, strict=True))


def test_loss_has_gradients_for_one_adapter(make_chat):
    chat = make_chat(learn=make_settings(tune="lora", kl=0.1, learning_rate=1e-2))
    first, second = (chat.learners.learner(name) for name in NAMES)
    second.state_dict()  # creates its adapter
    before = adapter_parameters(chat, "society_1")
    first.update(sample_trajectories(chat, reward=lambda game, step, reply: float(game)), torch.Generator())
    assert all(p.grad is None for p in chat.learners.adapters.parameters("society_1").values())
    assert any(p.grad is not None and p.grad.any() for p in chat.learners.adapters.parameters("society_0").values())
    assert all((x == before[name]).all() for name, x in adapter_parameters(chat, "society_1").items())
    assert all(p.grad is None for name, p in chat.module.named_parameters() if ".lora_" not in name)


def test_memory_grows_by_the_adapter(make_chat):
    chat = make_chat(learn=make_settings(tune="lora"))
    chat.learners.learner("society_0").state_dict()
    sizes = [sum(p.numel() for p in chat.module.parameters())]
    chat.learners.learner("society_1").state_dict()
    sizes.append(sum(p.numel() for p in chat.module.parameters()))
    adapter = sum(p.numel() for p in chat.learners.adapters.parameters("society_1").values())
    assert sizes[1] - sizes[0] == adapter < sizes[0] / 2


def test_reset_and_state_concern_one_adapter(make_chat):
    chat = trained_chat(make_chat)
    learners = [chat.learners.learner(name) for name in NAMES]
    trained, state = adapter_parameters(chat, "society_1"), learners[1].state_dict()
    initial = adapter_parameters(chat, "society_0")
    learners[1].reset()
    assert all((x == initial[name]).all() for name, x in adapter_parameters(chat, "society_1").items())
    # The state of one society may be loaded by another one.
    learners[0].load_state_dict(state)
    assert all((x == trained[name]).all() for name, x in adapter_parameters(chat, "society_0").items())


def test_societies_with_equal_seeds_draw_equal_noise(make_chat):
    chat = make_chat(learn=make_settings(tune="lora"))
    for name, seed in zip((*NAMES, "society_2"), (0, 0, 1), strict=True):
        chat.learners.learner(name, Seeds(seed))
    requests = [replace(make_request(QUESTIONS[0]), adapter=name) for name in (*NAMES, "society_2")]
    first, second, third = (reply.text for reply in chat.complete(requests))
    assert first == second != third


def test_full_training_has_one_learner(make_chat):
    chat = make_chat(learn=make_settings(tune="full"))
    assert chat.learners.learner("") is chat.learners.learner("")
    with pytest.raises(ConfigError, match=r"llm\.learn\.tune"):
        chat.learners.learner("society_0")


@pytest.mark.parametrize("sharing", ["per_player", "per_member"])
def test_separate_adapters_need_lora(sharing):
    with pytest.raises(ConfigError, match=r"llm\.learn\.adapters"):
        make_settings(tune="full", adapters=sharing)


def test_sampling_and_update_agree_for_each_adapter(make_chat):
    """Log-probabilities of the first update equal those of sampling in a batch of several adapters."""
    chat = trained_chat(make_chat)
    requests = [replace(make_request(QUESTIONS[0], repeat=i), adapter=NAMES[i % 2]) for i in range(4)]
    replies = chat.complete(requests)
    for k, name in enumerate(NAMES):
        chat.learners.adapters.activate(name)
        for reply in replies[k::2]:
            [sequence] = build_token_sequences([reply.sample])
            logits = chat.module(input_ids=torch.tensor([sequence.tokens])).logits[0]
            log_probs = logits.log_softmax(-1)[sequence.positions - 1, np.array(sequence.tokens)[sequence.positions]]
            np.testing.assert_allclose(log_probs.detach().numpy(), sequence.log_probs, atol=1e-5)
