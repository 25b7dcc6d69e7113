"""Fixtures with small chat models for tests of training."""

import pytest

from learning_chats import COMPLETE_TEMPLATE, QUESTIONS
from llmrl.core.seeding import Seeds
from llmrl.llms.local.chat import LocalChat, LocalChatSettings
from llmrl.llms.local.small import SmallModelShape, make_small_model


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory):
    """Return the folder of an untrained small chat model whose template includes system messages."""
    folder = tmp_path_factory.mktemp("small_chat")
    texts = [*QUESTIONS, '{"action": "left"}', '{"action": "right"}'] * 20
    make_small_model(folder, texts, "chat", SmallModelShape(width=32, layers=2, heads=2, tokens="messages"), 0)
    (folder / "chat_template.jinja").write_text(COMPLETE_TEMPLATE)
    return folder


@pytest.fixture
def make_chat(chat_folder):
    """Return a factory of chat models with some options changed."""

    def make(**options):
        settings = {
            "model": str(chat_folder),
            "revision": None,
            "adapter": None,
            "dtype": "float32",
            "chat_template": None,
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 8,
            "context_window": None,
            "batch_tokens": 4096,
            "prefix_cache_tokens": 4096,
            "sampler": None,
            "learn": None,
            "make": None,
        }
        return LocalChat(LocalChatSettings(**settings | options), "cpu", Seeds(0))

    return make
