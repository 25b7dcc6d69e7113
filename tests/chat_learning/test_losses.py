"""Losses over sampled tokens, compared with values and gradients of TRL."""

from types import SimpleNamespace

import pytest
import torch

from llmrl.chat_learning import advantages_and_losses

CLIP, CLIP_HIGH, KL, MAX_TOKENS = 0.2, 0.3, 0.1, 7
LENGTHS = (5, 2, 7)


def recorded_batch(seed):
    """Return per-token log-probabilities (current, old, reference) as padded matrices, advantages and the mask."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    log_prob = -3 * torch.rand(shape, generator=generator, dtype=torch.float64)
    old = log_prob + 1.2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    reference = log_prob + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantage = torch.randn(shape[0], generator=generator, dtype=torch.float64)
    mask = (torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]).double()
    return log_prob, old, reference, advantage, mask


def trl_loss(log_prob, old, reference, advantage, mask, loss, level):
    """Return the loss of TRL's `GRPOTrainer._compute_loss` for recorded log-probabilities."""
    from collections import defaultdict

    trl = pytest.importorskip("trl")
    names = {"token": "token", "reply": "sequence"}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (log_prob, torch.zeros_like(log_prob), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=names[level],
        beta=KL,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        loss_type=loss,
        epsilon_low=CLIP,
        epsilon_high=CLIP_HIGH,
        use_vllm=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_TOKENS,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
        ),
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    n, width = mask.shape
    inputs = {
        "prompt_ids": torch.zeros(n, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(n, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(n, width, dtype=torch.int64),
        "completion_mask": mask,
        "advantages": advantage,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    return trl.GRPOTrainer._compute_loss(trainer, None, inputs)


@pytest.mark.parametrize("level", ["token", "reply"])
@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo"])
def test_loss_equals_trl(loss, level):
    log_prob, old, reference, advantage, mask = recorded_batch(0)
    theirs_input = log_prob.clone().requires_grad_()
    theirs = trl_loss(theirs_input, old, reference, advantage, mask, loss, level)
    theirs.backward()
    ours_input = log_prob.clone().requires_grad_()
    select = mask.bool()
    reply = torch.arange(len(LENGTHS))[:, None].expand(mask.shape)[select]
    flat = ours_input[select]
    weights = advantages_and_losses.token_weights(reply, loss, len(LENGTHS), sum(LENGTHS), MAX_TOKENS)
    log_ratio = advantages_and_losses.log_ratios(flat, old[select], reply, level)
    token_loss, is_clipped = advantages_and_losses.policy_loss(log_ratio, advantage[reply], CLIP, CLIP_HIGH)
    ours = (weights * (token_loss + KL * advantages_and_losses.sampled_kl(flat, reference[select]))).sum()
    ours.backward()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(ours_input.grad, theirs_input.grad, rtol=1e-5, atol=1e-7)
    assert 0 < is_clipped.sum() < len(is_clipped)


def test_exact_kl_is_expected_sampled_kl():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(4, 6, generator=generator, dtype=torch.float64).log_softmax(-1)
    reference = torch.randn(4, 6, generator=generator, dtype=torch.float64).log_softmax(-1)
    expected = sum(
        log_probs[:, k].exp() * advantages_and_losses.sampled_kl(log_probs[:, k], reference[:, k]) for k in range(6)
    )
    torch.testing.assert_close(advantages_and_losses.exact_kl(log_probs, reference), expected)
    assert float(advantages_and_losses.exact_kl(log_probs, log_probs).abs().max()) < 1e-12


def test_entropy_of_uniform_distribution():
    log_probs = torch.full((2, 8), 1 / 8).log()
    torch.testing.assert_close(advantages_and_losses.entropy(log_probs), torch.full((2,), 8.0).log())
