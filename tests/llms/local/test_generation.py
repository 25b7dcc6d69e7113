"""Continuous batching: waiting prompts replace finished replies, and replies do not change."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.local.generation import FinishedRepliesCriterion, plan_batches
from tiny_models import make_tiny_causal

MAX_TOKENS, ROWS = 60, 4


def frequent_ends(folder):
    """Make every tenth token an end token, so that the lengths of replies differ."""
    path = folder / "generation_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    size = AutoConfig.from_pretrained(folder).vocab_size
    path.write_text(json.dumps(config | {"eos_token_id": list(range(5, size, 10))}))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return frequent_ends(make_tiny_causal(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def sliding(tmp_path_factory):
    """Return the folder of a model with a sliding window of eight tokens."""
    folder = make_tiny_causal(tmp_path_factory.mktemp("mistral"))
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        "mistral",
        vocab_size=AutoConfig.from_pretrained(folder).vocab_size,
        sliding_window=8,
        num_key_value_heads=2,
        **sizes,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return frequent_ends(folder)


def build(folder, batch_tokens, **options):
    return build_model(
        "local_chat",
        model=str(folder),
        seeds=Seeds(0),
        dtype="float32",
        max_tokens=MAX_TOKENS,
        batch_tokens=batch_tokens,
        **options,
    )


def ask(i):
    return ChatRequest(({"role": "user", "content": f"Question {i}: {'why ' * (i % 3)}?"},))


def limit(model, requests):
    """Return the `batch_tokens` that admit `ROWS` prompts."""
    return ROWS * (max(model.count_tokens(request.messages) for request in requests) + MAX_TOKENS)


@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_replies_match_single_batch(name, request):
    folder = request.getfixturevalue(name)
    requests = [ask(i) for i in range(14)]
    together = build(folder, 10**6)
    separate = build(folder, limit(together, requests))
    expected = together.complete(requests)
    assert separate.complete(requests) == expected
    assert separate._generator._can_join_batches is (name == "llama")
    assert len({reply.completion_tokens for reply in expected}) > 5


def test_fewer_passes_than_batches_in_sequence(llama):
    requests = [ask(i) for i in range(24)]
    model = build(llama, limit(build(llama, 1), requests))
    passes = []
    model.module.register_forward_pre_hook(lambda *_, **__: passes.append(None), with_kwargs=True)
    lengths = [reply.completion_tokens for reply in model.complete(requests)]
    prompts = [model.count_tokens(request.messages) for request in requests]
    batches = plan_batches(prompts, MAX_TOKENS, model.settings.batch_tokens)
    in_sequence = sum(max(lengths[i] for i in batch) for batch in batches)
    assert len(passes) < 0.8 * in_sequence


def test_batches_respect_limit(llama):
    requests = [ask(i) for i in range(14)]
    model = build(llama, limit(build(llama, 1), requests))
    sizes = []
    model.module.register_forward_pre_hook(
        lambda module, arguments, options: sizes.append(options["input_ids"].shape[0]), with_kwargs=True
    )
    model.complete(requests)
    assert min(sizes) >= 1 and max(sizes) == ROWS


def test_joined_conversations_are_continued_from_cache(llama):
    """Prompts that join a running batch store the same keys and values."""
    conversations = [
        (*ask(i).messages, {"role": "assistant", "content": "Because."}, {"role": "user", "content": f"{i}?"})
        for i in range(10)
    ]
    texts = []
    for n_cached in (0, 10_000):
        model = build(llama, 1, prefix_cache_tokens=n_cached)
        requests = [ChatRequest(messages) for messages in conversations]
        model = build(llama, limit(model, requests), prefix_cache_tokens=n_cached)
        first = model.complete(requests)
        assert (model._prefix_cache.n_tokens > 0) is (n_cached > 0)
        longer = [
            ChatRequest((*m, {"role": "assistant", "content": r.text}, {"role": "user", "content": "And?"}))
            for m, r in zip(conversations, first, strict=True)
        ]
        texts.append([reply.text for reply in (*first, *model.complete(longer))])
    assert texts[0] == texts[1]


def test_criterion_ends_batch_when_enough_are_finished():
    finished = FinishedRepliesCriterion([3, 2, 3], [7], min_finished=2)
    tokens = torch.tensor([[1, 1], [1, 1], [1, 7]])
    assert finished(tokens, torch.empty(0)).tolist() == [False, False, True]
    assert finished(tokens, torch.empty(0)).tolist() == [True, True, True]  # the second one is at its limit
    assert finished.is_finished.tolist() == [False, True, True]
    assert finished.lengths.tolist() == [2, 2, 1]
