"""Local chat models: batches, random numbers, token counts and errors."""

import importlib.util
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.llms.by_name import build_model
from llmrl.llms.local.generation import GumbelNoise, pad_left, plan_batches
from tiny_models import CHAT_TEMPLATE, make_tiny_causal, make_tiny_tokenizer

QUESTIONS = ["Hi", "What tax rate do you propose for the next year?", "0.1 0.2 0.3 " * 12, "Why?", "é ü 漢字"]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def folder(request, tmp_path_factory):
    """Return the folder of a model with rotary or learned positions, which padding must not shift."""
    return make_tiny_causal(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_tiny_causal(tmp_path_factory.mktemp("llama"))


def chat(folder, seed=0, **options):
    """Return a chat model in float32, where padding changes only the sixth digit and thus no token."""
    options = {"dtype": "float32", "max_tokens": 12} | options
    return build_model("local_chat", model=str(folder), seeds=Seeds(seed), **options)


def ask(text, repeat=0, system=None):
    messages = ({"role": "system", "content": system},) if system else ()
    return ChatRequest((*messages, {"role": "user", "content": text}), repeat=repeat)


def texts(model, requests):
    return [reply.text for reply in model.complete(requests)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batch_matches_single_requests(folder, temperature):
    model = chat(folder, temperature=temperature)
    requests = [ask(question) for question in QUESTIONS]
    batched = model.complete(requests)
    assert batched == [model.complete([request])[0] for request in requests]
    assert len({reply.text for reply in batched}) == len(QUESTIONS)  # else nothing was compared


def test_greedy_replies_are_the_likeliest_tokens(llama):
    """The reference is a forward pass over the whole text at each step, without cache, padding or `generate`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(llama), AutoTokenizer.from_pretrained(llama)
    ids = tokenizer("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    references = []
    with torch.no_grad():
        while len(references) < 12 and tokenizer.eos_token_id not in references:
            references.append(int(model(torch.tensor([ids + references])).logits[0, -1].argmax()))
    (reply,) = chat(llama, temperature=0.0).complete([ask("Hi")])
    assert reply.text == tokenizer.decode(references, skip_special_tokens=True)
    assert reply.prompt_tokens == len(ids) and reply.completion_tokens == len(references)


def test_sampled_reply_is_batch_invariant(llama):
    model = chat(llama, batch_tokens=80)  # several batches
    requests = [ask(question) for question in QUESTIONS]
    forward, backward = texts(model, requests), texts(model, requests[::-1])
    assert forward == backward[::-1] == texts(chat(llama, batch_tokens=10_000), requests)


def test_single_requests_round_identically(llama):
    model = chat(llama, dtype="bfloat16", batch_tokens=1, max_tokens=40)
    requests = [ask(question) for question in QUESTIONS]
    assert texts(model, requests) == texts(model, requests[::-1])[::-1] == [texts(model, [r])[0] for r in requests]


def test_seed_or_repeat_changes_reply(llama):
    first = texts(chat(llama), [ask("Hi"), ask("Hi", repeat=1)])
    seed_texts = texts(chat(llama, seed=1), [ask("Hi"), ask("Hi", repeat=1)])
    assert len({*first, *seed_texts}) == 4
    greedy = chat(llama, temperature=0.0)
    assert texts(greedy, [ask("Hi")]) == texts(greedy, [ask("Hi", repeat=1)])


def test_low_temperature_and_top_p_approach_greedy(llama):
    requests = [ask(question) for question in QUESTIONS]
    greedy = texts(chat(llama, temperature=0.0), requests)
    assert texts(chat(llama, top_p=0.0), requests) == greedy
    assert texts(chat(llama, temperature=1e-4), requests) == greedy
    assert texts(chat(llama, temperature=1.0), requests) != greedy


def test_noise_makes_greedy_choice_stochastic():
    """Frequencies of 20,000 samples are within five standard errors; excluded tokens do not occur."""
    p = torch.tensor([0.6, 0.25, 0.1, 0.05, 0.0])
    n = 20_000
    noise = GumbelNoise([np.random.default_rng(i) for i in range(n)])
    choices = noise(torch.zeros(n, 1), p.log().expand(n, -1)).argmax(dim=1)
    frequencies = torch.bincount(choices, minlength=5) / n
    for share, probability in zip(frequencies.tolist(), p.tolist(), strict=True):
        assert abs(share - probability) <= 5 * math.sqrt(probability * (1 - probability) / n)


def test_token_counts_are_exact(llama):
    model = chat(llama, temperature=0.0)
    request = ask("0.1, 0.2", system="Answer in numbers.")
    turns = ["system\nAnswer in numbers.<|im_end|>\n", "user\n0.1, 0.2<|im_end|>\n", "assistant\n"]
    prompt = "".join(f"<|im_start|>{turn}" for turn in turns)
    n_tokens = len(make_tiny_tokenizer()(prompt, add_special_tokens=False)["input_ids"])
    (reply,) = model.complete([request])
    assert model.count_tokens(request.messages) == reply.prompt_tokens == n_tokens
    assert model.cost(reply.prompt_tokens, reply.completion_tokens) == 0.0


@pytest.mark.long
def test_finish_reason_marks_truncation(llama):
    model = chat(llama, max_tokens=380)
    replies = model.complete([ask(question, repeat) for question in QUESTIONS for repeat in range(4)])
    complete = [reply for reply in replies if reply.finish == "stop"]
    assert complete and all(reply.completion_tokens <= 380 for reply in complete)
    assert not any("<|" in reply.text for reply in replies)
    # The same streams, cut: replies begin alike and say so.
    truncated = chat(llama, max_tokens=3).complete([ask("Why?")])[0]
    assert truncated.finish == "length" and truncated.completion_tokens == 3
    shortest = min(complete, key=lambda reply: reply.completion_tokens)
    question = ask(QUESTIONS[replies.index(shortest) // 4], replies.index(shortest) % 4)
    exact = chat(llama, max_tokens=shortest.completion_tokens).complete([question])[0]
    assert exact == shortest


def test_long_prompt_raises_early(llama):
    model = chat(llama)
    messages = ask("word " * 600).messages
    assert not model.fits(messages) and model.fits(ask("Hi").messages)
    assert model.context_window == 512  # from the model's config
    with pytest.raises(LLMError, match=r"512.*llm\.max_tokens"):
        model.complete([ask("Hi"), ChatRequest(messages, purpose="principal")])
    assert model._model is None
    with pytest.raises(LLMError, match=r"window.* 20"):
        chat(llama, context_window=20).complete([ask("Hi")])
    with pytest.raises(ConfigError, match=r"513.*512"):
        chat(llama, context_window=513).fits(messages)


def test_sampling_config_in_weights_is_ignored(llama, tmp_path):
    """Many models are published with a repetition penalty, top_k or a limit on replies."""
    from transformers import GenerationConfig

    folder = make_tiny_causal(tmp_path)
    GenerationConfig(
        do_sample=True, repetition_penalty=1.9, top_k=1, temperature=0.1, max_new_tokens=2, eos_token_id=[2, 5]
    ).save_pretrained(folder)
    model = chat(folder, max_tokens=60)
    assert (
        texts(model, [ask("Hi")])[0]
        == texts(chat(llama, max_tokens=60), [ask("Hi")])[0].split(model._tokenizer.decode([5]))[0]
    )
    assert model._end_tokens == {2, 5}


def test_identity_covers_settings(llama, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    base = chat(llama).identity
    for change in (
        {"dtype": "bfloat16"},
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"max_tokens": 3},
        {"revision": "v1"},
        {"chat_template": str(template)},
    ):
        assert chat(llama, **change).identity != base, change
    assert chat(llama, batch_tokens=7, context_window=50, seed=5).identity == base
    folder = make_tiny_causal(tmp_path / "model", seed=0)
    original = chat(folder).identity
    make_tiny_causal(folder, seed=1)  # retrained in place
    assert chat(folder).identity["files"] != original["files"] == base["files"]


def test_custom_template(tmp_path):
    folder = make_tiny_causal(tmp_path / "model", chat_template=None)
    with pytest.raises(LLMError, match=r"llm\.chat_template"):
        chat(folder).complete([ask("Hi")])
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    model = chat(folder, chat_template=str(template))
    (reply,) = model.complete([ask("Hi")])
    assert reply.prompt_tokens == len(make_tiny_tokenizer()("Hi")["input_ids"])
    with pytest.raises(ConfigError, match="nowhere"):
        chat(folder, chat_template="nowhere.jinja")


def test_template_error_is_reported(llama):
    with pytest.raises(LLMError, match=r"role.*llm\.chat_template"):
        chat(llama).complete([ChatRequest(({"role": "tool", "content": "5"},))])


def test_check_is_free(tmp_path, llama, monkeypatch):
    model = chat(llama)
    model.check()
    assert model._tokenizer is None and model._model is None
    with pytest.raises(LLMError, match=r"config\.json"):
        chat(tmp_path).check()
    with pytest.raises(LLMError, match="no folder"):
        chat(tmp_path / "nowhere").check()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "transformers" else find(name, *a)
    )
    with pytest.raises(LLMError, match=r"llmrl\[local-llm\]"):
        model.check()


def test_non_finite_logits_raise(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = make_tiny_causal(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    model.save_pretrained(folder)
    with pytest.raises(LLMError, match="NaN"):
        chat(folder, temperature=0.0).complete([ask("Hi")])


def test_weights_reload_after_close(llama):
    model = chat(llama)
    original = texts(model, [ask("Hi")])
    model.close()
    assert model._model is None and texts(model, [ask("Hi")]) == original


@given(lengths=st.lists(st.integers(1, 50), max_size=20), reply=st.integers(1, 20), limit=st.integers(1, 300))
def test_batches_partition_requests(lengths, reply, limit):
    batches = plan_batches(lengths, reply, limit)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * (max(lengths[i] for i in batch) + reply) <= limit
    for earlier, two in itertools.pairwise(batches):
        # No two neighbors could have gone together with the next request alone.
        assert (len(earlier) + 1) * (lengths[two[0]] + reply) > limit


def test_prompt_padding_precedes_text():
    ids, mask = pad_left([[5, 6], [7, 8, 9, 5]], pad_token=0)
    assert ids.tolist() == [[0, 0, 5, 6], [7, 8, 9, 5]]
    assert mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
