import importlib.util
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.llms.provider import TOKENS_PER_MESSAGE, estimate_tokens
from models import EchoProvider

GOLDEN = sorted((Path(__file__).parents[1] / "principals" / "golden").glob("*.txt"))


def tokenizers():
    """Return the tokenizers shipped with litellm; others require a download."""
    spec = importlib.util.find_spec("litellm")
    folder = Path(spec.origin).parent / "litellm_core_utils" / "tokenizers" if spec else Path()
    if not (folder / "anthropic_tokenizer.json").is_file():
        pytest.skip("litellm, which brings tokenizers, is an optional package")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer_name", ["claude", "gpt-4", "gpt-4o"])
def test_token_estimate_slightly_exceeds_count(tokenizer_name, monkeypatch):
    folder = tokenizers()
    if tokenizer_name == "claude":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "anthropic_tokenizer.json"))
        count = lambda text: len(tokenizer.encode(text).ids)  # noqa: E731
    else:
        import tiktoken

        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        encoding = tiktoken.encoding_for_model(tokenizer_name)
        count = lambda text: len(encoding.encode(text))  # noqa: E731
    rng = random.Random(0)
    numbers = "\n".join(f"params[{i}]: {rng.uniform(-6, 6):.5g}; f(params): {rng.gauss(0, 300):.2f}" for i in range(99))
    for text in [numbers, *(path.read_text() for path in GOLDEN)]:
        assert 1.0 <= estimate_tokens(text) / count(text) <= 1.2


@given(st.text(), st.text())
def test_estimates_grow_with_the_text(a, b):
    assert estimate_tokens(a) <= estimate_tokens(a + b) <= estimate_tokens(a) + estimate_tokens(b) + 1
    assert estimate_tokens(a) <= 2 * len(a)


def test_messages_have_token_overhead():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert EchoProvider().count_tokens(messages) == 2 + 2 * TOKENS_PER_MESSAGE


CACHED = {"input_price": 2.0, "output_price": 10.0, "cached_input_price": 1.0, "cache_write_price": 4.0}


@pytest.mark.parametrize(
    ("prices", "tokens", "dollars"),
    [
        ({"input_price": 2.0, "output_price": 10.0}, (100, 10, None), 300e-6),
        ({"input_price": 2.0, "output_price": 10.0}, (100, 10, 50), 300e-6),
        ({"input_price": 2.0, "output_price": 10.0, "cached_input_price": 0.0}, (100, 10, 50), 200e-6),
        ({"input_price": 2.0, "output_price": 10.0, "cached_input_price": 1.0}, (100, 10, 500), 200e-6),
        (CACHED, (100, 10, 50, 20), (30 * 2 + 50 * 1 + 20 * 4 + 100) / 1e6),
        (CACHED, (100, 10, 50, None), (50 * 1 + 50 * 4 + 100) / 1e6),  # untold: the dearest it can be
        (CACHED, (100, 10, 50, 500), (50 * 1 + 50 * 4 + 100) / 1e6),
        (CACHED, (100, 10, 0, 0), 300e-6),
        (CACHED, (None, 10, None, None), None),
        ({"input_price": None, "output_price": 10.0}, (100, 10, None), None),
        ({"input_price": 2.0, "output_price": None}, (100, 10, None), None),
        ({"input_price": 2.0, "output_price": 10.0}, (None, 10, None), None),
        ({"input_price": 2.0, "output_price": 10.0}, (100, None, None), None),
        ({"input_price": 0.0, "output_price": 0.0}, (None, None, None), 0.0),
    ],
)
def test_cost(prices, tokens, dollars):
    cost = EchoProvider(**prices).cost(*tokens)
    assert cost is None if dollars is None else cost == pytest.approx(dollars)
