"""The common beginning of prompts is computed once, and replies stay the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.local.prefix_cache import MIN_LENGTH, PrefixCache, common_length
from tiny_models import make_tiny_causal

SYSTEM = "You choose the tax rate of a small island and answer with one number between zero and one. " * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_causal(tmp_path_factory.mktemp("llama"))


def replies(folder, questions, **options):
    model = build_model("local_chat", model=str(folder), seeds=Seeds(0), max_tokens=12, **options)
    requests = [
        ChatRequest(({"role": "system", "content": SYSTEM}, {"role": "user", "content": text})) for text in questions
    ]
    # The second batch reuses what the first one has computed.
    return [reply.text for batch in (requests[:3], requests[3:]) for reply in model.complete(batch)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_are_invariant_to_reuse(folder, temperature):
    questions = ["Hi", "What tax rate do you propose?", "0.1 0.2 0.3 " * 6, "Why?", "é ü 漢字"]
    options = {"temperature": temperature, "dtype": "float32"}
    assert replies(folder, questions, reuse_prefix=True, **options) == replies(
        folder, questions, reuse_prefix=False, **options
    )


def test_prefix_is_computed_for_first_batch(folder):
    model = build_model("local_chat", model=str(folder), seeds=Seeds(0)).module
    passes = []
    model.register_forward_hook(lambda *arguments, **options: passes.append(None), with_kwargs=True)
    prompts = [[*range(5, 5 + MIN_LENGTH + 4), i] for i in range(3)]
    cache = PrefixCache()
    for _ in range(2):
        length, keys_values = cache.keys_values(model, prompts)
        assert length == MIN_LENGTH + 4 and keys_values.get_seq_length() == length
    assert len(passes) == 1
    cache.clear()
    cache.keys_values(model, prompts)
    assert len(passes) == 2


def test_short_beginnings_are_not_cached(folder):
    model = build_model("local_chat", model=str(folder), seeds=Seeds(0)).module
    assert PrefixCache().keys_values(model, [[1, 2, 3], [1, 2, 4]]) == (0, None)
    assert PrefixCache().keys_values(model, [list(range(40))]) == (0, None)  # a single prompt shares it with nobody


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5))
def test_common_length(prompts):
    length = common_length(prompts)
    assert length < min(len(prompt) for prompt in prompts)
    assert all(prompt[:length] == prompts[0][:length] for prompt in prompts)
    if length + 1 < min(len(prompt) for prompt in prompts):
        assert len({prompt[length] for prompt in prompts}) > 1
    assert isinstance(length, int | np.integer)
