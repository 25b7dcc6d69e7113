"""Prefix cache: common prefixes and earlier turns are computed once, and replies do not change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.local.prefix_cache import MIN_PREFIX_LENGTH, PrefixCache, shared_prefix_length
from tiny_models import make_tiny_causal

SYSTEM = "You choose the tax rate of a small island and answer with one number between zero and one. " * 2
QUESTIONS = ["Hi", "What tax rate do you propose?", "0.1 0.2 0.3 " * 6, "Why?", "é ü 漢字"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_causal(tmp_path_factory.mktemp("llama"))


def build(folder, **options):
    return build_model("local_chat", model=str(folder), seeds=Seeds(0), dtype="float32", max_tokens=12, **options)


def count_tokens_read(model):
    """Return a list that receives the number of tokens of each forward pass of a chat model."""
    counts = []
    model.module.register_forward_pre_hook(
        lambda module, arguments, options: counts.append(options["input_ids"].shape[1]), with_kwargs=True
    )
    return counts


def replies(model, questions):
    requests = [
        ChatRequest(({"role": "system", "content": SYSTEM}, {"role": "user", "content": text})) for text in questions
    ]
    # The second batch reuses what the first one has computed.
    return [reply.text for batch in (requests[:3], requests[3:]) for reply in model.complete(batch)]


def converse(model, turns=4, games=3):
    """Return the replies of conversations, in which every prompt contains all earlier turns."""
    conversations = [[{"role": "system", "content": SYSTEM + QUESTIONS[i]}] for i in range(games)]
    texts = []
    for turn in range(turns):
        for i, messages in enumerate(conversations):
            messages.append({"role": "user", "content": QUESTIONS[(turn + i) % len(QUESTIONS)]})
        answers = model.complete([ChatRequest(tuple(messages)) for messages in conversations])
        texts += [answer.text for answer in answers]
        for messages, answer in zip(conversations, answers, strict=True):
            messages.append({"role": "assistant", "content": answer.text})
    return texts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_are_invariant_to_reuse(folder, temperature):
    models = [build(folder, temperature=temperature, prefix_cache_tokens=n) for n in (0, 10_000)]
    assert replies(models[0], QUESTIONS) == replies(models[1], QUESTIONS)


@pytest.mark.parametrize("max_tokens", [400, 10_000])
def test_conversations_are_invariant_to_reuse(folder, max_tokens):
    model = build(folder, prefix_cache_tokens=max_tokens)
    assert converse(model) == converse(build(folder, prefix_cache_tokens=0))
    assert 0 < model._prefix_cache.n_tokens <= max_tokens


def test_prompts_are_read_from_end_of_last_turn(folder):
    cached, uncached = (build(folder, prefix_cache_tokens=n) for n in (10_000, 0))
    counts = [count_tokens_read(model) for model in (cached, uncached)]
    prompts = [[], []]
    for model, count, read in zip((cached, uncached), counts, prompts, strict=True):
        converse(model)
        read += [n for n in count if n > 1]  # others are tokens of replies
    # The first two prompts are read from the end of the system message, later ones from the end of the last turn.
    assert prompts[0][-1] < prompts[1][-1] / 3
    assert max(prompts[0][2:]) < min(prompts[1])


def test_prefix_is_computed_for_first_batch(folder):
    model = build(folder).module
    passes = []
    model.register_forward_hook(lambda *arguments, **options: passes.append(None), with_kwargs=True)
    prompts = [[*range(5, 5 + MIN_PREFIX_LENGTH + 4), i] for i in range(3)]
    cache = PrefixCache(100)
    for _ in range(2):
        lengths, cached = cache.fetch(model, prompts, [""] * 3)
        assert lengths == [MIN_PREFIX_LENGTH + 4] * 3 and cached.get_seq_length() == MIN_PREFIX_LENGTH + 4
    assert len(passes) == 1
    cache.clear()
    cache.fetch(model, prompts, [""] * 3)
    assert len(passes) == 2


def test_keys_and_values_belong_to_one_adapter(folder):
    model = build(folder).module
    prompts = [[*range(5, 5 + MIN_PREFIX_LENGTH), i] for i in range(2)]
    cache = PrefixCache(100)
    assert cache.fetch(model, prompts, ["a", "a"])[0] == [MIN_PREFIX_LENGTH] * 2
    assert cache.fetch(model, prompts, ["a", "b"])[0] == [MIN_PREFIX_LENGTH, 0]


def test_oldest_tokens_are_removed(folder):
    model = build(folder).module
    prompts = [[[*range(start, start + MIN_PREFIX_LENGTH), i] for i in range(2)] for start in (5, 6, 7)]
    cache = PrefixCache(2 * MIN_PREFIX_LENGTH)
    for pair in (prompts[0], prompts[1], prompts[0], prompts[2]):
        cache.fetch(model, pair, [""] * 2)
    assert cache.n_tokens == 2 * MIN_PREFIX_LENGTH
    assert [cache.fetch(model, pair[:1], [""])[0] for pair in prompts] == [
        [MIN_PREFIX_LENGTH],
        [0],
        [MIN_PREFIX_LENGTH],
    ]


@pytest.mark.parametrize(
    "prompts", [[[1, 2, 3], [1, 2, 4]], [list(range(40))]], ids=["too short", "shared with no other prompt"]
)
def test_unused_beginnings_are_not_cached(folder, prompts):
    lengths, cached = PrefixCache(100).fetch(build(folder).module, prompts, [""] * len(prompts))
    assert cached is None and set(lengths) == {0}


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5))
def test_common_length(prompts):
    length = shared_prefix_length(prompts)
    assert length < min(len(prompt) for prompt in prompts)
    assert all(prompt[:length] == prompts[0][:length] for prompt in prompts)
    if length + 1 < min(len(prompt) for prompt in prompts):
        assert len({prompt[length] for prompt in prompts}) > 1
    assert isinstance(length, int | np.integer)
