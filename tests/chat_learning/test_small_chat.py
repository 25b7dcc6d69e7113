"""Tokenizer and chat template of small chat models."""

import pytest

from llmrl.llms.local.loading import load_tokenizer
from llmrl.llms.local.small import SmallModelShape
from llmrl.llms.local.small_chat import make_small_chat

MESSAGE = '{"observation": {"player_sum": 15, "dealer_card": 10, "usable_ace": "no"}, "start": true}'
REPLY = '{"action": "hit"}'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_chat")
    shape = SmallModelShape(width=32, layers=1, heads=2, tokens="messages")
    make_small_chat(folder, [MESSAGE, REPLY] * 20, shape, 0)
    return load_tokenizer(str(folder), None)


def test_prompt_omits_system_message(tokenizer):
    user = {"role": "user", "content": MESSAGE}
    prompts = [
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for messages in ([user], [{"role": "system", "content": "Rules."}, user])
    ]
    assert prompts[0] == prompts[1] == f"<|user|>{MESSAGE}<|assistant|>"


@pytest.mark.parametrize(("text", "limit"), [(MESSAGE, 9), (REPLY, 3)])
def test_keys_and_punctuation_share_tokens(tokenizer, text, limit):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert len(ids) <= limit


def test_unseen_text_is_encoded(tokenizer):
    text = 'Some "other" text: é, 3.5 {"unseen_key": ["a b", null]}'
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
